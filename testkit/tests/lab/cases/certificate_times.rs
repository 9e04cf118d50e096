//! Tests policies about the validity times of a client's certificate.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::wait;
use nix::sys::signal::Signal;

use super::authorization::answered;
use super::reauthorization::HEAR_LIMIT;
use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(connections_end_when_their_certificate_is_too_old)]
}

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
";

/// The lifetime of certificates. They are renewed after 70 % of it, which is later than the end of this case.
const LIFETIME: Duration = Duration::from_mins(30);
/// How long clients are at least permitted after the edit.
const PERMITTED: Duration = Duration::from_secs(25);

/// Permits clients whose certificates are valid for at least this much longer.
fn policy(left: Duration) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: young, namespace: lab}}\nspec:\n  selector: {{}}\n  \
         rules: [{{from: [{{certificate: {{minLeft: {}s}}}}]}}]\n",
        left.as_secs()
    )
}

fn connections_end_when_their_certificate_is_too_old(capture: Capture) -> Result<()> {
    let options = LabOptions { cert_lifetime: Some(LIFETIME), ..LabOptions::new(capture) };
    let before_issue = Instant::now();
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    lab.explain(ages(&lab, before_issue))?;
    lab.end()
}

fn ages(lab: &Lab, before_issue: Instant) -> Result<()> {
    let url = ["http://front.lab:8080/"];
    lab.reach("web", "front.lab:8080")?;
    let begun = lab.directory().join("begun");
    let talk = format!(
        "exec 3<>/dev/tcp/echo.lab/9000; printf hello >&3; head -c 5 <&3 >{}; cat <&3",
        begun.display()
    );
    let open = lab.spawn("web", &["bash", "-c", &talk])?;
    wait::until("the connection of bytes", HEAR_LIMIT, || {
        Ok((fs::read(&begun).unwrap_or_default() == b"hello").then_some(()))
    })?;
    // All certificates were issued between `before_issue` and now.
    let issued_within = before_issue.elapsed();
    let edited = Instant::now();
    lab.edit(&format!("{MESH}{}", policy(LIFETIME - issued_within - PERMITTED)))?;
    let mut permitted = 0;
    wait::until("an old certificate to be denied", issued_within + HEAR_LIMIT, || {
        let said = answered(lab, "web", &url)?;
        if said == "200" {
            permitted += 1;
            return Ok(None);
        }
        ensure!(said.starts_with("403 authorization-denied"), "{said}");
        // The times in certificates are whole seconds.
        let after = edited.elapsed();
        ensure!(after + Duration::from_secs(2) >= PERMITTED, "denied after {after:?}");
        Ok(Some(()))
    })?;
    println!("{permitted} requests were permitted before");
    // Connections in progress end as well, although no policy has changed.
    open.finish(HEAR_LIMIT)?;
    let line = "leno_authorization_total{decision=\"end\",policy=\"not-allowed\"}";
    wait::until("the end to be counted", HEAR_LIMIT, || {
        Ok(lab.metrics("echo")?.contains(line).then_some(()))
    })?;
    // A new certificate is permitted only for a while. A busy machine may miss that time, so several attempts are
    // made.
    let window = issued_within + PERMITTED;
    wait::until("a new certificate to be permitted", 8 * HEAR_LIMIT, || {
        let before = lab.status()?.instance("web-0")?.proxy_restarts;
        lab.kill(MeshProcess::Proxy("web-0"), Signal::SIGKILL)?;
        lab.wait_for("the next proxy", |status| {
            status.ready() && status.instance("web-0").is_ok_and(|one| one.proxy_restarts > before)
        })?;
        let since = Instant::now();
        while since.elapsed() < window {
            if answered(lab, "web", &url)? == "200" {
                return Ok(Some(()));
            }
        }
        Ok(None)
    })
}
