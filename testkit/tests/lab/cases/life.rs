//! Tests the life of a mesh: starting, editing, killing and cleaning up.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::{Step, Transcript};
use leno_testkit::{binaries, command, netns, proxy};
use nix::sys::signal::Signal;

use super::programs::socket;
use super::{Case, alone, shared};

/// The page of the guide that describes all metrics.
const METRICS: &str = include_str!("../../../../docs/guide/metrics.md");

/// How long openssl or curl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(90);
/// How long a stream of the test may last.
const STREAM_LIMIT: Duration = Duration::from_secs(60);

const TWO: &str = "
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

const ONE_MORE: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  command: [\"@BIN@/leno-peer\", echo, --listen, \"[::]:9000\"]
  ports: [{name: x, port: 9000}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(the_first_request_comes_soon_and_edits_cut_nothing),
        alone!(a_killed_mesh_is_cleaned_up),
        alone!(programs_in_a_closed_directory_run),
        shared!(netfilter_is_used_only_where_asked_for),
        shared!(proxies_have_no_privilege),
        shared!(stat_shows_edges),
        shared!(the_reference_of_metrics_is_true),
    ]
}

fn the_first_request_comes_soon_and_edits_cut_nothing(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), TWO, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let first = lab.reach("client", "web:8080")?;
        // The times are printed but not checked, because machines differ. The goal is 2 s.
        eprintln!(
            "{}: ready after {:?}, first request served {first:?} later",
            capture.name(),
            lab.ready_after()
        );
        edit(&lab).context("editing the documents")?;
        refused_edit(&lab).context("a bad edit")
    };
    lab.explain(outcome())
}

/// The programs are in a home directory that other users cannot enter. Proxies run as a user without access to it.
fn programs_in_a_closed_directory_run(capture: Capture) -> Result<()> {
    let closed = tempfile::Builder::new().prefix("closed").tempdir_in(binaries::directory()?)?;
    std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700))?;
    for program in ["leno", "leno-proxy", "leno-broker", "leno-controller"] {
        std::fs::hard_link(binaries::ours(program)?, closed.path().join(program))?;
    }
    let programs = Some(closed.path().to_owned());
    let lab = Lab::start(&LabOptions { programs, ..LabOptions::new(capture) }, TWO, |_| Ok(()))?;
    lab.explain(lab.reach("client", "web:8080").map(|_| ()))
}

/// A stream that is open while the documents change must not be cut, and new workloads must work.
fn edit(lab: &Lab) -> Result<()> {
    let (open, go) = (lab.directory().join("open"), lab.directory().join("go"));
    let ask = "GET /upgrade HTTP/1.1\r\nHost: lab\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let steps = [
        Step::Send(ask.into()),
        Step::Response(false),
        Step::Touch(open.clone()),
        Step::WaitFor(go.clone()),
        Step::Send("still here".into()),
        Step::Expect("still here".into()),
    ];
    let steps = serde_json::to_string(&steps)?;
    let stream = lab.spawn("client", &["leno-peer", "talk", "web:8080", &steps])?;
    leno_testkit::wait::until("the stream", STREAM_LIMIT, || Ok(open.exists().then_some(())))?;
    lab.edit(&format!("{TWO}{ONE_MORE}"))?;
    lab.wait_for("the new workload", |s| s.ready() && s.instance("echo-0").is_ok())?;
    let hello = [Step::Send("hello".into()), Step::Expect("hello".into())];
    leno_testkit::wait::until("the new workload to answer", STREAM_LIMIT, || {
        let echoed = lab.talk("client", "echo:9000", &hello);
        Ok(echoed.is_ok_and(|t| t.failure().is_none()).then_some(()))
    })?;
    std::fs::write(go, "")?;
    let said = command::success("the old stream", stream.finish(STREAM_LIMIT)?)?;
    let transcript: Transcript = serde_json::from_str(&said)?;
    ensure!(transcript.failure().is_none(), "the old stream was cut: {transcript:?}");
    // The edit is reverted. Everything that it added must then be gone.
    lab.edit(TWO)?;
    lab.wait_for("the end of the new workload", |s| s.instance("echo-0").is_err())
}

