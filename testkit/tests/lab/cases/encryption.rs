//! Tests which data crosses the bridge, and which clients are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::{Step, Transcript, talk};
use leno_testkit::sniff::{PayloadKind, Segment, Sniffer, classify};
use leno_testkit::{binaries, command, netns, wait};
use nix::sys::signal::Signal;

use super::programs::socket;
use super::{Case, alone, shared};

/// A text in every request, response and value that is sent while packets are captured.
const MARKER: &str = "leno-lab-marker-4711";
/// The port of the proxies' metrics, which are not encrypted and contain nothing of the traffic.
const ADMIN_PORT: u16 = 15020;
/// A request in the format of printf(1).
const ASK: &str = r"GET /?size=5 HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n";
/// How long a killed proxy may take to come back.
const AWAY_LIMIT: Duration = Duration::from_secs(60);
/// How long openssl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(90);

const STRICT: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}}
spec:
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\"]
  ports: [{name: http, port: 8080, appProtocol: http}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        shared!(the_bridge_sees_tls_only),
        shared!(permissive_serves_clients_without_identity),
        shared!(permissive_serves_clients_of_another_authority_without_identity),
        alone!(strict_refuses_clients_without_identity),
    ]
}

fn the_bridge_sees_tls_only(lab: &Lab) -> Result<()> {
    let sniffer = Sniffer::start(&lab.switch()?)?;
    for service in ["web", "detect"] {
        // There are more requests at once than pooled connections, so new connections are captured as well.
        let url = format!("http://{service}/{MARKER}?size=100&delay_ms=300");
        let header = format!("x-marker: {MARKER}");
        let load = ["--url", &url, "--header", &header, "--rate", "100", "--connections", "30"];
        let report =
            lab.load("client", &[&load[..], &["--duration", "500ms"]].concat())?.finish()?;
        ensure!(report.errors == 0, "{service}: {report:?}");
        let echo = format!("http://{service}/echo");
        lab.text("client", &["curl", "-sS", "--fail", "-m", "20", "-d", MARKER, &echo])?;
    }
    lab.text("client", &["redis-cli", "-h", "redis", "SET", "marker", MARKER])?;
    for service in ["echo:9000", "banner:9000"] {
        let steps = [Step::Send(MARKER.into()), Step::Read(MARKER.len())];
        let transcript = lab.talk("client", service, &steps)?;
        ensure!(transcript.failure().is_none(), "{service}: {transcript:?}");
    }
    let segments = sniffer.stop()?;
    let leaks: Vec<_> = segments.iter().filter(|s| s.contains(MARKER.as_bytes())).collect();
    ensure!(leaks.is_empty(), "plaintext on the bridge: {leaks:?}");
    let status = lab.status()?;
    let directions = directions(&segments);
    for (service, port) in
        [("web", 8080), ("detect", 8080), ("redis", 6379), ("echo", 9000), ("banner", 9000)]
    {
        // Connections use the service's own port, so that network policies still work.
        let meshed = |to: &SocketAddr| {
            let instances = status.instances.iter().filter(|i| i.workload == service);
            to.port() == port && instances.into_iter().any(|i| i.addresses.contains(&to.ip()))
        };
        let seen = directions.iter().any(|((_, to), kind)| meshed(to) && *kind == PayloadKind::Tls);
        ensure!(seen, "no TLS to {service} port {port} was seen: {directions:?}");
    }
    let plain: Vec<_> = directions.iter().filter(|(_, kind)| **kind != PayloadKind::Tls).collect();
    ensure!(plain.is_empty(), "connections that are not TLS: {plain:?}");
    Ok(())
}

