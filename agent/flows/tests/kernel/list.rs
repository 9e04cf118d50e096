//! Tests the table of flows and the events.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_flows::{Error, FlowMetricsSource, FlowPeer, FlowSizes};

use crate::lab::{CLIENT, Ending, Lab, SERVER, has_root, talk};

/// Makes connections one after another, each of which the client closes.
fn connect(lab: &Lab, count: usize) {
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    lab.within("client", || {
        for _ in 0..count {
            let client = TcpStream::connect(to).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop(client);
            assert_eq!(std::io::Read::read(&mut &server, &mut [0]).unwrap(), 0);
        }
    });
}

#[test]
fn flows_beyond_the_table_are_counted_exactly_and_their_sums_are_complete() {
    if !has_root() {
        return;
    }
    let size = 1024;
    let mut lab = Lab::new(FlowSizes::new(size, 64).unwrap());
    // However slow the machine is, flows are only removed from the table by eviction.
    lab.accounts().set_linger(Duration::from_secs(3600));
    // Each connection has a flow on both sides, so there are four times as many as the table can hold.
    let connections = 2 * size as usize;
    connect(&lab, connections);
    let offered = 2 * connections as u64;
    let rows =
        lab.metrics_when(|rows| rows.sum("leno_flow_connections_closed_total", &[]) == offered);
    let (seen, missing) = lab.view().list().unwrap();
    let seen = seen.len() as u64;
    let lost = rows.sum("leno_flow_map_overflow_total", &[]);
    assert_eq!(missing, lost);
    assert_eq!(seen + lost, offered);
    assert_eq!(rows.sum("leno_flow_map_entries", &[]), seen);
    assert!(seen <= size.into() && seen > u64::from(size) / 2, "{seen}");
    assert_eq!(rows.sum("leno_flow_map_capacity", &[]), u64::from(size));
    assert_eq!(rows.sum("leno_flow_connections_opened_total", &[]), offered);
}

#[test]
fn every_event_is_read_or_counted_as_dropped() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(FlowSizes::new(16_384, 64).unwrap());
    connect(&lab, 3);
    let view = lab.view();
    let mut events = view.follow().unwrap();
    assert!(matches!(view.follow().err(), Some(Error::Followed)), "one reader");
    assert_eq!(events.take().unwrap(), [], "what was before is not written");
    connect(&lab, 5);
    let mut changes = Vec::new();
    while changes.len() < 40 {
        changes.extend(events.take().unwrap());
    }
    assert_eq!(events.dropped().unwrap(), 0);
    let first = changes[0].connection.cookie;
    let of_first = changes.iter().filter(|change| change.connection.cookie == first);
    let states: Vec<&str> = of_first.map(|change| change.connection.state).collect();
    assert_eq!(states, ["new", "established", "closing", "closed"]);
    assert!(changes.is_sorted_by_key(|change| change.at_unix_ms), "in order");

    // Each connection has four changes on both sides, which is more than the ring can hold.
    let connections = 400;
    connect(&lab, connections);
    lab.flows("client", |flows| flows.iter().all(|flow| flow.state == "closed"));
    lab.flows("server", |flows| flows.iter().all(|flow| flow.state == "closed"));
    let read = events.take().unwrap().len() as u64;
    let dropped = events.dropped().unwrap();
    assert!(dropped > 0);
    assert_eq!(read + dropped, 8 * connections as u64);
    drop(events);
    assert!(view.follow().is_ok(), "the next reader");
}

#[test]
fn a_connection_that_is_not_made_is_refused_or_times_out() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let closed: SocketAddr = format!("{}:9", SERVER[0]).parse().unwrap();
    // No host answers for this address.
    let absent: SocketAddr = "10.78.0.77:80".parse().unwrap();
    lab.within("client", || {
        assert_eq!(TcpStream::connect(closed).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let begun = TcpStream::connect_timeout(&absent, Duration::from_millis(50));
        assert_eq!(begun.unwrap_err().kind(), ErrorKind::TimedOut);
    });
    let flows = lab.flows("client", |flows| flows.iter().all(|flow| flow.state == "closed"));
    let ends: Vec<_> = flows.iter().map(|flow| (flow.remote, flow.end, flow.bytes_sent)).collect();
    // The application has stopped waiting before the kernel did, so the workload itself has ended the connection.
    assert_eq!(ends, [(closed, "refused", 0), (absent, "reset_local", 0)]);
    assert_eq!(
        flows[0].peer,
        FlowPeer::Workload { namespace: "shop".into(), workload: "server".into() }
    );
    assert_eq!(flows[1].peer, FlowPeer::Outside);
    let rows = lab.metrics();
    assert_eq!(rows.sum("leno_flow_handshake_seconds_count", &[]), 0);
    assert_eq!(rows.sum("leno_flow_connections_opened_total", &[("peer_workload", "outside")]), 1);
}

