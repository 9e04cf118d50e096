//! The command line of Leno: parsing, and nothing else. Each command is one file in `commands`.
//!
//! Exit codes: 0 yes or done, 1 no (a check that fails, a demo that proves nothing), 2 error,
//! 64 usage (sysexits(3)).

mod commands;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    analyze, bench, bug_report, check, cleanup, completion, demo, diagnostics, exec, explain,
    inject, install, stat, uninstall, up, upgrade,
};

/// `EX_USAGE` of sysexits(3).
const USAGE: u8 = 64;

/// A service mesh for one machine or many: encrypts, authenticates, balances and measures the
/// traffic between services without changing them
#[derive(Debug, Parser)]
#[command(name = "leno", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "First steps:\n  sudo leno demo\n  sudo env PATH=$PATH leno up examples/shop/shop.yaml"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    Exec(exec::Exec),
    Stat(stat::Stat),
    Check(check::Check),
    Explain(explain::Explain),
    Analyze(analyze::Analyze),
    Diagnostics(diagnostics::Diagnostics),
    BugReport(bug_report::BugReport),
    Inject(inject::Inject),
    Uninject(inject::Uninject),
    Demo(demo::Demo),
    Bench(bench::Bench),
    Install(install::Install),
    Upgrade(upgrade::Upgrade),
    Uninstall(uninstall::Uninstall),
    Cleanup(cleanup::Cleanup),
    Completion(completion::Completion),
    /// Prints the version
    Version,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return parsing_ended(&error),
    };
    let done = match cli.command {
        Command::Up(up) => up::run(&up),
        Command::Exec(exec) => Err(exec::run(&exec)),
        Command::Stat(stat) => stat::run(&stat),
        Command::Check(check) => check::run(&check),
        Command::Explain(explain) => explain::run(&explain),
        Command::Analyze(analyze) => analyze::run(&analyze),
        Command::BugReport(bug_report) => bug_report::run(&bug_report),
        Command::Diagnostics(diagnostics) => diagnostics::run(&diagnostics),
        Command::Inject(inject) => inject::inject(&inject),
        Command::Uninject(uninject) => inject::uninject(&uninject),
        Command::Demo(demo) => demo::run(&demo),
        Command::Bench(bench) => bench::run(&bench),
        Command::Install(install) => install::run(&install),
        Command::Upgrade(upgrade) => upgrade::run(&upgrade),
        Command::Uninstall(uninstall) => uninstall::run(&uninstall),
        Command::Cleanup(cleanup) => cleanup::run(&cleanup),
        Command::Completion(completion) => completion::run(&completion, &mut Cli::command()),
        Command::Version => {
            commands::print(&format!("leno {}\n", env!("CARGO_PKG_VERSION"))).map(|()| true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // Whoever reads has seen enough.
        Err(error) if commands::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leno: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parsing_ended(error: &clap::Error) -> ExitCode {
    // Nothing can be done about a closed standard error.
    let _closed = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_says_what_it_is() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for argument in command.get_arguments() {
                let name = argument.get_id();
                assert!(argument.get_help().is_some(), "{} {name} has no help", command.get_name());
            }
        }
    }
}
