//! The way out of the machine: `leno up --uplink` on a machine that a namespace plays.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, Options, Piece};
use leno_testkit::resolver::{Resolver, Says};
use leno_testkit::{netns, wait};
use nix::sys::signal::Signal;

use super::{Case, alone};
use crate::outside::{ADDRESS, Machine, Outside};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(workloads_reach_what_the_machine_does),
        alone!(the_last_mesh_puts_the_machine_back),
        alone!(what_no_route_leads_to_names_the_remedy),
    ]
}

/// How long something outside may take to be known and to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// A name outside.
const HOST: &str = "far.example";
/// Requests where one must do.
const MANY: u32 = 20;

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

/// A machine with a network outside, and a resolver on it.
struct World {
    outside: Outside,
    machine: Machine,
    resolver: Resolver,
}

impl World {
    fn new() -> Result<Self> {
        let machine = Machine::new()?;
        let mut outside = Outside::of(&machine)?;
        outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:80", "--name", "outside"])?;
        let resolver = netns::inside(&netns::path(machine.name()), Resolver::start)?;
        resolver.set(HOST, Says::Addresses(vec![Outside::FAR.parse()?], 1));
        Ok(World { outside, machine, resolver })
    }

    fn up(&self, capture: Capture, uplink: bool) -> Result<Lab> {
        let options = Options {
            machine: Some(self.machine.name().to_owned()),
            uplink,
            resolver: Some(self.resolver.address()),
            ..Options::new(capture)
        };
        Lab::start(&options, MESH, |_| Ok(()))
    }

    fn forwards(&self) -> Result<bool> {
        Ok(self.machine.says(&["cat", "/proc/sys/net/ipv4/ip_forward"])?.trim() == "1")
    }

    /// What meshes have made on the machine.
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
        Ok(())
    }
}

/// Status, who served it, and the cause where the mesh answers.
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

/// By address and by name, near and behind the machine's default route, with a proxy and without. The
/// servers know no way back but to the machine's own address.
fn workloads_reach_what_the_machine_does(capture: Capture) -> Result<()> {
    let world = World::new()?;
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
    // Nobody comes in by it, not even who has a route: what is not asked for is dropped, not refused.
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
    world.is_as_before()?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

/// Two meshes side by side, of which one is killed; whoever cleans up runs in another namespace.
fn the_last_mesh_puts_the_machine_back(capture: Capture) -> Result<()> {
    let world = World::new()?;
    ensure!(!world.forwards()?, "a new namespace forwards");
    let (first, second) = (world.up(capture, true)?, world.up(capture, true)?);
    for lab in [&first, &second] {
        comes(lab, "client", "http://far/", "200 outside")?;
    }
    ensure!(world.made()?.lines().count() == 4, "{}", world.made()?);
    first.end()?;
    ensure!(world.forwards()?, "the first took forwarding from the second");
    comes(&second, "client", "http://far/", "200 outside")?;
    second.kill(Piece::Owner, Signal::SIGKILL)?;
    ensure!(world.forwards()?, "nobody has cleaned up yet");
    second.clean_up()?;
    world.is_as_before()?;
    let remains = second.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

fn what_no_route_leads_to_names_the_remedy(capture: Capture) -> Result<()> {
    let world = World::new()?;
    let lab = world.up(capture, false)?;
    let expected = "503  connect-unreachable; remedy=\"no route leads there; out of the machine, leno up \
                    --uplink makes one\"";
    comes(&lab, "client", "http://far/", expected)?;
    let metrics = lab.metrics("client")?;
    ensure!(metrics.contains("cause=\"connect-unreachable\""), "{metrics}");
    world.is_as_before()?;
    lab.end()
}
