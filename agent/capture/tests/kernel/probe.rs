//! Tests what the probe reports about this machine, with and without root.

use leno_capture::{Backend, CaptureChoice, Preflight, ProbeReport, Way};
use leno_checks::Level;

use crate::lab::{Lab, TestSettings, has_root};

#[test]
fn every_backend_works_for_root_and_ebpf_is_chosen() {
    if !has_root() {
        return;
    }
    let report = ProbeReport::probe();
    assert!(report.backends.iter().all(|backend| backend.usable), "{report:?}");
    assert_eq!(report.choose(CaptureChoice::Auto).unwrap(), Backend::Ebpf);
    assert!(report.btf);
    assert!(report.capabilities.iter().all(|capability| capability.held));
}

#[test]
fn nothing_works_for_the_proxys_user_and_the_report_says_why() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(Backend::Nftables, TestSettings::default());
    let report: serde_json::Value = serde_json::from_str(&lab.proxy().ask("probe")).unwrap();
    assert_eq!(report["chosen"], serde_json::Value::Null);
    for backend in report["backends"].as_array().unwrap() {
        assert_eq!(backend["usable"], false, "{backend}");
        assert!(backend["reason"].as_str().unwrap().contains("not permitted"), "{backend}");
    }
    assert_eq!(report["capabilities"][0]["held"], false);
}

/// No backend captures sockets of these protocols, so they are ways around each of them if the kernel supports
/// them.
#[test]
fn protocols_are_listed_where_the_kernel_has_them() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(Backend::Nftables, TestSettings::default());
    let mut app = lab.app();
    for (domain, protocol, name) in
        [(2, 132, "SCTP"), (2, 33, "DCCP"), (40, 0, "AF_VSOCK"), (30, 0, "TIPC")]
    {
        // The attempt loads the kernel module, if there is one.
        let is_there = app.ask(&format!("socket {domain} {protocol}")) == "made";
        let listed = lab.open_way(Way::OtherProtocols, &[&app]);
        let is_listed = listed.is_some_and(|way| way.by.iter().any(|one| one == name));
        assert_eq!(is_listed, is_there, "{name}");
        if !is_there {
            eprintln!("{name}: this kernel has none, so it is not tried");
        }
    }
}

#[test]
fn each_program_is_tried_by_itself_and_nothing_is_left() {
    if !has_root() {
        return;
    }
    let found = Preflight::run();
    assert!(found.ready, "{found:#?}");
    let level = |subject: &str| {
        let one = found.findings.iter().find(|one| one.subject.starts_with(subject));
        one.unwrap_or_else(|| panic!("{subject}: {found:#?}")).level
    };
    for subject in ["BTF", "cgroup2", "bpffs", "capabilities", "memory", "run times", "capture"] {
        assert_eq!(level(subject), Level::Good, "{subject}: {found:#?}");
    }
    for hook in ["cgroup/connect4", "cgroup/getsockopt", "sk_lookup", "sockops", "iter/"] {
        assert_eq!(level(hook), Level::Good, "{hook}: {found:#?}");
    }
    let groups = std::fs::read_dir(leno_capture::cgroup2_root().unwrap()).unwrap();
    let own = format!("leno-check-{}", std::process::id());
    assert!(groups.flatten().all(|group| group.file_name() != *own));
}

#[test]
fn a_user_without_capabilities_is_told_to_be_root() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(Backend::Nftables, TestSettings::default());
    let found: serde_json::Value = serde_json::from_str(&lab.proxy().ask("preflight")).unwrap();
    assert_eq!(found["ready"], false, "{found}");
    let findings = found["findings"].as_array().unwrap();
    let capabilities = findings.iter().find(|one| one["subject"] == "capabilities").unwrap();
    assert_eq!(capabilities["level"], "bad");
    assert_eq!(capabilities["remedy"], "run as root");
}

/// Not a test: prints the output of `leno check --pre --ebpf -o json`, for `make test-kernels`.
#[test]
#[ignore = "prints, and asserts nothing"]
fn prints_what_this_kernel_can_do() {
    println!("\n{}", serde_json::to_string(&Preflight::run()).unwrap());
}
