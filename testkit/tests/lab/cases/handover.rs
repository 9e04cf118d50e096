//! Tests processes of node mode that take over from others, and one that is killed, with many open connections.
//! `leno up` starts a new process when an edit of `leno.dev/share` gives the group of the same workloads another
//! name. An update of the proxies takes the same step.
//!
//! ```text
//! near-a ── bytes, WebSockets ──► far-a      one process serves all workloads of a namespace
//! near-b ── bytes, WebSockets ──► far-b
//! ```
//! `LENO_NODE_CONNECTIONS` sets how many opaque connections are open (100); there is also a tenth as many
//! WebSockets. `LENO_NODE_SWITCHES` sets how many times workloads move to another process (4), and
//! `LENO_NODE_UPLOAD` the size of the upload meanwhile (16 MiB). `LENO_ROTATION_RATE` is the rate of requests, as
//! in `identity`.

mod timeout;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::command::Running;
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::stopped::StoppedThreads;
use leno_testkit::{command, wait};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use self::timeout::streams_that_outlast_the_handover_timeout_are_cut_and_counted_and_others_end_whole;
use super::identity::reports_under_load;
use super::node::{LIMIT, MESH, echoes, status};
use super::{Case, alone, once};

/// The number of connections for each instance, on both sides. A server accepts 379 from one identity if its
/// process has 20,000 descriptors, and the servers do not get equally many.
const OF_ONE: usize = 300;
/// How long opening all connections, and the end of the test's programs, may take.
const LONG: Duration = Duration::from_secs(600);

/// The pairs of namespaces. If there are more connections than one process has descriptors for (20,000 here),
/// there are more pairs.
fn ends() -> &'static [&'static str] {
    match connections().0 {
        ..8_000 => &["a", "b"],
        _ => &["a", "b", "c", "d"],
    }
}