/// What the first bytes of each direction of each connection look like. Connections to admin ports are left out.
fn directions(segments: &[Segment]) -> BTreeMap<(SocketAddr, SocketAddr), PayloadKind> {
    let mut begun: BTreeMap<_, PayloadKind> = BTreeMap::new();
    let mut started: BTreeMap<(SocketAddr, SocketAddr), u32> = BTreeMap::new();
    for s in segments {
        // Packets from an address to itself do not cross the bridge. The observer of kernel flows uses such
        // packets to read its metrics.
        if s.from.port() == ADMIN_PORT || s.to.port() == ADMIN_PORT || s.from.ip() == s.to.ip() {
            continue;
        }
        let direction = (s.from, s.to);
        if s.syn {
            started.insert(direction, s.sequence.wrapping_add(1));
        }
        // Only the first bytes of a connection can show that it is not TLS, because the middle of a record may
        // look like anything. A pooled connection that was opened before the capture shows whole records.
        let from_its_beginning = started.get(&direction) == Some(&s.sequence);
        if !s.payload.is_empty() && (from_its_beginning || classify(&s.payload) == PayloadKind::Tls)
        {
            begun.entry(direction).or_insert_with(|| classify(&s.payload));
        }
    }
    begun
}

fn permissive_serves_clients_without_identity(lab: &Lab) -> Result<()> {
    let address = lab.status()?.address("web-0", false)?.to_string();
    let request = get();
    let from_plain = lab.talk("plain", &socket(&address, 8080), &request)?;
    ensure!(from_plain.statuses() == [200], "{from_plain:?}");
    let from_bridge = from_bridge(lab, &address, &request)?;
    ensure!(from_bridge.statuses() == [200], "{from_bridge:?}");
    // A service whose protocol is unknown, and whose server sends first.
    let banner = lab.status()?.address("banner", false)?.to_string();
    let greeted =
        lab.talk("plain", &socket(&banner, 9000), &[Step::Expect("220 ready\r\n".into())])?;
    ensure!(greeted.failure().is_none(), "{greeted:?}");
    Ok(())
}

/// A client that uses the mesh's own protocol without proving an identity is served like one in plaintext.
fn permissive_serves_clients_of_another_authority_without_identity(lab: &Lab) -> Result<()> {
    let web = lab.status()?.address("web-0", false)?.to_string();
    let before = inbound_requests(lab, &web)?;
    for shown in [PresentedCertificate::OtherAuthority, PresentedCertificate::Nothing] {
        for protocol in ["leno-h1", "leno-tcp"] {
            let answered = foreign_client(lab, &web, protocol, shown)?;
            ensure!(answered.contains("HTTP/1.1 200"), "{shown:?} was refused: {answered}");
        }
    }
    // All four were counted as requests. On an HTTP port, a client cannot avoid HTTP parsing by negotiating raw
    // bytes.
    let after = inbound_requests(lab, &web)?;
    ensure!(after.nobodys == before.nobodys + 4, "{before:?}, then {after:?}");
    // The foreign certificate names the service account of a client of this mesh, but must not count as that
    // client.
    ensure!(after.clients == before.clients, "{before:?}, then {after:?}");
    Ok(())
}

/// How many requests the proxy at an address has counted as served.
#[derive(Debug)]
struct Requests {
    /// From clients without an identity.
    nobodys: u64,
    /// From clients with the identity of the workload `client`.
    clients: u64,
}

fn inbound_requests(lab: &Lab, address: &str) -> Result<Requests> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "-g", "-m", "20"]);
    curl.arg(format!("http://{}/metrics", socket(address, ADMIN_PORT)));
    let metrics = netns::inside(&lab.switch()?, || command::text(&mut curl, OPENSSL_LIMIT))?;
    let count = |labels: [&str; 3]| {
        let counts = metrics.lines().filter_map(|line| {
            let (labelled, count) = line.strip_prefix("leno_requests_total{")?.rsplit_once(' ')?;
            labels
                .iter()
                .all(|label| labelled.contains(label))
                .then(|| count.parse::<u64>().ok())?
        });
        counts.sum()
    };
    let inbound = "direction=\"inbound\"";
    Ok(Requests {
        nobodys: count([inbound, ",client=\"\"", "mtls=\"false\""]),
        clients: count([inbound, ",client=\"client\"", "mtls=\"true\""]),
    })
}

fn strict_refuses_clients_without_identity(capture: Capture) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, STRICT, |_| Ok(()))?;
    let outcome = strict(&lab);
    lab.explain(outcome)
}

