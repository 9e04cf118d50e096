//! Answers to the shell scripts of `leno completion`, for lines that begin with `leno bench`: `leno` has this program
//! complete them.

use std::collections::BTreeSet;

use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use leno_console::COMPLETES;
use leno_suite::generator::Generator;
use leno_suite::lab::mesh;
use leno_suite::mesh_names;
use leno_suite::scenario::{self, Scenario};

/// If this process was started to complete a line, completes it and ends the process.
pub(crate) fn complete(bench: fn() -> Command) {
    if std::env::var_os(COMPLETES).is_some() {
        CompleteEnv::with_factory(|| leno(bench())).var(COMPLETES).complete();
    }
}

/// `leno` with one command, `bench`.
fn leno(bench: Command) -> Command {
    Command::new("leno").subcommand(completing(bench.name("bench")))
}

/// The command, with candidates for arguments whose values the parser does not know.
fn completing(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|argument| match (name.as_str(), argument.get_id().as_str()) {
        ("run", "scenarios") => argument.add(scenarios(|_| true)),
        ("http" | "mesh", "scenarios") => argument.add(scenarios(|one| one.one_proxy)),
        ("list", "application") => argument.add(scenarios(Scenario::is_an_application)),
        (_, "meshes") => argument.add(names(|| mesh::names().chain(mesh_names::CLUSTER))),
        (_, "generators") => {
            argument.add(names(|| Generator::ALL.into_iter().map(Generator::name)))
        }
        _ => argument,
    });
    command.mut_subcommands(completing)
}

/// The names of these scenarios.
fn scenarios(which: fn(&Scenario) -> bool) -> ArgValueCandidates {
    // The file of scenarios is a part of this program, and its tests read it.
    names(move || scenario::all().unwrap_or_default().into_iter().filter(which).map(|one| one.name))
}

/// Each of these names, once.
fn names<T: Into<String>, N: Iterator<Item = T>>(
    all: impl Fn() -> N + Send + Sync + 'static,
) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let all: BTreeSet<String> = all().map(Into::into).collect();
        all.into_iter().map(CompletionCandidate::new).collect()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// What is offered for the last word of a line.
    fn offered(line: &str) -> Vec<String> {
        let words: Vec<std::ffi::OsString> = line.split(' ').map(Into::into).collect();
        let (last, mut leno) = (words.len() - 1, leno(crate::Args::command()));
        leno.build();
        let all = clap_complete::engine::complete(&mut leno, words, last, None).unwrap();
        let all = all.into_iter().map(|one| one.get_value().to_string_lossy().into_owned());
        all.filter(|one| !one.starts_with("--")).collect()
    }

    #[test]
    fn commands_scenarios_meshes_and_generators_are_offered() {
        for (line, some) in [
            ("leno bench ", &["run", "report", "list", "http"][..]),
            ("leno bench ru", &["run"]),
            ("leno bench run ", &["http-1k", "faces"]),
            ("leno bench run http-1k gr", &["grpc-1k-open"]),
            ("leno bench run http-1k --mesh ", &["none", "leno", "istio-ambient"]),
            ("leno bench run http-1k --mesh none,is", &["none,istio", "none,istio-ambient"]),
            ("leno bench run http-1k --generator f", &["fortio"]),
            ("leno bench http --proxies e", &["envoy"]),
            ("leno help bench ru", &["run"]),
        ] {
            let offered = offered(line);
            for one in some {
                assert!(offered.iter().any(|offer| offer == one), "{line:?}: {one}: {offered:?}");
            }
            let begun = line.rsplit(' ').next().unwrap_or_default();
            assert!(offered.iter().all(|offer| offer.starts_with(begun)), "{line:?}: {offered:?}");
        }
        let of_one_proxy = offered("leno bench http --scenarios ");
        assert!(!of_one_proxy.is_empty() && !of_one_proxy.contains(&"faces".to_owned()));
        assert!(offered("leno bench list --application ").contains(&"faces".to_owned()));
    }
}
