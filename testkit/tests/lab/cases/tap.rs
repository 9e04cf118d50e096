//! Tests `leno tap`: live HTTP/1, HTTP/2 and gRPC requests through two proxies, with identities and the parts of
//! their time.
//!
//! ```text
//! web (meshed, tapped) ──► front (HTTP), calls (gRPC)
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{command, wait};
use serde_json::Value;

use super::calls::peer;
use super::tokens::MESH;
use super::{Case, once};

const LIMIT: Duration = Duration::from_secs(60);

const MORE: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab, labels: {app: calls}}
spec:
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: lab}
spec:
  parentRefs: [{kind: Service, group: '', name: front, port: 80}]
  rules: [{backendRefs: [{name: front, port: 80}]}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(live_requests_are_shown_with_their_identities_and_times)]
}

fn live_requests_are_shown_with_their_identities_and_times(capture: Capture) -> Result<()> {
    let peer = peer()?;
    let lab = Lab::start(&LabOptions::new(capture), &format!("{MESH}{MORE}"), |_| Ok(()))?;
    let cases = || -> Result<()> {
        let is_open = |open: &str| -> Result<()> {
            wait::until("the tap", LIMIT, || {
                let metrics = lab.metrics("web")?;
                Ok(metrics.contains(&format!("leno_taps_open {open}")).then_some(()))
            })
        };
        let secret = "Authorization: Bearer hidden-value";
        let ask = |path: &str| -> Result<()> {
            let url = format!("http://front.lab{path}");
            lab.text("web", &["curl", "-sS", "-m", "20", "-H", secret, &url]).map(drop)
        };
        is_open("0")?;
        // Taps HTTP/1 without a filter for a route, until one request is shown from both sides.
        let mut tap = lab.leno("tap");
        tap.args(["web", "--to", "svc/front", "--method", "GET", "--path", "/seen", "--headers"]);
        let tap = command::Running::start(tap.args(["-o", "json", "--count", "4"]))?;
        is_open("1")?;
        for path in ["/other", "/seen?token=hidden-value", "/seen", "/seen", "/seen"] {
            ask(path)?;
        }
        let output = tap.finish(LIMIT)?;
        let text = command::success("leno tap", output)?;
        ensure!(!text.contains("hidden-value") && !text.contains("/other"), "{text}");
        let requests = read(&text)?;
        ensure!(requests.len() == 4, "{text}");
        for one in &requests {
            let identity = |of: &str| one[of].as_str().unwrap_or_default().to_owned();
            ensure!(identity("client_identity").ends_with("/ns/lab/sa/web"), "{one}");
            ensure!(!identity("server_identity").is_empty() && one["mtls"] == true, "{one}");
            ensure!(one["status"] == 200 && one["client"] == "lab/web-0", "{one}");
            ensure!(one["route"] == "HTTPRoute lab/front rule 0", "{one}");
            ensure!(one["latency"]["client_proxy_us"].is_u64(), "{one}");
            ensure!(one["headers"].to_string().contains("(masked)"), "{one}");
        }
        is_open("0")?;

        // Taps the server's side. Both proxies are tapped from the beginning.
        let mut tap = lab.leno("tap");
        let tap =
            command::Running::start(tap.args(["web", "calls", "-o", "json", "--count", "1"]))?;
        is_open("1")?;
        wait::until("the tap of the server", LIMIT, || {
            Ok(lab.metrics("calls")?.contains("leno_taps_open 1").then_some(()))
        })?;
        lab.text("web", &[&*peer, "one", "calls", "90", "/shop.Cart/Add"])?;
        let text = command::success("leno tap", tap.finish(LIMIT)?)?;
        let requests = read(&text)?;
        let one = requests.first().context("no request")?;
        ensure!(one["protocol"] == "HTTP/2" && one["grpc_status"].is_u64(), "{one}");
        for part in ["client_proxy_us", "network_us", "server_proxy_us", "application_us"] {
            ensure!(one["latency"][part].is_u64(), "{part}: {one}");
        }
        is_open("0")?;
        // An application cannot open a tap by requesting a URL.
        let url = "http://127.0.0.1:15020/tap?id=a";
        let code = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}"];
        let fetched = lab.text("web", &[&code[..], &[url]].concat())?;
        let posted = lab.text("web", &[&code[..], &["-X", "POST", url]].concat())?;
        ensure!((&*fetched, &*posted) == ("405", "403"), "{fetched} {posted}");
        Ok(())
    };
    lab.explain(cases())
}

fn read(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
