//! Runs `leno-bench http` as users do, for one second per measurement. Checks that the requests of every generator pass
//! Leno and HAProxy without a failure, and that the record has the cost.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::{binaries, command};
use serde_json::Value;

/// The whole run takes two minutes at most; the limit leaves room for a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Scenarios of wrk, of h2load, and of Leno's own generators.
const SCENARIOS: &str = "keepalive-1k,new-connection,upload-1m,h2-1k,grpc-unary,tcp-round-trip";
/// There is one record per scenario at saturation, and one at a fixed rate for all but the uploads and TCP.
const FEWEST_RECORDS: usize = 10;

#[test]
fn work_goes_through_and_is_recorded() -> Result<()> {
    for (program, package) in
        [("nginx", "nginx"), ("haproxy", "haproxy"), ("wrk", "wrk"), ("h2load", "nghttp2-client")]
    {
        binaries::require(program, package)?;
    }
    let directory = tempfile::tempdir()?;
    let out = directory.path().join("out");
    let bench = binaries::ours("leno-bench")?;
    let mut run = Command::new(&bench);
    run.args(["http", "--proxies", "leno,haproxy", "--scenarios", SCENARIOS, "--rounds", "1"]);
    run.args(["--seconds", "1", "--rate", "400", "--connections", "8", "--no-pin", "--out"]);
    let said = command::text(run.arg(&out), LIMIT)?;
    let mut of_leno = 0;
    for entry in std::fs::read_dir(out.join("records"))? {
        let path = entry?.path();
        let record: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let what = path.display();
        let number =
            |field: &str| record[field].as_f64().with_context(|| format!("{what}: no {field}"));
        ensure!(record["left_out"].is_null(), "{what} was left out: {}", record["left_out"]);
        ensure!(number("requests")? > 0.0, "{what}: no request");
        ensure!(number("errors")? == 0.0, "{what}: {} failed", number("errors")?);
        if record["mesh"] == "leno" {
            of_leno += 1;
            let cpu = number("cpu_user_us_per_request")? + number("cpu_system_us_per_request")?;
            ensure!(cpu > 0.0, "{what} cost nothing");
        }
        let is_late =
            record["step"].is_number() && record["latency_us"]["p99"].as_f64() == Some(0.0);
        ensure!(!is_late, "{what}: no latency at a rate");
    }
    ensure!(of_leno >= FEWEST_RECORDS, "{of_leno} records of Leno's: {said}");
    ensure!(said.contains("CPU / HAPROXY"), "no ratio: {said}");
    Ok(())
}

#[test]
fn memory_is_recorded_and_its_table_made_again() -> Result<()> {
    binaries::require("nginx", "nginx")?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("records.json");
    let bench = binaries::ours("leno-bench")?;
    let mut run = Command::new(&bench);
    run.args(["memory", "--proxies", "leno", "--connections", "3", "--copies", "2", "--out"]);
    let said = command::text(run.arg(&file), LIMIT)?;
    ensure!(said.contains("| 2 leno ") && said.contains("| private "), "{said}");
    let again = command::text(Command::new(&bench).arg("tables").arg(&file), LIMIT)?;
    ensure!(said.contains(again.trim()), "another table from the same records:\n{again}\n{said}");
    Ok(())
}

/// Reads a file of the versions in which `http` and `mesh` wrote one file of their own.
#[test]
fn earlier_records_are_still_read() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("records.json");
    let one = |proxy: &str, round: u32, cpu: f64| {
        serde_json::json!({"bench": "http", "scenario": "keepalive-1k", "pace": "rate", "proxy": proxy,
            "version": "1", "round": round, "requests": 10, "cpu_user_us_per_request": cpu,
            "cpu_share": 0.5, "latency_us": {"mean": 1.0, "p50": 1, "p75": 1, "p90": 1, "p95": 1,
                "p99": 7000, "p99_9": 8000, "max": 9000}})
    };
    let records = [
        one("haproxy", 0, 20.0),
        one("leno", 0, 10.0),
        one("haproxy", 1, 40.0),
        one("leno", 1, 20.0),
    ];
    std::fs::write(&file, serde_json::to_string(&records)?)?;
    let bench = binaries::ours("leno-bench")?;
    let said = command::text(Command::new(bench).arg("tables").arg(&file), LIMIT)?;
    ensure!(said.contains("keepalive-1k, rate") && said.contains("0.50 (0.50 to 0.50)"), "{said}");
    Ok(())
}
