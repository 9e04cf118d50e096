//! Tests UDP datagrams through proxies: they are encrypted on the bridge, clients are identified, policies apply,
//! and applications see the expected addresses.

use std::io::{ErrorKind, Read as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{command, netns, wait};
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};

use super::life::reference_is_true;
use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(datagrams_cross_the_bridge_encrypted_and_under_strict_alone),
        once!(datagrams_are_under_policies_that_change),
        once!(datagrams_go_on_after_a_proxy_was_killed),
        once!(datagrams_leave_the_mesh_as_egress_says),
        once!(datagrams_go_on_while_proxies_are_replaced),
        once!(datagrams_go_on_while_workloads_change_their_mode),
        once!(datagrams_go_on_while_a_neighbour_floods_their_port),
        once!(datagrams_are_carried_only_for_workloads_with_the_annotation),
        once!(datagrams_are_carried_for_servers_whose_port_alone_declares_it_in_every_mode_of_mtls),
        once!(datagrams_of_dns_are_carried_where_a_workload_asks),
    ]
}

/// A text that every datagram of a meshed client contains.
const MARKER: &str = "leno-datagram-4711";
/// All Ethernet protocols (`ETH_P_ALL`), in network byte order.
const ALL_PROTOCOLS: i32 = 0x0003_u16.to_be() as i32;
/// The port on which proxies accept QUIC.
const QUIC_PORT: u16 = 15008;
/// Within this time a killed proxy is noticed, which takes ten seconds, and the next one is queried. The time is
/// long enough for a busy machine.
const NOTICED: Duration = Duration::from_secs(20);
/// Most datagrams of [`STEADY`] that may be lost in a row. That is half of those that are sent until a connection
/// counts as dead, and more than are sent until a handshake packet is retransmitted.
const MOST_LOST: usize = 500;
/// How long a policy change, or the start of the next proxy, may take.
const LIMIT: Duration = Duration::from_secs(60);

const MESH: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: lab, annotations: {leno.dev/udp: enabled}}
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

/// Sends datagrams and waits up to a second for each answer. Prints how many came back unchanged, whether all came
/// from the address to which they were sent, and the last answer.
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

struct ReceivedDatagrams {
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
) -> Result<ReceivedDatagrams> {
    let (port, count) = (to.1.to_string(), many.0.to_string());
    let command = ["python3", "-c", CLIENT, how.0, how.1, to.0, &port, &count, many.1];
    let said = lab.text(who, &command)?;
    let mut words = said.trim().splitn(3, ' ');
    let mut word = || words.next().context("a word is missing");
    let (came, from_there) = (word()?.parse()?, word()? == "True");
    Ok(ReceivedDatagrams { came, from_there, last: words.next().unwrap_or_default().to_owned() })
}

/// Waits until datagrams come back, or until none does.
fn until(lab: &Lab, who: &str, to: (&str, u16), answered: bool) -> Result<()> {
    wait::until("datagrams to be answered, or not", LIMIT, || {
        let said = send(lab, who, ("4", "unconnected"), to, (1, MARKER))?;
        Ok(((said.came == 1) == answered).then_some(()))
    })
    .with_context(|| format!("{who} to {to:?}, answered: {answered}"))
}

fn strict(capture: Capture) -> LabOptions {
    LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) }
}

/// Opens a socket that receives every frame on the bridge from now on.
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
            // The destinations are the implied Service, a Service with another port, and the instance itself.
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
    // The application sees the stand-in address instead of the client's address.
    let who = send(lab, "client", ("4", "connect"), ("echo", 7000), (1, "who"))?;
    ensure!(who.last == "::ffff:192.0.0.8", "the application sees {}", who.last);
    // A client without a proxy gets no answer on any port, and none of its datagrams reaches the application.
    let own = status.address("echo-0", false)?.to_string();
    let said = send(lab, "plain", ("4", "unconnected"), (&own, 7000), (3, "plain"))?;
    ensure!(said.came == 0, "strict served datagrams in plaintext");
    // This datagram is larger than the path permits.
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
    // No document declares this port.
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
        lab.kill(MeshProcess::Proxy(instance), Signal::SIGKILL)?;
        let began = Instant::now();
        until(lab, "client", echo, true).with_context(|| format!("the proxy of {instance}"))?;
        let took = began.elapsed();
        println!("the proxy of {instance} was killed: answered again after {took:?}");
        ensure!(took < NOTICED, "the proxy of {instance}: {took:?}");
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
    // This endpoint is known to have no proxy.
    until(lab, "client", (&plain, 7001), true)?;
    let said = send(lab, "client", ("4", "connect"), (&plain, 7001), (5, MARKER))?;
    ensure!(said.came > 0 && said.from_there, "{}", said.last);
    // The mesh does not know this address.
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

