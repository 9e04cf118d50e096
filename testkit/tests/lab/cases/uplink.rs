//! Tests connections out of the machine: `leno up --uplink` on a machine that a namespace simulates.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::resolver::{DnsAnswer, Resolver};
use leno_testkit::{binaries, command, netns, wait};
use nix::sys::signal::Signal;

use super::{Case, alone};
use crate::outside::{ADDRESS, Machine, Outside};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(workloads_reach_what_the_machine_does),
        alone!(the_last_mesh_restores_the_machine),
        alone!(meshes_that_end_together_restore_the_machine),
        alone!(a_failed_start_leaves_nothing_behind_and_removes_nothing),
        alone!(an_unreachable_destination_names_the_remedy),
    ]
}

/// How long it may take until an external name or address can be reached.
const LIMIT: Duration = Duration::from_secs(90);
/// The DNS name of an external server.
const HOST: &str = "far.example";
/// How many times a request that must always succeed is repeated.
const MANY: u32 = 20;

/// The sysctl that makes the machine accept ICMP redirects.
const REDIRECTS: &str = "/proc/sys/net/ipv4/conf/all/accept_redirects";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: lab}
spec: {type: ExternalName, externalName: far.example, ports: [{port: 80, appProtocol: http}]}
";

/// A simulated machine with a network outside, and a resolver on the machine.
struct UplinkLab {
    outside: Outside,
    machine: Machine,
    resolver: Resolver,
}

impl UplinkLab {
    fn new() -> Result<Self> {
        let machine = Machine::new()?;
        let mut outside = Outside::of(&machine)?;
        outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:80", "--name", "outside"])?;
        let resolver = netns::inside(&netns::path(machine.name()), Resolver::start)?;
        resolver.set(HOST, DnsAnswer::Addresses(vec![Outside::FAR.parse()?], 1));
        // The kernel sets this value when forwarding is disabled.
        machine.says(&["sh", "-c", &format!("echo 0 > {REDIRECTS}")])?;
        Ok(UplinkLab { outside, machine, resolver })
    }

    fn up(&self, capture: Capture, uplink: bool) -> Result<Lab> {
        let options = LabOptions {
            machine: Some(self.machine.name().to_owned()),
            uplink,
            resolver: Some(self.resolver.address()),
            ..LabOptions::new(capture)
        };
        Lab::start(&options, MESH, |_| Ok(()))
    }

    fn forwards(&self) -> Result<bool> {
        Ok(self.machine.says(&["cat", "/proc/sys/net/ipv4/ip_forward"])?.trim() == "1")
    }

