//! Tests workloads of one process that send to each other in memory. Everything else must be the same as over the
//! network.
//!
//! ```text
//! client ──► web (HTTP), calls (gRPC), guest (bytes)      all in one process
//! ```

use std::fs;
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Transcript;
use leno_testkit::sniff::Sniffer;
use leno_testkit::{command, wait};

use super::calls::peer;
use super::disturbance::pull_cable;
use super::node::{GUEST, LIMIT, MESH, echoes, has_nothing_lost, status, stream_to};
use super::{Case, once};

const CALLS: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab, labels: {app: calls}, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec:
  serviceAccount: calls
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
";

/// The size of the bodies that are sent while packets are captured.
const BODY: usize = 1024 * 1024;
/// Most bytes for the handshakes of connections that are opened meanwhile, and for probes of open ones.
const HANDSHAKES: usize = 64 * 1024;

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(what_workloads_of_one_process_send_each_other_is_not_on_the_network),
        once!(a_network_that_is_cut_ends_what_workloads_of_one_process_have_in_memory),
        once!(a_revocation_ends_a_connection_in_memory),
        once!(workloads_of_one_process_use_the_network_where_they_are_told_to_or_have_no_mtls),
    ]
}

fn start(options: &LabOptions) -> Result<(Lab, String)> {
    let peer = peer()?;
    let lab = Lab::start(options, &format!("{MESH}{GUEST}{CALLS}"), |_| Ok(()))?;
    lab.explain(lab.reach("client", "web:8080").map(drop))?;
    Ok((lab, peer))
}

fn strict(capture: Capture) -> LabOptions {
    LabOptions { mtls: Some("strict"), one_pass: true, ..LabOptions::new(capture) }
}

/// The number of connections of `who` that were moved to memory.
fn in_memory(lab: &Lab, who: &str, direction: &str) -> Result<u64> {
    measured(lab, who, &format!("leno_connections_in_process_total{{direction=\"{direction}\"}} "))
}

fn measured(lab: &Lab, who: &str, name: &str) -> Result<u64> {
    let metrics = lab.metrics(who)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.with_context(|| format!("{who} has no {name}"))?.parse()?)
}

/// Sends requests of each protocol, with bodies.
fn talk(lab: &Lab, peer: &str) -> Result<()> {
    download(lab, BODY)?;
    let body = "x".repeat(100_000);
    let curl = ["curl", "-sS", "-m", "60", "--fail", "-d", &body, "http://web:8080/echo"];
    ensure!(lab.text("client", &curl)? == body, "the body is not what was sent");
    // There are so many requests at once that the proxies use HTTP/2 between them.
    let url = "http://web:8080/?size=20000&delay_ms=100";
    let load = ["--url", url, "--rate", "100", "--connections", "20", "--duration", "1s"];
    let report = lab.load("client", &load)?.finish()?;
    ensure!(report.errors == 0, "{report:?}");
    let said = lab.text("client", &[peer, "call", "calls.lab", "90"])?;
    ensure!(!said.is_empty(), "no call was answered");
    echoes(lab, "guest:9000")
}

/// Requests an HTTP/1 response with a body of this size.
fn download(lab: &Lab, bytes: usize) -> Result<()> {
    let url = format!("http://web:8080/?size={bytes}");
    let format = "%{http_code} %{size_download}";
    let curl = ["curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", format, &url];
    let said = lab.text("client", &curl)?;
    ensure!(said == format!("200 {bytes}"), "{said}");
    Ok(())
}

/// The number of bytes that crossed the bridge between two instances while `work` ran.
fn crossed(lab: &Lab, instances: [&str; 2], work: impl FnOnce() -> Result<()>) -> Result<usize> {
    let status = lab.status()?;
    let address = |name: &str| -> Result<[IpAddr; 2]> {
        Ok([status.address(name, false)?, status.address(name, true)?])
    };
    let [a, b] = [address(instances[0])?, address(instances[1])?];
    let sniffer = Sniffer::start(&lab.switch()?)?;
    work()?;
    let segments = sniffer.stop()?;
    let between = |from: IpAddr, to: IpAddr| {
        a.contains(&from) && b.contains(&to) || b.contains(&from) && a.contains(&to)
    };
    let segments = segments.iter().filter(|one| between(one.from.ip(), one.to.ip()));
    Ok(segments.map(|segment| segment.payload.len()).sum())
}

