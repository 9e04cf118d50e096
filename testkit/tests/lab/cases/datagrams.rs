//! Datagrams of UDP that proxies carry: encrypted on the bridge, of known clients, under policies, and as applications see
//! them.

use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leno_testkit::lab::{Capture, Lab, Options, Piece};
use leno_testkit::{netns, wait};
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(datagrams_cross_the_bridge_encrypted_and_under_strict_alone),
        once!(datagrams_are_under_policies_that_change),
        once!(datagrams_go_on_after_a_proxy_was_killed),
        once!(datagrams_leave_the_mesh_as_egress_says),
    ]
}

/// In every datagram that a meshed client sends.
const MARKER: &str = "leno-datagram-4711";
/// All protocols of Ethernet (`ETH_P_ALL`), in the order of the network.
const ALL_PROTOCOLS: i32 = 0x0003_u16.to_be() as i32;
/// Where proxies take QUIC.
const QUIC_PORT: u16 = 15008;
/// How long a changed policy, or the next proxy, may take.
const LIMIT: Duration = Duration::from_secs(60);

const MESH: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: lab, annotations: {leno.dev/udp: enabled, leno.dev/mode: sidecar}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {serviceAccount: client, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: other, namespace: lab}
spec: {serviceAccount: other, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec:
  command: [python3, -c, 'import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(("::", 7001)); exec("while 1:\n d, a = s.recvfrom(2048); s.sendto(d, a)")']
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  serviceAccount: echo
  command: [python3, -c, 'import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(("::", 7000)); exec("while 1:\n d, a = s.recvfrom(2048); s.sendto(a[0].encode() if d == b\"who\" else d, a)")']
  ports: [{name: echo, port: 7000, appProtocol: leno.dev/udp}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: echo}, ports: [{port: 70, targetPort: 7000, protocol: UDP, appProtocol: leno.dev/udp}]}
"#;

/// Sends datagrams and waits a second for each answer; prints how many came as they were sent, whether all came from where they
/// were sent to, and the last answer.
const CLIENT: &str = r#"
import socket, sys
family, connects, host, port, count, payload = sys.argv[1:7]
family = {"4": socket.AF_INET, "6": socket.AF_INET6}[family]
to = socket.getaddrinfo(host, int(port), family, socket.SOCK_DGRAM)[0][4]
s = socket.socket(family, socket.SOCK_DGRAM)
s.settimeout(1)
if connects == "connect":
    s.connect(to)
    assert s.getpeername()[:2] == to[:2], s.getpeername()
came, peers, got = 0, set(), b""
for i in range(int(count)):
    data = payload.encode()
    try:
        s.send(data) if connects == "connect" else s.sendto(data, to)
        got, peer = s.recvfrom(2048)
        peers.add(peer[:2])
        came += got == data
    except OSError as error:
        got = str(error).encode()
print(came, all(peer == to[:2] for peer in peers), got.decode())
"#;

struct Said {
    came: u32,
    from_there: bool,
    last: String,
}

fn send(
    lab: &Lab,
    who: &str,
    how: (&str, &str),
    to: (&str, u16),
    many: (u32, &str),
) -> Result<Said> {
    let (port, count) = (to.1.to_string(), many.0.to_string());
    let command = ["python3", "-c", CLIENT, how.0, how.1, to.0, &port, &count, many.1];
    let said = lab.text(who, &command)?;
    let mut words = said.trim().splitn(3, ' ');
    let mut word = || words.next().context("a word is missing");
    let (came, from_there) = (word()?.parse()?, word()? == "True");
    Ok(Said { came, from_there, last: words.next().unwrap_or_default().to_owned() })
}

/// Waits until datagrams come back, or until none does.
fn until(lab: &Lab, who: &str, to: (&str, u16), answered: bool) -> Result<()> {
    wait::until("datagrams to be answered, or not", LIMIT, || {
        let said = send(lab, who, ("4", "unconnected"), to, (1, MARKER))?;
        Ok(((said.came == 1) == answered).then_some(()))
    })
    .with_context(|| format!("{who} to {to:?}, answered: {answered}"))
}

fn strict(capture: Capture) -> Options {
    // Node proxies carry no datagrams.
    Options { mtls: Some("strict"), share: None, ..Options::new(capture) }
}

