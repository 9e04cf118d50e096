//! Runs `leno-bench http` as users do, one second each: the work of every generator goes through
//! Leno and HAProxy without a failed request, and the record has its cost.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::{binaries, command};
use serde_json::Value;

/// The whole run takes two minutes at most; the limit leaves room for a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Scenarios of wrk, of h2load, and of Leno's own generators.
const SCENARIOS: &str = "keepalive-1k,new-connection,upload-1m,h2-1k,grpc-unary,tcp-round-trip";
/// One record per scenario at saturation, and one at a fixed rate for all but the uploads and TCP.
const FEWEST_RECORDS: usize = 10;

#[test]
fn work_goes_through_and_is_recorded() -> Result<()> {
    for (program, package) in
        [("nginx", "nginx"), ("haproxy", "haproxy"), ("wrk", "wrk"), ("h2load", "nghttp2-client")]
    {
        binaries::require(program, package)?;
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("records.json");
    let bench = binaries::ours("leno-bench")?;
    let mut run = Command::new(&bench);
    run.args([
        "http",
        "--proxies",
        "leno,haproxy",
        "--scenarios",
        SCENARIOS,
        "--rounds",
        "1",
        "--seconds",
        "1",
    ]);
    run.args(["--rate", "400", "--connections", "8", "--no-pin", "--out"]).arg(&file);
    let said = command::text(&mut run, LIMIT)?;
    let records: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let mut of_leno = 0;
    for record in &records {
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        let what = format!("{} {} {}", text("proxy"), text("scenario"), text("pace"));
        let number =
            |field: &str| record[field].as_f64().with_context(|| format!("{what}: no {field}"));
        if let Some(why) = record["left_out"].as_str() {
            ensure!(text("proxy") != "leno", "{what} was left out: {why}");
            continue;
        }
        ensure!(number("requests")? > 0.0, "{what}: no request");
        ensure!(number("errors")? == 0.0, "{what}: {} failed", number("errors")?);
        if text("proxy") == "leno" {
            of_leno += 1;
            let cpu = number("cpu_user_us_per_request")? + number("cpu_system_us_per_request")?;
            ensure!(cpu > 0.0, "{what} cost nothing");
        }
        let latency = text("pace") == "rate" && record["latency_us"]["p99"].as_f64().is_none();
        ensure!(!latency, "{what}: no latency at a rate");
    }
    ensure!(of_leno >= FEWEST_RECORDS, "{of_leno} records of Leno's: {said}");
    // The tables can be made from the records alone.
    let again = command::text(Command::new(&bench).arg("tables").arg(&file), LIMIT)?;
    ensure!(said.contains(again.trim()), "another table from the same records:\n{again}\n{said}");
    Ok(())
}
