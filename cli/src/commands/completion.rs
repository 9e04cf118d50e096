//! Implements the command `leno completion`, and the completion of command lines for the scripts that it prints.
//!
//! A script calls `leno` with the words of the line and the variable [`COMPLETES`]. The answer is what may come next:
//! commands, options, their values, files, and names in running meshes. Lines that begin with `leno bench` are
//! completed by `leno-bench`.

mod names;

use std::os::unix::process::CommandExt as _;
use std::process::Command as Process;

use anyhow::{Context as _, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};
use leno_console::COMPLETES;

use super::bench;
use names::{instances, meshes, namespaces, values};

/// If this variable is set as well, `leno` completes a line as root if sudo needs no password. Only root can read which
/// meshes and workloads run.
const AS_ROOT: &str = "LENO_COMPLETE_SUDO";

/// zsh loads the completion script from its `fpath` when the user first presses Tab. This line makes the script
/// answer that first Tab as well.
const AUTOLOADED: &str = "[[ $funcstack[1] = _leno ]] && _clap_dynamic_completer_leno\n";

/// The commands whose arguments name something that runs on this machine.
const OF_MESHES: [&str; 26] = [
    "analyze",
    "authz",
    "bug-report",
    "check",
    "cleanup",
    "dashboard",
    "diagnostics",
    "down",
    "edges",
    "exec",
    "explain",
    "flows",
    "logs",
    "mcp",
    "open",
    "port-forward",
    "proxy",
    "ps",
    "restart",
    "routes",
    "slo",
    "stat",
    "tap",
    "top",
    "trace-request",
    "why",
];

/// Prints the script that completes commands in a shell
///
/// The script completes commands, options and their values, files, and the names of running meshes, namespaces,
/// workloads and instances. Only root can read these names. For other users they are completed if
/// LENO_COMPLETE_SUDO=1 is set and sudo needs no password.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  source <(leno completion bash)\n  \
                        leno completion bash > /etc/bash_completion.d/leno\n  \
                        leno completion fish > ~/.config/fish/completions/leno.fish")]
pub(crate) struct Completion {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(completion: &Completion) -> Result<bool> {
    let (name, shells) = (completion.shell.to_string(), Shells::builtins());
    let shell = shells.completer(&name).context("clap_complete has no such shell")?;
    let mut script = Vec::new();
    shell.write_registration(COMPLETES, "leno", "leno", "leno", &mut script)?;
    if completion.shell == Shell::Zsh {
        script.extend_from_slice(AUTOLOADED.as_bytes());
    }
    super::print_raw(&String::from_utf8(script)?)?;
    Ok(true)
}

/// If this process was started to complete a line, completes the line and ends the process.
pub(crate) fn complete(command: fn() -> Command) {
    if std::env::var_os(COMPLETES).is_none() {
        return;
    }
    if is_of_bench(std::env::args_os().map(|word| word.to_string_lossy().into_owned())) {
        // Returns if there is no such program. Then its commands cannot be run either.
        let _missing = bench::start(std::env::args_os().skip(1));
    }
    if std::env::var(AS_ROOT).is_ok_and(|value| value == "1")
        && !leno_local::layout::Layout::visible()
    {
        as_root();
    }
    CompleteEnv::with_factory(|| completing(command())).var(COMPLETES).complete();
}

/// The command, with completers for arguments whose values the parser does not know.
fn completing(command: Command) -> Command {
    let of_meshes = OF_MESHES.contains(&command.get_name());
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "name" if of_meshes => argument.add(meshes()),
        "namespace" | "namespaces" if of_meshes => argument.add(namespaces()),
        "workload" | "workloads" | "client" | "from" | "peer" | "pod" if of_meshes => {
            argument.add(instances())
        }
        "mtls" => argument.add(values(&["disabled", "permissive", "strict"])),
        "egress" => argument.add(values(&["allow", "deny"])),
        "capture" => argument.add(values(&["auto", "ebpf", "iptables", "nftables"])),
        "flow_metrics" => argument.add(values(&["off", "packets", "requests", "sockets"])),
        _ => argument,
    });
    command.mut_subcommands(completing)
}

/// Whether `leno-bench` completes the line. The words of the line are the arguments of this process after the first
/// `--`.
fn is_of_bench(arguments: impl Iterator<Item = String>) -> bool {
    let words: Vec<String> = arguments.skip_while(|word| word != "--").skip(2).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    matches!(words[..], ["bench", _, ..] | ["help", "bench", _, ..])
}

/// Runs the same command as root instead of this process. Returns if that needs a password.
fn as_root() {
    let Ok(program) = std::env::current_exe() else { return };
    let may = Process::new("sudo").args(["-n", "true"]).output();
    if !may.is_ok_and(|may| may.status.success()) {
        return;
    }
    // The variables that the script has set, which sudo would drop.
    let set = std::env::vars().filter(|(name, _)| name == COMPLETES || name.starts_with("_CLAP_"));
    let set = set.map(|(name, value)| format!("{name}={value}"));
    // `exec` returns only if sudo cannot be started. The line is then completed without names.
    let _error = Process::new("sudo")
        .args(["-n", "env"])
        .args(set)
        .arg(program)
        .args(std::env::args_os().skip(1))
        .exec();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn lines_of_the_bench_are_told_from_others() {
        let is_of_bench = |line: &str| is_of_bench(line.split(' ').map(str::to_owned));
        for of_bench in
            ["leno -- leno bench ", "leno -- leno bench run h", "leno -- leno help bench "]
        {
            assert!(is_of_bench(of_bench), "{of_bench}");
        }
        for other in ["leno -- leno bench", "leno -- leno stat bench ", "leno -- leno ", "leno"] {
            assert!(!is_of_bench(other), "{other}");
        }
    }

    #[test]
    fn every_command_whose_arguments_are_completed_is_there() {
        fn names(command: &Command) -> Vec<String> {
            let own = command.get_subcommands();
            own.flat_map(|one| [vec![one.get_name().to_owned()], names(one)].concat()).collect()
        }
        let all = names(&crate::Cli::command());
        for name in OF_MESHES {
            assert!(all.iter().any(|one| one == name), "{name}");
        }
    }
}
