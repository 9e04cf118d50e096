//! Tests which policies apply, where they are written, and why the others do not apply.

use leno_analysis::{ExplainQuestion, MeshModel, PolicyAnswer};
use leno_resources::parse;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [run], ports: [{port: 8080}]}
status: {instances: [{name: cart-0, addresses: [10.89.0.5], meshed: true, ready: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80, appProtocol: http}, {name: b, port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [10.89.0.5], targetRef: {kind: Workload, name: cart-0, namespace: shop}}]
ports: [{name: http, port: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, port: 80}]
  rules:
  - name: items
    matches: [{path: {value: /items}}]
    backendRefs: [{name: cart, port: 80}]
  - matches: [{path: {value: /own}}]
    retry: {codes: [502], attempts: 3}
    backendRefs: [{name: cart, port: 80}]
  - matches: [{path: {value: /split}}]
    backendRefs: [{name: cart, port: 80, weight: 1}, {name: cart, port: 80, weight: 3}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: wide, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: cart}]
  retries: {on: [503], attempts: 2}
  timeouts: {request: 10s}
  limits: {requests: 5}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: slow, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: cart, sectionName: items}]
  retries: {on: [reset]}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: other, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: cart, sectionName: b}]
  limits: {requests: 9}
---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: much, namespace: shop}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: cart}]
  limits: [{requests: 100, by: {client: true}}]
";

fn policies(request: &str) -> Vec<PolicyAnswer> {
    let documents = parse("shop.yaml", MESH).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let objects = documents.objects.iter().map(|one| one.value.clone()).collect();
    let mesh = MeshModel::new(objects).written_in(&documents);
    let question = ExplainQuestion::parse(Some("shop"), "cart", &[request.to_owned()]);
    mesh.explain(&question.expect("a request")).expect("an answer").policies
}

fn one<'a>(all: &'a [PolicyAnswer], part: &str, name: &str) -> &'a PolicyAnswer {
    let mut found = all.iter().filter(|one| one.part == part && one.name == name);
    let answer = found.next().unwrap_or_else(|| panic!("no {part} of {name}: {all:#?}"));
    assert!(found.next().is_none(), "{part} of {name} twice");
    answer
}

#[test]
fn the_narrower_policy_holds_part_by_part() {
    let all = policies("http://cart/items");
    let slow = one(&all, "retries", "slow");
    assert!(slow.holds && slow.says.starts_with("1 more tries on reset; at most 20 %"), "{slow:?}");
    assert_eq!(slow.reason, "it applies to HTTPRoute shop/cart rule items");
    let (before, _) =
        MESH.split_once("\nkind: TrafficPolicy\nmetadata: {name: slow").expect("its place");
    let line = before.lines().count();
    assert_eq!(slow.place.as_deref(), Some(&*format!("shop.yaml:{line}:1")));
    let wide = one(&all, "retries", "wide");
    let narrower =
        "TrafficPolicy shop/slow is more specific: it applies to HTTPRoute shop/cart rule items";
    assert_eq!((wide.holds, &*wide.reason), (false, narrower));
    // The wide policy applies to everything that the narrow policy does not set.
    let timeout = one(&all, "timeouts.request", "wide");
    assert_eq!((timeout.holds, &*timeout.says), (true, "10s"));
    assert!(one(&all, "limits", "wide").holds);
    let other = one(&all, "limits", "other");
    assert_eq!((other.holds, &*other.reason), (false, "it applies only to port 81"));
    let limit = one(&all, "rate limit", "much");
    assert_eq!(
        limit.says,
        "100 requests in 1s for each client, at most 100 at once, of each instance"
    );
    assert!(limit.holds && limit.kind == "RateLimitPolicy");
}

#[test]
fn a_rule_speaks_for_itself() {
    let all = policies("http://cart/own");
    let own = one(&all, "retries", "cart");
    assert_eq!((own.holds, own.kind), (true, "HTTPRoute"));
    assert!(own.says.starts_with("3 more tries on 502, connect-failure"), "{own:?}");
    let wide = one(&all, "retries", "wide");
    assert_eq!(wide.reason, "the rule has its own retries, within the budget of this policy");
    assert!(!wide.holds && !one(&all, "retries", "slow").holds);
}

#[test]
fn without_a_rule_those_of_the_service_hold() {
    let all = policies("http://cart:81/");
    assert!(one(&all, "retries", "wide").holds);
    let slow = one(&all, "retries", "slow");
    assert_eq!(slow.reason, "it applies only to HTTPRoute shop/cart rule items");
    assert!(one(&all, "limits", "other").holds && !one(&all, "limits", "wide").holds);
}

#[test]
fn a_backend_that_a_rule_names_twice_is_told_of_once() {
    let all = policies("http://cart/split");
    assert!(one(&all, "limits", "wide").holds && one(&all, "rate limit", "much").holds);
}
