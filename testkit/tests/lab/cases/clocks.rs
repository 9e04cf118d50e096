//! Tests proxies whose clocks are wrong by minutes.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{clock, wait};

use super::identity::{number, rotate, until};
use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(clocks_that_are_wrong_by_four_minutes_are_survived),
        once!(a_clock_beyond_the_bound_is_named),
    ]
}

const MINUTE: i64 = 60;
/// The shortest lifetime of certificates at which proxies with clocks that are this wrong still renew their
/// certificates in time.
const LIFETIME: Duration = Duration::from_mins(36);
/// The message of a proxy that cannot start because of a clock.
const NAMES: &str = "check the clocks of this machine and of that of the control plane";
/// How long a proxy may take to log why it cannot start.
const LOG_LIMIT: Duration = Duration::from_secs(60);

/// A workload that is both a client and a server.
fn workload(name: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: lab}}\nspec:\n  \
         serviceAccount: {name}\n  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']\n  \
         ports: [{{name: http, port: 8080, appProtocol: http}}]\n"
    )
}

fn options(capture: Capture, programs: PathBuf) -> LabOptions {
    LabOptions {
        programs: Some(programs),
        mtls: Some("strict"),
        cert_lifetime: Some(LIFETIME),
        ..LabOptions::new(capture)
    }
}

fn clocks_that_are_wrong_by_four_minutes_are_survived(capture: Capture) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let ahead = [("behind", -4 * MINUTE), ("ahead", 4 * MINUTE)];
    let programs = clock::programs(directory.path(), &ahead)?;
    let names = ["right", "behind", "ahead"];
    let lab = Lab::start(&options(capture, programs), &names.map(workload).concat(), |_| Ok(()))?;
    lab.explain(survived(&lab, names))?;
    lab.end()
}

fn survived(lab: &Lab, names: [&str; 3]) -> Result<()> {
    for (name, offset) in names.iter().zip([0.0, -4.0, 4.0]) {
        let ahead = minutes_ahead(lab, name)?;
        ensure!(ahead == offset, "the clock of {name} is {ahead} minutes ahead");
    }
    let all_talk = || -> Result<()> {
        for client in names {
            for server in names.iter().filter(|server| **server != client) {
                lab.reach(client, &format!("{server}:8080"))?;
            }
        }
        Ok(())
    };
    all_talk()?;
    // In the second phase, each proxy's certificate is renewed.
    let before = until(lab, "all to have reported", |report| {
        report["phase"] == "stable" && report["proxies"]["current"] == 3
    })?;
    rotate(lab, &[])?;
    let after = until(lab, "the end of the rotation", |report| {
        report["phase"] == "stable"
            && report["issuer"] != before["issuer"]
            && report["proxies"]["current"] == 3
    })?;
    ensure!(after["roots"].as_array().is_some_and(|all| all.len() == 1), "{after}");
    all_talk()?;
    for name in names {
        let metrics = lab.metrics(name)?;
        let failures = "leno_tls_handshake_failures_total{";
        let failed = metrics.lines().filter(|line| line.starts_with(failures));
        let failed: Vec<&str> = failed.filter(|line| !line.ends_with(" 0")).collect();
        ensure!(failed.is_empty(), "{name}: {failed:?}");
        ensure!(number(&metrics, "leno_tls_expired_total") == Some(0), "{name}: {metrics}");
    }
    Ok(())
}

/// By how many minutes the clock of a proxy is ahead of the test's clock, according to the start time that the
/// proxy reports.
fn minutes_ahead(lab: &Lab, workload: &str) -> Result<f64> {
    let url = "http://127.0.0.1:15020/config";
    let config = lab.text(workload, &["curl", "-sS", "--fail", "-m", "20", url])?;
    let config: serde_json::Value = serde_json::from_str(&config)?;
    let started = config["started_unix_s"].as_f64().context("it does not say when it started")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    // The result is rounded to steps of four minutes, because some time has passed since the proxy started.
    let minutes = (started - now) / 60.0;
    Ok(((minutes + 3.5) / 4.0).floor() * 4.0)
}

fn a_clock_beyond_the_bound_is_named(capture: Capture) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let ahead = [("late", -10 * MINUTE), ("early", 40 * MINUTE)];
    let programs = clock::programs(directory.path(), &ahead)?;
    let lab = Lab::start(&options(capture, programs), &workload("right"), |_| Ok(()))?;
    lab.edit(&["right", "late", "early"].map(workload).concat())?;
    let named = || -> Result<()> {
        for instance in ["late-0", "early-0"] {
            wait::until(&format!("the log of {instance}"), LOG_LIMIT, || {
                let log = lab.log();
                let said = log.lines().any(|line| line.contains(instance) && line.contains(NAMES));
                Ok(said.then_some(()))
            })?;
            let is_ready = lab.status()?.instance(instance)?.ready;
            ensure!(!is_ready, "{instance} is ready");
        }
        Ok(())
    };
    lab.explain(named())
}
