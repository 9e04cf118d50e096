//! Tests attachment, restart, resizing and removal.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use leno_bpf::PinRoot;
use leno_bpf::inspect::{self, PinnedMap, PinnedProgram};
use leno_flows::{EarlierMaps, FlowSizes, Namespace};
use socket2::SockRef;

use crate::lab::{CLIENT, Ending, Lab, PrometheusRows, SERVER, has_root, read, talk, until, write};

const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const BYTES: &str = "leno_flow_bytes_total";

#[test]
fn counters_and_open_connections_outlive_the_process_that_reads_them() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let keep_all = |lab: &mut Lab| lab.accounts().set_linger(Duration::from_secs(3600));
    keep_all(&mut lab);
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let connect = |lab: &Lab| {
        let client = lab.within("client", || TcpStream::connect(to).unwrap());
        (client, listener.accept().unwrap().0)
    };
    let (client, server) = connect(&lab);
    talk(client, server, [1000, 1], Ending::ClientCloses);
    let (client, server) = connect(&lab);
    assert_eq!(lab.metrics().of_side("client", OPENED, &[]), 2);

    assert_eq!(lab.restart(FlowSizes::default()), EarlierMaps::Kept);
    keep_all(&mut lab);
    assert_eq!(lab.flows("client", |_| true).len(), 2, "the table is the old one");
    talk(client, server, [100, 1], Ending::ClientCloses);
    let rows = lab.metrics_when(|rows| rows.of_side("client", CLOSED, &[]) == 2);
    assert_eq!(rows.of_side("client", BYTES, &[("direction", "sent")]), 1100);

    // After a resize, the table has the same flows and the same sums, and no flow was evicted.
    let (client, server) = connect(&lab);
    let before: Vec<u64> = lab.flows("client", |_| true).iter().map(|flow| flow.cookie).collect();
    assert_eq!(lab.restart(FlowSizes::new(2048, 64).unwrap()), EarlierMaps::Kept);
    keep_all(&mut lab);
    let after: Vec<u64> = lab.flows("client", |_| true).iter().map(|flow| flow.cookie).collect();
    assert_eq!(after, before);
    talk(client, server, [10, 1], Ending::ClientCloses);
    let (client, server) = connect(&lab);
    talk(client, server, [1, 1], Ending::ClientCloses);
    let rows = lab.metrics_when(|rows| rows.of_side("client", CLOSED, &[]) == 4);
    assert_eq!(rows.of_side("client", BYTES, &[("direction", "sent")]), 1111);
    assert_eq!(rows.sum("leno_flow_map_capacity", &[]), 2048);
    assert_eq!(rows.sum("leno_flow_map_overflow_total", &[]), 0);
    assert_eq!(lab.flows("client", |_| true).len(), 4);
}

#[test]
fn no_connection_is_missed_while_the_process_that_enrols_restarts() {
    if !has_root() {
        return;
    }
    for mut lab in [Lab::new(FlowSizes::default()), Lab::of_frames(FlowSizes::default())] {
        let listener = lab.listen(SERVER[0]);
        let to = listener.local_addr().unwrap();
        let one = |lab: &Lab| {
            let client = lab.within("client", || TcpStream::connect(to).unwrap());
            talk(client, listener.accept().unwrap().0, [1000, 1], Ending::ClientCloses);
        };
        one(&lab);
        lab.kill();
        one(&lab);
        lab.resume();
        one(&lab);
        lab.enrol_both();
        one(&lab);
        lab.accounts().withdraw_unknown().unwrap();
        one(&lab);
        let rows = lab.metrics_when(|rows| rows.of_side("client", CLOSED, &[]) == 5);
        assert_eq!(rows.of_side("client", OPENED, &[]), 5);
        assert_eq!(rows.of_side("server", OPENED, &[]), 5);

        // The next process does not enrol this workload, because it has ended in the meantime.
        lab.kill();
        lab.resume();
        lab.accounts().withdraw_unknown().unwrap();
        one(&lab);
        let rows = lab.metrics();
        assert_eq!(rows.of_side("client", OPENED, &[]), 5);
        assert_eq!(rows.of_side("server", OPENED, &[]), 5);
    }
}

#[test]
fn a_namespace_shows_its_addresses_and_no_interface_whose_other_end_is_elsewhere() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(FlowSizes::default());
    let seen = Namespace::read(&lab.netns("client")).unwrap();
    let wanted = CLIENT.map(|ip| ip.parse::<IpAddr>().unwrap());
    assert_eq!(seen, Namespace { addresses: wanted.to_vec(), port: None });
    assert!(Namespace::read(Path::new("/run/netns/no-such-namespace")).is_err());
}

