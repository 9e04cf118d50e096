//! The command line of Leno. Only parsing happens here; each command has its own file in `commands`.
//!
//! Exit codes: see [`leno_console`].

mod commands;
mod overview;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    analyze, authz, bench, bug_report, check, cleanup, completion, dashboard, demo, diagnostics,
    down, ebpf, edges, exec, explain, flows, guard, identity, inject, install, logs, man, mcp,
    observer, open, port_forward, ps, restart, routes, slo, stat, tap, top, trace_request,
    uninstall, up, upgrade, why,
};

/// The version, which also states whether the program was built with the FIPS module.
const VERSION: &str = match cfg!(feature = "fips") {
    true => concat!(env!("CARGO_PKG_VERSION"), "+fips"),
    false => env!("CARGO_PKG_VERSION"),
};

/// A service mesh for one machine or a Kubernetes cluster: encrypts, authenticates, balances and measures the traffic
/// between services without changing them
#[derive(Debug, Parser)]
#[command(name = "leno", version = VERSION, max_term_width = 100, arg_required_else_help = true)]
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
    Down(down::Down),
    Ps(ps::Ps),
    Logs(logs::Logs),
    Restart(restart::Restart),
    PortForward(port_forward::PortForward),
    Open(open::Open),
    Exec(exec::Exec),
    Stat(stat::Stat),
    Edges(edges::Edges),
    Routes(routes::Routes),
    Top(top::Top),
    Tap(tap::Tap),
    TraceRequest(trace_request::TraceRequest),
    Dashboard(dashboard::Dashboard),
    Mcp(mcp::Mcp),
    Why(why::Why),
    Slo(slo::Slo),
    Flows(flows::Flows),
    Check(check::Check),
    Explain(explain::Explain),
    Authz(authz::Authz),
    Identity(identity::Identity),
    #[command(hide = true)]
    Guard(guard::Guard),
    #[command(hide = true)]
    Observer(observer::Observer),
    Analyze(analyze::Analyze),
    Diagnostics(diagnostics::Diagnostics),
    Ebpf(ebpf::Ebpf),
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
    #[command(hide = true)]
    Man(man::Man),
    /// Prints the version
    Version,
}

fn main() -> ExitCode {
    completion::complete(Cli::command);
    if let Some(words) = bench::help(std::env::args_os().skip(1)) {
        return leno_console::ended("leno", &bench::start(words.iter()));
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return leno_console::not_parsed(error),
    };
    let done = match cli.command {
        Command::Up(up) => up::run(&up),
        Command::Down(down) => down::run(&down),
        Command::Ps(ps) => ps::run(&ps),
        Command::Logs(logs) => logs::run(&logs),
        Command::Restart(restart) => restart::run(&restart),
        Command::PortForward(port_forward) => port_forward::run(&port_forward),
        Command::Open(open) => open::run(&open),
        Command::Exec(exec) => return exec::run(&exec),
        Command::Stat(stat) => stat::run(&stat),
        Command::Edges(edges) => edges::run(&edges),
        Command::Routes(routes) => routes::run(&routes),
        Command::Top(top) => top::run(&top),
        Command::Tap(tap) => tap::run(&tap),
        Command::TraceRequest(trace) => trace_request::run(&trace),
        Command::Dashboard(dashboard) => dashboard::run(&dashboard),
        Command::Mcp(mcp) => mcp::run(&mcp),
        Command::Why(why) => why::run(&why),
        Command::Slo(slo) => slo::run(&slo),
        Command::Observer(observer) => observer::run(&observer),
        Command::Flows(flows) => flows::run(&flows),
        Command::Ebpf(ebpf) => ebpf::run(&ebpf),
        Command::Check(check) => check::run(&check),
        Command::Explain(explain) => explain::run(&explain),
        Command::Authz(authz) => authz::run(&authz),
        Command::Identity(identity) => identity::run(&identity),
        Command::Guard(guard) => guard::run(&guard),
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
        Command::Completion(completion) => completion::run(&completion),
        Command::Man(man) => man::run(&man, Cli::command()),
        Command::Version => commands::print(&format!("leno {VERSION}\n")).map(|()| true),
    };
    leno_console::ended("leno", &done)
}

/// Parses the command line. The help lists the commands in sections, which are made only when the help is
/// requested.
fn parse() -> Result<Cli, clap::Error> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let again = overview::in_sections(Cli::command()).try_get_matches();
            again.err().unwrap_or(error)
        }
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command() {
        let page = leno_testkit::reference::page(Cli::command(), "leno");
        leno_testkit::reference::check("leno.md", &page);
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
