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
metadata: {name: empty, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: bare, namespace: shop}
spec: {clusterIP: 10.96.0.3, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: half, namespace: shop}
spec: {clusterIP: 10.96.0.4, ports: [{name: http, port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: one, namespace: shop}
spec: {command: [one]}
status: {instances: [{name: one-0, addresses: [10.1.0.1], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: two, namespace: shop}
spec: {command: [two]}
status: {instances: [{name: two-0, addresses: [10.1.0.2], meshed: false, ready: true}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: admin, port: 8081}]
endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Workload, namespace: shop, name: one-0}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bare-1, namespace: shop, labels: {kubernetes.io/service-name: bare}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.2], targetRef: {kind: Workload, namespace: shop, name: two-0}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: half-1, namespace: shop, labels: {kubernetes.io/service-name: half}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], targetRef: {kind: Workload, namespace: shop, name: one-0}}
- {addresses: [10.1.0.9]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules: [{name: slow, backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: gone}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: older, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  retries: {on: [503]}
  timeouts: {request: 5s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: older, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'}
spec:
  targetRefs: [{group: '', kind: Service, name: bare}]
  validation: {hostname: bare.example, wellKnownCACertificates: System}
";

fn objects(text: &str) -> Vec<Object> {
    let parsed = parse("test.yaml", text).unwrap();
    parsed.objects.into_iter().map(|located| located.value).collect()
}

/// The mesh with a policy of generation 3, which is younger than the mesh's other policies.
fn with(kind: &str, spec: &str) -> (Index, Object) {
    let group = if kind == "BackendTLSPolicy" {
        "gateway.networking.k8s.io/v1"
    } else {
        "leno.dev/v1alpha1"
    };
    let mut policy = objects(&format!(
        "apiVersion: {group}\nkind: {kind}\n\
         metadata: {{name: own, namespace: shop, generation: 3, \
         creationTimestamp: '2026-02-01T00:00:00Z'}}\nspec: {{{spec}}}\n"
    ));
    let policy = policy.swap_remove(0);
    let mut index = Index::new(MeshSettings::default());
    let changes = objects(MESH).into_iter().chain([policy.clone()]).map(ObjectChange::Upsert);
    index.apply_all(changes.collect());
    (index, policy)
}

fn at(second: i64) -> Time {
    serde_json::from_str(&format!("\"2026-03-01T00:00:{second:02}Z\"")).unwrap()
}

/// Each ancestor's name, and the type, status and reason of each of its conditions.
fn said(status: &PolicyStatus) -> Vec<String> {
    let one = |entry: &PolicyAncestorStatus| {
        assert_eq!(entry.controller_name, CONTROLLER);
        let conditions = entry.conditions.iter().map(|one| {
            assert_eq!(one.observed_generation, Some(3));
            let mark = if one.status == "True" { "" } else { "not " };
            let reason =
                if one.status == "True" { String::new() } else { format!(" ({})", one.reason) };
            format!("{mark}{}{reason}", one.type_)
        });
        let conditions: Vec<String> = conditions.collect();
        format!("{}: {}", entry.ancestor_ref.name, conditions.join(", "))
    };
    status.ancestors.iter().map(one).collect()
}

const RETRIES: &str = "retries: {on: [502]}";
const FAULTS: &str = "faults: {delay: {by: 1s, percent: 1}}";
const LIMIT: &str = "limits: [{requests: 5}]";
const SYSTEM: &str = "validation: {hostname: x.example, wellKnownCACertificates: System}";
const MISSING: &str = "validation: {hostname: x.example, caCertificateRefs: \
    [{group: '', kind: ConfigMap, name: none}]}";

/// The kind of a policy, its target, the rest of its spec, the expected conditions, and a part of the messages.
const CASES: [(&str, &str, &str, &str, &str); 21] = [
    ("TrafficPolicy", "kind: Service, name: empty", RETRIES, "empty: Accepted, Programmed", ""),
    ("TrafficPolicy", "kind: Service, name: web", FAULTS, "web: Accepted, Programmed", ""),
    (
        "TrafficPolicy",
        "kind: Service, name: web, sectionName: http",
        RETRIES,
        "web: Accepted, Programmed",
        "",
    ),
    (
        "TrafficPolicy",
        "kind: Service, name: gone",
        RETRIES,
        "gone: not Accepted (TargetNotFound), not Programmed (NotAccepted)",
        "there is no Service shop/gone",
    ),
    (
        "TrafficPolicy",
        "kind: Service, name: web, sectionName: '82'",
        RETRIES,
        "web: not Accepted (TargetNotFound), not Programmed (NotAccepted)",
        "Service shop/web has no port 82",
    ),
    (
        "TrafficPolicy",
        "kind: Service, name: web",
        RETRIES,
        "web: not Accepted (Conflicted), not Programmed (NotAccepted)",
        "retries: TrafficPolicy older takes precedence",
    ),
    (
        "TrafficPolicy",
        "kind: Service, name: web",
        "retries: {on: [502]}, timeouts: {idle: 1s}",
        "web: Accepted, Programmed",
        "retries: TrafficPolicy older takes precedence",
    ),
    ("TrafficPolicy", "kind: HTTPRoute, name: r", RETRIES, "r: Accepted, Programmed", ""),
    (
        "TrafficPolicy",
        "kind: HTTPRoute, name: r, sectionName: slow",
        RETRIES,
        "r: Accepted, Programmed",
        "",
    ),
    (
        "TrafficPolicy",
        "kind: HTTPRoute, name: r, sectionName: fast",
        RETRIES,
        "r: not Accepted (TargetNotFound), not Programmed (NotAccepted)",
        "has no rule fast",
    ),
    (
        "TrafficPolicy",
        "kind: HTTPRoute, name: none",
        RETRIES,
        "none: not Accepted (TargetNotFound), not Programmed (NotAccepted)",
        "there is no HTTPRoute shop/none",
    ),
    (
        "TrafficPolicy",
        "kind: HTTPRoute, name: lost",
        RETRIES,
        "lost: Accepted, not Programmed (RouteNotAttached)",
        "HTTPRoute lost applies to no Service",
    ),
    ("RateLimitPolicy", "kind: Service, name: web", LIMIT, "web: Accepted, Programmed", ""),
    ("RateLimitPolicy", "kind: Workload, name: one", LIMIT, "one: Accepted, Programmed", ""),
    (
        "RateLimitPolicy",
        "kind: Workload, name: none",
        LIMIT,
        "none: not Accepted (TargetNotFound), not Programmed (NotAccepted)",
        "no Workload shop/none",
    ),
    (
        "RateLimitPolicy",
        "kind: Service, name: bare",
        LIMIT,
        "bare: Accepted, not Programmed (NoProxy)",
        "no instance has a proxy",
    ),
    (
        "RateLimitPolicy",
        "kind: Service, name: half",
        LIMIT,
        "half: Accepted, Programmed",
        "some instances have no proxy",
    ),
    (
        "BackendTLSPolicy",
        "kind: Service, name: empty",
        SYSTEM,
        "empty: Accepted, ResolvedRefs, Programmed",
        "",
    ),
    (
        "BackendTLSPolicy",
        "kind: Service, name: bare",
        SYSTEM,
        "bare: not Accepted (Conflicted), ResolvedRefs, not Programmed (NotAccepted)",
        "BackendTLSPolicy older is older",
    ),
    (
        "BackendTLSPolicy",
        "kind: Service, name: web",
        SYSTEM,
        "web: Accepted, ResolvedRefs, not Programmed (Meshed)",
        "every endpoint has a proxy",
    ),
    (
        "BackendTLSPolicy",
        "kind: Service, name: empty",
        MISSING,
        "empty: not Accepted (NoValidCACertificate), not ResolvedRefs (InvalidCACertificateRef), \
         not Programmed (InvalidCACertificateRef)",
        "no request is sent to empty",
    ),
];

fn group(target: &str) -> &'static str {
    match target {
        _ if target.contains("Route") => "gateway.networking.k8s.io",
        _ if target.contains("Workload") => "leno.dev",
        _ => "''",
    }
}

#[test]
fn each_policy_says_whether_it_works() {
    for (kind, target, rest, wanted, part) in CASES {
        let spec = format!("targetRefs: [{{group: {}, {target}}}], {rest}", group(target));
        let (index, policy) = with(kind, &spec);
        let status = policy_status(&index, &policy, None, &at(0)).unwrap();
        assert_eq!(said(&status), [wanted], "{kind} {spec}");
        let conditions = status.ancestors.iter().flat_map(|one| &one.conditions);
        let messages: Vec<&str> = conditions.map(|one| one.message.as_str()).collect();
        assert!(messages.join(" ").contains(part), "{messages:?} lack {part}: {kind} {spec}");
    }
}

fn stored(mut object: Object, status: PolicyStatus) -> Object {
    match &mut object {
        Object::TrafficPolicy(policy) => policy.status = Some(status),
        Object::BackendTlsPolicy(policy) => policy.status = Some(status),
        other => panic!("{other:?}"),
    }
    object
}

#[test]
fn a_status_is_written_once_and_again_when_it_is_mended_and_what_fails_comes_first() {
    let targets = "targetRefs: [{group: '', kind: Service, name: web}, \
                   {group: '', kind: Service, name: late}], faults: {delay: {by: 1s, percent: 1}}";
    let (mut index, policy) = with("TrafficPolicy", targets);
    let first = policy_status(&index, &policy, None, &at(1)).unwrap();
    let not_found = "late: not Accepted (TargetNotFound), not Programmed (NotAccepted)";
    assert_eq!(said(&first), [not_found, "web: Accepted, Programmed"]);
    let policy = stored(policy, first);
    assert_eq!(policy_status(&index, &policy, None, &at(2)), None, "nothing has changed");
    let late = "{apiVersion: v1, kind: Service, metadata: {name: late, namespace: shop}, \
                spec: {ports: [{port: 80}]}}";
    index.apply(ObjectChange::Upsert(objects(late).swap_remove(0)));
    let mended = policy_status(&index, &policy, None, &at(3)).unwrap();
    assert_eq!(said(&mended), ["web: Accepted, Programmed", "late: Accepted, Programmed"]);
    let times = mended.ancestors.iter().map(|one| &one.conditions[0].last_transition_time);
    assert_eq!(times.collect::<Vec<_>>(), [&at(1), &at(3)], "only what turned has a new time");
    assert_eq!(policy_status(&index, &stored(policy, mended), None, &at(4)), None);
}

#[test]
fn entries_of_other_controllers_keep_their_places_and_no_more_than_sixteen_fit() {
    let (index, policy) = with(
        "BackendTLSPolicy",
        &format!("targetRefs: [{{group: '', kind: Service, name: empty}}], {SYSTEM}"),
    );
    let ours = policy_status(&index, &policy, None, &at(1)).unwrap().ancestors;
    let other = |number: usize| PolicyAncestorStatus {
        controller_name: format!("example.com/c{number}"),
        conditions: Vec::new(),
        ..ours[0].clone()
    };
    let mut around = vec![other(0)];
    around.extend(ours.clone());
    around.push(other(1));
    let policy = stored(policy, PolicyStatus { ancestors: around });
    assert_eq!(policy_status(&index, &policy, None, &at(2)), None);
    let full = PolicyStatus { ancestors: (0..16).map(other).collect() };
    assert_eq!(
        policy_status(&index, &stored(policy, full), None, &at(2)),
        None,
        "no place is left"
    );
}

#[test]
fn a_policy_that_is_not_understood_is_invalid_for_all_its_targets() {
    let (_, policy) = with(
        "TrafficPolicy",
        "targetRefs: [{group: '', kind: Service, name: web}], retries: {on: [503]}",
    );
    let status = refused_policy(&policy, "spec.retrys is unknown", &at(1)).unwrap();
    assert_eq!(said(&status), ["web: not Accepted (Invalid)"]);
    assert!(status.ancestors[0].conditions[0].message.contains("spec.retrys is unknown"));
    assert_eq!(refused_policy(&stored(policy, status), "spec.retrys is unknown", &at(2)), None);
}

#[test]
fn what_is_no_policy_has_no_such_status() {
    let (index, _) = with(
        "TrafficPolicy",
        "targetRefs: [{group: '', kind: Service, name: web}], faults: {delay: {by: 1s, percent: 1}}",
    );
    for object in objects(MESH) {
        let is_policy = matches!(object, Object::TrafficPolicy(_) | Object::BackendTlsPolicy(_));
        assert_eq!(policy_status(&index, &object, None, &at(0)).is_some(), is_policy);
    }
}

fn authorization(namespace: &str, attached: &str) -> Object {
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: p, namespace: {namespace}}}\nspec: {{{attached}, rules: [{{}}]}}\n"
    );
    let documents = parse("p.yaml", &text).unwrap();
    documents.objects.into_iter().next().unwrap().value
}

