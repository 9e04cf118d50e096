//! Tests applications that get their own certificates over the SPIFFE Workload API, with SPIFFE's own client.
//!
//! ```text
//! web ── mTLS of the applications, through the mesh ──► cart
//!  └──────────── Unix socket ──► control plane ◄────────┘
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{command, tools, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {serviceAccount: plain, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec:
  serviceAccount: cart
  command: ['@DIR@/spiffe-peer', serve, '0.0.0.0:9443']
  ports: [{name: tls, port: 9443, appProtocol: tls}]
";

/// The shortest permitted lifetime of certificates, so that a certificate is replaced during the test.
const LIFETIME: Duration = Duration::from_mins(1);
/// How long it may take until a certificate is replaced.
const REPLACED_LIMIT: Duration = Duration::from_secs(120);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn cases() -> Vec<Case> {
    vec![once!(applications_get_their_identity_over_the_workload_api)]
}

fn applications_get_their_identity_over_the_workload_api(capture: Capture) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let copied = |directory: &Path| {
        fs::copy(&program, directory.join("spiffe-peer"))?;
        Ok(())
    };
    let options = LabOptions { cert_lifetime: Some(LIFETIME), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, copied)?;
    let outcome = || -> Result<()> {
        let peer = lab.directory().join("spiffe-peer");
        let peer = peer.to_str().context("a path")?;
        let one: Value = serde_json::from_str(&lab.text("web", &[peer, "watch", "1"])?)?;
        ensure!(one["id"] == id("web") && one["roots"] == 1, "{one}");
        // A workload without a proxy uses mTLS itself.
        let plain: Value = serde_json::from_str(&lab.text("plain", &[peer, "watch", "1"])?)?;
        ensure!(plain["id"] == id("plain"), "{plain}");
        let bundles = lab.text("cart", &[peer, "bundles"])?;
        ensure!(bundles.trim() == "cluster.local 1", "{bundles}");
        calls(&lab, peer)?;
        refusals(&lab, peer)?;
        // A new control plane must serve the same socket after the old one was killed.
        lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
        wait::until("the next control plane", ANSWER_LIMIT, || {
            Ok(lab.text("web", &[peer, "watch", "1"]).is_ok().then_some(()))
        })?;
        calls(&lab, peer)?;
        let said = lab.spawn("cart", &[peer, "watch", "2"])?.finish(REPLACED_LIMIT)?;
        let said = command::success("a certificate that is replaced", said)?;
        let lines = said.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let serials: BTreeSet<String> = lines.iter().map(|one| one["serial"].to_string()).collect();
        ensure!(serials.len() == 2, "{said}");
        ensure!(lines.iter().all(|one| one["id"] == id("cart")), "{said}");
        Ok(())
    };
    lab.explain(outcome())
}

fn id(account: &str) -> String {
    format!("spiffe://cluster.local/ns/lab/sa/{account}")
}

/// The applications prove their identities to each other.
fn calls(lab: &Lab, peer: &str) -> Result<()> {
    let call = [peer, "call", "cart-0.cart.lab:9443", &id("cart")];
    wait::until("an answer over mTLS", ANSWER_LIMIT, || {
        let said = lab.text("web", &call);
        Ok(said.is_ok_and(|said| said.trim() == id("web")).then_some(()))
    })?;
    let other = lab.exec("web", &[peer, "call", "cart-0.cart.lab:9443", &id("bank")])?;
    ensure!(!other.status.success(), "the server is taken for another one: {other:?}");
    Ok(())
}

fn refusals(lab: &Lab, peer: &str) -> Result<()> {
    let refused = |what: &str, output: std::process::Output, expected: &[&str]| -> Result<()> {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_expected = expected.iter().all(|text| said.contains(text));
        ensure!(!output.status.success() && is_expected, "{what}: {said}");
        Ok(())
    };
    let denied = ["PermissionDenied", "no identity is issued"];
    let socket = format!("unix:///run/leno/{}/workload-api.sock", lab.name());
    let mut outside = Command::new(peer);
    outside.args(["watch", "1"]).env("SPIFFE_ENDPOINT_SOCKET", socket);
    refused("outside of the mesh", command::run(&mut outside, ANSWER_LIMIT)?, &denied)?;
    let tokens = lab.exec("web", &[peer, "jwt"])?;
    refused("a token", tokens, &["Unimplemented", "JWT-SVIDs"])
}
