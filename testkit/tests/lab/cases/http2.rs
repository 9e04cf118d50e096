//! Tests HTTP/2 and gRPC through two proxies, with widely used clients and servers.
//!
//! nginx serves HTTP/2 on two ports: on one of them HTTP/2 is declared, on the other it is detected.

use anyhow::{Context, Result, ensure};
use leno_testkit::binaries;
use leno_testkit::lab::Lab;
use leno_testkit::sniff::Sniffer;

use super::{Case, shared};

/// A text in every request that is sent while packets are captured.
const MARKER: &str = "leno-lab-marker-4712";
/// The HTTP/2 ports of the service `nginx`.
const PORTS: [u16; 2] = [81, 82];

pub(super) fn cases() -> Vec<Case> {
    vec![
        shared!(http2_arrives_as_http2),
        shared!(streams_side_by_side_are_all_answered),
        shared!(large_bodies_both_ways),
        shared!(a_client_cannot_speak_for_the_mesh),
        shared!(the_bridge_sees_no_streams),
        shared!(errors_of_the_mesh_are_grpc_statuses),
        shared!(unmeshed_clients_are_served_http2),
        shared!(http1_requests_share_a_connection),
    ]
}

/// The output of a curl that uses HTTP/2 with prior knowledge.
fn curl(lab: &Lab, who: &str, more: &[&str]) -> Result<String> {
    let known = ["curl", "-sS", "-m", "30", "--http2-prior-knowledge"];
    lab.text(who, &[&known[..], more].concat())
}

fn http2_arrives_as_http2(lab: &Lab) -> Result<()> {
    for port in PORTS {
        let url = format!("http://nginx:{port}/");
        let said = curl(lab, "client", &["--fail", "-w", "%{http_version}", &url])?;
        ensure!(said == "hello over HTTP/2.0\n2", "port {port}: {said:?}");
    }
    Ok(())
}

/// nginx closes each connection after 300 requests. Streams that it has not begun to process must be sent on
/// another connection.
fn streams_side_by_side_are_all_answered(lab: &Lab) -> Result<()> {
    binaries::require("h2load", "nghttp2-client")?;
    for port in PORTS {
        let url = format!("http://nginx:{port}/");
        let load = ["h2load", "-n", "3000", "-c", "4", "-m", "40", &url];
        let said = lab.text("client", &load)?;
        let all = "3000 total, 3000 started, 3000 done, 3000 succeeded, 0 failed, 0 errored";
        ensure!(said.contains(all), "port {port}: {said}");
        ensure!(said.contains("3000 2xx"), "port {port}: {said}");
    }
    Ok(())
}

fn large_bodies_both_ways(lab: &Lab) -> Result<()> {
    let file = lab.directory().join("files/10-mib").display().to_string();
    for port in PORTS {
        let down = format!("http://nginx:{port}/files/10-mib");
        let sizes = ["--fail", "-o", "/dev/null", "-w", "%{size_download}", &down];
        ensure!(curl(lab, "client", &sizes)? == (10 << 20).to_string(), "port {port}: download");
        let name = format!("up-{port}");
        let up = format!("http://nginx:{port}/files/{name}");
        curl(lab, "client", &["--fail", "-T", &file, &up])?;
        let whole =
            std::fs::read(&file)? == std::fs::read(lab.directory().join("files").join(name))?;
        ensure!(whole, "port {port}: the upload arrived changed");
    }
    Ok(())
}

/// Only another proxy may report that a request was HTTP/1.
fn a_client_cannot_speak_for_the_mesh(lab: &Lab) -> Result<()> {
    let address = lab.status()?.address("nginx", false)?.to_string();
    for (who, host) in [("client", "nginx:81".to_owned()), ("plain", format!("{address}:8081"))] {
        let url = format!("http://{host}/seen");
        let headers = ["-H", "leno-h1: 1.1 T", "-H", "x-marker: here", "-H", "host: lab"];
        let said = curl(lab, who, &[&headers[..], &[&url]].concat())?;
        ensure!(said == "[] lab here\n", "{who}: {said:?}");
    }
    Ok(())
}