fn strict(lab: &Lab) -> Result<()> {
    let address = lab.status()?.address("web-0", false)?.to_string();
    let request = get();
    lab.reach("client", "web:8080")?;
    for (who, outcome) in [
        ("an unmeshed workload", lab.talk("plain", &socket(&address, 8080), &request)),
        ("the bridge itself", from_bridge(lab, &address, &request)),
    ] {
        // Being refused means: no connection, a reset, or a response of the mesh that denies the request.
        let served = outcome.as_ref().is_ok_and(|t| t.statuses().contains(&200));
        ensure!(!served, "{who} was served under strict: {outcome:?}");
    }
    for protocol in ["", "leno-h1", "leno-tcp"] {
        for shown in [PresentedCertificate::OtherAuthority, PresentedCertificate::Nothing] {
            let answered = foreign_client(lab, &address, protocol, shown)?;
            ensure!(!answered.contains("HTTP/1.1 200"), "{shown:?} was let in: {answered}");
        }
    }
    refused_while_the_proxy_is_away(lab, &address)?;
    lab.reach("client", "web:8080")?;
    // After all of these, a meshed client must still be served.
    let meshed = lab.talk("client", "web:8080", &request)?;
    ensure!(meshed.statuses() == [200], "a meshed client was refused: {meshed:?}");
    Ok(())
}

/// Between the death of a proxy and the time when the next one listens, no connection may reach the application
/// directly.
fn refused_while_the_proxy_is_away(lab: &Lab, address: &str) -> Result<()> {
    let before = lab.status()?.instance("web-0")?.proxy_restarts;
    lab.kill(MeshProcess::Proxy("web-0"), Signal::SIGKILL)?;
    wait::until("the next proxy", AWAY_LIMIT, || {
        let outcome = from_bridge(lab, address, &get());
        let served = outcome.as_ref().is_ok_and(|t| t.statuses().contains(&200));
        ensure!(!served, "served in plaintext while the proxy was away: {outcome:?}");
        let status = lab.status()?;
        let back = status.ready() && status.instance("web-0")?.proxy_restarts > before;
        Ok(back.then_some(()))
    })
}

fn get() -> Vec<Step> {
    let request = "GET /?size=5 HTTP/1.1\r\nHost: lab\r\n\r\n";
    vec![Step::Send(request.into()), Step::Response(false)]
}

/// Opens a connection from the bridge, as a client without workload, proxy or capture.
fn from_bridge(lab: &Lab, address: &str, steps: &[Step]) -> Result<Transcript> {
    netns::inside(&lab.switch()?, || talk(&socket(address, 8080), steps))
}

/// The certificate that a client from outside the mesh presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PresentedCertificate {
    /// A certificate of another certificate authority, with an identity of the mesh.
    OtherAuthority,
    /// No certificate.
    Nothing,
}

/// Opens TLS with this ALPN (none if it is empty), and requests a page. Returns all output of openssl.
fn foreign_client(
    lab: &Lab,
    address: &str,
    protocol: &str,
    shown: PresentedCertificate,
) -> Result<String> {
    let openssl = binaries::require("openssl", "openssl")?;
    let (key, certificate) = (lab.directory().join("other.key"), lab.directory().join("other.crt"));
    if !certificate.exists() {
        let mut make = Command::new(&openssl);
        make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        make.args(["-nodes", "-days", "1", "-subj", "/CN=other", "-addext"]);
        make.arg("subjectAltName=URI:spiffe://cluster.local/ns/lab/sa/client");
        make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command::text(&mut make, OPENSSL_LIMIT)?;
    }
    let script = format!("printf '{ASK}' | \"$@\" 2>&1");
    let mut client = Command::new("sh");
    client
        .args(["-c", &script, "sh"])
        .arg(&openssl)
        .args(["s_client", "-quiet", "-ign_eof", "-connect"]);
    client.arg(socket(address, 8080));
    if shown == PresentedCertificate::OtherAuthority {
        client.arg("-cert").arg(&certificate).arg("-key").arg(&key);
    }
    if !protocol.is_empty() {
        client.args(["-alpn", protocol]);
    }
    let output = netns::inside(&lab.switch()?, || command::run(&mut client, OPENSSL_LIMIT))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
