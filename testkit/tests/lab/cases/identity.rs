//! Tests certificates, their issuers and roots, which are renewed and replaced while the mesh carries load.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::load::Report;
use leno_testkit::peer::{Step, Transcript};
use leno_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Case, once};

/// How long a phase of a rotation may take on a busy machine. This includes the wait of a restarted control plane
/// for proxies.
const PHASE_LIMIT: Duration = Duration::from_secs(120);
/// The shortest permitted lifetime of certificates.
const LIFETIME: Duration = Duration::from_mins(1);
/// How long `leno identity` may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Twenty workloads that call each other, and one whose proxy the test stops, so that no phase ends without it. In
/// node mode that workload has its own process, so that the others continue.
const TWENTY: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {replicas: 10, command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}}
spec:
  replicas: 10
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\"]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: idle, namespace: lab, annotations: {leno.dev/mode: sidecar}}
spec: {command: [\"@BIN@/leno-peer\", idle]}
";

/// Two clients of one server.
const THREE: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec: {serviceAccount: cart, command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  serviceAccount: echo
  command: [\"@BIN@/leno-peer\", echo, --listen, \"[::]:9000\"]
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
";

/// The process that serves `idle-0`, which the test stops. It cannot be a shared node proxy, because a stopped one
/// would be replaced.
const HELD: MeshProcess<'_> = MeshProcess::Proxy("idle-0");

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(a_root_is_replaced_under_load_while_control_planes_are_killed),
        once!(a_revocation_ends_the_connections_of_one_identity),
        once!(a_connection_ends_with_its_certificate_unless_that_is_renewed),
    ]
}

fn a_root_is_replaced_under_load_while_control_planes_are_killed(capture: Capture) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, TWENTY, |_| Ok(()))?;
    let clients = ["client-0", "client-1", "client-2", "client-3"];
    let outcome =
        reports_under_load(&lab, (&clients, "http://web:8080/"), &["--rate", &rate()], || {
            replaced(&lab).context("replacing the root")?;
            aborted(&lab).context("aborting")
        });
    let reports = lab.explain(outcome)?;
    let requests: u64 = reports.iter().map(|report| report.requests).sum();
    let unsent: u64 = reports.iter().map(Report::unsent).sum();
    println!(
        "{}: {requests} requests, {unsent} of them not sent in time, none lost",
        capture.name()
    );
    // A proxy that starts now can verify the control plane only with the new root.
    let before = lab.status()?.instance("web-0")?.proxy_restarts;
    lab.kill(MeshProcess::Proxy("web-0"), Signal::SIGKILL)?;
    lab.wait_for("the next proxy", |status| {
        status.ready() && status.instance("web-0").is_ok_and(|one| one.proxy_restarts > before)
    })?;
    lab.explain(lab.reach("client-0", "web-0.web:8080").map(|_| ()))
}

/// Runs `work` while clients send requests to a URL. Returns the number of requests; fails if any failed.
pub(super) fn under_load(
    lab: &Lab,
    (clients, url): (&[&str], &str),
    work: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    under_load_of(lab, (clients, url), &["--rate", &rate()], work)
}

/// How many requests per second each client sends.
fn rate() -> String {
    std::env::var("LENO_ROTATION_RATE").unwrap_or_else(|_| "100".to_owned())
}

/// Like [`under_load`], with these arguments for the load.
pub(super) fn under_load_of(
    lab: &Lab,
    (clients, url): (&[&str], &str),
    pace: &[&str],
    work: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let reports = reports_under_load(lab, (clients, url), pace, work)?;
    Ok(reports.iter().map(|report| report.requests).sum())
}

