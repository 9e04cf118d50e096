//! Tests which parts of another workload's proxy root of one workload can reach in node mode: its listeners, and the
//! sockets over which brokers hand sockets to the process.
//!
//! ```text
//!  client (root) ── own proxy ──────────► 15001, 15006, 15008, 15020 of web, of the same process,
//!       └────────── around its capture ─►                              and of apart, of another one
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{command, netns, tools, wait};
use serde::Deserialize;

use super::node::{GROUP, LIMIT, MESH, echoes, status};
use super::{Case, alone, hbone};

/// The ports of a proxy.
const LISTENERS: [u16; 4] = [15001, 15006, 15008, 15020];

/// The process of `apart`.
const OF_APART: &str = "workload.lab.apart-0";

/// How many attempts [`DIAL`] makes for each address.
const ATTEMPTS: usize = 11;
/// Only limits a wait: all attempts in turn, each of which may wait some seconds.
const DIAL_LIMIT: Duration = Duration::from_secs(600);

/// An address, a port, what was sent to it, and the result.
#[derive(Deserialize)]
struct Attempt(String, u16, String, String);

/// A workload without a proxy, whose certificate the intruder has.
const PLAIN: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {serviceAccount: plain, command: ['@BIN@/leno-peer', idle]}
";

/// Sends nothing, a request in plaintext, or one over TLS without a certificate to each listener. Prints a line for
/// each: the address, the port, what was sent, and the result. The first argument is the user to become.
const DIAL: &str = "
import encodings.idna, http.client, json, os, socket, ssl, sys
if sys.argv[1] != '0':
    os.setgroups([])
    os.setresuid(*[int(sys.argv[1])] * 3)
pages = ['/ready', '/metrics', '/config', '/audited', '/tap', '/drain']
def tried(host, port, form, path):
    try:
        plain = socket.create_connection((host, port), 5)
    except OSError:
        return 'not connected'
    try:
        plain.settimeout(2 if form == 'silence' else 20)
        if form == 'silence':
            return 'bytes' if plain.recv(1) else 'nothing'
        if form == 'tls':
            plain = ssl._create_unverified_context().wrap_socket(plain)
        asked = http.client.HTTPConnection(host, port)
        asked.sock = plain
        asked.request('POST' if path == '/drain' else 'GET', path)
        answer = asked.getresponse()
        return str(answer.status) + ' ' + answer.getheader('leno-error', '')
    except (OSError, http.client.HTTPException):
        return 'nothing'
    finally:
        plain.close()
for host in sys.argv[2:]:
    for port in (15001, 15006, 15008, 15020):
        forms = [('http', '/')]
        if port == 15008:
            forms += [('silence', ''), ('tls', '/')]
        if port == 15020:
            forms = [('http', page) for page in pages]
        for form, path in forms:
            print(json.dumps([host, port, form + path, tried(host, port, form, path).strip()]))
";

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(root_of_a_workload_reaches_no_listener_or_handover_socket_of_another)]
}

fn root_of_a_workload_reaches_no_listener_or_handover_socket_of_another(
    capture: Capture,
) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let prepared = |directory: &Path| {
        fs::copy(&program, directory.join("spiffe-peer"))?;
        Ok(())
    };
    let options = LabOptions { mtls: Some("strict"), share: None, ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &mesh(), prepared)?;
    let outcome = || -> Result<()> {
        lab.reach("client", "web:8080")?;
        echoes(&lab, "apart:9000")?;
        listeners(&lab).context("listeners")?;
        tunnels(&lab).context("tunnels")?;
        handover_sockets(&lab).context("sockets of the hand-over")?;
        ensure!(status(&lab, "/")? == "200");
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())?;
    lab.end()
}

/// The documents, in which `apart` has its own node proxy process.
fn mesh() -> String {
    let apart = "leno.dev/mode: node, leno.dev/share: workload";
    MESH.replace("leno.dev/mode: sidecar", apart) + PLAIN
}

