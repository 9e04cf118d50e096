//! Tests the flows of a mesh of `leno up`: that the kernel's counts equal what clients and servers report, the
//! commands that show the counts, that a restart keeps them, and that the end of the mesh removes them.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use leno_local::status::MeshStatus;
use serde_json::Value;

use crate::mesh::{Mesh, root};
use crate::{started, two};

/// A server that answers each request head with a fixed response, and a client that sends many requests over
/// several connections. Both print how much payload they read and wrote.
const STORM: &str = r#"
import asyncio, sys
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n"
ASK = b"GET /storm HTTP/1.1\r\nhost: web\r\n\r\n"
async def serve(reader, writer):
    left = b""
    while data := await reader.read(65536):
        left += data
        asked = left.count(b"\r\n\r\n")
        left = left[left.rfind(b"\r\n\r\n") + 4:] if asked else left
        writer.write(ANSWER * asked)
        await writer.drain()
    writer.close()
async def call(requests, batch):
    reader, writer = await asyncio.open_connection("web", 9000)
    for _ in range(requests // batch):
        writer.write(ASK * batch)
        await reader.readexactly(len(ANSWER) * batch)
    writer.close()
    await writer.wait_closed()
async def main():
    if sys.argv[1] == "serve":
        server = await asyncio.start_server(serve, None, 9000)
        await server.serve_forever()
    connections, requests, batch = map(int, sys.argv[2:5])
    await asyncio.gather(*(call(requests, batch) for _ in range(connections)))
    total = connections * requests
    print(total * len(ASK), total * len(ANSWER))
asyncio.run(main())
"#;

fn storm_mesh() -> Mesh {
    let server = format!("-c, {:?}", crate::SERVER);
    let yaml = two().replace(&server, "storm.py, serve");
    let yaml = yaml.replace("port: 8080", "port: 9000");
    Mesh::start_with(&yaml, &[], &[("storm.py", STORM)])
}

/// The connections of a workload's application with another workload, as `leno flows -o json` prints them.
pub(crate) fn flows(mesh: &Mesh, arguments: &[&str]) -> Vec<Value> {
    let mut command = mesh.leno(&["flows", "--name", mesh.name(), "-o", "json"]);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sum of the samples with this name and all these labels, as a workload reads them from the gateway.
pub(crate) fn metric(mesh: &Mesh, name: &str, labels: &[&str]) -> u64 {
    let text = mesh.text("client", &["curl", "-sSf", "http://10.89.0.1:15025/metrics"]);
    sum_of(&text, name, labels)
}

/// The sum of such samples on a page.
pub(crate) fn sum_of(text: &str, name: &str, labels: &[&str]) -> u64 {
    let rows = text.lines().filter(|row| row.split(['{', ' ']).next() == Some(name));
    let rows = rows.filter(|row| labels.iter().all(|label| row.contains(label)));
    rows.map(|row| row.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

#[test]
fn bytes_and_connections_of_a_hundred_thousand_requests_are_those_of_the_application() {
    let Some(mesh) = root(storm_mesh) else { return };
    let (connections, requests) = (50, 2_000);
    let sizes = [connections.to_string(), requests.to_string(), "100".to_owned()];
    let command = ["python3", "storm.py", "call", &sizes[0], &sizes[1], &sizes[2]];
    let said = mesh.text("client", &command);
    let (asked, answered) = said.split_once(' ').unwrap();
    let (asked, answered): (u64, u64) = (asked.parse().unwrap(), answered.parse().unwrap());
    let of = |name: &str, workload: &str, peer: &str, more: &str| {
        let workload = format!(",workload=\"{workload}\"");
        metric(&mesh, name, &[&workload, &format!("peer_workload=\"{peer}\""), more])
    };
    mesh.wait_for("every connection to end", || {
        let closed = "leno_flow_connections_closed_total";
        of(closed, "web", "client", "") >= connections
            && of(closed, "client", "web", "") >= connections
    });
    for (workload, peer, sent, received) in
        [("client", "web", asked, answered), ("web", "client", answered, asked)]
    {
        let bytes = "leno_flow_bytes_total";
        assert_eq!(of(bytes, workload, peer, "direction=\"sent\""), sent, "{workload}");
        assert_eq!(of(bytes, workload, peer, "direction=\"received\""), received, "{workload}");
        let opened = of("leno_flow_connections_opened_total", workload, peer, "");
        assert_eq!(opened, connections, "{workload}");
    }
    assert_eq!(metric(&mesh, "leno_flow_map_overflow_total", &[]), 0);
    let listed = flows(&mesh, &["client", "--peer", "web"]);
    assert_eq!(listed.len() as u64, connections, "those that have just ended are still listed");
    assert!(listed.iter().all(|flow| flow["end"] == "closed_local" && flow["role"] == "client"));
}

#[test]
fn the_table_and_the_programs_are_replaced_while_a_mesh_is_called() {
    let Some(mesh) = root(storm_mesh) else { return };
    let (connections, requests) = (20, 10_000);
    let sizes = [connections.to_string(), requests.to_string(), "20".to_owned()];
    let command = ["python3", "storm.py", "call", &sizes[0], &sizes[1], &sizes[2]];
    let ebpf = |arguments: &[&str]| {
        let mut command = mesh.leno(&["ebpf"]);
        let output = command.args(arguments).args(["--name", mesh.name()]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text
    };
    let rounds = AtomicU64::new(0);
    let asked: u64 = std::thread::scope(|scope| {
        // The client fails if an answer is missing or wrong. On a busy machine a single call may end between two
        // checks.
        let storm = scope.spawn(|| {
            let mut asked = 0;
            for _ in 0..50 {
                let said = mesh.text("client", &command);
                asked += said.split_once(' ').unwrap().0.parse::<u64>().unwrap();
                if rounds.load(Ordering::Relaxed) >= 2 {
                    break;
                }
            }
            asked
        });
        let mut sent = 0;
        while !storm.is_finished() {
            let size = (20_000 + rounds.load(Ordering::Relaxed)).to_string();
            let text = ebpf(&["resize", "--flow-map-size", &size, "--flow-ring-size", "256"]);
            assert_eq!(text, format!("room for {size} flows\nroom for 256 changes\n"));
            assert!(ebpf(&["upgrade"]).starts_with("the programs are now those of version "));
            let now = metric(&mesh, "leno_flow_bytes_total", &["direction=\"sent\""]);
            assert!(now >= sent, "{now} after {sent}");
            sent = now;
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        let rounds = rounds.load(Ordering::Relaxed);
        assert!(rounds >= 2, "the client has ended too soon: {rounds}");
        storm.join().unwrap()
    });
    let of_client = [",workload=\"client\"", "peer_workload=\"web\"", "direction=\"sent\""];
    mesh.wait_for("every byte to be counted", || {
        metric(&mesh, "leno_flow_bytes_total", &of_client) == asked
    });
    assert_eq!(metric(&mesh, "leno_flow_map_overflow_total", &[]), 0);
    let too_many = ["ebpf", "resize", "--flow-map-size", "2000000", "--name", mesh.name()];
    let refused = mesh.leno(&too_many).output().unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("306 MB of kernel memory"), "{text}");

    let status = mesh.leno(&["ebpf", "status", "-o", "json"]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&status.stdout).unwrap();
    let owner = format!("leno-{}.flows", mesh.name());
    let row = rows.iter().find(|row| row["owner"] == *owner).unwrap();
    assert_eq!(
        (&row["level"], &row["cpu_budget_percent"]),
        (&"full".into(), &Value::from(1.0_f64))
    );
}

#[test]
fn a_kernel_is_checked_before_anything_is_installed() {
    let Some(mesh) = started() else { return };
    let output = mesh.leno(&["check", "--pre", "--ebpf", "-o", "json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["ready"]), (Some(0), &true.into()), "{found:#}");
    let table = mesh.leno(&["check", "--pre", "--ebpf"]).output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let programs = table.lines().filter(|line| line.contains("instructions verified"));
    assert!(programs.count() >= 13, "{table}");
    for subject in ["cgroup/connect4 (leno_connect4)", "tp_btf/kfree_skb (leno_flow_drop)"] {
        let line = format!("ok   {subject}");
        assert!(table.lines().any(|one| one.starts_with(&line)), "{table}");
    }
    let without = mesh.leno(&["check", "--pre", "--ebpf"]).env("LENO_TCX", "off").output().unwrap();
    let without = String::from_utf8_lossy(&without.stdout).into_owned();
    let by_filters = without.lines().filter(|line| line.contains("by clsact, in place of tcx"));
    assert_eq!(by_filters.count(), 2, "{without}");
}

#[test]
fn connections_are_listed_filtered_and_followed() {
    let Some(mesh) = started() else { return };
    let mut follow = mesh.leno(&["flows", "--name", mesh.name(), "-f", "-o", "json", "client"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    // No change is written until the follower has started, so requests are repeated.
    let first = std::thread::scope(|scope| {
        let waited = scope.spawn(|| lines.next().unwrap().unwrap());
        while !waited.is_finished() {
            mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
        }
        waited.join().unwrap()
    });
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["workload"], &first["role"]), (&"client".into(), &"client".into()));
    let second = mesh.leno(&["flows", "--name", mesh.name(), "-f"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains("another process already follows these flows"), "{text}");
    let pid = nix::unistd::Pid::from_raw(follow.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(follow.wait().unwrap().success());

    let to_web = flows(&mesh, &["shop/client", "--peer", "shop/web", "--port", "8080"]);
    assert!(!to_web.is_empty());
    assert!(to_web.iter().all(|flow| flow["bytes_received"].as_u64().unwrap() > 100), "{to_web:?}");
    assert_eq!(flows(&mesh, &["client", "--role", "server", "--peer", "web"]), Vec::<Value>::new());
    assert_eq!(flows(&mesh, &["web", "--socket", "proxy"]), Vec::<Value>::new());
    let table = mesh.leno(&["flows", "--name", mesh.name(), "web"]).output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("shop/web") && table.contains("shop/client"), "{table}");
}

/// A client with a proxy, and two servers that listen on `::`, one with a proxy and one without.
const DUAL: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -m, http.server, '8080', --bind, '::'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: shop, labels: {leno.dev/inject: disabled}}
spec: {command: [python3, -m, http.server, '8080', --bind, '::'], ports: [{port: 8080, appProtocol: http}]}
";

#[test]
fn legs_of_a_workload_that_listens_on_both_families_and_the_control_plane_have_their_names() {
    let Some(mesh) = root(|| Mesh::start(DUAL)) else { return };
    for (family, server) in [("-4", "web"), ("-6", "web"), ("-4", "plain")] {
        let url = format!("http://{server}:8080/");
        mesh.text("client", &["curl", family, "-sSf", "-o", "/dev/null", &url]);
    }
    let peers = |arguments: &[&str]| {
        let peers = flows(&mesh, arguments).into_iter().map(|flow| flow["peer"].clone());
        peers.collect::<Vec<_>>()
    };
    // The proxy connects to its workload's own address, over IPv4 in a socket of either family.
    let legs = peers(&["web", "--socket", "proxy", "--role", "client", "--port", "8080"]);
    assert!(legs.len() >= 2 && legs.iter().all(|peer| peer == "itself"), "{legs:?}");
    let accepted = peers(&["web", "--socket", "application", "--role", "server"]);
    assert!(accepted.len() >= 2 && accepted.iter().all(|peer| peer == "itself"), "{accepted:?}");
    assert_eq!(flows(&mesh, &["web", "--peer", "web"]), Vec::<Value>::new());
    let client = serde_json::json!({"workload": {"namespace": "shop", "workload": "client"}});
    let direct = peers(&["plain", "--role", "server"]);
    assert!(!direct.is_empty() && direct.iter().all(|peer| *peer == client), "{direct:?}");

    let to_discovery = flows(&mesh, &["client", "--peer", "control-plane"]);
    let is_discovery = |flow: &Value| {
        let port = flow["remote"].as_str().is_some_and(|remote| remote.ends_with(":15010"));
        port && flow["socket"] == "proxy" && flow["peer"] == "control_plane"
    };
    assert!(!to_discovery.is_empty() && to_discovery.iter().all(is_discovery), "{to_discovery:?}");
    // The traffic that proxies have for themselves is left out unless it is requested.
    let of_proxies = |arguments: &[&str]| {
        let own = |flow: &Value| {
            flow["peer"] == "control_plane" || flow["local"].as_str().unwrap().ends_with(":15020")
        };
        let all = flows(&mesh, arguments);
        assert!(!all.is_empty());
        all.iter().filter(|flow| own(flow)).count()
    };
    // Sends a request of the application and some requests to the admin ports now, because ended connections are
    // listed for only ten seconds.
    mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    let stat = mesh.leno(&["stat", "--name", mesh.name(), "--window", "100ms"]).output().unwrap();
    assert!(stat.status.success(), "{stat:?}");
    assert!(of_proxies(&["--port", "15020"]) >= 2);
    assert!(of_proxies(&["--all"]) >= 2);
    assert_eq!(of_proxies(&[]), 0);
    let table = mesh.leno(&["flows", "--name", mesh.name()]).output().unwrap();
    let note = String::from_utf8_lossy(&table.stderr).into_owned();
    assert!(
        note.contains(" connections of proxies themselves are not shown: --all shows them"),
        "{note}"
    );
    assert_eq!(flows(&mesh, &["--peer", "outside", "--port", "15010"]), Vec::<Value>::new());
    let bytes = ["workload=\"client\"", "peer_workload=\"control-plane\""];
    mesh.wait_for("bytes of discovery", || metric(&mesh, "leno_flow_bytes_total", &bytes) > 0);
}

/// Counts of requests: by the client's proxy, by the gateway for both proxies, and by `leno flows --requests`.
fn requests(mesh: &Mesh) -> [u64; 4] {
    let page = mesh.text("client", &["curl", "-sSf", "http://127.0.0.1:15020/metrics"]);
    let own = page.lines().filter(|row| {
        row.starts_with("leno_requests_total{direction=\"outbound\"")
            && row.contains("server=\"web-0\"")
    });
    let own = own.map(|row| row.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let of = |direction: &str| {
        let labels = [direction, "server=\"web-0\"", "class=\"2xx\""];
        metric(mesh, "leno_ebpf_requests_total", &labels)
    };
    let rows = flows(mesh, &["client", "--requests", "--peer", "web"]);
    let listed = rows.iter().map(|row| row["requests"].as_u64().unwrap()).sum();
    [own, of("direction=\"outbound\""), of("direction=\"inbound\""), listed]
}

#[test]
fn requests_are_those_of_the_proxies_and_outlive_proxies_and_the_mesh_itself() {
    let Some(mut mesh) =
        root(|| Mesh::start(&two().replace("inject: disabled", "inject: enabled")))
    else {
        return;
    };
    let call = |mesh: &Mesh, count: u64| {
        let url = format!("http://web:8080/?[1-{count}]");
        mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", &url]);
    };
    let counts = |mesh: &Mesh, expected: [u64; 4]| {
        mesh.wait_for("the requests", || requests(mesh)[1..] == expected[1..]);
        assert_eq!(requests(mesh), expected);
    };
    call(&mesh, 300);
    counts(&mesh, [300; 4]);
    // The client's proxy is killed right after its last request, and the next process counts from zero.
    call(&mesh, 50);
    let status = MeshStatus::read(mesh.layout()).unwrap();
    let client = status.find(None, "client-0").unwrap();
    let group = client.surroundings.cgroup.with_file_name("proxy").join("cgroup.procs");
    let processes = || std::fs::read_to_string(&group).unwrap_or_default();
    let pid: i32 = processes().lines().next().unwrap().parse().unwrap();
    mesh.kill_process(pid);
    // A connection without a request is not counted.
    let connect = "import socket; socket.create_connection(('web', 8080)).close()";
    mesh.wait_for("another proxy", || {
        !processes().contains(&pid.to_string())
            && mesh.exec("client", &["python3", "-c", connect]).status.success()
    });
    call(&mesh, 20);
    counts(&mesh, [20, 370, 370, 370]);
    // The last counts that the killed mesh has read are still there.
    mesh.kill();
    mesh.restart();
    mesh.wait_for_line("flows: the counters of the killed run continue");
    call(&mesh, 5);
    counts(&mesh, [5, 375, 375, 375]);

    let table = mesh.leno(&["flows", "--name", mesh.name(), "--requests"]).output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let row = table.lines().find(|row| row.starts_with("outbound  shop/client-0")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[2..7], ["shop/web-0", "375", "375", "0", "0"], "{table}");
    let labels = ["direction=\"outbound\"", "client=\"client-0\"", "server=\"web-0\""];
    let timed = |more: &str| metric(&mesh, more, &labels);
    assert_eq!(timed("leno_ebpf_request_duration_seconds_count"), 375);
    assert_eq!(metric(&mesh, "leno_ebpf_rows_left_out", &[]), 0);
}

#[test]
fn a_killed_mesh_counts_on_and_the_end_removes_all() {
    let Some(mut mesh) = started() else { return };
    let call = |mesh: &Mesh| {
        mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    };
    // The counts that are served may be 200 ms old.
    let has_opened = |mesh: &Mesh, expected: u64| {
        let labels = [",workload=\"client\"", "peer_workload=\"web\""];
        let opened = || metric(mesh, "leno_flow_connections_opened_total", &labels);
        mesh.wait_for("the connections to be counted", || opened() >= expected);
        assert_eq!(opened(), expected);
    };
    (0..3).for_each(|_| call(&mesh));
    has_opened(&mesh, 3);
    mesh.kill();
    mesh.restart();
    mesh.wait_for_line("flows: the counters of the killed run continue");
    (0..2).for_each(|_| call(&mesh));
    has_opened(&mesh, 5);

    let owner = format!("leno-{}.flows", mesh.name());
    let owners = |mesh: &Mesh| {
        let output = mesh.leno(&["ebpf", "status", "-o", "json"]).output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        rows.into_iter().filter(|row| row["owner"] == *owner).collect::<Vec<_>>()
    };
    let own = owners(&mesh);
    assert_eq!(own.len(), 1);
    assert_eq!((&own[0]["does"], &own[0]["attached"]), (&"flows".into(), &true.into()));
    for (what, rows) in [("programs", 3), ("maps", 20)] {
        let output = mesh.leno(&["ebpf", what]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let of_mesh = text.lines().filter(|line| line.starts_with(&format!("{owner} ")));
        assert_eq!(of_mesh.count(), rows, "{text}");
    }
    // Programs in use are not pruned; the remains of a killed run are removed by `leno cleanup`.
    mesh.leno(&["ebpf", "prune"]).output().unwrap();
    call(&mesh);
    has_opened(&mesh, 6);
    mesh.kill();
    assert!(mesh.remains().contains(&owner));
    let cleanup = mesh.leno(&["cleanup", "--name", mesh.name()]).output().unwrap();
    assert!(cleanup.status.success(), "{cleanup:?}");
    assert_eq!(mesh.remains(), [""; 0]);
    assert_eq!(owners(&mesh), Vec::<Value>::new());
}

#[test]
fn a_workload_that_is_off_is_not_accounted_for_and_an_edit_changes_that() {
    let off = two().replace(
        "metadata: {name: client, namespace: shop}",
        "metadata: {name: client, namespace: shop, annotations: {leno.dev/flow-metrics: off}}",
    );
    let off = off.replace("flow-metrics: off}", "flow-metrics: \"off\"}");
    let Some(mesh) = root(|| Mesh::start(&off)) else { return };
    let before = mesh.application("client-0");
    let call = || mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    call();
    assert_eq!(flows(&mesh, &["client"]), Vec::<Value>::new());
    assert_eq!(flows(&mesh, &["web", "--peer", "client"]).len(), 1, "its peer is accounted for");
    mesh.edit(&two());
    mesh.wait_for("the client's connections", || {
        call();
        !flows(&mesh, &["client", "--peer", "web"]).is_empty()
    });
    assert_eq!(mesh.application("client-0"), before, "nothing is started again");
}

#[test]
fn a_workload_over_its_own_budget_is_accounted_for_less_and_the_others_are_not() {
    let bounded = two().replace(
        "metadata: {name: client, namespace: shop}",
        "metadata: {name: client, namespace: shop, annotations: {leno.dev/flow-cpu-budget: 0.0000001%}}",
    );
    let Some(mesh) = root(|| Mesh::start(&bounded)) else { return };
    let call = || mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    let at = |level: &str| {
        let labels = ["workload=\"client\"", &format!("level=\"{level}\"")];
        metric(&mesh, "leno_flow_workload_level", &labels)
    };
    mesh.wait_for("less to be accounted for of the client", || {
        call();
        at("aggregated") + at("off") == 1
    });
    assert!(mesh.log().contains("flows: accounting for shop/client took "), "{}", mesh.log());
    assert_eq!(
        metric(&mesh, "leno_flow_level", &["level=\"full\""]),
        1,
        "all others are as before"
    );
    assert!(metric(&mesh, "leno_flow_workload_level_changes_total", &["direction=\"down\""]) > 0);
    let output = mesh.leno(&["ebpf", "status", "-o", "json"]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let owner = format!("leno-{}.flows", mesh.name());
    let row = rows.iter().find(|row| row["owner"] == *owner).unwrap();
    let of_client = &row["workloads"][0];
    assert_eq!(
        (&of_client["namespace"], &of_client["workload"]),
        (&"shop".into(), &"client".into())
    );
    assert_ne!(of_client["level"], "full", "{row:#}");
    let table = mesh.leno(&["ebpf", "status"]).output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains(&format!("{owner}: shop/client has the level ")), "{table}");

    mesh.edit(&two());
    mesh.wait_for("the bound to be taken away", || at("full") + at("aggregated") + at("off") == 0);
    mesh.wait_for("the client's connections", || {
        call();
        !flows(&mesh, &["client", "--peer", "web", "--state", "established"]).is_empty()
            || !flows(&mesh, &["client", "--peer", "web", "--state", "closed"]).is_empty()
    });
}

#[test]
fn packets_that_the_kernel_drops_are_counted_by_workload_and_reason() {
    let Some(mesh) = started() else { return };
    let dropped = || {
        let labels = ["workload=\"web\"", "reason=\"NO_SOCKET\""];
        metric(&mesh, "leno_flow_drops_total", &labels)
    };
    let before = dropped();
    let status = MeshStatus::read(mesh.layout()).unwrap();
    let web = status.instances.iter().find(|one| one.name == "web-0").unwrap();
    let address = web.addresses[0].to_string();
    let send = "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                for _ in range(7): s.sendto(b'x', (sys.argv[1], 9))\n";
    mesh.text("client", &["python3", "-c", send, &address]);
    mesh.wait_for("the datagrams to be counted", || dropped() >= before + 7);
    let rows = flows(&mesh, &["web", "--drops"]);
    let row = rows.iter().find(|row| row["reason"] == "NO_SOCKET").unwrap();
    assert!(row["packets"].as_u64().unwrap() >= before + 7, "{rows:?}");
    assert!(rows.iter().all(|row| row["workload"] == "web"), "{rows:?}");
}

#[test]
fn frames_of_a_workload_are_counted_with_those_of_its_queries() {
    let packets = two().replace(
        "metadata: {name: client, namespace: shop}",
        "metadata: {name: client, namespace: shop, annotations: {leno.dev/flow-metrics: packets}}",
    );
    let Some(mesh) = root(|| Mesh::start(&packets)) else { return };
    let call = || mesh.text("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    mesh.wait_for("the frames of a request", || {
        call();
        !flows(&mesh, &["client", "--socket", "wire", "--protocol", "tcp", "--peer", "web"])
            .is_empty()
    });
    // The client resolved the name of the service over UDP.
    let queries = flows(&mesh, &["client", "--protocol", "udp", "--port", "53"]);
    assert!(
        queries.iter().all(|one| one["role"] == "client" && one["socket"] == "wire"),
        "{queries:?}"
    );
    assert!(!queries.is_empty());
    assert_eq!(flows(&mesh, &["client", "--socket", "application"]), Vec::<Value>::new());
    mesh.edit(&two());
    mesh.wait_for("the sockets of a request", || {
        call();
        !flows(&mesh, &["client", "--socket", "application"]).is_empty()
    });
}

#[test]
fn a_table_above_the_bound_is_refused_with_the_memory_it_would_take() {
    let Some(mesh) = root(|| Mesh::draft(&two())) else { return };
    let arguments = ["up", "--name", mesh.name(), "--flow-map-size", "2000000"];
    let output = mesh.leno(&arguments).arg(mesh.file()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("2000000 flows are too many: they would take 306 MB"), "{text}");
}

/// The mesh of two workloads, with an annotation of its namespace.
fn with_table(size: &str) -> String {
    let annotation = format!("annotations: {{leno.dev/flow-map-size: \"{size}\"}}");
    let namespace =
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: sizes, {annotation}}}\n---\n");
    namespace + &two()
}

#[test]
fn the_table_has_the_size_of_an_annotation_and_an_edit_changes_it() {
    let Some(mesh) = root(|| Mesh::start(&with_table("2048"))) else { return };
    let has_room_for = |flows| metric(&mesh, "leno_flow_map_capacity", &[]) == flows;
    assert!(has_room_for(2048));
    let before = metric(&mesh, "leno_flow_connections_opened_total", &[]);
    mesh.edit(&with_table("4096"));
    mesh.wait_for("the larger table", || has_room_for(4096));
    assert!(metric(&mesh, "leno_flow_connections_opened_total", &[]) >= before);
    mesh.edit(&two());
    mesh.wait_for("the usual table", || has_room_for(16_384));

    let draft = Mesh::draft(&with_table("2000000"));
    let output = draft.leno(&["up", "--name", draft.name()]).arg(draft.file()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("2000000 flows are too many: they would take 304 MB"), "{text}");
}
