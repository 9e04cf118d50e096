//! Tests proxies that get their certificates from a SPIFFE Workload API such as SPIRE's agent serves. Here
//! SPIFFE's own Go module serves it.
//!
//! ```text
//! spiffe-peer issue ── control.sock ──► control plane, which reads its trust bundle
//!        │ web.sock, cart.sock
//!        └──────────────► proxies of web and cart          own: its certificate is from the control plane
//! web ──► cart ◄── own    certificates of both authorities are accepted
//! ```

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::Running;
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::identity::{number, rotate, under_load, until};
use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  {name: web, namespace: lab, annotations: {leno.dev/spiffe-endpoint-socket: 'unix://@SOCKETS@/web.sock'}}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: own, namespace: lab, annotations: {leno.dev/spiffe-endpoint-socket: off}}
spec: {serviceAccount: own, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  name: cart
  namespace: lab
  labels: {app: cart}
  annotations: {leno.dev/spiffe-endpoint-socket: 'unix://@SOCKETS@/cart.sock'}
spec:
  serviceAccount: cart
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  rules: [{from: [{serviceAccounts: [web, own]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: others, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  action: Deny
  rules:
  - {from: [{serviceAccounts: [web]}], to: [{paths: [{prefix: /own}]}]}
  - {from: [{serviceAccounts: [own]}], to: [{paths: [{prefix: /web}]}]}
";

/// Workloads whose sockets issue other identities than theirs: one from another trust domain, and one for another
/// account.
const MISMATCHES: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  {name: far, namespace: lab, annotations: {leno.dev/spiffe-endpoint-socket: 'unix://@SOCKETS@/far.sock'}}
spec: {serviceAccount: far, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  {name: stray, namespace: lab, annotations: {leno.dev/spiffe-endpoint-socket: 'unix://@SOCKETS@/web.sock'}}
spec: {serviceAccount: stray, command: ['@BIN@/leno-peer', idle]}
";

/// The identities that the sockets issue.
const ISSUED: [&str; 4] = [
    "control=spiffe://cluster.local/control",
    "web=spiffe://cluster.local/ns/lab/sa/web",
    "cart=spiffe://cluster.local/ns/lab/sa/cart",
    "far=spiffe://example.org/ns/lab/sa/far",
];
/// How long certificates of the Workload API are valid. They are replaced after half of that time.
const LIFETIME: &str = "120s";
/// How long an answer or a message may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    vec![once!(certificates_of_a_workload_api_count_and_its_roots_are_replaced_under_load)]
}

fn certificates_of_a_workload_api_count_and_its_roots_are_replaced_under_load(
    capture: Capture,
) -> Result<()> {
    let sockets = tempfile::tempdir()?;
    fs::set_permissions(sockets.path(), Permissions::from_mode(0o755))?;
    let issuer = issuer(sockets.path())?;
    let place = sockets.path().to_str().context("a path")?;
    let mesh = MESH.replace("@SOCKETS@", place);
    let options = LabOptions {
        mtls: Some("strict"),
        spiffe_endpoint_socket: Some(format!("unix://{place}/control.sock")),
        ..LabOptions::new(capture)
    };
    let lab = Lab::start(&options, &mesh, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        identities(&lab)?;
        let (clients, url) = (["web-0", "own-0"], "http://cart:8080/");
        let requests = under_load(&lab, (&clients, url), || {
            roots_replaced(&lab, &issuer).context("the roots of the Workload API are replaced")?;
            // This rotation replaces the control plane's own root. No proxy delays the end of a phase.
            let current = |report: &Value| report["proxies"]["current"] == 3;
            let before = until(&lab, "all to be current", current)?;
            rotate(&lab, &[])?;
            until(&lab, "the next root", |report| {
                report["phase"] == "stable"
                    && report["issuer"] != before["issuer"]
                    && current(report)
            })?;
            let killed = lab.pid_of(MeshProcess::Controller)?;
            lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
            lab.wait_for("the next control plane", |status| {
                status.controller.is_some_and(|pid| pid != killed)
            })?;
            until(&lab, "all to be current", current).map(drop)
        })?;
        println!("{}: {requests} requests, none lost", capture.name());
        identities(&lab)?;
        lab.edit(&[&mesh, MISMATCHES].concat().replace("@SOCKETS@", place))?;
        let said = |text: &str| {
            wait::until(text, ANSWER_LIMIT, || Ok(lab.log().contains(text).then_some(())))
        };
        said("spiffe://example.org/ns/lab/sa/far, of another trust domain")?;
        said("register spiffe://cluster.local/ns/lab/sa/far")?;
        said("spiffe://cluster.local/ns/lab/sa/web, which is not this workload's identity")?;
        said("register spiffe://cluster.local/ns/lab/sa/stray")
    };
    lab.explain(outcome())
}

/// Starts the server of the sockets, and waits until it serves.
fn issuer(sockets: &Path) -> Result<Running> {
    let mut command = Command::new(tools::install("spiffe")?.join("spiffe"));
    command.arg("issue").arg(sockets).arg(LIFETIME).args(ISSUED);
    let issuer = Running::start(&mut command)?;
    wait::until("the sockets", ANSWER_LIMIT, || {
        let served = ISSUED.iter().filter_map(|one| one.split_once('='));
        let mut sockets = served.map(|(name, _)| sockets.join(format!("{name}.sock")));
        let is_open = |path: &Path| {
            fs::metadata(path).is_ok_and(|socket| socket.permissions().mode() & 0o777 == 0o666)
        };
        Ok(sockets.all(|path| is_open(&path)).then_some(()))
    })?;
    Ok(issuer)
}

/// Both clients are identified correctly, no matter which authority has signed their certificates.
fn identities(lab: &Lab) -> Result<()> {
    for (client, path, status) in
        [("web", "web", "200"), ("own", "own", "200"), ("web", "own", "403"), ("own", "web", "403")]
    {
        let url = format!("http://cart:8080/{path}");
        let ask = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-m", "30", &url];
        wait::until(&format!("{status} for {client} at /{path}"), ANSWER_LIMIT, || {
            Ok(lab.text(client, &ask).is_ok_and(|said| said == status).then_some(()))
        })?;
    }
    // The control plane's certificates are valid for a day.
    let hours =
        |name: &str| Ok::<_, anyhow::Error>(expires(lab, name)?.saturating_sub(now()?) / 3600);
    ensure!(hours("web")? == 0 && hours("cart")? == 0, "certificates of the control plane");
    ensure!(hours("own")? > 1, "a certificate of the Workload API");
    Ok(())
}

/// A second root is added, then it signs, and then the first root is removed.
fn roots_replaced(lab: &Lab, issuer: &Running) -> Result<()> {
    for (step, roots) in [("added", 2), ("signing", 2), ("removed", 1)] {
        let before = [expires(lab, "web")?, expires(lab, "cart")?];
        let bundle = until(lab, "its trust bundle", |_| true)?["bundle"].clone();
        kill(Pid::from_raw(i32::try_from(issuer.pid())?), Signal::SIGHUP)?;
        wait::until(&format!("certificates after a root was {step}"), ANSWER_LIMIT, || {
            let after = [expires(lab, "web")?, expires(lab, "cart")?];
            Ok((after[0] > before[0] && after[1] > before[1]).then_some(()))
        })?;
        until(lab, &format!("the roots after one was {step}"), |report| {
            let others = report["others"].as_array().map(Vec::len);
            // The counts of proxies refer to the bundle that was published last.
            let is_published = step == "signing" || report["bundle"] != bundle;
            others == Some(roots) && is_published && report["proxies"]["current"] == 3
        })?;
    }
    Ok(())
}

/// When the certificate of a proxy expires, as Unix time in seconds.
fn expires(lab: &Lab, name: &str) -> Result<u64> {
    let metrics = lab.metrics(name)?;
    let ends = number(&metrics, "leno_identity_expiration_timestamp_seconds");
    ends.with_context(|| format!("{name} has no certificate: {metrics}"))
}

fn now() -> Result<u64> {
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs())
}