/// Like [`under_load_of`], but returns the reports, one for every few seconds.
pub(super) fn reports_under_load(
    lab: &Lab,
    (clients, url): (&[&str], &str),
    pace: &[&str],
    work: impl FnOnce() -> Result<()>,
) -> Result<Vec<Report>> {
    let service = url.trim_start_matches("http://").trim_end_matches('/');
    lab.reach(clients.first().context("no client")?, service)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = |client: &&str| {
            let (client, over) = (client.to_string(), &over);
            scope.spawn(move || -> Result<Vec<Report>> {
                let mut reports = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let arguments = [&["--url", url], pace].concat();
                    let more = ["--connections", "4", "--duration", "3s"];
                    let report = lab.load(&client, &[&arguments[..], &more].concat())?.finish()?;
                    // Requests that the machine had no time to send do not count as lost.
                    let is_answered = report.errors == report.unsent();
                    ensure!(is_answered && report.requests > report.errors, "{client}: {report:?}");
                    reports.push(report);
                }
                Ok(reports)
            })
        };
        let loads: Vec<_> = clients.iter().map(load).collect();
        let worked = work();
        over.store(true, Ordering::Relaxed);
        let join = |load: ScopedJoinHandle<'_, Result<Vec<Report>>>| match load.join() {
            Ok(reports) => reports,
            Err(_panicked) => anyhow::bail!("a load has panicked"),
        };
        // All threads are joined, even if one of them has failed.
        let reports: Vec<Result<Vec<Report>>> = loads.into_iter().map(join).collect();
        worked?;
        Ok(reports.into_iter().collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Performs one rotation, and kills the control plane in each phase.
fn replaced(lab: &Lab) -> Result<()> {
    // A proxy may be ready before the control plane has received its report.
    let before = until(lab, "all to have reported", |report| {
        report["phase"] == "stable" && report["proxies"]["current"] == 21
    })?;
    lab.kill(HELD, Signal::SIGSTOP)?;
    rotate(lab, &[])?;
    let second = command::run(&mut lab.leno("identity rotate-root"), ANSWER_LIMIT)?;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure!(second.status.code() == Some(2) && said.contains("is under way"), "{said}");
    for (phase, roots) in [("add", 2), ("switch", 2), ("remove", 1)] {
        // In the first phase, all proxies except one acknowledge. A restarted control plane waits for proxies only
        // for a limited time, so a later phase may have begun before the proxy was stopped; that phase does not
        // need to wait for it.
        let report = until(lab, phase, |report| {
            report["phase"] == phase && (phase != "add" || waited_for(report) == ["lab/idle-0"])
        })?;
        ensure!(report["roots"].as_array().is_some_and(|all| all.len() == roots), "{report}");
        let killed = lab.pid_of(MeshProcess::Controller)?;
        lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
        lab.wait_for("the next control plane", |status| {
            status.controller.is_some_and(|pid| pid != killed)
        })?;
        lab.kill(HELD, Signal::SIGCONT)?;
        until(lab, "every proxy to acknowledge it to the next control plane", |report| {
            report["phase"] != phase || report["proxies"]["current"] == 21
        })?;
        if phase != "remove" {
            lab.kill(HELD, Signal::SIGSTOP)?;
        }
    }
    let after = until(lab, "the end", |report| report["phase"] == "stable")?;
    ensure!(after["issuer"] != before["issuer"] && after["bundle"] != before["bundle"], "{after}");
    until(lab, "all to be current", |report| report["proxies"]["current"] == 21).map(drop)
}

/// Aborts a rotation in its first phase.
fn aborted(lab: &Lab) -> Result<()> {
    let before = identity(lab)?;
    lab.kill(HELD, Signal::SIGSTOP)?;
    rotate(lab, &[])?;
    until(lab, "add", |report| report["phase"] == "add" && waited_for(report) == ["lab/idle-0"])?;
    rotate(lab, &["--abort"])?;
    // The stopped proxy still uses the earlier bundle, to which the abort returns. So no phase waits for it, and
    // the abort may be over before it is observed.
    lab.kill(HELD, Signal::SIGCONT)?;
    let after = until(lab, "the end", |report| report["phase"] == "stable")?;
    ensure!(after["issuer"] == before["issuer"] && after["bundle"] == before["bundle"], "{after}");
    let none = command::run(lab.leno("identity rotate-root").arg("--abort"), ANSWER_LIMIT)?;
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    ensure!(none.status.code() == Some(2) && said.contains("no rotation of the root"), "{said}");
    Ok(())
}

fn a_revocation_ends_the_connections_of_one_identity(capture: Capture) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, THREE, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let (web, cart) = (Stream::open(&lab, "web")?, Stream::open(&lab, "cart")?);
        let ended = web.ended_by(&lab, "lab/web").context("the client is revoked")?;
        println!("{}: ended {ended:?} after the client was revoked", capture.name());
        ensure!(lab.metrics("echo")?.contains("\nleno_tls_revoked_total 1\n"), "it is not counted");
        again(&lab, "web").context("the client has another certificate")?;
        // The client's proxy closes a connection to a server whose certificate was revoked.
        let ended = cart.ended_by(&lab, "lab/echo").context("the server is revoked")?;
        println!("{}: ended {ended:?} after the server was revoked", capture.name());
        again(&lab, "cart").context("the server has another certificate")
    };
    lab.explain(outcome())
}

fn a_connection_ends_with_its_certificate_unless_that_is_renewed(capture: Capture) -> Result<()> {
    let options = LabOptions {
        mtls: Some("strict"),
        cert_lifetime: Some(LIFETIME),
        ..LabOptions::new(capture)
    };
    let lab = Lab::start(&options, THREE, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let [first, second] = [Stream::open(&lab, "web")?, Stream::open(&lab, "cart")?];
        let opened = Instant::now();
        // Waiting for the third certificates means that certificates that were renewed once have expired as well.
        wait::until("the third certificates", ANSWER_LIMIT + 3 * LIFETIME, || {
            let renewed =
                number(&lab.metrics("echo")?, "leno_tls_renewed_total{direction=\"inbound\"}");
            Ok((opened.elapsed() > 2 * LIFETIME && renewed >= Some(4)).then_some(()))
        })?;
        first.goes_on().context("a stream of renewed certificates")?;
        let metrics = lab.metrics("echo")?;
        ensure!(number(&metrics, "leno_tls_expired_total") == Some(0), "{metrics}");
        // Without a control plane, certificates are not renewed.
        wait::until("one stream", ANSWER_LIMIT, || {
            Ok((open_connections(&lab)? == Some(1)).then_some(()))
        })?;
        lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
        let ended = second.cut(&lab, Some(1), 3 * LIFETIME);
        lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
        println!("{}: ended {:?} after the control plane stopped", capture.name(), ended?);
        let ends = [lab.metrics("echo")?, lab.metrics("cart")?];
        let expired = ends.iter().filter_map(|said| number(said, "leno_tls_expired_total")).sum();
        ensure!(matches!(expired, 1..=2), "{expired} ends have counted it");
        again(&lab, "cart").context("there are certificates again")
    };
    lab.explain(outcome())
}

