use leno_index::{MeshSettings, ObjectChange};
use leno_resources::parse;

use super::*;

const MESH: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: admin, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: each, namespace: shop}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: a, port: 80}, {name: b, port: 81}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls, namespace: shop}
spec: {parentRefs: [{group: '', kind: Service, name: calls, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: closed}
spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: open}
spec: {clusterIP: 10.96.0.4, ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: all, namespace: open}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service}]
";

fn objects(text: &str) -> Vec<Object> {
    let parsed = parse("test.yaml", text).unwrap();
    parsed.objects.into_iter().map(|located| located.value).collect()
}

fn index() -> Index {
    let mut index = Index::new(MeshSettings::default());
    index.apply_all(objects(MESH).into_iter().map(ObjectChange::Upsert).collect());
    index
}

/// A route of generation 3 in the namespace `shop`.
fn route(parents: &str, backends: &str) -> Object {
    let mut read = objects(&format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: r, namespace: shop}}\n\
         spec: {{parentRefs: [{parents}], rules: [{{backendRefs: [{backends}]}}]}}\n"
    ));
    if let Object::HttpRoute(route) = &mut read[0] {
        route.metadata.generation = Some(3);
    }
    read.swap_remove(0)
}

fn at(second: i64) -> Time {
    let text = format!("\"2026-01-01T00:00:{second:02}Z\"");
    serde_json::from_str(&text).unwrap()
}

/// The reason of each condition for the only parent, and all messages.
fn judgement(index: &Index, object: &Object) -> (String, String, String) {
    let made = status(index, object, &at(0)).unwrap();
    let [parent] = &made.parents[..] else { panic!("{made:?}") };
    assert_eq!(parent.controller_name, CONTROLLER);
    let [accepted, resolved] = &parent.conditions[..] else { panic!("{parent:?}") };
    for (condition, kind) in [(accepted, ACCEPTED), (resolved, RESOLVED)] {
        assert_eq!(condition.type_, kind);
        assert_eq!(condition.observed_generation, Some(3));
        let holds = condition.reason == kind;
        assert_eq!(condition.status, if holds { "True" } else { "False" });
        assert_eq!(condition.message.is_empty(), holds, "{condition:?}");
    }
    let messages = format!("{} {}", accepted.message, resolved.message);
    (accepted.reason.clone(), resolved.reason.clone(), messages)
}

const WEB: &str = "{group: '', kind: Service, name: web}";
const GOOD: &str = "{name: web, port: 80}";

/// A parent, a backend, the expected reasons of both conditions, and a part of their messages.
const MISTAKES: [(&str, &str, &str, &str, &str); 16] = [
    (WEB, GOOD, "Accepted", "ResolvedRefs", ""),
    ("{group: '', kind: Service, name: web, port: 81}", GOOD, "Accepted", "ResolvedRefs", ""),
    (
        "{group: '', kind: Service, name: web, sectionName: admin}",
        GOOD,
        "Accepted",
        "ResolvedRefs",
        "",
    ),
    (
        "{group: '', kind: Service, name: nobody}",
        GOOD,
        "NoMatchingParent",
        "ResolvedRefs",
        "shop/nobody",
    ),
    (
        "{group: '', kind: Service, name: web, port: 82}",
        GOOD,
        "NoMatchingParent",
        "ResolvedRefs",
        "80 (http), 81 (admin)",
    ),
    (
        "{group: '', kind: Service, name: web, sectionName: none}",
        GOOD,
        "NoMatchingParent",
        "ResolvedRefs",
        "",
    ),
    (
        "{group: '', kind: Service, name: each}",
        GOOD,
        "UnsupportedValue",
        "ResolvedRefs",
        "to its instances directly",
    ),
    ("{group: '', kind: Service, name: calls}", GOOD, "Accepted", "ResolvedRefs", ""),
    (
        "{group: '', kind: Service, name: calls, port: 80}",
        GOOD,
        "Conflicted",
        "ResolvedRefs",
        "GRPCRoute",
    ),
    (WEB, "{name: none, port: 80}", "Accepted", "BackendNotFound", "no Service shop/none"),
    (WEB, "{name: web, port: 99}", "Accepted", "BackendNotFound", "no port 99"),
    (
        WEB,
        "{group: example.com, kind: Bucket, name: b}",
        "Accepted",
        "InvalidKind",
        "a Bucket cannot be a backend",
    ),
    (
        WEB,
        "{name: db, namespace: closed, port: 80}",
        "Accepted",
        "RefNotPermitted",
        "ReferenceGrant of closed",
    ),
    (
        WEB,
        "{name: none, namespace: closed, port: 80}",
        "Accepted",
        "RefNotPermitted",
        "closed/none",
    ),
    (WEB, "{name: db, namespace: open, port: 80}", "Accepted", "ResolvedRefs", ""),
    (
        "{group: '', kind: Service, name: db, namespace: closed}",
        "{name: db, namespace: closed, port: 80}",
        "Accepted",
        "ResolvedRefs",
        "",
    ),
];

