//! Tests HTTP/1.1 clients that do not read their responses, and uploads that the application does not read.
//! Between the two proxies, all requests except the first share HTTP/2 connections with the requests of others.
//!
//! ```text
//!   client ── 30 responses that it does not read ─┐
//!          ── 40 uploads ─────────────────────────┼─► proxy ══ mTLS ══► proxy ──► web: reads no upload to /stall
//!   client, other ── responses and uploads of 3 MB ┘
//! ```

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(stalled_requests_of_http1_do_not_keep_others_from_theirs)]
}

const LIMIT: Duration = Duration::from_secs(60);

/// What is held, and how many of each: several times as much as fits into the window of one connection.
const HELD: [(&str, &str); 2] = [("responses", "30"), ("uploads", "40")];

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: other, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: [python3, '@DIR@/server.py']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

fn stalled_requests_of_http1_do_not_keep_others_from_theirs(capture: Capture) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, |directory| {
        fs::write(directory.join("server.py"), include_str!("stalled/server.py"))?;
        fs::write(directory.join("hold.py"), include_str!("stalled/hold.py"))?;
        Ok(fs::write(directory.join("ask.py"), include_str!("stalled/ask.py"))?)
    })?;
    lab.explain(run(&lab))
}

fn run(lab: &Lab) -> Result<()> {
    let directory = lab.directory().display();
    let (ask, hold) = (format!("{directory}/ask.py"), format!("{directory}/hold.py"));
    wait::until("the server to answer", LIMIT, || {
        let asked = ["curl", "-sS", "--fail", "-m", "20", "http://web:8080/"];
        Ok(lab.exec("other", &asked)?.status.success().then_some(()))
    })?;
    let mut held = Vec::new();
    for (kind, count) in HELD {
        let marker = lab.directory().join(kind);
        let path = marker.display().to_string();
        held.push(lab.spawn("client", &["python3", &hold, kind, count, &path])?);
        wait::until(kind, LIMIT, || Ok(marker.exists().then_some(())))?;
        for who in ["other", "client"] {
            let answered = lab.text(who, &["python3", &ask]);
            let answered = answered.with_context(|| format!("{who}, with {count} {kind} held"))?;
            ensure!(answered == "served\n", "{who}, with {count} {kind} held: {answered}");
        }
    }
    // The requests passed both proxies. Only the first one used HTTP/1.
    let metrics = lab.metrics("client")?;
    let open = metrics.lines().find_map(|line| {
        line.strip_prefix("leno_http2_streams_open{with=\"server\"} ")?.parse::<usize>().ok()
    });
    ensure!(open >= Some(69), "{open:?} streams are open");
    // The resources of clients that have left must be released.
    drop(held);
    for who in ["other", "client"] {
        let answered = lab.text(who, &["python3", &ask])?;
        ensure!(answered == "served\n", "{who}, later: {answered}");
    }
    Ok(())
}