/// Opens and closes connections in three threads, as many in each as `allowed`, until `stop` is set. Returns how
/// many.
fn storm(lab: &Lab, allowed: &AtomicU64, stop: &AtomicBool) -> u64 {
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let client = || {
        lab.within("client", || {
            let mut made = 0;
            while !stop.load(Ordering::Relaxed) {
                if made == allowed.load(Ordering::Relaxed) {
                    thread::yield_now();
                    continue;
                }
                let stream = TcpStream::connect(to).unwrap();
                // A reset leaves no port in TIME_WAIT. There are only 28,000 ports.
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                write(&stream, STORM_BYTES).unwrap();
                read(&stream, STORM_BYTES).unwrap();
                made += 1;
            }
            made
        })
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if read(&stream, STORM_BYTES).is_err() {
                    return;
                }
                write(&stream, STORM_BYTES).unwrap();
            }
        });
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(client)).collect();
        let made = clients.into_iter().map(|client| client.join().unwrap()).sum();
        // An empty connection makes the server end.
        lab.within("client", || drop(TcpStream::connect(to).unwrap()));
        server.join().unwrap();
        made
    })
}

const STORM_BYTES: usize = 200;

/// Ends a storm when it is dropped, so that a failed test does not wait for it.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn resizes_and_upgrades_under_traffic_lose_no_flow_and_no_count() {
    if !has_root() {
        return;
    }
    let size = 262_144;
    let mut lab = Lab::new(FlowSizes::new(size, 64).unwrap());
    let listener = lab.listen(SERVER[1]);
    let to = listener.local_addr().unwrap();
    let (client, server) = lab.connect(&listener);
    // The number is so small that the table has room for all flows: three threads, twelve rounds, and both ends.
    let (allowed, each_round) = (AtomicU64::new(0), 3_000);
    let stop = AtomicBool::new(false);
    let view = lab.view();
    let mut accounts = lab.accounts.take().unwrap();
    let made = thread::scope(|scope| {
        let made = scope.spawn(|| storm(&lab, &allowed, &stop));
        let stopped = Stopped(&stop);
        let mut last = 0;
        for round in 0..12u32 {
            allowed.fetch_add(each_round, Ordering::Relaxed);
            view.resize(Some(size - 1 - round), Some(64 << (round % 2))).unwrap();
            view.upgrade(|| Ok(())).unwrap();
            accounts.collect().unwrap();
            let rows = PrometheusRows::of(&accounts.metrics());
            let opened = rows.sum(OPENED, &[]);
            assert!(opened > last, "round {round}: {opened} after {last}");
            last = opened;
            assert_eq!(rows.sum("leno_flow_map_capacity", &[]), u64::from(size - 1 - round));
        }
        drop(stopped);
        made.join().unwrap()
    });
    lab.accounts = Some(accounts);
    talk(client, server, [1000, 10], Ending::ServerCloses);
    // The other two are the empty connection that has ended the server, and the one that was open all the time.
    let all = 2 * (made + 2);
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) == all);
    assert_eq!(rows.sum(OPENED, &[]), all);
    let bytes = made * STORM_BYTES as u64;
    assert_eq!(rows.of_side("client", BYTES, &[("direction", "sent")]), bytes + 1000);
    assert_eq!(rows.of_side("server", BYTES, &[("direction", "sent")]), bytes + 10);
    assert_eq!(rows.sum("leno_flow_map_overflow_total", &[]), 0);
    // Ended flows are removed from the table after a while, but no others are.
    let (flows, missing) = lab.view().list().unwrap();
    assert_eq!(missing, 0);
    assert!(flows.iter().all(|flow| flow.state == "closed"), "{flows:#?}");
    let open = flows.iter().find(|flow| flow.workload == "client" && flow.remote == to).unwrap();
    assert_eq!((open.bytes_sent, open.bytes_received, open.end), (1000, 10, "closed_remote"));
}

#[test]
fn an_upgrade_that_fails_its_self_test_changes_nothing() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let root = PinRoot::find().unwrap();
    let ids = |lab: &Lab| {
        let all = inspect::programs(&root).unwrap().into_iter();
        all.filter(|one| one.owner == lab.owner).map(|one| one.id).collect::<Vec<_>>()
    };
    let before = ids(&lab);
    let refused = lab.view().upgrade(|| Err(leno_bpf::Error::Followed));
    assert!(refused.is_err());
    assert_eq!(ids(&lab), before);
    lab.view().upgrade(|| Ok(())).unwrap();
    assert!(ids(&lab).iter().all(|id| !before.contains(id)));
    // While a reader follows changes, the ring and the sizes cannot be changed.
    let view = lab.view();
    let follower = view.follow().unwrap();
    assert!(matches!(lab.view().resize(None, Some(128)), Err(leno_bpf::Error::Followed)));
    drop(follower);
    lab.view().resize(None, Some(128)).unwrap();
    assert!(matches!(lab.view().resize(Some(2_000_000), None), Err(leno_bpf::Error::Size { .. })));
    let rows = lab.metrics();
    assert_eq!(rows.sum("leno_flow_map_capacity", &[]), 16_384);
}