#[test]
fn every_mistake_has_its_reason() {
    let index = index();
    for (parents, backends, accepted, resolved, part) in MISTAKES {
        let (a, r, messages) = judgement(&index, &route(parents, backends));
        assert_eq!((&*a, &*r), (accepted, resolved), "{parents} {backends}: {messages}");
        assert!(messages.contains(part), "{messages} lacks {part}");
    }
}

#[test]
fn a_route_that_is_not_attached_is_judged_by_its_references_all_the_same() {
    let parent = "{group: '', kind: Service, name: nobody}";
    let (accepted, resolved, _) = judgement(&index(), &route(parent, "{name: none, port: 80}"));
    assert_eq!((&*accepted, &*resolved), ("NoMatchingParent", "BackendNotFound"));
}

#[test]
fn mirrors_are_references_too() {
    let mut read = objects(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {name: r, namespace: shop}\n\
         spec: {parentRefs: [{group: '', kind: Service, name: web}], rules: [{filters: \
         [{type: RequestMirror, requestMirror: {backendRef: {name: none, port: 80}}}], \
         backendRefs: [{name: web, port: 80}]}]}\n",
    );
    let made = status(&index(), &read.swap_remove(0), &at(0)).unwrap();
    let resolved = &made.parents[0].conditions[1];
    assert_eq!(resolved.reason, "BackendNotFound");
    assert!(resolved.message.contains("rules[0].filters[0].requestMirror"), "{resolved:?}");
}

fn with(mut object: Object, said: RouteStatus) -> Object {
    if let Object::HttpRoute(route) = &mut object {
        route.status = Some(said);
    }
    object
}

#[test]
fn what_was_said_already_is_not_said_again() {
    let route = || route("{group: '', kind: Service, name: web}", "{name: none, port: 80}");
    let index = index();
    let first = status(&index, &route(), &at(1)).unwrap();
    assert_eq!(status(&index, &with(route(), first), &at(2)), None);
}

#[test]
fn a_condition_keeps_its_time_until_it_turns() {
    let parent = "{group: '', kind: Service, name: web}";
    let index = index();
    let first = status(&index, &route(parent, "{name: none, port: 80}"), &at(1)).unwrap();
    let changed = with(route(parent, "{name: web, port: 80}"), first);
    let second = status(&index, &changed, &at(2)).unwrap();
    let times: Vec<_> =
        second.parents[0].conditions.iter().map(|c| &c.last_transition_time).collect();
    assert_eq!(times, [&at(1), &at(2)]);
}

#[test]
fn other_controllers_keep_their_entries_and_ours_go_with_their_parents() {
    let entry = |controller: &str, name: &str| -> RouteParentStatus {
        serde_json::from_value(serde_json::json!({
            "parentRef": {"group": "", "kind": "Service", "name": name},
            "controllerName": controller,
        }))
        .unwrap()
    };
    let said =
        RouteStatus { parents: vec![entry(CONTROLLER, "gone"), entry("example.com/other", "web")] };
    let object =
        with(route("{group: '', kind: Service, name: web}", "{name: web, port: 80}"), said);
    let made = status(&index(), &object, &at(0)).unwrap();
    let names: Vec<_> =
        made.parents.iter().map(|p| (&*p.controller_name, &*p.parent_ref.name)).collect();
    assert_eq!(names, [("example.com/other", "web"), (CONTROLLER, "web")]);
    assert!(made.parents[0].conditions.is_empty());
}

#[test]
fn a_route_of_gateways_alone_is_not_ours() {
    assert_eq!(status(&index(), &route("{name: border}", "{name: web, port: 80}"), &at(0)), None);
}

#[test]
fn a_route_that_is_not_understood_says_why_and_forgets_what_it_said_of_references() {
    let parent = "{group: '', kind: Service, name: web}";
    let index = index();
    let good = status(&index, &route(parent, "{name: web, port: 80}"), &at(1)).unwrap();
    let object = with(route(parent, ""), good);
    let made = refused(&object, "spec.rule is no field", &at(2)).unwrap();
    let [accepted] = &made.parents[0].conditions[..] else { panic!("{made:?}") };
    assert_eq!((&*accepted.type_, &*accepted.status), (ACCEPTED, "False"));
    assert_eq!(accepted.reason, "UnsupportedValue");
    assert!(accepted.message.contains("spec.rule is no field"), "{accepted:?}");
    assert_eq!(refused(&with(route(parent, ""), made), "spec.rule is no field", &at(3)), None);
    let long = refused(&object, &"x".repeat(40_000), &at(2)).unwrap();
    assert!(long.parents[0].conditions[0].message.len() < 2_000);
}