/// Holds opaque connections and WebSockets from when one file appears until another does, or until all were cut.
/// Sends messages on each in turn, which the server echoes. Prints how many connections were cut, and the longest
/// time of a message in milliseconds. Also prints each message that took longer than 5 ms, with the second at
/// which it was sent, and each pause between two messages that lasted too long. In such a pause the program itself
/// waited for a CPU, whatever the proxies did.
const HOLD: &str = r#"
import json, os, resource, socket, sys, time
host, plain, upgraded, begun, over = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def connect(port):
    client = socket.create_connection((host, port), 60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if port == 8080:
        client.sendall(b'GET /upgrade HTTP/1.1\r\nHost: far\r\nConnection: upgrade\r\nUpgrade: websocket\r\n'
                       b'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
        head = b''
        while not head.endswith(b'\r\n\r\n'):
            more = client.recv(4096)
            if not more:
                raise OSError('no answer')
            head += more
        if b' 101 ' not in head:
            raise OSError(head)
    return client
def echo(client):
    message, received = os.urandom(32), b''
    client.sendall(message)
    while len(received) < len(message):
        more = client.recv(64)
        if not more:
            raise OSError('closed')
        received += more
    if received != message:
        raise OSError('other bytes')
held = []
for port in [9000] * plain + [8080] * upgraded:
    held.append(connect(port))
    echo(held[-1])
opened, cut, messages, longest = len(held), 0, 0, 0.0
slow, late = [], []
open(begun, 'w').close()
is_last = False
while held and not is_last:
    is_last = os.path.exists(over)
    for client in list(held):
        start = time.monotonic()
        try:
            echo(client)
            messages += 1
        except OSError:
            held.remove(client)
            cut += 1
        end = time.monotonic()
        longest = max(longest, end - start)
        if end - start > 0.005:
            slow.append((start, (end - start) * 1000))
        if not is_last:
            time.sleep(0.02)
            awake = time.monotonic()
            if awake - end > 0.025:
                late.append((end, (awake - end) * 1000 - 20))
            if os.path.exists(over):
                break
print(json.dumps({'opened': opened, 'cut': cut, 'messages': messages, 'longest_ms': longest * 1000,
                  'slow': slow, 'late': late}))
"#;

/// A server that accepts requests with a body of any length, and responds with the length.
const STORE: &str = r"
import http.server
class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_PUT(self):
        left, taken = int(self.headers['Content-Length']), 0
        while left:
            more = self.rfile.read1(min(left, 65536))
            if not more:
                return
            left, taken = left - len(more), taken + len(more)
        answer = str(taken).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(('', 8081), Store).serve_forever()
";

/// Sends a body slowly from when one file appears until another does, and then the rest of it. Prints how many
/// bytes the server has received.
const UPLOAD: &str = r"
import os, socket, sys, time
size, begun, over = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = socket.create_connection(('store', 8081), 60)
client.sendall(f'PUT /upload HTTP/1.1\r\nHost: store\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n'.encode())
chunk, left = bytes(65536), size
open(begun, 'w').close()
while left:
    is_over = os.path.exists(over)
    if is_over or left > len(chunk):
        part = chunk[:left]
        client.sendall(part)
        left -= len(part)
    if not is_over:
        time.sleep(0.005)
answer = b''
while more := client.recv(4096):
    answer += more
print(answer.decode().rsplit('\n')[-1])
";

/// The workload that receives the upload. It is in the same process as the others.
const STORED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: store, namespace: lab, labels: {app: store}, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec:
  serviceAccount: store
  command: [python3, '@DIR@/store.py']
  ports: [{name: http, port: 8081, appProtocol: http}]
";

/// What the programs that hold connections have observed.
#[derive(Clone, Debug, Default, Deserialize)]
struct HeldConnections {
    opened: u64,
    cut: u64,
    messages: u64,
    longest_ms: f64,
    /// When slow messages were sent, by the monotonic clock, and how many milliseconds they took.
    slow: Vec<(f64, f64)>,
    /// When the programs paused, and how many milliseconds too late they continued.
    late: Vec<(f64, f64)>,
}

impl HeldConnections {
    /// The slowest message in a time span, and the longest time that a program waited for a CPU within it.
    fn longest(&self, (from, to): (f64, f64)) -> String {
        let longest = |all: &[(f64, f64)]| {
            let within = all.iter().filter(|(at, _)| (from..to).contains(at));
            within.map(|(_, ms)| *ms).fold(5.0, f64::max)
        };
        format!("{:.1} ms ({:.1} ms for a CPU)", longest(&self.slow), longest(&self.late))
    }
}

/// The monotonic clock in seconds, as the programs read it.
fn now() -> Result<f64> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_secs_f64())
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(processes_that_take_over_cut_no_connection_and_fail_no_request),
        alone!(an_update_of_all_proxies_cuts_no_connection_and_fails_no_request),
        once!(streams_that_outlast_the_handover_timeout_are_cut_and_counted_and_others_end_whole),
        once!(a_killed_process_ends_the_connections_of_its_members_alone),
        alone!(workloads_go_from_mode_to_mode_under_load_and_nothing_is_lost_or_cut),
        alone!(no_connection_waits_for_a_proxy_before_that_stands_still),
        once!(an_instance_whose_proxy_has_failed_is_ready_once_the_other_mode_serves_it),
        once!(streams_that_a_process_finishes_outlive_the_certificates_that_they_began_with),
    ]
}

/// A number from an environment variable, or a default.
fn number(variable: &str, otherwise: u64) -> u64 {
    let set = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    set.unwrap_or(otherwise)
}

/// The number of opaque connections, and of WebSockets.
fn connections() -> (u64, u64) {
    let plain = number("LENO_NODE_CONNECTIONS", 100).max(10);
    (plain, plain / 10)
}

/// The number of instances of each of the four workloads.
fn replicas() -> u64 {
    let (plain, upgraded) = connections();
    (plain + upgraded).div_ceil(ends().len() as u64).div_ceil(OF_ONE as u64)
}