/// Sends a numbered datagram every 10 ms from one connected socket until a file exists. Prints how many were sent,
/// how many came back, the longest run of lost ones, and the socket's errors. A second file contains how many have
/// come back so far.
const STEADY: &str = r#"
import os, socket, sys, time
host, port, over, answers = sys.argv[1:5]
to = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_DGRAM)[0][4]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(to)
answers = open(answers, 'w')
s.setblocking(False)
sent, came, errors = 0, set(), 0
while not os.path.exists(over):
    for call in (lambda: s.send(b"leno-datagram-4711 %d" % sent), lambda: came.add(int(s.recv(2048).split()[1]))):
        before = len(came)
        try:
            call()
        except BlockingIOError:
            pass
        except OSError as error:
            errors += 1
        if len(came) > before:
            answers.seek(0)
            answers.write(str(len(came)))
            answers.flush()
    sent += 1
    time.sleep(0.01)
row = most = 0
for number in range(sent):
    row = 0 if number in came else row + 1
    most = max(most, row)
print(sent, len(came), most, errors)
"#;

fn datagrams_go_on_while_proxies_are_replaced(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(replaced(&lab))?;
    lab.end()
}

fn replaced(lab: &Lab) -> Result<()> {
    goes_on(lab, |_| {
        let said = command::text(lab.leno("upgrade").arg("--proxies"), LIMIT)?;
        ensure!(said.starts_with("the new processes serve"), "{said}");
        Ok(())
    })
}

fn datagrams_go_on_while_workloads_change_their_mode(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions { share: None, ..strict(capture) }, MESH, |_| Ok(()))?;
    lab.explain(modes_change(&lab))?;
    lab.end()
}

fn modes_change(lab: &Lab) -> Result<()> {
    goes_on(lab, |step| {
        let mode = if step % 2 == 0 { "node" } else { "sidecar" };
        let asked = format!("leno.dev/udp: enabled, leno.dev/mode: {mode}");
        lab.edit(&MESH.replace("leno.dev/udp: enabled", &asked))?;
        wait::until("the other mode", LIMIT, || {
            let status = lab.status()?;
            let is_node = |name| status.instance(name).map(|of| of.group().is_some());
            let both = (is_node("client-0")?, is_node("echo-0")?);
            Ok((both == (mode == "node", mode == "node")).then_some(()))
        })
    })
}

/// A client sends datagrams and gets answers while each of three steps is performed. No flow may stall.
fn goes_on(lab: &Lab, step: impl Fn(usize) -> Result<()>) -> Result<()> {
    until(lab, "client", ("echo", 7000), true)?;
    let over = lab.directory().join("over");
    let answers = lab.directory().join("answers");
    let paths = [&over, &answers].map(|path| path.display().to_string());
    let command = ["python3", "-c", STEADY, "echo", "7000", &paths[0], &paths[1]];
    let steady = lab.spawn("client", &command)?;
    let came = || -> u64 {
        let written = std::fs::read_to_string(&answers).unwrap_or_default();
        written.parse().unwrap_or_default()
    };
    for number in 0..3 {
        step(number)?;
        let before = came();
        wait::until("answers to the client of before", LIMIT, || {
            Ok((came() > before + 10).then_some(()))
        })?;
    }
    until(lab, "client", ("echo", 7000), true)?;
    std::fs::write(&over, "")?;
    let said = command::success("the steady client", steady.finish(LIMIT)?)?;
    println!("while proxies were replaced: sent, came, lost in a row, errors: {said}");
    let words: Vec<usize> = said.split_whitespace().flat_map(str::parse).collect();
    let [_, _, lost, errors] = words[..] else { bail!("unexpected: {said}") };
    ensure!(errors == 0, "the application's socket has reported errors: {said}");
    ensure!(lost < MOST_LOST, "the flow stood still: {said}");
    for name in ["client", "echo"] {
        let metrics = lab.metrics(name)?;
        for direction in ["outbound", "inbound"] {
            let none = format!(
                "leno_datagram_connections_total{{direction=\"{direction}\",result=\"silent\"}} 0\n"
            );
            ensure!(
                metrics.contains(&none),
                "{name}: a connection to a proxy of before: {metrics}"
            );
        }
        let instance = lab.status()?.instance(&format!("{name}-0"))?.clone();
        ensure!((instance.restarts, instance.ready) == (0, true), "{instance:?}");
    }
    Ok(())
}

