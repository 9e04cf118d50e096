//! Sends twice the load that the proxies can carry, for a while. Memory and descriptors must not grow.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{usage::Usage, wait};

use super::{Case, alone};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}}
spec:
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\"]
  ports: [{name: http, port: 8080, appProtocol: http}]
";

const PROXIES: [MeshProcess<'static>; 2] =
    [MeshProcess::Proxy("client-0"), MeshProcess::Proxy("web-0")];
/// How many seconds the soak lasts unless `LENO_SOAK_SECONDS` is set. CI runs it for longer, and the nightly run
/// for a minute.
const DEFAULT_SECONDS: u64 = 5;
/// How much memory may grow without being a leak, because the allocator's own caches are still filling.
const MEMORY_SLACK_KIB: u64 = 1024;
/// How many descriptors may differ between two idle moments, for example because of a reconnect to the control
/// plane.
const DESCRIPTOR_SLACK: u64 = 4;
/// The time between two samples of the proxies.
const SAMPLE: Duration = Duration::from_millis(500);
/// How long it may take until connections are closed after the load.
const CLOSE_LIMIT: Duration = Duration::from_secs(90);

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(twice_saturation_grows_nothing)]
}

fn twice_saturation_grows_nothing(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(soak(&lab, capture))
}

fn soak(lab: &Lab, capture: Capture) -> Result<()> {
    lab.reach("client", "web:8080")?;
    let idle = usage(lab)?;
    let url = "http://web:8080/?size=1024";
    let fill = ["--url", url, "--rate", "max", "--connections", "64", "--duration", "2s"];
    let saturation = lab.load("client", &fill)?.finish()?;
    ensure!(saturation.errors == 0, "{saturation:?}");
    let warm = wait_idle(lab, None)?;
    let seconds = seconds();
    let (rate, duration) =
        (format!("{:.0}", saturation.requests_per_s * 2.0), format!("{seconds}s"));
    let overload = ["--url", url, "--rate", &rate, "--connections", "64", "--duration", &duration];
    let load = lab.load("client", &overload)?;
    let samples = sample(lab, Duration::from_secs(seconds))?;
    let report = load.finish()?;
    ensure!(report.errors == report.unsent(), "requests that were sent have failed: {report:?}");
    ensure!(report.requests > report.errors, "no request was answered: {report:?}");
    let after = wait_idle(lab, Some(&warm))?;
    for (nth, piece) in PROXIES.iter().enumerate() {
        // Only anonymous memory counts, because pages of code are mapped and unmapped as they are used.
        let at: Vec<u64> = samples.iter().map(|s| s[nth].anonymous_kib).collect();
        let (settled, end) = (at.len() / 3, at.len() * 2 / 3);
        let early = at[..=end].iter().skip(settled).max().copied().unwrap_or_default();
        let late = at[end..].iter().max().copied().unwrap_or_default();
        eprintln!(
            "{}: {piece:?}: {:.0}/s for {seconds} s, KiB resident when idle {}, own memory under load \
             {early} then {late}, descriptors {} then {}",
            capture.name(),
            saturation.requests_per_s,
            idle[nth].rss_kib,
            warm[nth].descriptors,
            after[nth].descriptors
        );
        ensure!(
            late <= early + MEMORY_SLACK_KIB,
            "{piece:?} grew from {early} to {late} KiB: {at:?}"
        );
    }
    Ok(())
}

fn seconds() -> u64 {
    let wanted = std::env::var("LENO_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    wanted.unwrap_or(DEFAULT_SECONDS).max(3)
}

fn usage(lab: &Lab) -> Result<Vec<Usage>> {
    PROXIES.iter().map(|piece| lab.usage(*piece)).collect()
}

/// Samples the usage of the proxies during the load.
fn sample(lab: &Lab, duration: Duration) -> Result<Vec<Vec<Usage>>> {
    let start = Instant::now();
    let mut samples = vec![usage(lab)?];
    while start.elapsed() < duration {
        // This sleep is the sampling period, not a wait for a condition.
        std::thread::sleep(SAMPLE);
        samples.push(usage(lab)?);
    }
    Ok(samples)
}

/// Waits until the proxies have no more descriptors open than in `before`, at an earlier idle moment. Without
/// `before`, waits until their number has been stable for a second.
fn wait_idle(lab: &Lab, before: Option<&[Usage]>) -> Result<Vec<Usage>> {
    let mut last = (Instant::now(), usage(lab)?);
    wait::until("the connections to be closed", CLOSE_LIMIT, || {
        let now = usage(lab)?;
        let held = |usage: &[Usage]| usage.iter().map(|u| u.descriptors).collect::<Vec<_>>();
        if let Some(before) = before {
            let gone = |(b, n): (u64, u64)| n <= b + DESCRIPTOR_SLACK;
            return Ok(held(before).into_iter().zip(held(&now)).all(gone).then_some(now));
        }
        if held(&last.1) != held(&now) {
            last = (Instant::now(), now);
            return Ok(None);
        }
        Ok((last.0.elapsed() > Duration::from_secs(1)).then_some(now))
    })
}
