//! The verdicts on claims, from records made for the test.

use super::claim::Check;
use super::*;
use crate::record::cluster::Cluster;
use crate::record::{ContextSwitches, CpuMs, Latency, Mark, MarkKind, RssKib};

fn record(mesh: &str, p99: u64) -> Record {
    Record {
        scenario: "http-1k".into(),
        mesh: mesh.into(),
        proxies: u32::from(mesh != "none"),
        latency_us: Latency { p99, ..Latency::default() },
        rss_kib: RssKib { idle: 44_000, ..RssKib::default() },
        ..Record::default()
    }
}

fn verdict(check: &str, records: &[Record]) -> Outcome {
    let claim = format!("- {{source: T, says: it, check: {check}}}");
    let claims: Vec<Claim> = serde_saphyr::from_str(&claim).unwrap();
    let prices = crate::cost::prices(None).unwrap();
    super::check(&claims, records, &prices).remove(0)
}

#[test]
fn the_table_is_read_whole_and_each_claim_ends_with_a_reason() {
    let claims = claims().unwrap();
    let seen = super::check(&claims, &[], &crate::cost::prices(None).unwrap());
    assert_eq!(seen.len(), claims.len());
    // Without a record, only arithmetic can be checked.
    let judged = seen.iter().filter(|one| one.verdict != Verdict::NotMeasurableHere);
    assert_eq!(judged.count(), 2);
    assert!(seen.iter().all(|one| !one.because.is_empty()));
    let scenarios = crate::scenario::all().unwrap();
    for claim in &claims {
        let (Check::Latency { scenario, step, .. }, text) = (&claim.check, &claim.says) else {
            continue;
        };
        let scenario = scenarios.iter().find(|one| one.name == *scenario).expect(text);
        assert!(scenario.steps().contains(step), "{text}: one of its steps has to be named");
    }
}

#[test]
fn the_command_that_brings_a_record_has_all_that_it_needs() {
    for (mesh, words) in [
        ("none", "--mesh none"),
        ("envoy", "--mesh none,envoy"),
        ("linkerd2-proxy", "--mesh none,linkerd2-proxy --linkerd2-proxy PATH"),
        ("ztunnel", "--mesh none,ztunnel --ztunnel PATH"),
        ("linkerd", "--context NAME --image IMAGE --mesh none,linkerd"),
    ] {
        let check =
            format!("{{kind: latency, scenario: http-1k, mesh: {mesh}, quantile: p99, ms: 1}}");
        let said = verdict(&check, &[]).because;
        assert_eq!(said, format!("no valid record: leno bench run http-1k {words} --out DIR"));
    }
}

#[test]
fn added_latency_is_relative_to_no_mesh_in_the_same_scenario() {
    let check = "{kind: added-latency, scenario: http-1k, mesh: envoy, quantile: p99, ms: 2.0}";
    let records = [record("none", 10_000), record("envoy", 12_500)];
    let seen = verdict(check, &records);
    assert_eq!((seen.verdict, seen.because.as_str()), (Verdict::Holds, "2.5 ms over none (envoy)"));
    let slow = [record("none", 10_000), record("envoy", 30_000)];
    assert_eq!(verdict(check, &slow).verdict, Verdict::DoesNotHoldHere);
    let part = records.clone().map(|one| Record { scale: 0.05, rate_per_s: Some(50.0), ..one });
    assert_eq!(verdict(check, &part).because, "2.5 ms over none (envoy, at 50/s, scale 0.05)");
    let whole = part.map(|one| Record { scale: 1.0, ..one });
    assert_eq!(verdict(check, &whole).because, "2.5 ms over none (envoy)");
    let alone = verdict(check, &records[1..]);
    assert_eq!(alone.verdict, Verdict::NotMeasurableHere);
    assert!(alone.because.contains("leno bench run http-1k"), "{}", alone.because);
}

#[test]
fn a_step_is_judged_by_its_own_records() {
    let at = |step, p75| {
        let mut record = record("envoy", 0);
        (record.scenario, record.step) = ("teastore".into(), Some(step));
        record.latency_us.p75 = p75;
        record
    };
    let records = [at(25.0, 5_000), at(100.0, 40_000), at(200.0, 900_000)];
    let check =
        "{kind: latency, scenario: teastore, step: 100, mesh: envoy, quantile: p75, ms: 42}";
    let seen = verdict(check, &records);
    let because = "40.0 ms (envoy); our own services of its shape, which do less";
    assert_eq!((seen.verdict, seen.because.as_str()), (Verdict::Holds, because));
    let without = verdict(check, &records[..1]);
    assert_eq!(without.verdict, Verdict::NotMeasurableHere);
    assert!(without.because.contains("at 100/s"), "{}", without.because);
}

