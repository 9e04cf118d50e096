//! Tests behaviour that only eBPF has.

use leno_bpf::PinRoot;
use leno_capture::{Backend, Captured, capture, let_pass, prune};
use leno_types::Datagrams;

use crate::lab::{self, BY_USER, DialReport, Lab, OUTSIDE, POD, TestSettings, VIP, has_root};

fn lab() -> Option<Lab> {
    has_root().then(|| Lab::new(Backend::Ebpf, TestSettings::default()))
}

#[test]
fn an_mptcp_socket_is_refused_so_that_applications_use_tcp() {
    let Some(lab) = lab() else { return };
    let answer = lab.app().ask("mptcp");
    assert!(answer.contains("not supported"), "{answer}");
    assert_eq!(lab.count("mptcp_refused"), 1);
}

#[test]
fn another_namespace_of_the_workload_is_left_alone() {
    if !has_root() {
        return;
    }
    let (lab, _proxy) = Lab::with_proxy(Backend::Ebpf, TestSettings::default());
    let mut stray = lab.stray();
    let server = stray.serve_at(OUTSIDE[0]);
    stray.dial(&server).assert_direct();
    assert_eq!(lab.count("outbound_captured"), 0);
}

#[test]
fn only_the_proxys_cgroup_can_become_the_proxy() {
    let Some(lab) = lab() else { return };
    let mut app = lab.app();
    app.listen_as_proxy();
    assert_eq!(lab.count("listener_registered"), 0);
    let mut outside = lab.outside();
    let server = outside.serve_at(OUTSIDE[1]);
    app.dial(&server).assert_direct();
}

#[test]
fn without_a_cgroup_of_its_own_only_the_proxys_user_can_become_the_proxy() {
    BY_USER.set(true);
    let Some(lab) = lab() else { return };
    let mut app = lab.app();
    app.listen_as_proxy();
    assert_eq!(lab.count("listener_registered"), 0);
    app.close_proxy();
    lab.proxy().listen_as_proxy();
    assert_eq!(lab.count("listener_registered"), 4);
}

#[test]
fn what_is_let_pass_is_captured_no_more_and_what_was_captured_still_tells_its_destination() {
    if !has_root() {
        return;
    }
    let (lab, mut proxy) = Lab::with_proxy(Backend::Ebpf, TestSettings::default());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let (inner, outer) = (app.serve_at(POD[0]), outside.serve_at(OUTSIDE[0]));
    proxy.stop(true);
    let mut early = lab.app();
    early.send(&format!("dial {outer}"));
    // Waits until the connection is in the listener's queue.
    while lab.count("original_accepted") < 1 {
        std::thread::yield_now();
    }
    let_pass(Backend::Ebpf, &lab.workload).unwrap();
    app.dial(&outer).assert_direct();
    outside.dial(&inner).assert_direct();
    proxy.stop(false);
    early.seen().assert_captured(&outer);
}

#[test]
fn what_a_dead_process_left_is_pruned() {
    let Some(mut lab) = lab() else { return };
    let name = lab.workload.name.clone();
    let root = PinRoot::find().unwrap();
    let left = || leno_bpf::list(&root).unwrap().into_iter().find(|left| left.owner == name);
    let found = left().unwrap();
    assert!(found.attached);
    assert_eq!(found.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(prune(|owner| owner != name).unwrap(), [name.as_str()]);
    assert_eq!(left(), None);
    lab.captured.release().unwrap();
}

#[test]
fn a_failed_capture_leaves_nothing() {
    let Some(lab) = lab() else { return };
    let mut broken = lab.workload.clone();
    broken.name.push_str("-broken");
    broken.excluded = vec![(OUTSIDE[0].parse().unwrap(), 33)];
    capture(Backend::Ebpf, &broken).unwrap_err();
    let left = leno_bpf::list(&PinRoot::find().unwrap()).unwrap();
    assert!(left.iter().all(|left| left.owner != broken.name));
}

#[test]
fn a_connection_straight_to_the_listener_has_no_original_destination() {
    if !has_root() {
        return;
    }
    let (lab, _proxy) = Lab::with_proxy(Backend::Ebpf, TestSettings::default());
    let mut app = lab.app();
    let mut from = |from: &str, to: &str| DialReport(app.ask(&format!("dial-from {from} {to}")));
    let to = format!("{}:80", VIP[0]);
    let seen = from("127.0.0.1:0", &to);
    seen.assert_captured(&to);
    // This connection comes from the port that a captured connection used before.
    let seen = from(seen.get("own"), "127.0.0.1:15001");
    assert!(seen.get("original").starts_with("error:"), "{seen:?}");
    assert_eq!(lab.count("original_missed"), 1);
}

#[test]
fn an_adopted_capture_keeps_the_proxy_and_is_upgraded() {
    if !has_root() {
        return;
    }
    let (mut lab, _proxy) = Lab::with_proxy(Backend::Ebpf, TestSettings::default());
    let mut app = lab.app();
    let to = format!("{}:80", VIP[0]);
    // Takes the capture over, as another process does after the first one has died.
    lab.captured = Captured::adopt(&lab.workload).unwrap().unwrap();
    app.dial(&to).assert_captured(&to);
    let mut workload = lab.workload.clone();
    workload.excluded = vec![(OUTSIDE[0].parse().unwrap(), 32)];
    lab.captured.upgrade(&workload).unwrap();
    app.dial(&to).assert_captured(&to);
    let server = lab.outside().serve_at(OUTSIDE[0]);
    app.dial(&server).assert_refused();
    let mut outside = lab.outside();
    let server = outside.serve_at(OUTSIDE[0]);
    app.dial(&server).assert_direct();
    assert_eq!(lab.count("outbound_captured"), 2, "the counters are the old ones");
    lab.captured.release().unwrap();
    assert!(Captured::adopt(&lab.workload).unwrap().is_none());
}

#[test]
fn a_socket_bound_to_a_device_is_captured() {
    if !has_root() {
        return;
    }
    let (lab, _proxy) = Lab::with_proxy(Backend::Ebpf, TestSettings::default());
    let mut app = lab.app();
    for vip in VIP {
        let to = format!("{vip}:80");
        DialReport(app.ask(&format!("dial-device eth0 {to}"))).assert_captured(&to);
    }
}

#[test]
fn datagrams_in_plaintext_and_from_forged_addresses_are_dropped() {
    if !has_root() {
        return;
    }
    let wish = TestSettings { datagrams: Datagrams::Enabled, ..TestSettings::default() };
    let lab = Lab::new(Backend::Ebpf, wish);
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for (pod, plain) in POD.iter().zip(OUTSIDE) {
        let server = app.ask(&format!("udp-listen {pod}:0"));
        let before = lab.count("inbound_dropped_datagram");
        let answer = outside.ask(&format!("udp-dial {plain}:0 {server}"));
        assert!(answer.starts_with("error "), "{answer}");
        lab.wait_for_count("inbound_dropped_datagram", before + 1);
    }
    // The sources are the stand-in address, by which the application recognises its proxy, and a placeholder.
    let server = app.ask(&format!("udp-listen {}:0", POD[1]));
    for (nth, source) in ["100:0:0:1::8", "100:0:0:1:1::7"].into_iter().enumerate() {
        lab::inside(lab.outside_netns(), &format!("ip address add {source} dev lo nodad"));
        let answer = outside.ask(&format!("udp-dial [{source}]:0 {server}"));
        assert!(answer.starts_with("error "), "{answer}");
        lab.wait_for_count("inbound_dropped_forged", nth as u64 + 1);
    }
}