/// Every frame of the bridge from now on.
fn listen(lab: &Lab) -> Result<Socket> {
    netns::inside(&lab.switch()?, || {
        let every = Some(Protocol::from(ALL_PROTOCOLS));
        let socket = Socket::new(Domain::PACKET, Type::RAW, every)?;
        socket.set_recv_buffer_size(16 << 20)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
}

fn heard(mut socket: Socket) -> Result<Vec<Vec<u8>>> {
    let (mut frames, mut frame) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match socket.read(&mut frame) {
            Ok(length) => frames.push(frame[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(frames),
            Err(error) => return Err(error.into()),
        }
    }
}

fn has(frame: &[u8], part: &[u8]) -> bool {
    frame.windows(part.len()).any(|window| window == part)
}

fn datagrams_cross_the_bridge_encrypted_and_under_strict_alone(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(cross(&lab))?;
    lab.end()
}

fn cross(lab: &Lab) -> Result<()> {
    until(lab, "client", ("echo", 7000), true)?;
    let frames = listen(lab)?;
    let status = lab.status()?;
    for family in ["4", "6"] {
        let own = status.address("echo-0", family == "6")?.to_string();
        for connects in ["connect", "unconnected"] {
            // The implied Service, one with a port of its own, and the instance itself.
            for to in [("echo", 7000), ("front", 70), (&*own, 7000)] {
                let case = || format!("IPv{family}, {connects}, {to:?}");
                let said = send(lab, "client", (family, connects), to, (20, MARKER))?;
                ensure!(said.came >= 18, "{}: {} of 20 came: {}", case(), said.came, said.last);
                ensure!(said.from_there, "{}: another source", case());
            }
        }
    }
    let frames = heard(frames)?;
    let quic = QUIC_PORT.to_be_bytes();
    ensure!(frames.iter().any(|frame| has(frame, &quic)), "no QUIC of {} frames", frames.len());
    let clear = frames.iter().filter(|frame| has(frame, MARKER.as_bytes())).count();
    ensure!(clear == 0, "{clear} frames of {} in clear", frames.len());
    // The application sees the stand-in address.
    let who = send(lab, "client", ("4", "connect"), ("echo", 7000), (1, "who"))?;
    ensure!(who.last == "::ffff:192.0.0.8", "the application sees {}", who.last);
    // A client without a proxy gets nothing, at any port, and none of its datagrams reaches the application.
    let own = status.address("echo-0", false)?.to_string();
    let said = send(lab, "plain", ("4", "unconnected"), (&own, 7000), (3, "plain"))?;
    ensure!(said.came == 0, "strict served datagrams in plaintext");
    // Larger than the path allows.
    let large = "x".repeat(1800);
    let said = send(lab, "client", ("4", "connect"), ("echo", 7000), (1, &large))?;
    ensure!(said.came == 0, "{}", said.last);
    let metrics = lab.metrics("client")?;
    let dropped = "leno_datagrams_dropped_total{direction=\"outbound\",reason=\"too-large\"} 1";
    ensure!(metrics.contains(dropped), "not counted as too large: {metrics}");
    until(lab, "client", ("echo", 7000), true)
}

const DENY_OTHER: &str = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-other, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: echo}]
  action: Deny
  rules: [{from: [{serviceAccounts: [other]}]}]
";

fn datagrams_are_under_policies_that_change(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(policies(&lab))?;
    lab.end()
}

fn policies(lab: &Lab) -> Result<()> {
    let echo = ("echo", 7000);
    for who in ["client", "other"] {
        until(lab, who, echo, true)?;
    }
    lab.edit(&format!("{MESH}{DENY_OTHER}"))?;
    until(lab, "other", echo, false)?;
    let said = send(lab, "client", ("4", "unconnected"), echo, (5, MARKER))?;
    ensure!(said.came > 0, "a policy for another client denies this one: {}", said.last);
    let said = send(lab, "other", ("4", "unconnected"), echo, (5, MARKER))?;
    ensure!(said.came == 0, "{} datagrams came back that a policy denies", said.came);
    lab.edit(MESH)?;
    until(lab, "other", echo, true)?;
    // A port that no document declares.
    let own = lab.status()?.address("echo-0", false)?.to_string();
    let said = send(lab, "client", ("4", "unconnected"), (&own, 7009), (2, MARKER))?;
    ensure!(said.came == 0, "{}", said.last);
    let metrics = lab.metrics("client")?;
    let refused = "leno_datagram_flows_total{direction=\"outbound\",result=\"refused\"}";
    ensure!(metrics.contains(refused), "{metrics}");
    Ok(())
}

fn datagrams_go_on_after_a_proxy_was_killed(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(killed(&lab))?;
    lab.end()
}

fn killed(lab: &Lab) -> Result<()> {
    let echo = ("echo", 7000);
    until(lab, "client", echo, true)?;
    for instance in ["echo-0", "client-0"] {
        lab.kill(Piece::Proxy(instance), Signal::SIGKILL)?;
        until(lab, "client", echo, true).with_context(|| format!("the proxy of {instance}"))?;
    }
    Ok(())
}

fn datagrams_leave_the_mesh_as_egress_says(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(leave(&lab))?;
    lab.end()
}

fn leave(lab: &Lab) -> Result<()> {
    let plain = lab.status()?.address("plain-0", false)?.to_string();
    // An endpoint that is known to have no proxy.
    until(lab, "client", (&plain, 7001), true)?;
    let said = send(lab, "client", ("4", "connect"), (&plain, 7001), (5, MARKER))?;
    ensure!(said.came > 0 && said.from_there, "{}", said.last);
    // An address that the mesh does not know.
    let denying =
        MESH.replace("leno.dev/udp: enabled", "leno.dev/udp: enabled, leno.dev/egress: deny");
    lab.edit(&denying)?;
    wait::until("egress to be denied", LIMIT, || {
        let _answer = send(lab, "client", ("4", "unconnected"), ("192.0.2.7", 7002), (1, MARKER))?;
        let metrics = lab.metrics("client")?;
        let count = |line: &&str| {
            line.starts_with("leno_datagram_flows_total{direction=\"outbound\",result=\"refused\"}")
                && !line.ends_with(" 0")
        };
        Ok(metrics.lines().find(count).map(drop))
    })?;
    until(lab, "client", ("echo", 7000), true)
}