fn what_workloads_of_one_process_send_each_other_is_not_on_the_network(
    capture: Capture,
) -> Result<()> {
    let (lab, peer) = start(&strict(capture))?;
    let outcome = || -> Result<()> {
        // The first requests of a connection are sent before the other end has moved the connection to memory.
        talk(&lab, &peer)?;
        let mut bytes = 0;
        for server in ["web", "calls", "guest"] {
            let crossed = crossed(&lab, ["client", server], || talk(&lab, &peer))?;
            ensure!(crossed < HANDSHAKES, "{server}: {crossed} bytes were on the bridge");
            ensure!(in_memory(&lab, server, "inbound")? > 0, "{server} has no such connection");
            bytes += crossed;
        }
        ensure!(in_memory(&lab, "client", "outbound")? >= 3, "the client has too few");
        for (who, guests) in [("web", 1), ("calls", 1), ("guest", 1), ("client", 0), ("apart", 0)] {
            let there = measured(&lab, who, "leno_guests ")?;
            ensure!(there == guests, "{who} serves on {there} threads of others");
        }
        ensure!(in_memory(&lab, "client", "inbound")? == 0, "nothing calls the client");
        // A sidecar shares its process with no other workload, so its traffic crosses the bridge.
        echoes(&lab, "apart:9000")?;
        ensure!(in_memory(&lab, "apart", "inbound")? == 0, "a sidecar has no neighbour");
        ensure!(status(&lab, "/closed")? == "403", "the server's policy was not enforced");
        println!("{}: {bytes} bytes on the bridge", capture.name());
        Ok(())
    };
    lab.explain(outcome())
}

/// A network policy that cuts open connections must have the same effect on connections that are in memory.
fn a_network_that_is_cut_ends_what_workloads_of_one_process_have_in_memory(
    capture: Capture,
) -> Result<()> {
    let (lab, _) = start(&strict(capture))?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let cut = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
        ensure!(in_memory(&lab, "guest", "inbound")? > 0, "it is not in memory");
        pull_cable(&lab, "guest-0")?;
        wait::until("the end of the connection", LIMIT, || {
            Ok((open(&lab, "guest")? == 0).then_some(()))
        })?;
        fs::write(file("go"), "")?;
        let output = cut.finish(LIMIT)?;
        let said: Transcript = serde_json::from_slice(&output.stdout)?;
        ensure!(said.failure().is_some(), "it was not cut: {said:?}");
        ensure!(echoes(&lab, "guest:9000").is_err(), "there is no network");
        ensure!(status(&lab, "/")? == "200", "a neighbour was cut off, too");
        Ok(())
    };
    lab.explain(outcome())
}

/// The number of connections that a proxy has accepted and not closed.
fn open(lab: &Lab, who: &str) -> Result<u64> {
    measured(lab, who, "leno_connections_open ")
}

fn a_revocation_ends_a_connection_in_memory(capture: Capture) -> Result<()> {
    let (lab, _) = start(&strict(capture))?;
    let outcome = || -> Result<()> {
        for account in ["lab/client", "lab/guest"] {
            let file =
                |name: &str| lab.directory().join(name.to_owned() + &account.replace('/', "-"));
            let before = in_memory(&lab, "guest", "inbound")?;
            let stream = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
            ensure!(in_memory(&lab, "guest", "inbound")? > before, "it is not in memory");
            command::text(lab.leno("identity revoke").arg(account), LIMIT)?;
            wait::until("the end of the connection", LIMIT, || {
                Ok((open(&lab, "guest")? == 0).then_some(()))
            })?;
            fs::write(file("go"), "")?;
            let said: Transcript = serde_json::from_slice(&stream.finish(LIMIT)?.stdout)?;
            ensure!(said.failure().is_some(), "it was not cut: {said:?}");
            wait::until("a connection with the next certificate", LIMIT, || {
                Ok(echoes(&lab, "guest:9000").is_ok().then_some(()))
            })?;
        }
        Ok(())
    };
    lab.explain(outcome())
}

fn workloads_of_one_process_use_the_network_where_they_are_told_to_or_have_no_mtls(
    capture: Capture,
) -> Result<()> {
    let permissive = LabOptions { mtls: Some("permissive"), ..strict(capture) };
    let disabled = LabOptions { mtls: Some("disabled"), ..strict(capture) };
    let told = LabOptions { one_pass: false, ..strict(capture) };
    for (options, expected) in [(permissive, true), (disabled, false), (told, false)] {
        let (lab, peer) = start(&options)?;
        let outcome = || -> Result<()> {
            talk(&lab, &peer)?;
            // There are so few bytes that a capture on a busy machine loses none.
            let bytes = crossed(&lab, ["client", "web"], || download(&lab, 4 * HANDSHAKES))?;
            ensure!((bytes < HANDSHAKES) == expected, "{options:?}: {bytes} on the bridge");
            ensure!((in_memory(&lab, "web", "inbound")? > 0) == expected, "{options:?}");
            let file = |name: &str| lab.directory().join(name);
            let stream = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
            fs::write(file("go"), "")?;
            has_nothing_lost(stream)?;
            ensure!(status(&lab, "/closed")? == "403", "the server's policy was not enforced");
            Ok(())
        };
        lab.explain(outcome())?;
    }
    Ok(())
}
