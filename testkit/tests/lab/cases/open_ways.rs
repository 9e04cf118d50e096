//! Tests the detection of ways to bypass a capture that remain open.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command;
use leno_testkit::lab::{Capture, Lab};
use serde_json::Value;

use super::{Case, shared};

pub(super) fn cases() -> Vec<Case> {
    vec![shared!(the_ways_around_the_capture_of_a_workload_are_named)]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Opens a raw socket, whose packets bypass every capture backend.
const RAW: &str =
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)";

fn the_ways_around_the_capture_of_a_workload_are_named(lab: &Lab) -> Result<()> {
    let ask = |form: &[&str]| {
        let mut leno = lab.leno("diagnostics capture");
        command::text(leno.arg("web-0").args(form), LIMIT)
    };
    let report: Value = serde_json::from_str(&ask(&["-o", "json"])?)?;
    let open = &report["capture"]["open_ways"];
    ensure!(open["unknown"] == Value::Array(Vec::new()), "{open}");
    let ways = open["ways"].as_array().context("there are no ways")?;
    let by = |name: &str| ways.iter().find(|way| way["way"] == name).map(|way| &way["by"]);
    ensure!(by("datagrams").is_some(), "{open}");
    ensure!(by("older_connections").is_none(), "{open}");
    // Workloads in this mesh run as root, with the capabilities that `leno up` leaves to them.
    let raw = by("raw_sockets").context("raw sockets are not named")?;
    ensure!(raw[0].as_str().is_some_and(|one| one.ends_with(" leno-peer")), "{raw}");
    lab.text("web-0", &["python3", "-c", RAW]).context("a raw socket")?;
    let is_by_user = report["capture"]["backend"] != Capture::Ebpf.name();
    ensure!(by("proxy_user").is_some() == is_by_user, "{open}");
    let text = ask(&[])?;
    for line in
        ["\nopen         UDP, UDP-Lite and multicast", "\n             raw and packet sockets"]
    {
        ensure!(text.contains(line), "{text}");
    }
    Ok(())
}
