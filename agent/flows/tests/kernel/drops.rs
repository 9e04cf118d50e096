//! Tests the counts of dropped packets against the kernel's own counters.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use leno_flows::{FlowLevel, FlowSizes};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::lab::{CLIENT, Lab, PrometheusRows, SERVER, has_root, until};

const DROPS: &str = "leno_flow_drops_total";

/// Sends datagrams from one side to an address.
fn send(lab: &Lab, to: SocketAddr, count: usize) {
    lab.within("client", || {
        let from = if to.is_ipv4() { CLIENT[0] } else { CLIENT[1] };
        // The socket is not connected, so that refusals are not reported to it.
        let socket = UdpSocket::bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        for _ in 0..count {
            assert_eq!(socket.send_to(&[7; 1000], to).unwrap(), 1000);
        }
    });
}

/// A port of the server on which no socket exists.
fn closed(lab: &Lab, ip: &str) -> SocketAddr {
    let at = SocketAddr::new(ip.parse().unwrap(), 0);
    lab.within("server", || UdpSocket::bind(at).unwrap().local_addr().unwrap())
}

/// A UDP counter of the server's network namespace.
fn of_udp(lab: &Lab, name: &str) -> u64 {
    lab.within("server", || {
        let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
        let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.split(' ').position(|one| one == name).unwrap();
        numbers.split(' ').nth(place).unwrap().parse().unwrap()
    })
}

/// Waits until the sum of these UDP counters is `sum`, because packets may be processed later.
fn until_of_udp(lab: &Lab, names: &[&str], sum: u64) {
    until(&format!("{names:?} to be {sum}"), || {
        names.iter().map(|name| of_udp(lab, name)).sum::<u64>() == sum
    });
}

fn dropped(rows: &PrometheusRows, side: &str, reason: &str) -> u64 {
    rows.sum(DROPS, &[("namespace", "shop"), ("workload", side), ("reason", reason)])
}

/// Waits until this number of drops is counted for the server, and asserts that no more are counted.
fn wait_for(lab: &mut Lab, reason: &str, expected: u64) {
    let rows = lab.metrics_when(|rows| dropped(rows, "server", reason) >= expected);
    assert_eq!(dropped(&rows, "server", reason), expected, "{rows:#?}");
}

/// A lab; `None` without root, or if the kernel does not report reasons of drops (since Linux 5.17).
fn started() -> Option<Lab> {
    let lab = has_root().then(|| Lab::new(FlowSizes::default()))?;
    let Some(why) = lab.view().drops_are_not_counted() else { return Some(lab) };
    assert!(why.contains("before Linux 5.17"), "{why}");
    eprintln!("skipped: {why}");
    None
}

#[test]
fn drops_are_counted_by_reason_as_the_kernel_counts_them() {
    let Some(mut lab) = started() else { return };
    let port = closed(&lab, SERVER[0]);
    send(&lab, port, 40);
    send(&lab, closed(&lab, SERVER[1]), 3);
    wait_for(&mut lab, "NO_SOCKET", 43);
    until_of_udp(&lab, &["NoPorts"], 40);

    // A UDP packet with a hand-made header, whose checksum is wrong. Of two different checksums, at least one is
    // wrong.
    lab.within("client", || {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        let to: IpAddr = SERVER[0].parse().unwrap();
        for checksum in [0x1234_u16, 0x4321] {
            let parts = [9, port.port(), 12, checksum].map(u16::to_be_bytes);
            let datagram = [parts.concat(), b"data".to_vec()].concat();
            socket.send_to(&datagram, &SocketAddr::new(to, 0).into()).unwrap();
        }
    });
    until_of_udp(&lab, &["NoPorts", "InCsumErrors"], 42);
    let wrong = of_udp(&lab, "InCsumErrors");
    assert!(wrong > 0);
    wait_for(&mut lab, "UDP_CSUM", wrong);
    assert_eq!(dropped(&lab.metrics(), "client", "UDP_CSUM"), 0);
}

#[test]
fn datagrams_beyond_a_receive_buffer_are_those_that_the_kernel_counts() {
    let Some(mut lab) = started() else { return };
    if leno_bpf::kernel_is_before(6, 11) {
        eprintln!(
            "skipped: the kernel does not say for which socket a packet was (before Linux 6.11)"
        );
        return;
    }
    let at = SocketAddr::new(SERVER[0].parse().unwrap(), 0);
    let server = lab.within("server", || UdpSocket::bind(at).unwrap());
    SockRef::from(&server).set_recv_buffer_size(1).unwrap();
    send(&lab, server.local_addr().unwrap(), 200);
    // Packets arrive in order, so the others have arrived when this one has.
    send(&lab, closed(&lab, SERVER[0]), 1);
    until_of_udp(&lab, &["NoPorts"], 1);
    let beyond = of_udp(&lab, "RcvbufErrors");
    assert!(beyond > 100, "{beyond}");
    wait_for(&mut lab, "SOCKET_RCVBUFF", beyond);
}

#[test]
fn counts_of_drops_outlive_restarts_and_other_programs_and_stop_where_accounting_is_off() {
    let Some(mut lab) = started() else { return };
    let port = closed(&lab, SERVER[0]);
    send(&lab, port, 5);
    wait_for(&mut lab, "NO_SOCKET", 5);
    lab.restart(FlowSizes::default());
    send(&lab, port, 5);
    wait_for(&mut lab, "NO_SOCKET", 10);
    lab.view().upgrade(|| Ok(())).unwrap();
    send(&lab, port, 5);
    wait_for(&mut lab, "NO_SOCKET", 15);
    lab.view().resize(Some(2048), Some(64)).unwrap();
    send(&lab, port, 5);
    wait_for(&mut lab, "NO_SOCKET", 20);
    lab.accounts().set_level(FlowLevel::Off).unwrap();
    send(&lab, port, 5);
    until_of_udp(&lab, &["NoPorts"], 25);
    lab.accounts().set_level(FlowLevel::Full).unwrap();
    send(&lab, port, 1);
    wait_for(&mut lab, "NO_SOCKET", 21);
}
