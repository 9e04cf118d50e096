//! Service level objectives: which are accepted, and the errors of the others.

use leno_resources::{Object, parse, to_yaml};

const FULL: &str = "\
apiVersion: leno.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: cart, namespace: shop}
spec:
  targetRef: {group: '', kind: Service, name: cart}
  window: 6h
  successPercent: 99.9
  latency: {below: 250ms, percent: 99}
";

#[test]
fn an_objective_is_read_and_written() {
    let read = parse("mesh.yaml", FULL).unwrap();
    let Object::ServiceLevelObjective(objective) = &read.objects[0].value else { panic!() };
    assert_eq!(objective.spec.success_percent, Some(99.9));
    assert_eq!(objective.spec.latency.as_ref().unwrap().below.to_string(), "250ms");
    let again = parse("again.yaml", &to_yaml(&read.objects[0].value)).unwrap();
    assert_eq!(again.objects[0].value, read.objects[0].value);
}

#[test]
fn what_cannot_be_an_objective_is_rejected() {
    for (from, to, reason) in [
        ("kind: Service, name", "kind: HTTPRoute, name", "cannot be a target"),
        ("name: cart}", "name: cart, sectionName: http}", "requests are counted by workload"),
        ("window: 6h", "window: 48h", "is not from 5m to 24h"),
        ("window: 6h", "window: 1m", "is not from 5m to 24h"),
        ("99.9", "100", "is not above 0 and at most 99.9999"),
        ("99.9", "0", "is not above 0"),
        ("percent: 99}", "percent: -1}", "is not above 0"),
        ("250ms", "0ms", "is 0: use 1ms or more"),
        (
            "  successPercent: 99.9\n  latency: {below: 250ms, percent: 99}\n",
            "",
            "has no objective",
        ),
    ] {
        let text = FULL.replace(from, to);
        assert_ne!(text, FULL, "{from}");
        let problems = parse("mesh.yaml", &text).unwrap_err();
        assert!(problems.iter().any(|one| one.reason.contains(reason)), "{to}: {problems:?}");
    }
}