#[test]
fn an_authorization_policy_says_whether_it_is_enforced() {
    let mut index = Index::new(MeshSettings::default());
    for located in parse("mesh.yaml", MESH).unwrap().objects {
        index.apply(ObjectChange::Upsert(located.value));
    }
    let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    let workload =
        |name: &str| format!("targetRefs: [{{group: leno.dev, kind: Workload, name: {name}}}]");
    let mesh = "targetRefs: [{group: leno.dev, kind: Mesh, name: mesh}]";
    for (namespace, attached, expected) in [
        ("shop", workload("one"), ["Accepted", "Programmed"]),
        ("shop", workload("two"), ["Accepted", "NoProxy"]),
        ("shop", workload("three"), ["TargetNotFound", "NotAccepted"]),
        ("shop", "selector: {}".to_owned(), ["Accepted", "Programmed"]),
        ("shop", "selector: {matchLabels: {a: b}}".to_owned(), ["TargetNotFound", "NotAccepted"]),
        ("shop", mesh.to_owned(), ["TargetNotPermitted", "NotAccepted"]),
        ("leno-system", mesh.to_owned(), ["Accepted", "Programmed"]),
    ] {
        let status =
            policy_status(&index, &authorization(namespace, &attached), None, &now).unwrap();
        let [ancestor] = &status.ancestors[..] else { panic!("{status:?}") };
        let found: Vec<_> = ancestor.conditions.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(found, expected, "{attached}");
    }
}