fn refused_edit(lab: &Lab) -> Result<()> {
    lab.edit(&TWO.replace("port: 8080", "port: eighty"))?;
    lab.wait_for("the refusal", |s| s.refused_edit.is_some())?;
    let why = lab.status()?.refused_edit.unwrap_or_default();
    ensure!(why.contains("mesh.yaml:"), "no file and line in {why:?}");
    ask(lab)?;
    lab.edit(TWO)?;
    lab.wait_for("the edit to be taken", |s| s.refused_edit.is_none())
}

fn a_killed_mesh_is_cleaned_up(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), TWO, |_| Ok(()))?;
    lab.reach("client", "web:8080")?;
    lab.kill(MeshProcess::Owner, Signal::SIGKILL)?;
    lab.end()?;
    let before = lab.remains()?;
    ensure!(!before.is_empty(), "there is nothing to clean up, so this proves nothing");
    lab.clean_up()?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

fn netfilter_is_used_only_where_asked_for(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    let capture = status.instance("web-0")?.capture.clone().context("web-0 is not captured")?;
    for instance in status.instances.iter().filter(|i| i.meshed) {
        ensure!(instance.capture.as_deref() == Some(&capture), "captured otherwise: {instance:?}");
        let rules = lab.text(&instance.name, &["nft", "list", "ruleset"])?;
        let wanted = capture != Capture::Ebpf.name();
        ensure!(rules.trim().is_empty() != wanted, "{capture}: {}: {rules}", instance.name);
    }
    Ok(())
}

fn proxies_have_no_privilege(lab: &Lab) -> Result<()> {
    for instance in lab.status()?.instances.iter().filter(|i| i.meshed) {
        has_no_privilege(lab, MeshProcess::Proxy(&instance.name))?;
        if instance.group().is_some() {
            has_no_privilege(lab, MeshProcess::Broker(&instance.name))?;
        }
    }
    // In node mode, the files are named after their instances.
    let mut find = Command::new("find");
    find.arg(format!("/run/leno/{}", lab.name())).args(["-type", "f", "-size", "+0"]);
    find.args(["(", "-name", "token", "-o", "-path", "*/tokens/*", ")"]);
    let tokens = command::text(&mut find, OPENSSL_LIMIT)?;
    ensure!(!tokens.is_empty(), "no token was found");
    for token in tokens.lines() {
        let seen = as_proxy(&["cat", token])?;
        ensure!(!seen.status.success(), "{token} is within reach");
    }
    Ok(())
}

fn has_no_privilege(lab: &Lab, piece: MeshProcess<'_>) -> Result<()> {
    let pid = lab.pid_of(piece)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let user = "Uid:\t2102\t2102\t2102\t2102";
    for line in [user, "CapEff:\t0000000000000000"] {
        ensure!(status.contains(line), "{piece:?}: no {line:?} in {status}");
    }
    proxy::every_thread_is_confined(pid).with_context(|| format!("{piece:?}"))?;
    ensure!(status.contains("CapBnd:\t0000000000000000"), "{piece:?}: {status}");
    // This is what a compromised proxy could try, because all proxies run as the same user.
    for look in [["cat", "environ"], ["ls", "root/"]] {
        let seen = as_proxy(&[look[0], &format!("/proc/{pid}/{}", look[1])])?;
        ensure!(!seen.status.success(), "{piece:?}: {look:?} shows {seen:?}");
    }
    Ok(())
}

/// Runs a command as the user of the proxies.
fn as_proxy(arguments: &[&str]) -> Result<std::process::Output> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=2102", "--regid=2102", "--clear-groups"]).args(arguments);
    command::run(&mut command, OPENSSL_LIMIT)
}