#[test]
fn only_enrolled_namespaces_are_accounted_for_and_loopback_is_the_workload_itself() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    lab.accounts().set_source("server-0", FlowMetricsSource::Off, None).unwrap();
    let listener = lab.listen(SERVER[1]);
    let to = listener.local_addr().unwrap();
    let client = lab.within("client", || TcpStream::connect(to).unwrap());
    let (server, from) = listener.accept().unwrap();
    talk(client, server, [10, 20], Ending::ClientCloses);
    let own: SocketAddr = lab.within("client", || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let _client = TcpStream::connect(to).unwrap();
        listener.accept().unwrap();
        to
    });
    let flows = lab.flows("client", |flows| flows.len() == 3);
    assert_eq!(flows[0].local, from);
    assert_eq!(from.ip(), CLIENT[1].parse::<std::net::IpAddr>().unwrap());
    assert_eq!(
        flows[0].peer,
        FlowPeer::Workload { namespace: "shop".into(), workload: "server".into() }
    );
    assert_eq!((flows[1].remote, &flows[1].peer), (own, &FlowPeer::Itself));
    assert_eq!(lab.flows("server", |_| true), []);
}

#[test]
fn retransmissions_are_counted() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let (client, server) = lab.connect(&listener);
    crate::lab::write(&client, 1).unwrap();
    crate::lab::read(&server, 1).unwrap();
    let namespace = format!("{}-server", lab.owner);
    crate::lab::ip(&["-n", &namespace, "link", "set", "eth0", "down"]);
    crate::lab::write(&client, 1000).unwrap();
    let flow = &lab.flows("client", |flows| flows.iter().any(|flow| flow.retransmits >= 2))[0];
    assert_eq!((flow.state, flow.bytes_sent), ("established", 1001), "each byte once");
    crate::lab::ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
    crate::lab::read(&server, 1000).unwrap();
    // Before Linux 5.12 sums are only updated when a connection ends.
    let held = leno_bpf::has_atomic_fetch().then_some((client, server));
    let rows = lab.metrics_when(|rows| {
        held.is_some() || rows.sum("leno_flow_connections_closed_total", &[]) == 2
    });
    assert!(rows.of_side("client", "leno_flow_retransmits_total", &[]) >= 2);
    assert_eq!(rows.of_side("client", "leno_flow_bytes_total", &[("direction", "sent")]), 1001);
}

#[test]
fn a_peer_that_is_accounted_for_elsewhere_has_the_name_that_is_found_for_it() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    lab.accounts().withdraw("server-0").unwrap();
    let listener = lab.listen(SERVER[0]);
    let opened = |lab: &mut Lab, peer: &str| {
        let (client, server) = lab.connect(&listener);
        talk(client, server, [1, 1], Ending::ClientCloses);
        let of = [("workload", "client"), ("peer_workload", peer)];
        lab.metrics().sum("leno_flow_connections_opened_total", &of)
    };
    assert_eq!(opened(&mut lab, "outside"), 1);
    let address = SERVER[0].parse().unwrap();
    assert_eq!(lab.accounts().strangers(), [address]);
    let name = || Some(("other".to_owned(), "far".to_owned()));
    lab.accounts().name_peer(address, name()).unwrap();
    assert_eq!(opened(&mut lab, "far"), 1);
    // The name is not one that an earlier process has left, so it stays. An instance that is enrolled with the
    // address takes it over.
    lab.accounts().withdraw_unknown().unwrap();
    assert_eq!(opened(&mut lab, "far"), 2);
    lab.enrol_both();
    lab.accounts().name_peer(address, name()).unwrap();
    assert_eq!(opened(&mut lab, "server"), 1);
    lab.accounts().withdraw("server-0").unwrap();
    lab.accounts().name_peer(address, None).unwrap();
    assert_eq!(opened(&mut lab, "outside"), 2);
}