fn mesh(share: &str) -> String {
    let replicas = replicas();
    let of = |end: &&str| {
        format!(
            "apiVersion: v1
kind: Namespace
metadata: {{name: near-{end}, annotations: {{leno.dev/mode: node, leno.dev/share: {share}}}}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: far-{end}, annotations: {{leno.dev/mode: node, leno.dev/share: {share}}}}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: near-{end}, namespace: near-{end}}}
spec: {{replicas: {replicas}, command: ['@BIN@/leno-peer', idle]}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: far-{end}, namespace: far-{end}, labels: {{app: far-{end}}}}}
spec:
  replicas: {replicas}
  command: [sh, -c, '@BIN@/leno-peer echo --listen [::]:9000 & exec @BIN@/leno-peer http --listen [::]:8080']
  ports: [{{name: bytes, port: 9000, appProtocol: tcp}}, {{name: http, port: 8080, appProtocol: http}}]
"
        )
    };
    ends().iter().map(of).collect::<Vec<_>>().join("---\n")
}

fn prepare(directory: &Path) -> Result<()> {
    fs::write(directory.join("hold.py"), HOLD)?;
    fs::write(directory.join("upload.py"), UPLOAD)?;
    Ok(fs::write(directory.join("store.py"), STORE)?)
}

fn start(capture: Capture, share: &str) -> Result<Lab> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &mesh(share), prepare)?;
    let reached = ends().iter().try_for_each(|end| {
        lab.reach(&format!("near-{end}"), &format!("far-{end}.far-{end}:8080")).map(|_| ())
    });
    lab.explain(reached)?;
    Ok(lab)
}

/// Makes every client of one pair hold its share of the connections. Returns when all are open.
fn hold(lab: &Lab, end: &str, over: &Path) -> Result<Vec<Running>> {
    let (plain, upgraded) = connections();
    let part = |all: u64| all.div_ceil(ends().len() as u64).div_ceil(replicas()).to_string();
    let script = lab.directory().join("hold.py").display().to_string();
    let mut holding = Vec::new();
    let mut begun = Vec::new();
    for number in 0..replicas() {
        let who = format!("near-{end}-{number}");
        begun.push(lab.directory().join(format!("begun-{who}")));
        let begun = begun.last().context("it was added")?.display().to_string();
        let (host, over) = (format!("far-{end}.far-{end}"), over.display().to_string());
        let arguments = [&script, &host, &part(plain), &part(upgraded), &begun, &over];
        let command: Vec<&str> =
            ["python3"].into_iter().chain(arguments.map(String::as_str)).collect();
        holding.push(lab.spawn(&who, &command)?);
    }
    until_begun("all connections", &mut holding, &begun)?;
    Ok(holding)
}

/// Waits until the programs have reported that they have begun. Fails if one has ended before.
fn until_begun(what: &str, programs: &mut Vec<Running>, begun: &[PathBuf]) -> Result<()> {
    wait::until(what, LONG, || {
        for number in 0..programs.len() {
            if programs[number].has_ended()? {
                command::success(what, programs.remove(number).finish(LONG)?)?;
                bail!("a program has ended before it had opened {what}");
            }
        }
        Ok(begun.iter().all(|file| file.exists()).then_some(()))
    })
}

/// The observations of all programs.
fn held(holding: Vec<Running>) -> Result<HeldConnections> {
    let mut all = HeldConnections::default();
    for one in holding {
        let said = command::success("connections that are held", one.finish(LONG)?)?;
        let one: HeldConnections = serde_json::from_str(&said).with_context(|| said.clone())?;
        all.opened += one.opened;
        all.cut += one.cut;
        all.messages += one.messages;
        all.longest_ms = all.longest_ms.max(one.longest_ms);
        all.slow.extend(one.slow);
        all.late.extend(one.late);
    }
    Ok(all)
}