fn listeners(lab: &Lab) -> Result<()> {
    let mut hosts = Vec::new();
    for name in ["web-0", "apart-0"] {
        for ipv6 in [false, true] {
            hosts.push(lab.status()?.address(name, ipv6)?.to_string());
        }
    }
    let dial = |user: &'static str| {
        let python = ["python3", "-c", DIAL, user].into_iter();
        python.chain(hosts.iter().map(String::as_str)).collect::<Vec<_>>()
    };
    let results = |printed: &str| -> Result<Vec<Attempt>> {
        let all = printed.lines().map(serde_json::from_str).collect::<Result<Vec<_>, _>>()?;
        ensure!(all.len() == hosts.len() * ATTEMPTS, "{printed}");
        Ok(all)
    };
    // The client's own proxy relays these connections to a port where no application listens. It answers 503, or closes
    // the connection.
    for Attempt(host, port, form, result) in results(&lab.text("client", &dial("0"))?)? {
        let is_served = !["nothing", "not connected"].contains(&&*result);
        let is_refused = result.starts_with("503 ");
        ensure!(!is_served || is_refused, "by its proxy: {host} {port} {form}: {result}");
    }
    // This process bypasses the client's proxy under each backend. eBPF captures processes by their control group, to
    // which this process does not belong. Rules of netfilter exempt the user of proxies.
    let around = dial("2102");
    let around = netns::inside(&lab.namespace("client-0")?, || {
        command::text(Command::new(around[0]).args(&around[1..]), DIAL_LIMIT)
    })?;
    for Attempt(host, port, form, result) in results(&around)? {
        let expected = match (port, &*form) {
            (15001 | 15006, _) => "not connected",
            (15008, _) => "nothing",
            (_, "http/ready" | "http/metrics") => "200",
            _ => "403",
        };
        ensure!(result == expected, "around its proxy: {host} {port} {form}: {result}");
    }
    Ok(())
}

/// A client with an identity of the mesh that policies permit opens HBONE tunnels. Only a tunnel to the application's
/// own port may be served.
fn tunnels(lab: &Lab) -> Result<()> {
    let directory = hbone::identity(lab, "plain", "plain")?;
    for (server, port) in [("web", 8080), ("apart", 9000)] {
        let status = lab.status()?;
        let mut connects = vec![format!("{}:{port}", status.address(server, false)?)];
        for ipv6 in [false, true] {
            let host = SocketAddr::new(status.address(server, ipv6)?, 0).to_string();
            let host = host.strip_suffix('0').context("it ends with the port")?;
            connects.extend(LISTENERS.map(|port| format!("{host}{port}")));
        }
        connects.push("127.0.0.1:15020".to_owned());
        // Another workload that the same process serves, and an instance that another process serves.
        for other in ["client", "web", "apart"].into_iter().filter(|other| *other != server) {
            connects.push(format!("{}:{port}", status.address(other, false)?));
        }
        let all = wait::until("an answer of the proxy", LIMIT, || {
            let all = hbone::asked(lab, &directory, server, &connects)?;
            Ok((all[0]["status"] == 200).then_some(all))
        })?;
        ensure!(all.len() == connects.len(), "{all:?}");
        for (one, asked) in all.iter().zip(&connects).skip(1) {
            ensure!(one["status"] == 403, "{server}: {asked}: {one}");
        }
    }
    Ok(())
}

/// No Unix socket of a process or a broker may have a name. To a named one any process could connect: by its path, or,
/// in the same network namespace, by its abstract name.
fn handover_sockets(lab: &Lab) -> Result<()> {
    let mut processes = vec![lab.pid_of(GROUP)?, lab.pid_of(MeshProcess::Node(OF_APART))?];
    for name in ["client-0", "web-0", "apart-0"] {
        processes.push(lab.pid_of(MeshProcess::Broker(name))?);
    }
    // A Unix socket is listed in the network namespace in which it was created. `leno up` has created both ends, so its
    // own table is read as well.
    let mut names = BTreeMap::new();
    for pid in processes.iter().chain([&lab.pid_of(MeshProcess::Owner)?]) {
        names.extend(unix_sockets(&fs::read_to_string(format!("/proc/{pid}/net/unix"))?)?);
    }
    for pid in processes {
        let mut found = 0;
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
            // The descriptor may have been closed meanwhile.
            let Ok(target) = fs::read_link(descriptor?.path()) else { continue };
            let target = target.display().to_string();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            if let Some(name) = inode.and_then(|inode| names.get(inode)) {
                ensure!(name.is_empty(), "process {pid} has a socket with the name {name}");
                found += 1;
            }
        }
        ensure!(found > 0, "process {pid} has no Unix socket");
    }
    let of_client = unix_sockets(&lab.text("client", &["cat", "/proc/net/unix"])?)?;
    ensure!(of_client.values().all(String::is_empty), "client can connect to {of_client:?}");
    Ok(())
}

/// The sockets in this table by inode, each with its path, its abstract name, or an empty name.
fn unix_sockets(table: &str) -> Result<BTreeMap<String, String>> {
    let rows = table.lines().skip(1).map(|row| {
        let mut fields = row.split_whitespace().skip(6).map(str::to_owned);
        let inode = fields.next().with_context(|| format!("no inode in {row}"))?;
        Ok((inode, fields.next().unwrap_or_default()))
    });
    rows.collect()
}
