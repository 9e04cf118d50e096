//! Tests how many workloads may join the process of a real node proxy, and which orders it understands. The test
//! plays the workloads' brokers, which offer no sockets.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leno_handover::{
    Channel, KubeletProbes, MAX_MEMBERS, Member, MemberReport, MemberState, ProxyOrder,
};

/// A time that is longer than any machine needs.
const LIMIT: Duration = Duration::from_secs(60);

struct Process {
    child: Child,
    orders: Channel,
    /// The brokers' ends of the channels.
    brokers: BTreeMap<u64, Channel>,
    _directory: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let roots = directory.path().join("roots.pem");
        fs::write(&roots, "").unwrap();
        let (orders, far) = Channel::pair().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .args(["--node", "--control", "https://127.0.0.1:1"])
            .arg("--roots")
            .arg(&roots)
            .arg("--token")
            .arg(directory.path())
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, orders, brokers: BTreeMap::new(), _directory: directory }
    }

    fn join(&mut self, number: u64, succeeds: bool) {
        let member = Member {
            namespace: "shop".to_owned(),
            name: format!("web-{number}"),
            workload: None,
            token: "/nonexistent".into(),
            pod_uid: None,
            kubelet: KubeletProbes::default(),
            datagrams: false,
        };
        let (near, far) = Channel::pair().unwrap();
        self.brokers.insert(number, near);
        let order = ProxyOrder::Join { number, succeeds, member, reports: true };
        self.orders.send(&order, &[far.as_fd()]).unwrap();
    }

    fn report(&self) -> MemberReport {
        self.orders.receive().unwrap().unwrap().0
    }

    /// The numbers of the memberships that have ended, up to `last`.
    fn released(&self, last: u64) -> Vec<u64> {
        let begin = Instant::now();
        let mut released = Vec::new();
        while released.last() != Some(&last) {
            assert!(begin.elapsed() < LIMIT, "{released:?}");
            let report = self.report();
            if report == MemberReport::ALIVE {
                continue;
            }
            assert_eq!(report.state, MemberState::Released);
            released.push(report.number);
        }
        released
    }
}

/// A supervisor keeps running while it starts newer or older versions of the program. Regression: the process ended at
/// an order that it did not understand.
#[test]
fn a_process_reports_that_it_goes_on_and_passes_over_orders_that_it_does_not_know() {
    let mut process = Process::start();
    assert_eq!(process.report(), MemberReport::ALIVE);
    process.orders.send(&BTreeMap::from([("order", "later")]), &[]).unwrap();
    process.join(1, false);
    process.brokers.clear();
    assert_eq!(process.released(1), [1]);
    while process.report() != MemberReport::ALIVE {}
}

/// Regression: two full processes that were to exchange their workloads waited for each other forever. Each workload
/// stays where it is until the other process serves it, and the other process had no place for it until one of its own
/// had left.
#[test]
fn a_full_process_takes_as_many_workloads_in_exchange_for_its_own() {
    let mut process = Process::start();
    let most = u64::from(MAX_MEMBERS);
    (0..most).for_each(|number| process.join(number, false));
    process.join(1000, false);
    assert_eq!(process.released(1000), [1000], "one more than there may be");
    (most..2 * most).for_each(|number| process.join(number, true));
    process.join(1001, true);
    assert_eq!(process.released(1001), [1001], "all others have joined");
    // One of the process' own workloads leaves: a workload from another process gets its place, and no other one does.
    process.brokers.remove(&0);
    assert_eq!(process.released(0), [0]);
    process.join(1002, false);
    assert_eq!(process.released(1002), [1002]);
    process.join(1003, true);
    process.join(1004, true);
    assert_eq!(process.released(1004), [1004]);
}
