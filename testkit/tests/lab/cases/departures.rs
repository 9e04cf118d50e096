//! Tests a client that leaves: with each capture backend, the kernel must report that to the client's proxy.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::wait;

use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(a_client_that_leaves_after_its_end_ends_its_request)]
}

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

/// How long the server takes to answer.
const ANSWER: Duration = Duration::from_secs(60);
/// The limit for noticing the end. After the client's FIN, the proxy queries the kernel after waits of an eighth
/// of the elapsed time. Without a FIN, it examines a silent connection only after four seconds.
const NOTICED: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(30);

/// The client first shuts down its sending direction. When it later closes its socket, nothing more is sent.
fn a_client_that_leaves_after_its_end_ends_its_request(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let workload = lab.status()?.address("web", true)?;
        for address in ["web:8080".to_owned(), format!("[{workload}]:8080")] {
            leaves(&lab, &address).with_context(|| address.clone())?;
        }
        Ok(())
    };
    lab.explain(outcome())?;
    lab.end()
}

fn leaves(lab: &Lab, address: &str) -> Result<()> {
    lab.reach("client", "web:8080")?;
    let go = lab.directory().join("go");
    let target = format!("/?delay_ms={}", ANSWER.as_millis());
    let steps = [
        Step::Send(format!("GET {target} HTTP/1.1\r\nHost: web\r\n\r\n")),
        Step::ShutdownWrite,
        Step::WaitFor(go.clone()),
    ];
    let steps = serde_json::to_string(&steps)?;
    let client = lab.spawn("client", &["leno-peer", "talk", address, &steps])?;
    wait::until("the request", LIMIT, || Ok((busy(lab)? == 1).then_some(())))?;
    // By now, the check that the FIN causes is over.
    std::thread::sleep(Duration::from_millis(300));
    ensure!(busy(lab)? == 1, "a client that only sends no more is not served");
    fs::write(&go, "")?;
    client.finish(LIMIT)?;
    let left = Instant::now();
    wait::until("the end of the request", LIMIT, || Ok((busy(lab)? == 0).then_some(())))?;
    let noticed = left.elapsed();
    fs::remove_file(&go)?;
    ensure!(noticed < NOTICED, "noticed after {noticed:?}");
    Ok(())
}

/// The number of requests in progress at the client's proxy.
fn busy(lab: &Lab) -> Result<u64> {
    let url = "http://127.0.0.1:15020/config";
    let config = lab.text("client", &["curl", "-sS", "--fail", "-m", "20", url])?;
    let config: serde_json::Value = serde_json::from_str(&config)?;
    config["busy"].as_u64().context("it does not say how busy it is")
}