fn stat_shows_edges(lab: &Lab) -> Result<()> {
    let load = ["--url", "http://web/?size=10", "--rate", "100", "--duration", "12s"];
    let load = lab.load("client", &load)?;
    let stat = lab.stat()?;
    let report = load.finish()?;
    ensure!(report.errors == 0, "{report:?}");
    let edges = stat["edges"].as_array().context("no edges")?;
    let edge = edges.iter().find(|e| e["client"] == "client" && e["server"] == "web");
    let edge = edge.with_context(|| format!("no edge from client to web: {stat}"))?;
    ensure!(edge["mtls"] == true && edge["success_rate"] == 1.0, "{edge}");
    let rate = edge["requests_per_s"].as_f64().unwrap_or_default();
    ensure!(rate > 0.0 && edge["latency_ms"]["p99"].as_f64().is_some(), "{edge}");
    Ok(())
}

/// Every metric must have a row with the text of its HELP line, and there must be no other row.
fn the_reference_of_metrics_is_true(lab: &Lab) -> Result<()> {
    let proxy = lab.metrics("web")?;
    let of_switch = |url: &str| -> Result<String> {
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-m", "20", url]);
        netns::inside(&lab.switch()?, || command::text(&mut curl, OPENSSL_LIMIT))
    };
    let controller = of_switch("http://127.0.0.1:15020/metrics")?;
    let flows = of_switch("http://10.89.0.1:15025/metrics")?;
    // This lab sends no datagrams, so no page contains their metrics. The case `datagrams` compares those.
    let is_here = |name: &str| !name.starts_with("leno_datagram");
    reference_is_true(&[&proxy, &controller, &flows], is_here)
}

/// Checks that the reference lists exactly the metrics of these pages. Only names for which `is_meant` returns
/// true are compared.
pub(super) fn reference_is_true(pages: &[&str], is_meant: impl Fn(&str) -> bool) -> Result<()> {
    let helps = pages.iter().flat_map(|page| page.lines());
    let exposed = helps.filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let exposed: BTreeSet<(&str, &str)> = exposed.filter(|(name, _)| is_meant(name)).collect();
    let row = |line: &'static str| {
        let (name, cells) = line.strip_prefix("| `")?.split_once("` | ")?;
        let help = cells.strip_suffix(" |")?.rsplit_once("| ")?.1;
        (name.starts_with("leno_") || name.starts_with("process_")).then_some((name, help))
    };
    let told = METRICS.lines().filter_map(row);
    let told: BTreeSet<(&str, &str)> = told.filter(|(name, _)| is_meant(name)).collect();
    let missing: Vec<_> = exposed.difference(&told).collect();
    let invented: Vec<_> = told.difference(&exposed).collect();
    ensure!(missing.is_empty() && invented.is_empty(), "missing {missing:?}, extra {invented:?}");
    Ok(())
}

fn ask(lab: &Lab) -> Result<()> {
    let steps = [Step::Send("GET / HTTP/1.1\r\nHost: lab\r\n\r\n".into()), Step::Response(false)];
    let answered = lab.talk("client", "web:8080", &steps)?;
    ensure!(answered.statuses() == [200], "{answered:?}");
    Ok(())
}

/// The certificate that the proxy of an instance presents to clients, in PEM.
pub(super) fn certificate(lab: &Lab, instance: &str) -> Result<String> {
    let address = lab.status()?.address(instance, false)?.to_string();
    let mut client = Command::new(binaries::require("openssl", "openssl")?);
    client.args(["s_client", "-alpn", "leno-h1", "-connect", &socket(&address, 8080)]);
    let output = netns::inside(&lab.switch()?, || command::run(&mut client, OPENSSL_LIMIT))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let begin = text.find("-----BEGIN CERTIFICATE").with_context(|| text.to_string())?;
    let end = text.find("-----END CERTIFICATE").context("half a certificate")?;
    Ok(text[begin..end].to_string())
}
