//! Tests what an instance that may send raw frames can do to other instances of its mesh. It must share no link
//! with them, and must not be able to take their addresses.

use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{command, netns};
use socket2::{Domain, Protocol, Socket, Type};

use super::strangers::link_local;
use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(forged_frames_reach_no_other_instance)]
}

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

/// A text in every forged frame.
const FORGED: &[u8] = b"leno-forged";
/// A text in the packet that is sent after all forged frames, and that is not forged.
const LAST: &[u8] = b"leno-last-of-all";
/// How long that packet may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// All Ethernet protocols (`ETH_P_ALL`), in network byte order.
const ALL_PROTOCOLS: i32 = 0x0003_u16.to_be() as i32;

fn forged_frames_reach_no_other_instance(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(forge(&lab))?;
    lab.end()
}

fn forge(lab: &Lab) -> Result<()> {
    lab.reach("client", "web:8080")?;
    for (attacker, victim, other) in
        [("plain", "web", "client"), ("client", "web", "plain"), ("plain", "client", "web")]
    {
        let case = || format!("{attacker} forges frames of {other} to {victim}");
        let heard = listen(lab, victim)?;
        let status = lab.status()?;
        let address = |name: &str, ipv6| -> Result<String> {
            Ok(status.address(&format!("{name}-0"), ipv6)?.to_string())
        };
        let to = format!("{}%eth0", link_local(lab, victim)?);
        let arguments = [
            address(victim, false)?,
            address(victim, true)?,
            address(other, false)?,
            address(other, true)?,
            to,
        ];
        let mut python = vec!["python3", "-c", FORGE];
        python.extend(arguments.iter().map(String::as_str));
        let said = lab.text(attacker, &python).with_context(case)?;
        ensure!(said.trim() == "sent", "{}: {said}", case());
        hears_nothing(heard).with_context(case)?;
        is_unchanged(lab, victim, other).with_context(case)?;
        lab.reach("client", "web:8080").with_context(case)?;
    }
    Ok(())
}

/// A socket that receives every frame of an instance from now on.
fn listen(lab: &Lab, instance: &str) -> Result<Socket> {
    netns::inside(&lab.namespace(instance)?, || {
        let every = Some(Protocol::from(ALL_PROTOCOLS));
        let socket = Socket::new(Domain::PACKET, Type::RAW, every)?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(socket)
    })
}

/// Checks that no forged frame arrived before the last packet.
fn hears_nothing(mut socket: Socket) -> Result<()> {
    let start = Instant::now();
    let mut frame = vec![0; 1 << 16];
    while start.elapsed() < LIMIT {
        let read = match socket.read(&mut frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            other => other?,
        };
        let frame = frame.get(..read).unwrap_or_default();
        let has = |mark: &[u8]| frame.windows(mark.len()).any(|part| part == mark);
        ensure!(!has(FORGED), "a forged frame came: {frame:02x?}");
        if has(LAST) {
            return Ok(());
        }
    }
    bail!("the last packet did not come within {LIMIT:?}")
}

/// Checks that the bridge and the gateway still reach both instances at their addresses, and that the victim still
/// reaches its gateway.
fn is_unchanged(lab: &Lab, victim: &str, other: &str) -> Result<()> {
    let ask = |program: &str, arguments: &[&str]| {
        command::text(Command::new(program).args(arguments), Duration::from_secs(20))
    };
    let status = lab.status()?;
    let switch = lab.switch()?;
    for name in [victim, other] {
        let name = format!("{name}-0");
        let IpAddr::V4(v4) = status.address(&name, false)? else { bail!("no IPv4 address") };
        let hardware = hardware(v4.octets());
        for ipv6 in [false, true] {
            let address = status.address(&name, ipv6)?.to_string();
            let entry = netns::inside(&switch, || ask("ip", &["neigh", "show", "to", &address]))?;
            ensure!(
                entry.contains(&hardware) && entry.contains("PERMANENT"),
                "the gateway has {name} at {entry:?}"
            );
        }
        let table = netns::inside(&switch, || ask("bridge", &["fdb", "show", "br", "leno0"]))?;
        let ports: Vec<_> = table.lines().filter(|line| line.starts_with(&hardware)).collect();
        ensure!(ports.len() == 1, "the bridge has {hardware} at {ports:?}");
    }
    let neighbours = netns::inside(&lab.namespace(victim)?, || ask("ip", &["neigh"]))?;
    let gateway = hardware([10, 89, 0, 1]);
    let known = neighbours.lines().filter(|line| line.contains("lladdr"));
    let strange: Vec<_> = known.filter(|line| !line.contains(&gateway)).collect();
    ensure!(strange.is_empty(), "{victim} has neighbours: {strange:?}");
    Ok(())
}

/// The hardware address of an instance, which is derived from its number.
fn hardware([_, _, high, low]: [u8; 4]) -> String {
    format!("02:6c:65:6e:{high:02x}:{low:02x}")
}