/// Sends the packets in a file of hexadecimal lines for some seconds. Each is sent unchanged and with another
/// connection ID; random noise is sent as well.
const FLOOD: &str = r#"
import os, random, socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
packets = [bytes.fromhex(line) for line in sys.argv[4].split(",") if line]
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(16)]
end, sent = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for s in sockets:
        noise = os.urandom(random.randrange(1, 1400))
        initial = bytes([0xc0, 0, 0, 0, 1, 8]) + os.urandom(8) + bytes([8]) + os.urandom(8) + bytes([0, 0x44, 0x88]) + os.urandom(1172)
        again = random.choice(packets) if packets else noise
        for packet in (noise, initial, again):
            try:
                s.sendto(packet, (host, port))
                sent += 1
            except OSError:
                pass
print(sent)
"#;

fn datagrams_go_on_while_a_neighbour_floods_their_port(capture: Capture) -> Result<()> {
    let lab = Lab::start(&strict(capture), MESH, |_| Ok(()))?;
    lab.explain(flooded(&lab))?;
    lab.end()
}

fn flooded(lab: &Lab) -> Result<()> {
    let frames = listen(lab)?;
    until(lab, "client", ("echo", 7000), true)?;
    // Finds the first packets of a client's handshake, which are QUIC packets with a long header.
    let quic = QUIC_PORT.to_be_bytes();
    let heard = heard(frames)?;
    let initials = heard.iter().filter_map(|frame| {
        // The lengths of the headers are: Ethernet 14, IPv4 20, UDP 8.
        let (ports, payload) = (frame.get(34..38)?, frame.get(42..)?);
        (ports[2..] == quic && payload.first()? & 0xf0 == 0xc0).then(|| hex(payload))
    });
    let initials: Vec<String> = initials.take(4).collect();
    ensure!(!initials.is_empty(), "no handshake of {} frames", heard.len());
    let own = lab.status()?.address("echo-0", false)?.to_string();
    let port = QUIC_PORT.to_string();
    let command = ["python3", "-c", FLOOD, &own, &port, "8", &initials.join(",")];
    let flood = lab.spawn("plain", &command)?;
    // Tests a flow that was open before the flood, and one of a client that begins during it.
    let said = send(lab, "client", ("4", "connect"), ("echo", 7000), (100, MARKER))?;
    ensure!(said.came >= 90, "{} of 100 came: {}", said.came, said.last);
    let began = Instant::now();
    until(lab, "other", ("echo", 7000), true)?;
    println!("under the flood the first answer took {:?}", began.elapsed());
    ensure!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
    let sent = command::success("the flood", flood.finish(LIMIT)?)?;
    let metrics = lab.metrics("echo")?;
    let of_datagrams = metrics.lines().filter(|line| line.starts_with("leno_datagram_connections"));
    println!("{} packets of a flood: {:?}", sent.trim(), of_datagrams.collect::<Vec<_>>());
    until(lab, "client", ("echo", 7000), true)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn datagrams_are_carried_only_for_workloads_with_the_annotation(capture: Capture) -> Result<()> {
    let documents = MESH.replace(
        "{name: other, namespace: lab}",
        "{name: other, namespace: lab, annotations: {leno.dev/udp: 'off'}}",
    );
    let lab = Lab::start(&strict(capture), &documents, |_| Ok(()))?;
    lab.explain(has_nothing(&lab))?;
    lab.end()
}

fn has_nothing(lab: &Lab) -> Result<()> {
    until(lab, "client", ("echo", 7000), true)?;
    let sockets = |who| -> Result<bool> {
        let said = lab.text(who, &["cat", "/proc/net/udp", "/proc/net/udp6"])?;
        // These are the ports 15001 and 15008.
        Ok([":3A99 ", ":3AA0 "].iter().any(|port| said.contains(port)))
    };
    ensure!(sockets("client")? && !sockets("other")?, "sockets of a proxy without datagrams");
    let metrics = lab.metrics("other")?;
    ensure!(!metrics.contains("leno_datagram"), "{metrics}");
    reference_is_true(&[&lab.metrics("client")?], |name| name.starts_with("leno_datagram"))?;
    // This client sends plaintext, which a strict server drops and an unmeshed one receives.
    let said = send(lab, "other", ("4", "unconnected"), ("echo", 7000), (2, "plain"))?;
    ensure!(said.came == 0, "strict served datagrams in plaintext");
    let plain = lab.status()?.address("plain-0", false)?.to_string();
    until(lab, "other", (&plain, 7001), true)
}

/// `leno.dev/udp` is declared by a port alone: of the Workload `echo`, or of the Service `chosen`. No annotation
/// enables datagrams for the servers.
fn datagrams_are_carried_for_servers_whose_port_alone_declares_it_in_every_mode_of_mtls(
    capture: Capture,
) -> Result<()> {
    // A Workload that declares no port itself. Its datagrams are declared by the port of a Service that selects it.
    const CHOSEN: &str = r#"---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: chosen, namespace: lab, labels: {app: chosen}}
spec:
  serviceAccount: chosen
  command: [python3, -c, 'import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(("::", 7000)); exec("while 1:\n d, a = s.recvfrom(2048); s.sendto(a[0].encode() if d == b\"who\" else d, a)")']
---
apiVersion: v1
kind: Service
metadata: {name: chosen, namespace: lab}
spec: {selector: {app: chosen}, ports: [{port: 70, targetPort: 7000, protocol: UDP, appProtocol: leno.dev/udp}]}
"#;
    let documents =
        MESH.replace("{name: lab, annotations: {leno.dev/udp: enabled}}", "{name: lab}").replace(
            "{name: client, namespace: lab}",
            "{name: client, namespace: lab, annotations: {leno.dev/udp: enabled}}",
        );
    for mtls in ["strict", "permissive"] {
        let options = LabOptions { mtls: Some(mtls), ..LabOptions::new(capture) };
        let lab = Lab::start(&options, &format!("{documents}{CHOSEN}"), |_| Ok(()))?;
        lab.explain(serves_the_mesh_alone(&lab).context(mtls))?;
        lab.end()?;
    }
    Ok(())
}

fn serves_the_mesh_alone(lab: &Lab) -> Result<()> {
    for (service, port, instance) in [("front", 70, "echo-0"), ("chosen", 70, "chosen-0")] {
        until(lab, "client", (service, port), true)?;
        let said = send(lab, "client", ("4", "connect"), (service, port), (1, "who"))?;
        ensure!(said.last.ends_with("192.0.0.8"), "not from the proxy of {service}: {}", said.last);
        let own = lab.status()?.address(instance, false)?.to_string();
        // `other` has a proxy that does not carry its datagrams, and `plain` has no proxy, so both send plaintext.
        for who in ["other", "plain"] {
            let said = send(lab, who, ("4", "unconnected"), (&own, 7000), (2, "plain"))?;
            ensure!(said.came == 0, "{service} served {who} in plaintext");
        }
    }
    Ok(())
}

fn datagrams_of_dns_are_carried_where_a_workload_asks(capture: Capture) -> Result<()> {
    let documents = MESH.replace(
        "{name: other, namespace: lab}",
        "{name: other, namespace: lab, annotations: {leno.dev/udp: all}}",
    );
    let lab = Lab::start(&strict(capture), &documents, |_| Ok(()))?;
    lab.explain(dns(&lab))?;
    lab.end()
}

fn dns(lab: &Lab) -> Result<()> {
    let outside = |who| -> Result<bool> {
        let metrics = lab.metrics(who)?;
        let opened = "leno_datagram_flows_total{direction=\"outbound\",result=\"outside\"} ";
        Ok(metrics.lines().any(|line| line.strip_prefix(opened).is_some_and(|count| count != "0")))
    };
    // The mesh's own name server is not captured. Another name server may have any address.
    let plain = lab.status()?.address("plain-0", false)?.to_string();
    for who in ["client", "other"] {
        until(lab, who, ("echo", 7000), true)?;
        let _unanswered = send(lab, who, ("4", "unconnected"), (&plain, 53), (1, MARKER))?;
    }
    ensure!(!outside("client")?, "DNS went through the proxy of a workload that did not ask");
    ensure!(outside("other")?, "DNS went past the proxy of a workload that asks for all");
    Ok(())
}
