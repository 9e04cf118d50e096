//! Measures what it costs to show an application the address of its client, for each kind of address from which a proxy
//! can connect: an address of the workload itself; a stand-in address, which the agent has routed to loopback; and the
//! client's own address.
//!
//! ```text
//!   leno-bench connect-as-proxy, as the workload's proxy: its namespace, control group and user
//!      └─ connect ─► echo server of the workload     own address | stand-in address | client's address
//! ```

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use leno_console::print_text;
use leno_testkit::binaries;
use leno_testkit::lab::Lab;

use crate::connecting::{ConnectionCost, ConnectionCosts};
use crate::documents::{CLIENT_ADDRESS, mesh};
use crate::rounds::{self, CostFigure};

/// The port of the application.
const PORT: u16 = 9000;

/// The columns of the table.
const FIGURES: [CostFigure<ConnectionCost>; 2] = [
    ("CPU of a connection, us", |cost| Some(cost.cpu_us)),
    ("until the first answer, us", |cost| Some(cost.answer_us)),
];

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of connections of each kind in a round, from 1 to 20000
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,
    /// Number of rounds, from 1 to 1000; each measures the kinds in another order. The result is their median
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
}

/// Measures, and prints for each kind of address the median cost and its ratio to the cost of the proxy's own address.
pub(crate) fn run(args: Args) -> Result<bool> {
    let lab = mesh(CLIENT_ADDRESS)?;
    let costs = lab.explain(measure(&lab, args))?;
    let rows: Vec<_> = costs.iter().map(|(way, rounds)| (way.as_str(), &rounds[..])).collect();
    print_text!("{}", rounds::table("the application sees", &FIGURES, &rows));
    Ok(true)
}

fn measure(lab: &Lab, args: Args) -> Result<ConnectionCosts> {
    let status = lab.status()?;
    let web = status.instance("web")?;
    let address = SocketAddr::from((status.address("web", false)?, PORT));
    let proxy = web.proxy_cgroup()?.join("cgroup.procs");
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >\"$0\" && exec ip netns exec \"$@\""]).arg(proxy);
    command.arg(&web.surroundings.netns).arg(binaries::ours("leno-bench")?);
    command.args(["connect-as-proxy", &address.to_string()]);
    command.args(["--connections", &args.connections.to_string()]);
    command.args(["--rounds", &args.rounds.to_string()]);
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