#[test]
fn an_external_policy_says_whether_its_authorizer_is_there() {
    let mut index = Index::new(MeshSettings::default());
    for located in parse("mesh.yaml", MESH).unwrap().objects {
        index.apply(ObjectChange::Upsert(located.value));
    }
    for (authorizer, expected) in [
        ("{name: web, port: 80}", ["Accepted", "ResolvedRefs", "Programmed"]),
        ("{name: web, port: 99}", ["Accepted", "BackendNotFound", "BackendNotFound"]),
        ("{name: none, port: 80}", ["Accepted", "BackendNotFound", "BackendNotFound"]),
        (
            "{name: web, namespace: other, port: 80}",
            ["Accepted", "BackendNotFound", "BackendNotFound"],
        ),
    ] {
        let attached =
            format!("selector: {{}}, action: External, external: {{backendRef: {authorizer}}}");
        let status =
            policy_status(&index, &authorization("shop", &attached), None, &at(0)).unwrap();
        let [ancestor] = &status.ancestors[..] else { panic!("{status:?}") };
        let found: Vec<_> = ancestor.conditions.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(found, expected, "{authorizer}");
    }
}

#[test]
fn a_policy_says_whether_the_keys_of_its_issuers_are_there() {
    const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let mut index = Index::new(MeshSettings::default());
    for located in parse("mesh.yaml", MESH).unwrap().objects {
        index.apply(ObjectChange::Upsert(located.value));
    }
    for (keys, filled, expected) in [
        (format!("jwks: '{KEYS}'"), "", vec!["Accepted", "Programmed"]),
        ("jwksConfigMap: keys".into(), "", vec!["Accepted", "KeysNotFound", "KeysNotFound"]),
        ("jwksConfigMap: keys".into(), KEYS, vec!["Accepted", "ResolvedRefs", "Programmed"]),
        ("jwksSecret: keys".into(), "", vec!["Accepted", "KeysNotFound", "KeysNotFound"]),
        (
            "jwksUrl: 'https://id.example/keys'".into(),
            "",
            vec!["Accepted", "KeysNotFound", "KeysNotFound"],
        ),
    ] {
        let attached = format!("selector: {{}}, tokens: [{{issuer: i, audiences: [a], {keys}}}]");
        let policy = authorization("shop", &attached);
        // In the index, the policy has the keys that the control plane has found.
        let mut known = policy.clone();
        let Object::AuthorizationPolicy(one) = &mut known else { panic!() };
        if !filled.is_empty() {
            one.spec.tokens[0].jwks = filled.to_owned();
        }
        index.apply(ObjectChange::Upsert(known));
        let status = policy_status(&index, &policy, None, &at(0)).unwrap();
        let [ancestor] = &status.ancestors[..] else { panic!("{status:?}") };
        let found: Vec<_> = ancestor.conditions.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(found, expected, "{keys}");
    }
}