/// The number of open opaque connections with mTLS at the servers' proxies.
fn with_mtls(lab: &Lab) -> Result<f64> {
    let mut open = 0.0;
    for end in ends() {
        for number in 0..replicas() {
            let metrics = lab.metrics(&format!("far-{end}-{number}"))?;
            let of = |line: &&str| {
                line.starts_with("leno_tcp_open_connections{")
                    && line.contains(r#"direction="inbound""#)
                    && line.contains(r#"mtls="true""#)
            };
            for line in metrics.lines().filter(of) {
                open += line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?;
            }
        }
    }
    Ok(open)
}

/// Waits until each instance is served by the process of its namespace.
fn all_are_served_by_namespace(lab: &Lab) -> Result<()> {
    for end in ends() {
        for workload in ["near", "far"].map(|side| format!("{side}-{end}")) {
            for number in 0..replicas() {
                let line = format!(
                    "{workload}/{workload}-{number} is served by node proxy namespace.{workload} now"
                );
                wait::until(&line, LIMIT, || Ok(lab.log().contains(&line).then_some(())))?;
            }
        }
    }
    Ok(())
}

fn processes_that_take_over_cut_no_connection_and_fail_no_request(capture: Capture) -> Result<()> {
    let lab = start(capture, "service-account")?;
    let outcome = || -> Result<()> {
        let over = lab.directory().join("over");
        let mut holding = Vec::new();
        for end in ends() {
            holding.extend(hold(&lab, end, &over)?);
        }
        let open = with_mtls(&lab)?;
        ensure!(open >= connections().0 as f64, "only {open} connections use mTLS");
        let load = (&["near-a-0", "near-b-0"][..], "http://far-a.far-a:8080/");
        let rate = number("LENO_ROTATION_RATE", 100).to_string();
        // For comparison, this measures how long the same takes on this machine without an update.
        let opened = now()?;
        reports_under_load(&lab, load, &["--rate", &rate], || Ok(()))?;
        let begun = now()?;
        let reports = reports_under_load(&lab, load, &["--rate", &rate], || {
            lab.edit(&mesh("namespace"))?;
            all_are_served_by_namespace(&lab)?;
            println!("all are served after {:.2} s", now()? - begun);
            // The previous process still has the old connections.
            lab.pid_of(MeshProcess::Node("service-account.far-a.default")).map(|_| ())
        })?;
        let updated = now()?;
        fs::write(&over, "")?;
        let held = held(holding)?;
        ensure!(held.cut == 0 && held.messages >= held.opened, "{held:?}");
        let longest = reports.iter().map(|report| report.latency_us.max).max().unwrap_or_default();
        println!(
            "{open} connections with mTLS and {} WebSockets: none cut; the longest message took {} during the update, {} in the \
             time before it, {} while all were opened, and {} in the end, when each has one at once; {} requests, none failed, \
             the longest took {:.1} ms",
            connections().1,
            held.longest((begun, updated)),
            held.longest((opened, begun)),
            held.longest((0.0, opened)),
            held.longest((updated, f64::MAX)),
            reports.iter().map(|report| report.requests).sum::<u64>(),
            longest as f64 / 1000.0
        );
        wait::until("the end of the processes before", LIMIT, || {
            let name = |side: &str, end: &str| format!("service-account.{side}-{end}.default");
            let left = ends().iter().flat_map(|end| ["near", "far"].map(|side| name(side, end)));
            let left = left.filter(|group| lab.pid_of(MeshProcess::Node(group)).is_ok()).count();
            Ok((left == 0).then_some(()))
        })
    };
    lab.explain(outcome())
}

/// Sidecars and node proxies are updated in the same way: by `leno upgrade --proxies`.
fn an_update_of_all_proxies_cuts_no_connection_and_fails_no_request(
    capture: Capture,
) -> Result<()> {
    for (mode, proxy) in [
        ("node", MeshProcess::Node("service-account.far-a.default")),
        ("sidecar", MeshProcess::Proxy("far-a-0")),
    ] {
        let documents = mesh("service-account")
            .replace("leno.dev/mode: node", &format!("leno.dev/mode: {mode}"));
        let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
        let lab = Lab::start(&options, &documents, prepare)?;
        let outcome = || -> Result<()> {
            lab.reach("near-a", "far-a.far-a:8080")?;
            let over = lab.directory().join("over");
            let mut holding = Vec::new();
            for end in ends() {
                holding.extend(hold(&lab, end, &over)?);
            }
            let before = lab.pid_of(proxy)?;
            let load = (&["near-a-0"][..], "http://far-a.far-a:8080/");
            let rate = number("LENO_ROTATION_RATE", 100).to_string();
            // Some of these connections are opened while a listener is being closed.
            let pace = ["--rate", &rate, "--new-connection"];
            let reports = reports_under_load(&lab, load, &pace, || {
                (0..number("LENO_NODE_SWITCHES", 4)).try_for_each(|_| upgrade(&lab))
            })?;
            // The previous process still has the old connections.
            ensure!(Path::new(&format!("/proc/{before}")).exists(), "the process before has ended");
            fs::write(&over, "")?;
            let held = held(holding)?;
            ensure!(held.cut == 0 && held.messages >= held.opened, "{held:?}");
            for name in ["near-a-0", "far-a-0"] {
                let instance = lab.status()?.instance(name)?.clone();
                ensure!((instance.restarts, instance.ready) == (0, true), "{instance:?}");
            }
            let longest = reports.iter().map(|report| report.latency_us.max).max();
            println!(
                "{capture:?}, {proxy:?}: {} connections, none cut, the longest message took {:.1} ms; {} requests, none \
                 failed, the longest took {:.1} ms",
                held.opened,
                held.longest_ms,
                reports.iter().map(|report| report.requests).sum::<u64>(),
                longest.unwrap_or_default() as f64 / 1000.0
            );
            wait::until("the end of the processes before", LIMIT, || {
                Ok((!Path::new(&format!("/proc/{before}")).exists()).then_some(()))
            })?;
            // The last process serves new connections.
            lab.reach("near-b", "far-b.far-b:8080").map(|_| ())
        };
        lab.explain(outcome())?;
    }
    Ok(())
}

fn a_killed_process_ends_the_connections_of_its_members_alone(capture: Capture) -> Result<()> {
    const OTHERS: [&str; 3] = ["namespace.near-a", "namespace.near-b", "namespace.far-b"];
    const CONNECTIONS: u64 = 8;
    let lab = start(capture, "namespace")?;
    let outcome = || -> Result<()> {
        let over = lab.directory().join("over");
        let [ended, others] = [hold(&lab, "a", &over)?, hold(&lab, "b", &over)?];
        let pids = || {
            OTHERS
                .iter()
                .map(|group| lab.pid_of(MeshProcess::Node(group)))
                .collect::<Result<Vec<_>>>()
        };
        let before = pids()?;
        let load = [
            "--url",
            "http://far-a.far-a:8080/",
            "--rate",
            "200",
            "--connections",
            "8",
            "--duration",
            "8s",
        ];
        let load = lab.load("near-b-0", &load)?;
        let requests = || -> Result<f64> {
            let metrics = lab.metrics("near-b-0")?;
            let lines = metrics
                .lines()
                .filter(|line| line.starts_with("leno_requests_total{") && line.contains("far-a"));
            Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
        };
        wait::until("requests", LIMIT, || Ok((requests()? > 20.0).then_some(())))?;
        lab.kill(MeshProcess::Node("namespace.far-a"), Signal::SIGKILL)?;
        let report = load.finish()?;
        ensure!(report.errors <= CONNECTIONS, "more failed than was under way: {report:?}");
        lab.wait_for("the members again", |s| {
            s.ready() && s.instance("far-a-0").is_ok_and(|one| one.proxy_restarts == 1)
        })?;
        fs::write(&over, "")?;
        let (ended, others) = (held(ended)?, held(others)?);
        ensure!(ended.cut == ended.opened, "connections of a process that is gone: {ended:?}");
        ensure!(
            others.cut == 0 && others.messages >= others.opened,
            "of another process: {others:?}"
        );
        ensure!(pids()? == before, "another process was started again");
        for name in ["near-a-0", "near-b-0", "far-b-0"] {
            ensure!(lab.status()?.instance(name)?.proxy_restarts == 0, "{name} was interrupted");
        }
        println!(
            "{} connections of the process ended, {} of others went on, whose longest message took {:.1} ms; of {} requests to \
             its members {} failed, and the longest took {:.1} ms",
            ended.cut,
            others.opened,
            others.longest_ms,
            report.requests,
            report.errors,
            report.latency_us.max as f64 / 1000.0
        );
        Ok(())
    };
    lab.explain(outcome())
}

fn workloads_go_from_mode_to_mode_under_load_and_nothing_is_lost_or_cut(
    capture: Capture,
) -> Result<()> {
    // The values of the share in node mode; `sidecar` stands for sidecars.
    const MODES: [&str; 5] = ["workload", "sidecar", "namespace", "service-account", "sidecar"];
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let documents = |mode: &str| match mode {
        "sidecar" => {
            format!("{MESH}{STORED}").replace("leno.dev/mode: node", "leno.dev/mode: sidecar")
        }
        share => format!("{MESH}{STORED}").replace("share: node", &format!("share: {share}")),
    };
    let lab = Lab::start(&options, &documents("node"), prepare)?;
    let outcome = || -> Result<()> {
        lab.reach("client", "web:8080")?;
        let file = |name: &str| lab.directory().join(name).display().to_string();
        let (size, switches) =
            (number("LENO_NODE_UPLOAD", 16 << 20), number("LENO_NODE_SWITCHES", 4));
        let arguments = [file("upload.py"), size.to_string(), file("sending"), file("over")];
        let command: Vec<&str> =
            ["python3"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let mut programs = vec![lab.spawn("client", &command)?];
        let upgraded = connections().1.to_string();
        let hold = [&file("hold.py"), "web", "0", &upgraded, &file("begun"), &file("over")];
        let command: Vec<&str> = ["python3"].into_iter().chain(hold).collect();
        programs.push(lab.spawn("client", &command)?);
        let begun = ["sending", "begun"].map(|name| lab.directory().join(name));
        until_begun("the upload and WebSockets", &mut programs, &begun)?;
        let rate = number("LENO_ROTATION_RATE", 100).to_string();
        let load = (&["client-0"][..], "http://web:8080/");
        let switch = || -> Result<()> {
            for (_, mode) in (0..switches).zip(MODES.iter().cycle()) {
                lab.edit(&documents(mode))?;
                for name in ["client", "web", "store"] {
                    is_served(&lab, (name, mode))?;
                }
            }
            Ok(())
        };
        let reports = reports_under_load(&lab, load, &["--rate", &rate], || {
            // Some of these connections are opened while a listener is being closed.
            reports_under_load(&lab, load, &["--rate", "100", "--new-connection"], switch)?;
            for name in ["client-0", "web-0", "store-0"] {
                let instance = lab.status()?.instance(name)?.clone();
                ensure!(instance.restarts == 0, "its application was started again: {instance:?}");
                ensure!(instance.ready, "{instance:?}");
            }
            ensure!(status(&lab, "/closed")? == "403", "the policy is not enforced");
            Ok(())
        })?;
        fs::write(file("over"), "")?;
        let sockets = held(programs.split_off(1))?;
        ensure!(sockets.cut == 0 && sockets.messages >= sockets.opened, "{sockets:?}");
        let taken = command::success("the upload", programs.remove(0).finish(LONG)?)?;
        ensure!(taken.trim() == size.to_string(), "of {size} bytes the server has taken {taken:?}");
        let longest = reports.iter().map(|report| report.latency_us.max).max().unwrap_or_default();
        println!(
            "{switches} switches: {} requests, none failed, the longest took {:.1} ms; {} WebSockets, none cut, the longest \
             message took {:.1} ms; {size} bytes of an upload arrived",
            reports.iter().map(|report| report.requests).sum::<u64>(),
            longest as f64 / 1000.0,
            sockets.opened,
            sockets.longest_ms
        );
        Ok(())
    };
    lab.explain(outcome())
}

/// Replaces all proxies of a mesh.
fn upgrade(lab: &Lab) -> Result<()> {
    let said = command::text(lab.leno("upgrade").arg("--proxies"), LONG)?;
    ensure!(said.starts_with("the new processes serve"), "{said}");
    Ok(())
}

/// The documents, with `apart` in node mode and in its own process.
fn in_node_mode() -> String {
    MESH.replace("leno.dev/mode: sidecar", "leno.dev/mode: node, leno.dev/share: workload")
}

/// The old proxy is stopped. As long as its listeners are open, the kernel assigns it a part of the connections,
/// which it never accepts.
fn no_connection_waits_for_a_proxy_before_that_stands_still(capture: Capture) -> Result<()> {
    const PROCESS: MeshProcess<'_> = MeshProcess::Node("workload.lab.apart-0");
    let options = LabOptions { mtls: Some("strict"), share: None, ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &in_node_mode(), prepare)?;
    let outcome = || -> Result<()> {
        // If there were two listeners, each would get some of this many connections.
        let all_echo = || (0..40).try_for_each(|_| echoes(&lab, "apart:9000"));
        all_echo()?;
        let node = lab.pid_of(PROCESS)?;
        let stopped = StoppedThreads::of_process(node)?;
        lab.edit(MESH)?;
        is_served(&lab, ("apart", "sidecar"))?;
        // The broker shuts the listeners down, although the process still holds them.
        wait::until("the end of its listeners", LIMIT, || {
            Ok((listeners(&lab, "apart-0")? == 1).then_some(()))
        })?;
        all_echo().context("while a node proxy stands still")?;
        ensure!(Path::new(&format!("/proc/{node}")).exists(), "the process has ended");
        stopped.resume()?;

        let sidecar = lab.pid_of(MeshProcess::Proxy("apart-0"))?;
        let stopped = StoppedThreads::of_process(sidecar)?;
        upgrade(&lab)?;
        let line = "does not close its listeners: it is killed";
        wait::until(line, LIMIT, || Ok(lab.log().contains(line).then_some(())))?;
        // Until now, the debugger has kept the process after its end.
        drop(stopped);
        wait::until("its end", LIMIT, || {
            Ok((!Path::new(&format!("/proc/{sidecar}")).exists()).then_some(()))
        })?;
        all_echo().context("once a sidecar that stood still was killed")
    };
    lab.explain(outcome())
}

/// How many sockets of an instance listen for captured IPv4 connections.
fn listeners(lab: &Lab, instance: &str) -> Result<usize> {
    let netns = Path::new("/run/netns").join(&lab.status()?.instance(instance)?.surroundings.netns);
    leno_testkit::netns::inside(&netns, || {
        let table = fs::read_to_string("/proc/thread-self/net/tcp")?;
        // The columns are the local address, with port 15001, and the state LISTEN.
        let port = ":3A99";
        let listens = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|at| at.ends_with(port)) && fields.get(3) == Some(&"0A")
        };
        Ok(table.lines().filter(listens).count())
    })
}

/// Regression: the instance counted as one without a proxy, because the next process had begun to serve before it
/// became the current one.
fn an_instance_whose_proxy_has_failed_is_ready_once_the_other_mode_serves_it(
    capture: Capture,
) -> Result<()> {
    const PROCESS: MeshProcess<'_> = MeshProcess::Node("workload.lab.apart-0");
    let options = LabOptions { mtls: Some("strict"), share: None, ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &in_node_mode(), prepare)?;
    let outcome = || -> Result<()> {
        echoes(&lab, "apart:9000")?;
        // Without the control plane, the next process of the group gets no certificate.
        lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
        let before = lab.pid_of(PROCESS)?;
        lab.kill(PROCESS, Signal::SIGKILL)?;
        lab.wait_for("the loss of its proxy", |s| {
            s.instance("apart-0").is_ok_and(|apart| !apart.ready)
        })?;
        wait::until("the next process of its group", LIMIT, || {
            Ok(lab.pid_of(PROCESS).is_ok_and(|pid| pid != before).then_some(()))
        })?;
        lab.kill(PROCESS, Signal::SIGSTOP)?;
        lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
        lab.edit(MESH)?;
        lab.wait_for("an instance that is ready", |s| {
            s.instance("apart-0").is_ok_and(|apart| apart.ready && apart.group().is_none())
        })?;
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

/// Regression: clients present renewed certificates only to the process that listens. After an update the previous
/// process did not learn of them, and ended streams when the certificate that it knew expired.
fn streams_that_a_process_finishes_outlive_the_certificates_that_they_began_with(
    capture: Capture,
) -> Result<()> {
    const LIFETIME: Duration = Duration::from_secs(20);
    let options = LabOptions {
        mtls: Some("strict"),
        cert_lifetime: Some(LIFETIME),
        ..LabOptions::new(capture)
    };
    let lab = Lab::start(&options, MESH, prepare)?;
    let outcome = || -> Result<()> {
        lab.reach("client", "web:8080")?;
        echoes(&lab, "apart:9000")?;
        let file = |name: &str| lab.directory().join(name).display().to_string();
        let hold = |over: &str| -> Result<Vec<Running>> {
            let (program, over) = (file("hold.py"), file(over));
            let begun = ["web", "apart"].map(|server| format!("{over}-{server}"));
            let of_web = ["python3", &program, "web", "0", "4", &begun[0], &over];
            let of_apart = ["python3", &program, "apart", "4", "0", &begun[1], &over];
            let mut holding = vec![lab.spawn("client", &of_web)?, lab.spawn("client", &of_apart)?];
            until_begun("the connections", &mut holding, &begun.map(PathBuf::from))?;
            Ok(holding)
        };
        let (holding, mut revoked) = (hold("over")?, hold("revoked")?);
        upgrade(&lab)?;
        // By now, all certificates from that time have expired, and the workers have checked for expired ones, as
        // they do every 5 s.
        std::thread::sleep(LIFETIME + Duration::from_secs(10));
        fs::write(file("over"), "")?;
        let connections = held(holding)?;
        ensure!(connections.opened == 8 && connections.cut == 0, "{connections:?}");
        // The revocation has an effect although the process has not received a certificate from the client since
        // then.
        command::text(lab.leno("identity revoke").arg("lab/client"), LIMIT)?;
        for program in &mut revoked {
            wait::until("the end of what is revoked", LIMIT, || {
                Ok(program.has_ended()?.then_some(()))
            })?;
        }
        let connections = held(revoked)?;
        ensure!((connections.opened, connections.cut) == (8, 8), "{connections:?}");
        Ok(())
    };
    lab.explain(outcome())
}

/// Waits until a workload is served in this mode.
fn is_served(lab: &Lab, (name, mode): (&str, &str)) -> Result<()> {
    let group = match mode {
        "sidecar" => None,
        "workload" => Some(format!("workload.lab.{name}-0")),
        "service-account" => Some(format!("service-account.lab.{name}")),
        "namespace" => Some("namespace.lab".to_owned()),
        share => Some(share.to_owned()),
    };
    wait::until(&format!("{name} in {mode}"), LIMIT, || {
        Ok((lab.status()?.instance(name)?.group() == group.as_deref()).then_some(()))
    })
}