#[test]
fn a_mesh_of_a_cluster_serves_the_same_claim_and_is_named() {
    let check = "{kind: latency, scenario: http-1k, mesh: linkerd2-proxy, quantile: p99, ms: 40}";
    let mut other = record("linkerd", 41_000);
    other.cluster = Some(Cluster { context: "staging".into(), ..Cluster::default() });
    let seen = verdict(check, &[other.clone()]);
    assert_eq!((seen.verdict, seen.because.as_str()), (Verdict::Holds, "41.0 ms (linkerd)"));
    let start = verdict("{kind: start-up, mesh: linkerd2-proxy, ms: 80}", &[other]);
    let why = "the records of linkerd have no start-up";
    assert_eq!((start.verdict, start.because.as_str()), (Verdict::NotMeasurableHere, why));
    // Conversely, a sidecar of the lab is not a node proxy.
    let node = "{kind: latency, scenario: http-1k, mesh: istio-ambient, quantile: p99, ms: 40}";
    let seen = verdict(node, &[record("ztunnel", 40_000)]);
    assert_eq!(seen.verdict, Verdict::NotMeasurableHere);
    assert!(
        seen.because.contains("--context NAME --image IMAGE --mesh none,istio-ambient"),
        "{}",
        seen.because
    );
}

#[test]
fn a_marked_run_is_no_evidence_and_its_mark_is_the_reason() {
    let mut marked = record("envoy", 1);
    let why = "left late".to_owned();
    marked.marks.push(Mark { kind: MarkKind::GeneratorLimited, why });
    let check = "{kind: memory, mesh: envoy, moment: idle, mb: 45}";
    let seen = verdict(check, &[marked]);
    assert_eq!(seen.verdict, Verdict::NotMeasurableHere);
    assert!(seen.because.contains("generator limited: left late"), "{}", seen.because);
    assert_eq!(verdict(check, &[record("envoy", 1)]).verdict, Verdict::Holds);
    let mut missing = record("envoy", 0);
    missing.left_out = Some("envoy is missing: scripts/tools.sh envoy".into());
    assert!(verdict(check, &[missing]).because.contains("scripts/tools.sh envoy"));
}

#[test]
fn a_rate_that_is_not_kept_is_evidence_and_a_part_of_it_that_is_kept_is_none() {
    let check = "{kind: keeps, scenario: teastore, step: 200, mesh: linkerd2-proxy, kept: false}";
    let run = |scale: f64, answered: f64| Record {
        scenario: "teastore".into(),
        step: Some(200.0),
        mesh: "linkerd2-proxy".into(),
        scale,
        rate_per_s: Some(200.0 * scale),
        requests: 1000,
        requests_per_s: answered,
        ..Record::default()
    };
    assert_eq!(verdict(check, &[run(1.0, 199.0)]).verdict, Verdict::DoesNotHoldHere);
    assert_eq!(verdict(check, &[run(1.0, 120.0)]).verdict, Verdict::Holds);
    let part = verdict(check, &[run(0.1, 20.0)]);
    assert_eq!(part.verdict, Verdict::NotMeasurableHere);
    assert!(part.because.contains("--scale 1"), "{}", part.because);
    let mut failing = run(1.0, 200.0);
    failing.errors = 100;
    failing.marks.push(Mark { kind: MarkKind::Errors, why: String::new() });
    assert_eq!(verdict(check, &[failing.clone()]).verdict, Verdict::Holds);
    // One sustained round does not outweigh two that failed.
    let rounds = [failing.clone(), run(1.0, 200.0), failing];
    let seen = verdict(check, &rounds);
    assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
    assert!(seen.because.contains("kept in 1 of 3 rounds"), "{}", seen.because);
    let mut limited = run(1.0, 100.0);
    limited.marks.push(Mark { kind: MarkKind::GeneratorLimited, why: String::new() });
    assert_eq!(verdict(check, &[limited]).verdict, Verdict::NotMeasurableHere);
}

