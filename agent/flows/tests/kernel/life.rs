//! Attachment, restart, another size, removal.

use std::collections::BTreeSet;
use std::net::TcpStream;

use leno_bpf::PinRoot;
use leno_bpf::inspect::{self, PinnedMap, PinnedProgram};
use leno_flows::{Earlier, Sizes};

use crate::lab::{Ending, Lab, SERVER, has_root, talk};

const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const BYTES: &str = "leno_flow_bytes_total";

#[test]
fn counters_and_open_connections_outlive_the_process_that_reads_them() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(Sizes::default());
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

    assert_eq!(lab.restart(Sizes::default()), Earlier::Kept);
    assert_eq!(lab.flows("client", |_| true).len(), 2, "the table is the old one");
    talk(client, server, [100, 1], Ending::ClientCloses);
    let rows = lab.metrics_when(|rows| rows.of_side("client", CLOSED, &[]) == 2);
    assert_eq!(rows.of_side("client", BYTES, &[("direction", "sent")]), 1100);

    // Another size: the table is another one, the sums are the same, and nothing was evicted.
    let (client, server) = connect(&lab);
    assert_eq!(lab.restart(Sizes::new(2048, 64).unwrap()), Earlier::Kept);
    assert_eq!(lab.flows("client", |_| true), []);
    talk(client, server, [10, 1], Ending::ClientCloses);
    let (client, server) = connect(&lab);
    talk(client, server, [1, 1], Ending::ClientCloses);
    let rows = lab.metrics_when(|rows| rows.of_side("client", CLOSED, &[]) == 4);
    assert_eq!(rows.of_side("client", BYTES, &[("direction", "sent")]), 1111);
    assert_eq!(rows.sum("leno_flow_map_capacity", &[]), 2048);
    assert_eq!(rows.sum("leno_flow_map_overflow_total", &[]), 0);
    assert_eq!(lab.flows("client", |_| true).len(), 1);
}

#[test]
fn the_end_leaves_no_program_map_or_pin() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::new(Sizes::new(65_536, 4096).unwrap());
    let root = PinRoot::find().unwrap();
    let of_lab = |owner: &String| *owner == lab.owner;
    let mut programs: Vec<PinnedProgram> = inspect::programs(&root).unwrap();
    programs.retain(|program| of_lab(&program.owner));
    let names: Vec<&str> = programs.iter().map(|program| &*program.name).collect();
    assert_eq!(names, ["leno_flow_read", "leno_flow_sockops"]);
    let mut maps: Vec<PinnedMap> = inspect::maps(&root).unwrap();
    maps.retain(|map| of_lab(&map.owner));
    assert_eq!(maps.len(), 9, "{maps:?}");
    let table = maps.iter().find(|map| map.name == "flows").unwrap();
    // What is told to an operator who wants too many is what the kernel takes, within a tenth.
    let told = leno_bpf::flows::memory_of(65_536);
    let ratio = table.memory_bytes as f64 / told as f64;
    assert!((0.9..1.1).contains(&ratio), "{told} told, {} taken", table.memory_bytes);

    let loaded = || leno_bpf::run_times().into_keys().collect::<BTreeSet<u32>>();
    assert!(programs.iter().all(|program| loaded().contains(&program.id)));
    lab.accounts.take().unwrap().end().unwrap();
    assert!(leno_bpf::list(&root).unwrap().iter().all(|left| left.owner != lab.owner));
    // The kernel frees a program after the running ones have ended.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while programs.iter().any(|program| loaded().contains(&program.id)) {
        assert!(std::time::Instant::now() < deadline, "programs are left");
        std::thread::yield_now();
    }
    assert!(leno_flows::View::open(&lab.owner).unwrap().is_none());
}