    /// The interfaces and tables that meshes have created on the machine.
    fn made(&self) -> Result<String> {
        let links = self.machine.says(&["ip", "-o", "link"])?;
        let tables = self.machine.says(&["nft", "list", "tables"])?;
        let lines = links.lines().chain(tables.lines()).filter(|line| line.contains("leno"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn is_as_before(&self) -> Result<()> {
        let made = self.made()?;
        ensure!(made.is_empty(), "left on the machine: {made}");
        ensure!(!self.forwards()?, "the machine still forwards");
        let redirects = self.machine.says(&["cat", REDIRECTS])?;
        ensure!(redirects.trim() == "0", "the machine listens to redirects, as it did not before");
        Ok(())
    }

    /// Runs `leno` on the machine for the mesh with this name, with an empty PATH.
    fn alone(&self, name: &str, words: &[&str]) -> Result<std::process::Output> {
        let mut leno = Command::new(binaries::ours("leno")?);
        leno.arg(words[0]).args(["--name", name]).args(&words[1..]).env("PATH", "/nonexistent");
        let run = || command::run(&mut leno, LIMIT);
        netns::inside(&netns::path(self.machine.name()), run)
    }
}

/// The status, the server that responds, and the cause if the mesh itself responds.
fn asks(lab: &Lab, who: &str, url: &str) -> Result<String> {
    let shown = "%{http_code} %header{x-served-by} %header{leno-error}";
    let said = lab.exec(who, &["curl", "-s", "-m", "10", "-o", "/dev/null", "-w", shown, url])?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn comes(lab: &Lab, who: &str, url: &str, expected: &str) -> Result<()> {
    let mut last = String::new();
    let came = wait::until(expected, LIMIT, || {
        last = asks(lab, who, url)?;
        Ok(last.starts_with(expected).then_some(()))
    });
    lab.explain(came.with_context(|| format!("{who}, {url}: {last:?} in place of {expected:?}")))
}

/// Destinations are reached by address and by name, in the machine's own network and behind its default route,
/// with a proxy and without. The servers have a route only to the machine's own address.
fn workloads_reach_what_the_machine_does(capture: Capture) -> Result<()> {
    let world = UplinkLab::new()?;
    let lab = world.up(capture, true)?;
    ensure!(lab.log().contains("through interface leno-"), "{}", lab.log());
    let (near, far) = (format!("http://{ADDRESS}/"), format!("http://{}/", Outside::FAR));
    for who in ["client", "plain"] {
        comes(&lab, who, &near, "200 outside")?;
        comes(&lab, who, &far, "200 outside")?;
        comes(&lab, who, "http://far/", "200 outside")?;
        comes(&lab, who, &format!("http://{HOST}/"), "200 outside")?;
    }
    for _ in 0..MANY {
        let said = asks(&lab, "client", "http://far/")?;
        ensure!(said == "200 outside", "{said}");
    }
    // The uplink admits no connection from outside, not even from a host with a route to it. Such packets are
    // dropped, not refused.
    let ends =
        world.machine.says(&["ip", "-o", "-4", "address", "show", "to", "169.254.96.0/20"])?;
    let near = ends.split_whitespace().nth(3).and_then(|end| end.split('/').next());
    let near: Ipv4Addr = near.with_context(|| ends.clone())?.parse()?;
    let far = Ipv4Addr::from(u32::from(near) + 1);
    world.outside.routes("169.254.96.0/20", "198.51.100.1")?;
    let knock = |address: Ipv4Addr| {
        let script = format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/9'; echo $?");
        world.outside.says(&["bash", "-c", &script])
    };
    ensure!(knock(near)?.trim() == "1", "the machine itself refuses");
    ensure!(knock(far)?.trim() == "124", "a packet from outside came in");
    lab.end()?;
    lab.explain(world.is_as_before())?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

/// Two meshes run at the same time. One is killed, and the cleanup runs in another namespace.
fn the_last_mesh_restores_the_machine(capture: Capture) -> Result<()> {
    let world = UplinkLab::new()?;
    ensure!(!world.forwards()?, "a new namespace forwards");
    let (first, second) = (world.up(capture, true)?, world.up(capture, true)?);
    for lab in [&first, &second] {
        comes(lab, "client", "http://far/", "200 outside")?;
    }
    ensure!(world.made()?.lines().count() == 4, "{}", world.made()?);
    first.end()?;
    ensure!(world.forwards()?, "the first took forwarding from the second");
    comes(&second, "client", "http://far/", "200 outside")?;
    second.kill(MeshProcess::Owner, Signal::SIGKILL)?;
    ensure!(world.forwards()?, "it is not cleaned up yet");
    second.clean_up()?;
    world.is_as_before()?;
    let remains = second.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

/// First, two meshes end at the same time. Then one ends while another has created its table but not yet its
/// record.
fn meshes_that_end_together_restore_the_machine(capture: Capture) -> Result<()> {
    let world = UplinkLab::new()?;
    let (first, second) = (world.up(capture, true)?, world.up(capture, true)?);
    let ended = std::thread::scope(|scope| {
        let first = scope.spawn(|| first.end());
        (second.end(), first.join())
    });
    ended.0?;
    ended.1.map_err(|_| anyhow!("a thread panicked"))??;
    world.is_as_before()?;
    let first = world.up(capture, true)?;
    let table = world.made()?;
    let table = table.lines().find_map(|line| line.strip_prefix("table inet ").map(str::to_owned));
    let table = table.context("there is no table")?;
    let second = world.up(capture, true)?;
    first.kill(MeshProcess::Owner, Signal::SIGKILL)?;
    world.machine.says(&["nft", "delete", "table", "inet", &table])?;
    second.end()?;
    ensure!(!world.forwards()?, "a record alone keeps forwarding on");
    first.clean_up()?;
    world.is_as_before()
}

/// Tests a start without `nft`, and a start while another mesh with the same name has an uplink.
fn a_failed_start_leaves_nothing_behind_and_removes_nothing(capture: Capture) -> Result<()> {
    let world = UplinkLab::new()?;
    let lab = world.up(capture, true)?;
    let link = world.made()?;
    let link = link.lines().find_map(|line| line.strip_prefix("table inet ").map(str::to_owned));
    let link = link.context("there is no table")?;
    lab.end()?;
    lab.explain(world.is_as_before())?;
    let file = lab.directory().join("mesh.yaml");
    let up = ["up", "--capture", capture.name(), "--uplink", file.to_str().context("no UTF-8")?];
    let own = Path::new("/run/leno").join(lab.name());
    let said = world.alone(lab.name(), &up)?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(!said.status.success() && text.contains("install nftables"), "{text}");
    ensure!(!own.exists(), "the name of the mesh is held: {text}");
    let said = world.alone(lab.name(), &["cleanup"])?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));

    world.machine.says(&["ip", "link", "add", &link, "type", "bridge"])?;
    let mut leno = lab.leno("up");
    leno.args(&up[1..]);
    let again =
        netns::inside(&netns::path(world.machine.name()), || command::run(&mut leno, LIMIT))?;
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(!again.status.success() && text.contains("exists already"), "{text}");
    ensure!(world.made()?.contains(&link), "what was there is gone: {text}");
    ensure!(!own.exists(), "the name of the mesh is held: {text}");
    Ok(())
}

fn an_unreachable_destination_names_the_remedy(capture: Capture) -> Result<()> {
    let world = UplinkLab::new()?;
    let lab = world.up(capture, false)?;
    let expected = "503  connect-unreachable; remedy=\"no route leads there: check whether the pod or node still \
                    exists; under leno up, add --uplink for other networks\"";
    comes(&lab, "client", "http://far/", expected)?;
    let metrics = lab.metrics("client")?;
    ensure!(metrics.contains("cause=\"connect-unreachable\""), "{metrics}");
    world.is_as_before()?;
    lab.end()
}