#[test]
fn a_smaller_table_evicts_and_counts_what_it_cannot_take() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::new(8192, 64).unwrap());
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let connections = 1000;
    let _open: Vec<_> = (0..connections)
        .map(|_| {
            let client = lab.within("client", || TcpStream::connect(to).unwrap());
            (client, listener.accept().unwrap().0)
        })
        .collect();
    lab.view().resize(Some(1024), None).unwrap();
    let rows = lab.metrics();
    let (flows, missing) = lab.view().list().unwrap();
    assert!(missing > 0 && flows.len() <= 1024, "{missing} {}", flows.len());
    assert_eq!(flows.len() as u64 + missing, 2 * connections as u64);
    assert_eq!(rows.sum("leno_flow_map_overflow_total", &[]), missing);
}

#[test]
fn pins_of_a_version_that_counts_no_frames_are_read_and_upgraded() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(FlowSizes::default());
    let pins = PinRoot::find().unwrap().path().join(&lab.owner);
    let maps = ["ports", "by_frames", "runs", "caps", "drops", "drop_turn"];
    let programs = ["program_leno_flow_sent", "program_leno_flow_received"].map(str::to_owned);
    for pin in maps.map(|map| format!("map_{map}")).iter().chain(&programs) {
        std::fs::remove_file(pins.join(pin)).unwrap();
    }
    // This link does not exist if the kernel does not report reasons of drops.
    let _absent = std::fs::remove_file(pins.join("link_leno_flow_drop"));
    assert_eq!(lab.view().list().unwrap().0, []);
    assert_eq!(lab.view().caps().unwrap(), []);
    assert!(lab.view().drops_are_not_counted().is_some());
    lab.view().upgrade(|| Ok(())).unwrap();
    lab.accounts().set_source("client-0", leno_flows::FlowMetricsSource::Packets, None).unwrap();
}

#[test]
fn the_end_leaves_no_program_map_or_pin() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::new(65_536, 4096).unwrap());
    let root = PinRoot::find().unwrap();
    let of_lab = |owner: &String| *owner == lab.owner;
    let mut programs: Vec<PinnedProgram> = inspect::programs(&root).unwrap();
    programs.retain(|program| of_lab(&program.owner));
    let names: Vec<String> = programs
        .iter()
        .map(|program| program.name.replace(|one: char| one.is_ascii_digit(), ""))
        .collect();
    let of_port = ["port_leno_flow_received", "port_leno_flow_sent"];
    let by_namespace =
        std::env::var_os("LENO_FLOW_READ").is_some() || !leno_bpf::kernel_is_before(7, 0);
    let reader = if by_namespace { "leno_flow_read_tcp" } else { "leno_flow_read" };
    let mut expected = [&[reader, "leno_flow_sockops"], &of_port[..]].concat();
    if lab.view().drops_are_not_counted().is_none() {
        expected.insert(0, "leno_flow_drop");
        assert_eq!(programs[0].attached_to, "tracepoint kfree_skb");
    }
    assert_eq!(names, expected);
    let filters = lab.filters("server", "ingress");
    let has_filters = std::env::var_os("LENO_TCX").is_some() || leno_bpf::kernel_is_before(6, 6);
    assert_eq!(filters.contains("leno_flow_sent"), has_filters, "{filters}");
    let port = programs.iter().find(|one| one.name.starts_with("port")).unwrap();
    assert!(port.attached_to.starts_with("interface "), "{programs:?}");
    let mut maps: Vec<PinnedMap> = inspect::maps(&root).unwrap();
    maps.retain(|map| of_lab(&map.owner));
    assert_eq!(maps.len(), 20, "{maps:?}");
    let table = maps.iter().find(|map| map.name == "flows").unwrap();
    // The amount of memory that an operator is told for too many entries must be what the kernel uses, within a
    // tenth.
    let told = leno_bpf::flows::memory_of(65_536);
    let ratio = table.memory_bytes as f64 / told as f64;
    // Before Linux 6.4 the kernel only reports an estimate.
    assert!(
        (0.9..1.1).contains(&ratio) || leno_bpf::kernel_is_before(6, 4),
        "{told} told, {} taken",
        table.memory_bytes
    );

    let loaded = || leno_bpf::run_times().into_keys().collect::<BTreeSet<u32>>();
    assert!(programs.iter().all(|program| loaded().contains(&program.id)));
    lab.accounts.take().unwrap().end().unwrap();
    for direction in ["ingress", "egress"] {
        assert_eq!(lab.filters("server", direction), "");
    }
    assert!(leno_bpf::list(&root).unwrap().iter().all(|left| left.owner != lab.owner));
    // The kernel frees a program once no CPU runs it any more.
    until("the end of the programs", || {
        programs.iter().all(|program| !loaded().contains(&program.id))
    });
    assert!(leno_flows::FlowView::open(&lab.owner).unwrap().is_none());
}