/// A policy that applies to the whole namespace or to some of its workloads. The proxies of two of these are
/// older.
#[test]
fn a_policy_that_older_proxies_do_not_enforce_is_not_programmed_and_names_their_workloads() {
    let mut index = Index::new(MeshSettings::default());
    for located in parse("mesh.yaml", MESH).unwrap().objects {
        index.apply(ObjectChange::Upsert(located.value));
    }
    let workloads = ["shop/one-0", "shop/one-1"].map(ToOwned::to_owned).into();
    let older = OlderProxies { workloads, others: 0 };
    let said = |attached: &str| {
        let policy = authorization("shop", attached);
        let status = policy_status(&index, &policy, Some(&older), &at(0)).unwrap();
        let [ancestor] = &status.ancestors[..] else { panic!("{status:?}") };
        let programmed = ancestor.conditions.iter().find(|one| one.type_ == PROGRAMMED).unwrap();
        (programmed.reason.clone(), programmed.message.clone())
    };
    let (reason, message) = said("selector: {}");
    assert_eq!(reason, "OlderProxies");
    assert!(message.contains("shop/one-0, shop/one-1"), "{message}");
    // Older proxies are not mentioned if no proxy could enforce the policy in any case.
    assert_eq!(said("selector: {matchLabels: {a: b}}").0, "NotAccepted");
}
