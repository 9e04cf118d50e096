//! Connects to an application again and again, in the place of its proxy and in the same ways as the proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_console::print_line;
use leno_testkit::usage::cpu_of_this_thread;
use leno_transport::{ClientAddress, Shown};
use leno_types::ports::PROXY_UID;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rounds::in_turns;

/// The client on whose behalf connections are made: no host has this address (RFC 5737).
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 40_000);

/// Connect to an application as its proxy does, in each way in turn, and print the cost as JSON.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ConnectingPlan {
    /// The workload's address and the port of its echo server
    address: SocketAddr,
    /// Connections of each way in a round
    #[arg(long)]
    connections: u32,
    /// Rounds
    #[arg(long)]
    rounds: u32,
}

/// What one connection cost, on average over a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionCost {
    /// CPU of the connecting side.
    pub(crate) cpu_us: f64,
    /// From the start of the connection until the first byte of the answer.
    pub(crate) answer_us: f64,
}

/// For each way to connect, its name as in the proxy's `/config`, and what a connection cost in each round.
pub(crate) type ConnectionCosts = Vec<(String, Vec<ConnectionCost>)>;

/// Runs the plan and prints the costs.
pub(crate) fn run(plan: &ConnectingPlan) -> Result<bool> {
    print_line!("{}", serde_json::to_string(&costs(plan)?)?);
    Ok(true)
}

/// Runs the plan in this process, which becomes the proxy's user.
fn costs(plan: &ConnectingPlan) -> Result<ConnectionCosts> {
    setgroups(&[]).context("cannot leave root's groups")?;
    setgid(Gid::from_raw(PROXY_UID))?;
    setuid(Uid::from_raw(PROXY_UID))?;
    ensure!(
        Shown::now() == Shown::Client,
        "no kernel program shows clients' addresses in this \
         namespace: run it in a namespace with capture by eBPF"
    );
    let ways = [Shown::Own, Shown::StandIn, Shown::Client];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let costs = in_turns(ways.len(), plan.rounds, |nth| {
        runtime.block_on(connect(&ClientAddress::always(ways[nth]), plan))
    })?;
    Ok(ways.iter().map(|way| way.name().to_owned()).zip(costs).collect())
}

async fn connect(addresses: &ClientAddress, plan: &ConnectingPlan) -> Result<ConnectionCost> {
    let application = SocketAddr::from((Ipv4Addr::LOCALHOST, plan.address.port()));
    let (mut answered, before) = (Duration::ZERO, cpu_of_this_thread()?);
    for _ in 0..plan.connections {
        let begun = Instant::now();
        let mut stream = addresses.connect(application, (CLIENT, plan.address.ip())).await?;
        stream.write_all(b"x").await?;
        stream.read_exact(&mut [0]).await?;
        answered += begun.elapsed();
        // Closing the connection now resets it, so that no port stays in TIME_WAIT.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    let each = |sum: Duration| sum.as_secs_f64() * 1e6 / f64::from(plan.connections);
    Ok(ConnectionCost {
        cpu_us: each(cpu_of_this_thread()?.saturating_sub(before)),
        answer_us: each(answered),
    })
}
