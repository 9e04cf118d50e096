//! What the probe reports for this machine, with and without root.

use leno_capture::{Backend, Choice, Report};

use crate::lab::{Lab, Wish, has_root};

#[test]
fn every_backend_works_for_root_and_ebpf_is_chosen() {
    if !has_root() {
        return;
    }
    let report = Report::probe();
    assert!(report.backends.iter().all(|backend| backend.usable), "{report:?}");
    assert_eq!(report.choose(Choice::Auto).unwrap(), Backend::Ebpf);
    assert!(report.btf);
    assert!(report.capabilities.iter().all(|capability| capability.held));
}

#[test]
fn nothing_works_for_the_proxys_user_and_the_report_says_why() {
    if !has_root() {
        return;
    }
    let lab = Lab::new(Backend::Nftables, Wish::default());
    let report: serde_json::Value = serde_json::from_str(&lab.proxy().ask("probe")).unwrap();
    assert_eq!(report["chosen"], serde_json::Value::Null);
    for backend in report["backends"].as_array().unwrap() {
        assert_eq!(backend["usable"], false, "{backend}");
        assert!(backend["reason"].as_str().unwrap().contains("not permitted"), "{backend}");
    }
    assert_eq!(report["capabilities"][0]["held"], false);
}
