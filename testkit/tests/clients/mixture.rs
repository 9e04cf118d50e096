//! Sends a random mixture of requests of both HTTP versions, many at once, from a client to servers that both use
//! Go's standard library (`testkit/mixture`). Every byte of every response is checked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{command, tools, wait};

use crate::is_root;

/// Two servers with a policy that retries requests and hedges late ones, and with routes that mirror requests to a
/// third server and change heads.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: mixture}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: mixture, labels: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: mixture, labels: {app: web}}
spec:
  replicas: 2
  command: ['@MIXTURE@', serve, '8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: copy, namespace: mixture, labels: {app: copy}}
spec:
  command: ['@MIXTURE@', serve, '8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: web, namespace: mixture}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  retries: {attempts: 2, on: [503, reset, refused-stream, connect-failure]}
  hedging: {delay: 30ms, copies: 1}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: mixture}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules:
  # A copy for a mirror may end later than its request.
  - matches: [{path: {type: PathPrefix, value: /work}}]
    backendRefs: [{name: web, port: 8080}]
  - filters:
    - type: RequestMirror
      requestMirror: {backendRef: {name: copy, port: 8080}}
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: x-set, value: a}], remove: [x-long]}
    - type: ResponseHeaderModifier
      responseHeaderModifier: {add: [{name: x-added, value: b}]}
    backendRefs: [{name: web, port: 8080}]
";

/// How long a server may take until its first answer, and streams may take to end.
const LIMIT: Duration = Duration::from_secs(60);
/// How long all requests of a client may take. Each of them may take a minute.
const CALL_LIMIT: Duration = Duration::from_secs(180);
/// How many seconds each client sends requests.
const DURATION: &str = "6";

/// The environment variable `LENO_SEED` sets the seed of the requests.
#[test]
fn every_response_of_a_mixture_is_the_one_of_its_request() -> Result<()> {
    let Some(tool) = is_root()?.then(|| tools::install_or_skip("mixture")).transpose()?.flatten()
    else {
        return Ok(());
    };
    let mixture = tool.join("mixture").display().to_string();
    let seed = match std::env::var("LENO_SEED") {
        Ok(seed) => seed,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().to_string(),
    };
    println!("LENO_SEED={seed}");
    let yaml = MESH.replace("@MIXTURE@", &mixture);
    let lab = Lab::start(&LabOptions::new(Capture::Ebpf), &yaml, |_| Ok(()))?;
    lab.explain(run(&lab, &mixture, &seed).with_context(|| format!("LENO_SEED={seed}")))
}

fn run(lab: &Lab, mixture: &str, seed: &str) -> Result<()> {
    for server in ["web", "copy"] {
        let ask = ["curl", "-sS", "--fail", "-m", "5", &format!("http://{server}:8080/working")];
        wait::until("an answer", LIMIT, || {
            Ok(lab.exec("client", &ask)?.status.success().then_some(()))
        })?;
    }
    // The first client's requests pass two proxies, the second one's only the server's.
    for (who, server) in [("client", "web:8080"), ("plain", "web-0.web:8080")] {
        let call = lab.spawn(who, &[mixture, "call", server, DURATION, seed])?;
        let said = command::success(who, call.finish(CALL_LIMIT)?)?;
        println!("{who}: {said}");
    }
    for proxy in ["client", "web"] {
        // Copies for the mirror may end later than the requests that they copy.
        wait::until("all streams to end", LIMIT, || {
            let metrics = lab.metrics(proxy)?;
            ensure!(is_zero(&metrics, "leno_panics_total"), "{proxy} has panicked:\n{metrics}");
            let is_over = ["leno_http2_streams_open", "leno_busy"];
            Ok(is_over.iter().all(|gauge| is_zero(&metrics, gauge)).then_some(()))
        })
        .with_context(|| proxy)?;
    }
    Ok(())
}

/// Whether all samples of a metric are zero.
fn is_zero(metrics: &str, name: &str) -> bool {
    let mut samples = metrics.lines().filter(|line| line.starts_with(name));
    samples.all(|sample| sample.ends_with(" 0"))
}