#[test]
fn the_cpu_of_a_proxy_is_that_of_the_requests_that_pass_it() {
    // 550 requests/s, each through two of 11 proxies: 100/s per proxy, which keeps 0.1 processors
    // busy.
    let run = Record {
        services: 10,
        proxies: 11,
        requests_per_s: 550.0,
        duration_s: 10.0,
        cpu_ms: CpuMs { proxies: 11_000.0, ..CpuMs::default() },
        ..record("envoy", 1)
    };
    let check = "{kind: cpu, scenario: http-1k, mesh: envoy, rate_per_s: 1000, cpus: 1.0}";
    let seen = verdict(check, &[run]);
    assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
}

#[test]
fn idle_cpu_is_that_of_a_cluster() {
    let check = "{kind: idle-cpu, mesh: envoy, cpus: 0.05}";
    let lab = verdict(check, &[record("envoy", 1)]);
    let why = "the records of envoy have no idle CPU: only a cluster has it";
    assert_eq!((lab.verdict, lab.because.as_str()), (Verdict::NotMeasurableHere, why));
    let cluster = Some(Cluster { context: "staging".into(), ..Cluster::default() });
    let silent = Record { cluster, proxies: 2, ..record("istio", 1) };
    let none = verdict(check, std::slice::from_ref(&silent));
    assert_eq!(none.because, "the records of istio have no idle CPU");
    let seen = verdict(check, &[Record { idle_proxies_cpus: 0.09, ..silent }]);
    assert_eq!((seen.verdict, seen.because.as_str()), (Verdict::Holds, "0.045 processors (istio)"));
}

#[test]
fn two_meshes_are_put_in_order() {
    let with = |mesh: &str, load, switches| Record {
        rss_kib: RssKib { load, ..RssKib::default() },
        requests: 10,
        context_switches: ContextSwitches { voluntary: switches, involuntary: 0 },
        ..record(mesh, 1000)
    };
    let records = [with("linkerd", 50_000, 40), with("istio", 90_000, 100)];
    let order = "{kind: memory-order, scenario: http-1k, rising: [linkerd2-proxy, envoy]}";
    let seen = verdict(order, &records);
    assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
    assert!(seen.because.contains("51.2 MB (linkerd), 92.2 MB (istio)"), "{}", seen.because);
    // Only Istio has a valid record of the lowest load, where it uses little memory.
    let at = |step, record| Record { step: Some(step), ..record };
    let mut steps = vec![at(60.0, with("istio", 10_000, 0))];
    steps.extend(records.clone().map(|record| at(600.0, record)));
    let seen = verdict(order, &steps);
    assert!(seen.because.contains("51.2 MB (linkerd), 92.2 MB (istio)"), "{}", seen.because);
    let apart = [at(60.0, with("linkerd", 9, 0)), at(600.0, with("istio", 10, 0))];
    assert_eq!(verdict(order, &apart).verdict, Verdict::NotMeasurableHere);
    let fewer = "{kind: less-switches, scenario: http-1k, mesh: linkerd, than: istio, percent: 60}";
    let seen = verdict(fewer, &records);
    assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
    let leads = "{kind: leads, scenario: http-1k, mesh: istio, than: linkerd, rate_per_s: 10000}";
    let seen = verdict(leads, &records);
    assert_eq!(seen.verdict, Verdict::NotMeasurableHere);
    assert!(seen.because.contains("0/s to each service is the most"), "{}", seen.because);
    let run = "leno bench run http-1k --context NAME --image IMAGE --mesh none,istio --scale 10 --out DIR";
    assert!(seen.because.ends_with(run), "{}", seen.because);
}

#[test]
fn a_claim_about_a_real_application_says_that_ours_is_none() {
    let check = "{kind: latency, scenario: faces, mesh: leno, quantile: p50, ms: 1}";
    let of = |application: Option<&str>| {
        let application = application.map(str::to_owned);
        let record = Record { scenario: "faces".into(), application, ..record("leno", 1000) };
        verdict(check, &[record]).because
    };
    assert!(of(None).ends_with("; our own services of its shape, which do less"), "{}", of(None));
    assert!(!of(Some("/opt/faces")).contains("our own"), "{}", of(Some("/opt/faces")));
}

#[test]
fn stated_costs_are_computed_again() {
    let check = "{kind: dollars, machine: m6g.large, cpus: 0.05, mb: 32, dollars: 1700}";
    let seen = verdict(check, &[]);
    assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
}
