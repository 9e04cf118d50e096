//! Tests the kernel's counts against what the applications have sent.

use std::net::TcpStream;

use leno_flows::FlowSizes;

use crate::lab::{Ending, Lab, SERVER, has_root, read, run_again, talk, write};

const BYTES: &str = "leno_flow_bytes_total";
const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const SENT: (&str, &str) = ("direction", "sent");
const RECEIVED: (&str, &str) = ("direction", "received");

#[test]
fn bytes_connections_and_endings_equal_those_of_the_applications() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let endings =
        [Ending::ClientCloses, Ending::ServerCloses, Ending::ClientResets, Ending::ServerResets];
    let rounds = 50;
    let mut sent = [0, 0];
    for ip in SERVER {
        let listener = lab.listen(ip);
        for round in 0..rounds {
            for ending in endings {
                // The sizes range from no bytes to more than a socket's buffers hold.
                let bytes = [round * round * 131, (rounds - 1 - round) * 977];
                let (client, server) = lab.connect(&listener);
                talk(client, server, bytes, ending);
                sent = [sent[0] + bytes[0] as u64, sent[1] + bytes[1] as u64];
            }
        }
    }
    let each = 2 * rounds as u64;
    let all = 4 * each;
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) >= 2 * all);
    for (side, sent, received) in [("client", sent[0], sent[1]), ("server", sent[1], sent[0])] {
        assert_eq!(rows.of_side(side, BYTES, &[SENT]), sent, "{side}");
        assert_eq!(rows.of_side(side, BYTES, &[RECEIVED]), received, "{side}");
        assert_eq!(rows.of_side(side, OPENED, &[]), all, "{side}");
        assert_eq!(rows.of_side(side, "leno_flow_handshake_seconds_count", &[]), all, "{side}");
        let own = if side == "client" { "local" } else { "remote" };
        let other = if side == "client" { "remote" } else { "local" };
        for (how, expected) in [("closed", each), ("reset", each)] {
            for whose in [own, other] {
                let end = format!("{how}_{whose}");
                assert_eq!(rows.of_side(side, CLOSED, &[("end", &end)]), expected, "{side} {end}");
            }
        }
    }
    assert_eq!(rows.sum(OPENED, &[]), 2 * all, "there are no others");
    assert_eq!(rows.sum("leno_flow_untracked_total", &[]), 0);
}

#[test]
fn an_open_connection_is_read_to_the_byte_and_counted_once() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let (client, server) = lab.connect(&listener);
    let mut sum = 0;
    for bytes in [1, 100_000, 3_000_000, 0] {
        std::thread::scope(|scope| {
            scope.spawn(|| write(&client, bytes).unwrap());
            read(&server, bytes).unwrap();
        });
        sum += bytes as u64;
        let flows =
            lab.flows("server", |flows| flows.iter().any(|flow| flow.bytes_received == sum));
        assert_eq!(flows.len(), 1);
        let flow = &flows[0];
        assert_eq!((flow.state, flow.end, flow.role), ("established", "open", "server"));
        assert_eq!((flow.local, flow.remote), (to, client.local_addr().unwrap()));
        assert_eq!((flow.socket, flow.bytes_sent), ("application", 0));
        // Two readers at the same time must not count the same bytes twice.
        let view = lab.view();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| drop(view.list().unwrap())));
            (0..50).for_each(|_| drop(lab.metrics()));
        });
        let rows = lab.metrics();
        // Before Linux 5.12 sums are only updated when a connection ends.
        let summed = if leno_bpf::has_atomic_fetch() { sum } else { 0 };
        assert_eq!(rows.of_side("client", BYTES, &[SENT]), summed);
        assert_eq!(rows.of_side("server", BYTES, &[RECEIVED]), summed);
    }
    let flow = &lab.flows("client", |flows| flows.iter().any(|flow| flow.rtt_us > 0))[0];
    assert!(flow.handshake_us > 0 && flow.min_rtt_us > 0 && flow.segments_sent > 3, "{flow:?}");
    assert!(flow.min_rtt_us <= flow.rtt_us.max(1) * 2, "{flow:?}");
    talk(client, server, [5, 6], Ending::ServerCloses);
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) == 2);
    assert_eq!(rows.of_side("client", BYTES, &[SENT]), sum + 5);
    assert_eq!(rows.of_side("client", BYTES, &[RECEIVED]), 6);
    assert_eq!(rows.of_side("server", BYTES, &[RECEIVED]), sum + 5);
}

/// Runs the tests of open connections again as on a kernel whose iterator over socket storage is not safe, by
/// setting LENO_FLOW_READ=namespaces.
#[test]
fn open_connections_are_read_in_each_namespace_if_the_kernel_cannot_list_all() {
    if leno_bpf::has_atomic_fetch() {
        let tests = ["parity::", "life::counters", "life::no_conn", "life::the_end"];
        run_again(("LENO_FLOW_READ", "namespaces"), &tests);
    }
}

#[test]
fn a_storm_of_connections_is_counted_exactly_while_it_is_read() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let (threads, each, bytes) = (4, 1_500, 300);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let view = lab.view();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..threads * each {
                let (stream, _) = listener.accept().unwrap();
                read(&stream, bytes).unwrap();
                write(&stream, bytes).unwrap();
            }
        });
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                view.list().unwrap();
            }
        });
        let clients: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    lab.within("client", || {
                        for _ in 0..each {
                            let stream = TcpStream::connect(to).unwrap();
                            write(&stream, bytes).unwrap();
                            read(&stream, bytes).unwrap();
                        }
                    });
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let all = threads as u64 * each as u64;
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) == 2 * all);
    for side in ["client", "server"] {
        assert_eq!(rows.of_side(side, OPENED, &[]), all);
        assert_eq!(rows.of_side(side, CLOSED, &[]), all);
        assert_eq!(rows.of_side(side, BYTES, &[SENT]), all * bytes as u64);
        assert_eq!(rows.of_side(side, BYTES, &[RECEIVED]), all * bytes as u64);
    }
}