fn the_bridge_sees_no_streams(lab: &Lab) -> Result<()> {
    let sniffer = Sniffer::start(&lab.switch()?)?;
    for port in PORTS {
        // `/files` responds when it has received the body. curl would report an earlier response as an error.
        let url = format!("http://nginx:{port}/files/{MARKER}-{port}");
        curl(lab, "client", &["--fail", "-X", "PUT", "-d", MARKER, &url])?;
    }
    let segments = sniffer.stop()?;
    let plain = |what: &str| segments.iter().filter(|s| s.contains(what.as_bytes())).count();
    ensure!(!segments.is_empty(), "nothing was caught");
    ensure!(plain(MARKER) == 0 && plain("PRI * HTTP/2.0") == 0, "HTTP/2 in clear on the bridge");
    Ok(())
}

fn errors_of_the_mesh_are_grpc_statuses(lab: &Lab) -> Result<()> {
    let call = ["-D", "-", "-o", "/dev/null", "-X", "POST", "-H"];
    let url = "http://nginx:83/lab.Lab/Call";
    let grpc =
        curl(lab, "client", &[&call[..], &["content-type: application/grpc", url]].concat())?;
    ensure!(grpc.starts_with("HTTP/2 200"), "{grpc}");
    // The `leno-error` says either that the only endpoint was tried, or that it had failed just before.
    for line in ["grpc-status: 14", "leno-error: "] {
        ensure!(grpc.contains(line), "no {line:?} in {grpc}");
    }
    let other = curl(lab, "client", &[&call[..], &["content-type: text/plain", url]].concat())?;
    ensure!(other.starts_with("HTTP/2 503"), "{other}");
    ensure!(other.contains("leno-error: "), "{other}");
    for (who, direction) in [("client", "outbound"), ("nginx", "inbound")] {
        let metrics = lab.metrics(who)?;
        let direction = format!("direction=\"{direction}\"");
        let counted = metrics.lines().any(|line| {
            line.starts_with("leno_grpc_responses_total")
                && line.contains(&direction)
                && line.contains("grpc_status=\"14\"")
        });
        ensure!(counted, "no gRPC status of {who} in {metrics}");
    }
    Ok(())
}

fn unmeshed_clients_are_served_http2(lab: &Lab) -> Result<()> {
    let address = lab.status()?.address("nginx", false)?.to_string();
    for port in [8081, 8082] {
        let url = format!("http://{address}:{port}/");
        let said = curl(lab, "plain", &["--fail", &url])?;
        ensure!(said == "hello over HTTP/2.0\n", "port {port}: {said:?}");
    }
    Ok(())
}

/// Requests of many HTTP/1 connections are sent as streams of one HTTP/2 connection, and arrive as HTTP/1. A
/// request that is sent alone has a connection of its own.
fn http1_requests_share_a_connection(lab: &Lab) -> Result<()> {
    lab.text("client", &["curl", "-sS", "--fail", "-m", "10", "http://nginx/"])?;
    let before = handshakes(lab)?;
    let load = ["--url", "http://nginx/", "--rate", "400", "--connections", "40"];
    let report = lab.load("client", &[&load[..], &["--duration", "1s"]].concat())?.finish()?;
    ensure!(report.errors == 0, "{report:?}");
    let after = handshakes(lab)?;
    // The load may have connected to the service's other address, which gets its own connections.
    ensure!(after <= before + 3, "{} connections were made for them", after - before);
    Ok(())
}

/// The number of TLS handshakes that the client's proxy has made.
fn handshakes(lab: &Lab) -> Result<u64> {
    let metrics = lab.metrics("client")?;
    let name = "leno_tls_handshakes_total{direction=\"outbound\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.context("no count of handshakes")?.parse().context("not a number")
}