/// Sends the frames of an attacker: unsolicited ARP replies and neighbour advertisements that claim other instances'
/// addresses, and packets with forged source addresses, to each instance and to all.
const FORGE: &str = r#"
import ipaddress, socket, struct, sys

victim4, victim6, other4, other6, link_local = sys.argv[1:]
MARK = b'leno-forged'
packet = lambda text: ipaddress.ip_address(text).packed
victim4, victim6, other4, other6 = map(packet, (victim4, victim6, other4, other6))
gateway4 = victim4[:2] + bytes([0, 1])
gateway6 = victim6[:15] + b'\x01' if victim6[14] == 0 else victim6[:14] + bytes([0, 1])
hardware = lambda v4: b'\x02len' + v4[2:]
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
out.bind(('eth0', 0))
own = out.getsockname()[4]
everyone, all_nodes = b'\xff' * 6, bytes.fromhex('333300000001')
to = [hardware(victim4), hardware(other4), hardware(gateway4)]


def send(target, kind, payload, source=own):
    out.send(target + source + struct.pack('!H', kind) + payload)


def sum16(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def arp(operation, address, target):
    return (struct.pack('!HHBBH', 1, 0x0800, 6, 4, operation) + own + address + own + target
            + b'\0' * 7 + MARK)


def advertisement(address, target):
    # Solicited and override, with the hardware address and an option that is not known, which carries the mark.
    body = struct.pack('!I', 0x60000000) + address + b'\x02\x01' + own
    body += b'\xfd\x02' + MARK + b'\0' * (14 - len(MARK))
    length = len(body) + 4
    pseudo = address + target + struct.pack('!II', length, 58)
    body = struct.pack('!BBH', 136, 0, sum16(pseudo + b'\x88\0\0\0' + body)) + body
    return struct.pack('!IHBB', 0x60000000, length, 58, 255) + address + target + body


def datagram(source, target):
    body = struct.pack('!HHHH', 9, 9, 8 + len(MARK), 0) + MARK
    head = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(body), 0, 0, 64, 17, 0) + source + target
    return head[:10] + struct.pack('!H', sum16(head)) + head[12:] + body


def echo(source, target):
    body = struct.pack('!HH', 7, 7) + MARK + b'\0'
    body = struct.pack('!BBH', 8, 0, sum16(b'\x08\0\0\0' + body)) + body
    head = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(body), 0, 0, 64, 1, 0) + source + target
    return head[:10] + struct.pack('!H', sum16(head)) + head[12:] + body


def datagram6(source, target):
    body = struct.pack('!HHH', 9, 9, 8 + len(MARK))
    pseudo = source + target + struct.pack('!II', 8 + len(MARK), 17)
    check = sum16(pseudo + body + b'\0\0' + MARK + b'\0')
    body += struct.pack('!H', check or 0xffff) + MARK
    return struct.pack('!IHBB', 0x60000000, len(body), 17, 64) + source + target + body


for address in (other4, gateway4, victim4):
    for target in to + [everyone]:
        for operation in (1, 2):
            send(target, 0x0806, arp(operation, address, victim4))
for address in (other6, gateway6, victim6):
    for target in to + [all_nodes]:
        send(target, 0x86dd, advertisement(address, victim6))
        send(target, 0x86dd, advertisement(address, bytes.fromhex('ff02' + '0' * 27 + '1')))
# Frames to the hardware address of another, from each that one could claim to have.
for target in to + [everyone, all_nodes]:
    for source in [own] + to:
        send(target, 0x88b5, MARK * 6, source)
        for forged in (other4, victim4):
            send(target, 0x0800, datagram(forged, victim4), source)
            send(target, 0x0800, echo(forged, victim4), source)
        send(target, 0x86dd, datagram6(other6, victim6), source)
# By the gateway, from its own address, from outside, and from an address that no instance has.
for source in (gateway4, packet('192.0.2.1'), victim4[:2] + bytes([250, 250])):
    send(hardware(gateway4), 0x0800, datagram(source, victim4))
for source in (gateway6, victim6, packet('2001:db8::1'), packet('fe80::1'), packet('::1')):
    send(hardware(gateway4), 0x86dd, datagram6(source, victim6))
# By the way that the kernel knows, as a program without packet sockets would; and in a frame with a tag.
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for forged in (other4, gateway4):
    for made in (datagram(forged, victim4), echo(forged, victim4)):
        raw.sendto(made, (str(ipaddress.ip_address(victim4)), 0))
        send(hardware(gateway4), 0x8100, struct.pack('!HH', 0, 0x0800) + made)
link = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try:
    link.sendto(MARK, socket.getaddrinfo(link_local, 9)[0][4])
except OSError:
    # Under some backends the capture refuses it.
    pass
last = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
last.sendto(b'leno-last-of-all', (str(ipaddress.ip_address(victim4)), 9))
print('sent')
"#;
