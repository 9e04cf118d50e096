//! Tests a client with a certificate that imitates a proxy of the mesh. Its headers must not make the application
//! see another request than the one to which policies were applied.
//!
//! ```text
//! plain, without a proxy ══ leno-h2, with the header leno-h1, which only proxies may set ══► proxies of cart (HTTP)
//!                                                                                           and echo (bytes)
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{tools, wait};
use serde_json::Value;

use super::hbone::identity;
use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {serviceAccount: plain, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab, labels: {app: cart}}
spec:
  serviceAccount: cart
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  serviceAccount: echo
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: cart, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  rules: [{to: [{hosts: [cart], paths: [{prefix: /open}, {prefix: '/:80'}, {prefix: /.b}]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  selector: {matchLabels: {app: echo}}
  action: Deny
  rules: [{to: [{paths: [{prefix: /admin}]}]}]
";

/// How long the first answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);

pub(super) fn cases() -> Vec<Case> {
    vec![once!(forged_headers_change_nothing_that_policies_check)]
}

fn forged_headers_change_nothing_that_policies_check(capture: Capture) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let prepared = |directory: &Path| {
        fs::copy(&program, directory.join("spiffe-peer"))?;
        Ok(())
    };
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, prepared)?;
    lab.explain(lies(&lab))?;
    lab.end()
}

fn lies(lab: &Lab) -> Result<()> {
    let directory = identity(lab, "plain", "plain")?;
    let first = ["1.1 T", "http://cart/open?head=1"];
    let served = wait::until("an answer of cart", ANSWER_LIMIT, || {
        let all = sent(lab, &directory, ("cart", 8080), &first)?;
        Ok(all.first().filter(|one| one["status"] == 200).cloned())
    })?;
    ensure!(served["said"].to_string().contains("GET /open?head=1 HTTP/1.1"), "{served}");
    // The target is in absolute form without a path, but the policies were applied to a path. That path must not
    // become part of the authority. There is no `Host`, or a different one than the policies were applied to.
    let cases = [
        ("1.1 Tae", "/open/admin", "GET http://cart/open/admin?head=1 "),
        ("1.1 Tae", "/:80/admin", "GET http://cart/:80/admin?head=1 "),
        ("1.1 Tae", "/.b/admin", "GET http://cart/.b/admin?head=1 "),
        ("1.0 Tn", "/open", "Host: cart"),
        ("1.1 T h=", "/open", "Host: cart"),
        ("1.1 T h=other", "/open", "Host: cart"),
    ];
    let urls: Vec<String> =
        cases.iter().map(|(_, path, _)| format!("http://cart{path}?head=1")).collect();
    let requests: Vec<&str> =
        cases.iter().zip(&urls).flat_map(|((carried, ..), url)| [*carried, url]).collect();
    let all = sent(lab, &directory, ("cart", 8080), &requests)?;
    ensure!(all.len() == cases.len(), "{all:?}");
    for ((carried, path, seen), said) in cases.iter().zip(&all) {
        let is_seen = said["said"].as_str().is_some_and(|head| head.contains(seen));
        ensure!(said["status"] == 200 && is_seen, "{carried} {path}: {said}");
    }
    let denied = sent(lab, &directory, ("cart", 8080), &["1.1 Tae", "http://cart/admin"])?;
    ensure!(denied[0]["status"] == 403, "{denied:?}");

    // The policy denies all opaque connections, because they may carry what it denies. An HTTP head before the
    // bytes must not change that.
    let bytes = sent(lab, &directory, ("echo", 9000), &["1.1 T", "http://echo/x"])?;
    ensure!(bytes[0]["status"] == 403, "{bytes:?}");
    let metrics = lab.metrics("echo")?;
    ensure!(
        metrics.contains("leno_authorization_total{decision=\"deny\",policy=\"lab/no-admin\"} 1"),
        "{metrics}"
    );
    Ok(())
}

/// The answers of the proxy of `server` to these requests of `plain`. Each request is a value of the header `leno-h1`
/// and a URL.
fn sent(
    lab: &Lab,
    directory: &str,
    (server, port): (&str, u16),
    requests: &[&str],
) -> Result<Vec<Value>> {
    let peer = leno_testkit::binaries::ours("leno-peer")?.with_file_name("examples/hbone-peer");
    let peer = peer.to_str().context("a path")?;
    let proxy = format!("{}:{port}", lab.status()?.address(server, false)?);
    let id = format!("spiffe://cluster.local/ns/lab/sa/{server}");
    let command = [&[peer, "lie", directory, &proxy, &id], requests].concat();
    let said = lab.text("plain", &command)?;
    said.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