/// Waits until a client can connect to `echo` again. That may take several attempts, because certificates that
/// were issued in the same second as the revocation are revoked as well.
fn again(lab: &Lab, client: &str) -> Result<()> {
    let hello = [Step::Send("hello".into()), Step::Expect("hello".into())];
    wait::until("a connection", ANSWER_LIMIT, || {
        let said = lab.talk(client, "echo:9000", &hello);
        Ok(said.is_ok_and(|said| said.failure().is_none()).then_some(()))
    })
}

/// A connection to `echo` that stays open until the test lets it continue.
struct Stream {
    process: Running,
    go: PathBuf,
}

impl Stream {
    fn open(lab: &Lab, client: &str) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{client}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let [open, go] = ["open", "go"].map(|what| lab.directory().join(format!("{name}-{what}")));
        let steps = [
            Step::Send("first".into()),
            Step::Expect("first".into()),
            Step::Touch(open.clone()),
            Step::WaitFor(go.clone()),
            Step::Send("last".into()),
            Step::Expect("last".into()),
        ];
        let said = serde_json::to_string(&steps)?;
        let process = lab.spawn(client, &["leno-peer", "talk", "echo:9000", &said])?;
        wait::until("a stream", ANSWER_LIMIT, || Ok(open.exists().then_some(())))?;
        Ok(Self { process, go })
    }

    /// Revokes a service account and waits until the stream is cut. Returns how long that took.
    fn ended_by(self, lab: &Lab, account: &str) -> Result<Duration> {
        let open = open_connections(lab)?;
        command::text(lab.leno("identity revoke").arg(account), ANSWER_LIMIT)?;
        self.cut(lab, open, ANSWER_LIMIT)
    }

    /// Waits until `echo` has fewer than `open` connections, because this stream was cut. Returns how long that took.
    fn cut(self, lab: &Lab, open: Option<u64>, limit: Duration) -> Result<Duration> {
        let began = Instant::now();
        let fewer = || Ok((open_connections(lab)? < open).then_some(()));
        wait::until("fewer connections", limit, fewer)?;
        let after = began.elapsed();
        let transcript = self.finished()?;
        ensure!(transcript.was_cut(), "it was not cut: {transcript:?}");
        Ok(after)
    }

    /// Lets the stream continue to its end.
    fn goes_on(self) -> Result<()> {
        let transcript = self.finished()?;
        ensure!(transcript.failure().is_none(), "{transcript:?}");
        Ok(())
    }

    fn finished(self) -> Result<Transcript> {
        std::fs::write(&self.go, "")?;
        let said = command::success("a stream", self.process.finish(ANSWER_LIMIT)?)?;
        Ok(serde_json::from_str(&said)?)
    }
}

/// The number of connections that the proxy of `echo` has open.
fn open_connections(lab: &Lab) -> Result<Option<u64>> {
    Ok(number(&lab.metrics("echo")?, "leno_connections_open"))
}

/// The value of a metric with its labels in a proxy's metrics.
pub(super) fn number(metrics: &str, name: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.parse().ok()
}

pub(super) fn rotate(lab: &Lab, arguments: &[&str]) -> Result<()> {
    command::text(lab.leno("identity rotate-root").args(arguments), ANSWER_LIMIT).map(drop)
}

/// The output of `leno identity -o json`.
fn identity(lab: &Lab) -> Result<Value> {
    let said = command::text(lab.leno("identity").args(["-o", "json"]), ANSWER_LIMIT)?;
    Ok(serde_json::from_str(&said)?)
}

/// Waits until `fits` returns true for the report. Errors are ignored, because the control plane may be
/// restarting.
pub(super) fn until(lab: &Lab, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = None;
    wait::until(what, PHASE_LIMIT, || {
        let report = identity(lab);
        let found = report.as_ref().ok().filter(|report| fits(report)).cloned();
        last = Some(report);
        Ok(found)
    })
    .with_context(|| format!("{last:?}"))
}

fn waited_for(report: &Value) -> Vec<&str> {
    let waiting = report["proxies"]["waiting"].as_array().map(Vec::as_slice).unwrap_or_default();
    waiting.iter().filter_map(|one| one["workload"].as_str()).collect()
}
