//! Two proxies, one beside the client and one beside the server, and the target of their load.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result, bail};
use leno_local::listening;
use leno_suite::lab::mesh::certificates::{Authority, spiffe_id};
use leno_testkit::binaries;
use leno_testkit::command::Running;
use leno_testkit::lab::{Lab, Piece};

use super::workloads::{APPLICATION_PORT, name, plain};
use crate::load::{Origin, Target};
use crate::measure::Subject;
use crate::process::until_it_listens;
use crate::proxy::{self, Contender, Hop, Leg, Tls};
use crate::scenario::Work;

/// The lowest port of client proxies, on loopback; each contender and kind of work adds a number.
const OUTBOUND_PORT: u16 = 15_200;
/// The lowest port of server proxies, on the instance's address.
const INBOUND_PORT: u16 = 15_300;

/// Starts the proxies of `contender`, or finds those that the mesh started. The proxies run as long
/// as the first returned value is kept.
pub(super) fn start(
    lab: &Lab,
    contender: Contender,
    work: Work,
) -> Result<(Vec<Running>, Subject)> {
    let server = format!("{}-0", plain(work));
    let server_address = lab.status()?.address(&server, false)?;
    let (client, address, running, pids, version) = match contender {
        Contender::Leno => {
            let server = format!("{}-0", name(work));
            let pids = [Piece::Proxy("client-0"), Piece::Proxy(&server)].map(|it| lab.pid_of(it));
            let pids = pids.into_iter().collect::<Result<Vec<u32>>>()?;
            let proxy = Command::new(binaries::ours("leno-proxy")?);
            let version = proxy::version(contender, &proxy)?;
            ("client", format!("{}:{APPLICATION_PORT}", name(work)), vec![], pids, version)
        }
        Contender::None => {
            let address = SocketAddr::from((server_address, APPLICATION_PORT));
            ("plain-client", address.to_string(), vec![], vec![], String::new())
        }
        Contender::Nginx => bail!("nginx speaks HTTP/1 alone to servers behind TLS"),
        Contender::Haproxy | Contender::Envoy => {
            let hops = hops(lab, contender, work, server_address)?;
            let version =
                proxy::version(contender, &proxy_command(lab, contender, &hops[0], "version")?)?;
            let client = proxy(lab, "plain-client", contender, &hops[0])?;
            let server = proxy(lab, &plain(work), contender, &hops[1])?;
            let pids = vec![client.pid(), server.pid()];
            let address = hops[0].address.to_string();
            ("plain-client", address, vec![client, server], pids, version)
        }
    };
    let origin = Origin::through(&exec(lab, client));
    let target = Target { origin, address };
    Ok((running, Subject { bench: "mesh", contender, work, version, target, pids }))
}

/// The command that executes the arguments after it inside workload `who`.
fn exec(lab: &Lab, who: &str) -> Command {
    let mut command = lab.leno("exec");
    command.args([who, "--"]);
    command
}

/// The configurations of the client's proxy and of the server's.
fn hops(lab: &Lab, contender: Contender, work: Work, server: IpAddr) -> Result<[Hop; 2]> {
    let number = contender as u16 * 10 + work as u16;
    let authority = Authority::new()?;
    let tls = |own: &str, other: &str| -> Result<Leg> {
        let directory = lab.directory().join(format!("{contender}-{}-{own}", name(work)));
        fs::create_dir_all(&directory)?;
        authority.write(&directory, own)?;
        Ok(Leg { http2: true, tls: Some(Tls { directory, other: spiffe_id(other) }) })
    };
    let inbound = SocketAddr::from((server, INBOUND_PORT + number));
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Ok([
        Hop {
            address: loopback(OUTBOUND_PORT + number),
            backend: inbound,
            work,
            accept: Leg::plain(work),
            connect: tls("client", "server")?,
        },
        Hop {
            address: inbound,
            backend: loopback(APPLICATION_PORT),
            work,
            accept: tls("server", "client")?,
            connect: Leg::plain(work),
        },
    ])
}

/// Starts one proxy inside workload `who` and waits until it listens.
fn proxy(lab: &Lab, who: &str, contender: Contender, hop: &Hop) -> Result<Running> {
    let root = format!("{contender}-{who}-{}", hop.address.port());
    let command = proxy_command(lab, contender, hop, &root)?;
    let mut as_workload = Origin::through(&exec(lab, who)).command(command.get_program());
    as_workload.args(command.get_args());
    let running = Running::start(&mut as_workload)?;
    let pid = i32::try_from(running.pid())?;
    let listens = || listening::closed(pid, &[hop.address.port()]).is_empty();
    until_it_listens(running, &format!("{contender} as {who}"), listens)
}

fn proxy_command(lab: &Lab, contender: Contender, hop: &Hop, root: &str) -> Result<Command> {
    let root = lab.directory().join(root);
    fs::create_dir_all(&root)?;
    proxy::command(contender, hop, &root)?.context("this one is no process")
}
