//! Tests every kind of mistake with its position and remedy, and documents without mistakes.

mod authorization;
mod authz;
mod explain;
mod explain_policies;
mod suggest;

use leno_analysis::{Finding, Severity, analyze};
use leno_resources::parse;

/// Two services with a workload each, and one in another namespace.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec: {command: [run], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: cart}, ports: [{name: http, port: 80, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: bytes, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{port: 90, appProtocol: tcp}]}
---
apiVersion: v1
kind: Service
metadata: {name: single, namespace: shop}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: store}
spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}
---
";
const PARENT: &str = "{group: '', kind: Service, name: cart}";

fn findings(text: &str) -> Vec<Finding> {
    let documents = parse("shop.yaml", &format!("{MESH}{text}")).unwrap_or_else(|problems| {
        panic!("{problems:?}\n{text}");
    });
    let objects = documents.objects.iter().map(|located| located.value.clone()).collect();
    analyze(&documents, objects)
}

/// The findings about a text: severity and code, path, reason and remedy of each.
fn shown(text: &str) -> Vec<String> {
    let shown = |one: &Finding| {
        format!("{}[{}] {}: {}; {}", one.severity, one.code, one.path, one.reason, one.remedy)
    };
    findings(text).iter().map(shown).collect()
}

/// The documents of an external service, and a policy that validates it with these authorities.
fn external(port: &str, validation: &str) -> String {
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: pay, namespace: shop}}\n\
         spec: {{type: ExternalName, externalName: pay.example.com, ports: [{{{port}}}]}}\n---\n"
    );
    if validation.is_empty() { service } else { service + &backend_tls("pay", validation) }
}

fn backend_tls(target: &str, validation: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
         metadata: {{name: tls, namespace: shop}}\nspec:\n  \
         targetRefs: [{{group: '', kind: Service, name: {target}}}]\n  \
         validation: {{hostname: pay.example.com, {validation}}}\n---\n"
    )
}

#[test]
fn what_is_outside_is_called_in_clear_or_by_authorities_that_are_there() {
    const SYSTEM: &str = "wellKnownCACertificates: System";
    const GIVEN: &str = "caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]";
    let port = "port: 80, targetPort: 443, appProtocol: http";
    let said = shown(&external(port, ""));
    assert!(
        said[0].starts_with("warning[external-in-clear] spec.ports: requests to port 80"),
        "{said:?}"
    );
    assert_eq!(shown(&external(port, SYSTEM)), [""; 0]);
    assert_eq!(shown(&external("port: 443, appProtocol: https", "")), [""; 0]);
    assert_eq!(shown(&external("port: 443", "")), [""; 0]);
    let said = shown(&external(port, GIVEN));
    let missing = "error[authorities-missing] spec.validation.caCertificateRefs: there is no ConfigMap \
                   shop/ca with ca.crt, so no request is sent to shop/pay";
    assert!(said.len() == 1 && said[0].starts_with(missing), "{said:?}");
    let empty = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: shop}\ndata: {x: y}\n---\n";
    let said = shown(&(external(port, GIVEN) + empty));
    assert!(said[0].contains("ConfigMap shop/ca: it has no ca.crt"), "{said:?}");
    let said = shown(&backend_tls("none", SYSTEM));
    assert!(said[0].starts_with("error[target-not-found]"), "{said:?}");
}

fn route(parent: &str, rules: &str) -> String {
    kind_of_route("HTTPRoute", "r", parent, rules)
}

fn kind_of_route(kind: &str, name: &str, parent: &str, rules: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         parentRefs: [{parent}]\n  rules:\n{rules}---\n"
    )
}

#[test]
fn good_documents_have_no_finding() {
    let rules = "
  - matches: [{path: {type: Exact, value: /a}}, {path: {value: /b}}]
    backendRefs: [{name: cart, port: 80, weight: 0}, {name: cart, port: 80}]
  - matches: [{path: {value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {port: 81}}]
  - filters: [{type: RequestMirror, requestMirror: {backendRef: {name: bytes, port: 90}}}]
    backendRefs: [{name: stock, namespace: store, port: 80}]
";
    let grant = "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: store}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service, name: stock}]
";
    assert_eq!(shown(&(route(PARENT, rules) + grant)), [""; 0]);
}

#[test]
fn every_mistake_in_a_rule_is_found() {
    let to_cart = "  - backendRefs: [{name: cart, port: 80}]\n";
    let backend = |backend: &str| route(PARENT, &format!("  - backendRefs: [{backend}]\n"));
    for (text, expected) in [
        (
            backend("{name: cartt, port: 80}"),
            "error[backend-not-found] spec.rules[0].backendRefs[0]: there is no Service shop/cartt, so its share of the requests gets 500; did you mean cart?",
        ),
        (
            backend("{name: stock, port: 80}"),
            "error[backend-not-found] spec.rules[0].backendRefs[0]: there is no Service shop/stock, so its share of the requests gets 500; did you mean stock in the namespace store?",
        ),
        (
            backend("{name: nobody, port: 80}"),
            "error[backend-not-found] spec.rules[0].backendRefs[0]: there is no Service shop/nobody, so its share of the requests gets 500; add the Service, or name one that exists",
        ),
        (
            backend("{name: cart, port: 80}, {name: cart, port: 8080}"),
            "error[port-not-found] spec.rules[0].backendRefs[1]: shop/cart has no port 8080, so its share of the requests gets 500; it has port 80 (http)",
        ),
        (
            backend("{name: stock, namespace: store, port: 80}"),
            "error[reference-not-granted] spec.rules[0].backendRefs[0]: store does not permit routes of shop to refer to it; add a ReferenceGrant in store: from HTTPRoute in shop, to Service stock",
        ),
        (
            backend("{group: example.org, kind: Bucket, name: b}"),
            "error[backend-kind] spec.rules[0].backendRefs[0]: a Bucket cannot be a backend here; refer to a Service of the core group",
        ),
        (
            backend("{name: cart, port: 80, weight: 0}"),
            "error[weights-zero] spec.rules[0].backendRefs: all weights are zero, so requests that the rule matches get 500; give one of them a weight, or remove all weights",
        ),
        (
            route(PARENT, "  - name: empty\n"),
            "error[no-backend] spec.rules[0]: the rule names no backend, so requests that it matches get 500; add backendRefs, or a RequestRedirect",
        ),
        (
            route(
                PARENT,
                &format!(
                    "{to_cart}    filters: [{{type: RequestMirror, requestMirror: {{backendRef: {{name: crat, port: 80}}}}}}]\n"
                ),
            ),
            "error[backend-not-found] spec.rules[0].filters[0].requestMirror.backendRef: there is no Service shop/crat, so its share of the requests gets 500; did you mean cart?",
        ),
    ] {
        assert_eq!(shown(&text), [expected], "{text}");
    }
}

#[test]
fn a_match_by_a_header_with_white_space_at_its_ends_is_found() {
    let rules = "
  - matches: [{headers: [{name: a, value: b}, {name: c, value: 'd '}]}]
    backendRefs: [{name: cart, port: 80}]
  - matches: [{headers: [{name: a, type: RegularExpression, value: ' *'}], queryParams: [{name: a, value: ' '}]}]
    backendRefs: [{name: cart, port: 80}]
";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let rules = match kind {
            "GRPCRoute" => rules.replace(", queryParams: [{name: a, value: ' '}]", ""),
            _ => rules.to_owned(),
        };
        let found = shown(&kind_of_route(kind, "r", PARENT, &rules));
        let start = "warning[header-unmatched] spec.rules[0].matches[0].headers[1].value: no request matches";
        let of_header: Vec<_> = found.iter().filter(|one| one.starts_with(start)).collect();
        assert_eq!(of_header.len(), 1, "{kind}: {found:?}");
        assert!(
            of_header[0].ends_with("as in \"d \", is not part of it; write \"d\""),
            "{found:?}"
        );
        assert_eq!(found.iter().filter(|one| one.contains("header-unmatched")).count(), 1);
    }
}

#[test]
fn every_mistake_in_an_attachment_is_found() {
    let to_cart = "  - backendRefs: [{name: cart, port: 80}]\n";
    let parent = |parent: &str| route(parent, to_cart);
    for (text, expected) in [
        (
            parent("{group: '', kind: Service, name: catr}"),
            "error[parent-not-found] spec.parentRefs[0].name: there is no Service shop/catr, so the route has no effect; did you mean cart?",
        ),
        (
            parent("{group: '', kind: Service, name: cart, port: 81}"),
            "error[parent-port-not-found] spec.parentRefs[0].port: shop/cart has no such port, so the route has no effect; it has port 80 (http)",
        ),
        (
            parent("{group: '', kind: Service, name: cart, sectionName: web}"),
            "error[parent-port-not-found] spec.parentRefs[0].sectionName: shop/cart has no such port, so the route has no effect; it has port 80 (http)",
        ),
        (
            parent("{group: '', kind: Service, name: bytes}"),
            "warning[parent-opaque] spec.parentRefs[0]: the port of shop/bytes is opaque, so the proxy sees no requests; set its appProtocol to http, http2 or grpc",
        ),
        (
            parent("{group: '', kind: Service, name: single}"),
            "warning[parent-headless] spec.parentRefs[0]: shop/single is headless, so clients connect to its instances directly, without routes; give the Service an address: remove clusterIP: None",
        ),
        (
            parent("{name: gateway}"),
            "warning[route-of-nothing] spec.parentRefs: attaches to no Service, so it has no effect in a mesh; name one: parentRefs: [{group: \"\", kind: Service, name: ...}]",
        ),
        (
            parent(PARENT).replace("  rules:", "  hostnames: [cart.example]\n  rules:"),
            "warning[hostnames-unused] spec.hostnames: hostnames have no effect in a route of a Service; match the header Host instead",
        ),
        (
            kind_of_route("GRPCRoute", "g", PARENT, to_cart),
            "warning[grpc-over-http1] spec.parentRefs[0]: the port of shop/cart is HTTP/1.1, which carries no gRPC; set its appProtocol to grpc",
        ),
    ] {
        assert_eq!(shown(&text), [expected], "{text}");
    }
}

#[test]
fn what_no_request_reaches_is_found() {
    let two = "  - matches: [{path: {value: /a}}, {path: {value: /a/}}]
    backendRefs: [{name: cart, port: 80}]
  - name: last
    matches: [{path: {type: RegularExpression, value: '/b.*'}}, {path: {value: /b/c}}]
    backendRefs: [{name: cart, port: 80}]
";
    let found = shown(&route(PARENT, two));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("warning[match-shadowed] spec.rules[0].matches[1]: no request to port 80 of shop/cart reaches this: HTTPRoute shop/r rule 0 match 0 at shop.yaml:"), "{found:?}");
    assert!(
        found[1].contains("spec.rules[1].matches[1]: ")
            && found[1].contains("rule last match 0 at shop.yaml:"),
        "{found:?}"
    );

    let together =
        "  - matches: [{headers: [{name: v, value: one}]}, {headers: [{name: v, value: two}]}]
    backendRefs: [{name: cart, port: 80}]
  - matches:
    - headers: [{name: v, type: RegularExpression, value: one|two}]
    - headers: [{name: v, value: two}]
    backendRefs: [{name: cart, port: 80}]
";
    let found = shown(&route(PARENT, together));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("warning[match-shadowed] spec.rules[1]: no request to port 80 of shop/cart reaches this: HTTPRoute shop/r rule 0 match 0")
            && found[0].contains(" and HTTPRoute shop/r rule 0 match 1")
            && found[0].contains("match them all together"),
        "{found:?}"
    );

    let one = "  - backendRefs: [{name: cart, port: 80}]\n";
    let both = kind_of_route("HTTPRoute", "a", PARENT, one)
        + &kind_of_route("HTTPRoute", "b", PARENT, one);
    let found = shown(&both);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("warning[routes-conflict] spec.rules[0]: no request to port 80 of shop/cart reaches this: HTTPRoute shop/a rule 0 match 0"), "{found:?}");

    let kinds = route(PARENT, one) + &kind_of_route("GRPCRoute", "g", PARENT, one);
    let found = shown(&kinds);
    assert!(
        found.iter().any(|one| one.starts_with(
            "warning[kind-displaced] spec: a GRPCRoute is attached to port 80 of shop/cart"
        )),
        "{found:?}"
    );
}

#[test]
fn routes_of_connections_are_checked_too() {
    let bytes = "{group: '', kind: Service, name: bytes}";
    let tcp = |name: &str, to: &str| {
        kind_of_route("TCPRoute", name, bytes, &format!("  - backendRefs: [{to}]\n"))
    };
    assert_eq!(shown(&tcp("a", "{name: bytes, port: 90}")), [""; 0]);
    for (to, code) in [
        ("{name: nobody, port: 90}", "error[backend-not-found] spec.rules[0].backendRefs[0]: "),
        ("{name: bytes, port: 91}", "error[port-not-found] "),
        ("{name: stock, namespace: store, port: 80}", "error[reference-not-granted] "),
        ("{name: bytes, port: 90, weight: 0}", "error[weights-zero] "),
    ] {
        let found = shown(&tcp("a", to));
        assert!(found.len() == 1 && found[0].starts_with(code), "{to}: {found:?}");
    }
    let to = "{name: bytes, port: 90}";
    let conflict = "warning[routes-conflict] spec: no connection to port 90 of shop/bytes follows this route: TCPRoute shop/a takes precedence; the older route takes precedence, then the first by name: remove one of the two";
    assert_eq!(shown(&(tcp("a", to) + &tcp("b", to))), [conflict]);
    let tls = |name: &str, hosts: &str| {
        kind_of_route("TLSRoute", name, bytes, &format!("  - backendRefs: [{to}]\n"))
            .replace("  rules:", &format!("  hostnames: [{hosts}]\n  rules:"))
    };
    let found = shown(&(tls("a", "a.b, '*.c'") + &tls("b", "d.e, '*.c'")));
    assert!(
        found.len() == 1 && found[0].starts_with("warning[routes-conflict] spec.hostnames[1]: "),
        "{found:?}"
    );
}

#[test]
fn policies_of_nothing_and_those_that_write_twice_are_found() {
    const LIMITS: &str = "  limits: {requests: 5}\n";
    let traffic = |target: &str, spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
             metadata: {{name: p, namespace: shop}}\nspec:\n  targetRefs: [{target}]\n{spec}---\n"
        )
    };
    let cart = "{group: '', kind: Service, name: cart}";
    let retries = |on: &str| format!("  retries: {{on: [{on}], nonIdempotent: true}}\n");
    let good = [
        traffic(cart, LIMITS),
        traffic(&cart.replace("cart}", "cart, sectionName: http}"), LIMITS),
        traffic(&cart.replace("cart}", "cart, sectionName: '80'}"), LIMITS),
        traffic(cart, &retries("connect-failure, refused-stream")),
        traffic(cart, "  retries: {on: [5xx, reset]}\n"),
    ];
    for text in good {
        assert_eq!(shown(&text), [""; 0], "{text}");
    }
    for (text, expected) in [
        (
            traffic("{group: '', kind: Service, name: crat}", LIMITS),
            "error[target-not-found] spec.targetRefs[0].name: there is no Service shop/crat, so the policy has no effect; did you mean cart?",
        ),
        (
            traffic(&cart.replace("cart}", "cart, sectionName: web}"), LIMITS),
            "error[target-port-not-found] spec.targetRefs[0].sectionName: shop/cart has no port web, so the policy has no effect; it has port 80 (http)",
        ),
        (
            traffic(cart, &retries("connect-failure, 5xx, reset")),
            "warning[retries-repeat-writes] spec.retries.nonIdempotent: a POST that an application may have carried out is sent again, with its body, on 5xx, reset; leave nonIdempotent out, or retry on connect-failure and refused-stream alone",
        ),
        (
            "apiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [{group: leno.dev, kind: Workload, name: crat}], limits: [{requests: 5}]}\n".to_owned(),
            "error[target-not-found] spec.targetRefs[0].name: there is no Workload shop/crat, so the policy has no effect; did you mean cart?",
        ),
    ] {
        assert_eq!(shown(&text), [expected], "{text}");
    }
}

#[test]
fn objects_without_effect_are_found() {
    let grant = |namespace: &str, kind: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\n\
             metadata: {{name: g, namespace: store}}\nspec:\n  \
             from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: {namespace}}}]\n  \
             to: [{{group: '', kind: Service}}]\n---\n"
        )
    };
    let user = route(PARENT, "  - backendRefs: [{name: stock, namespace: store, port: 80}]\n");
    assert_eq!(shown(&(user.clone() + &grant("shop", "HTTPRoute"))), [""; 0]);
    for (namespace, kind) in [("shopp", "HTTPRoute"), ("shop", "GRPCRoute")] {
        let found = shown(&(user.clone() + &grant(namespace, kind)));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("error[reference-not-granted]"), "{found:?}");
        assert!(found[1].starts_with("warning[grant-unused] spec: no route uses"), "{found:?}");
    }
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: shop, labels: {kubernetes.io/service-name: crat}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{port: 80}]\n";
    assert_eq!(
        shown(slice),
        [
            "warning[endpoints-of-nobody] metadata.labels: there is no Service shop/crat; did you mean cart?"
        ]
    );
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: shop}\nspec: {clusterIP: 10.96.0.9, selector: {app: crat}, ports: [{port: 80}]}\n";
    let found = shown(service);
    assert!(
        found.len() == 1 && found[0].starts_with("warning[selects-nothing] spec.selector: "),
        "{found:?}"
    );
}

#[test]
fn a_service_that_names_no_waypoint_of_its_own_is_found() {
    let service = |labels: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: shop, labels: {{{labels}}}}}\nspec: {{clusterIP: \
             10.96.0.9, ports: [{{port: 80}}]}}\n"
        )
    };
    let waypoint = |namespace: &str, account: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: edge, namespace: {namespace}, labels: \
             {{leno.dev/waypoint: edge}}}}\nspec: {{serviceAccount: {account}, command: [x]}}\n"
        )
    };
    let front = |namespace: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: edge, namespace: {namespace}}}\nspec: {{clusterIP: 10.96.0.8, \
             selector: {{leno.dev/waypoint: edge}}, ports: [{{port: 15008}}]}}\n"
        )
    };
    let own = service("leno.dev/use-waypoint: edge");
    let found = shown(&own);
    assert!(found.len() == 1 && found[0].contains("there is no waypoint shop/edge"), "{found:?}");
    let found = shown(&[&*own, &waypoint("shop", "other"), &front("shop")].concat());
    assert!(found.len() == 2 && found[0].contains("service account edge"), "{found:?}");
    assert!(
        found[1].contains("its service account is other; write serviceAccount: edge"),
        "{found:?}"
    );
    let found = shown(&[&*own, &waypoint("shop", "edge")].concat());
    assert!(found.len() == 1 && found[0].contains("no Service edge selects it"), "{found:?}");
    assert_eq!(shown(&[&*own, &waypoint("shop", "edge"), &front("shop")].concat()), [""; 0]);
    let far = service("leno.dev/use-waypoint: edge, leno.dev/use-waypoint-namespace: far");
    let found = shown(&[&*far, &waypoint("far", "edge"), &front("far")].concat());
    assert!(found.len() == 1 && found[0].contains("serves only its own namespace"), "{found:?}");
}

/// Regression: workloads that no client could reach, and workloads that could not be a waypoint, were not
/// reported.
#[test]
fn a_workload_that_no_waypoint_leads_to_is_found_and_one_that_is_none() {
    let workload = |labels: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: edge, namespace: shop, {labels}}}\nspec: \
             {{serviceAccount: edge, command: [x]}}\n"
        )
    };
    let services = |labels: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: own, namespace: shop, labels: {{{labels}}}}}\nspec: {{clusterIP: \
             10.96.0.9, selector: {{app: own}}, ports: [{{port: 80}}]}}\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: edge, \
             namespace: shop}}\nspec: {{clusterIP: 10.96.0.8, selector: {{leno.dev/waypoint: edge}}, ports: [{{port: 15008}}]}}\n---\n\
             apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: own, namespace: shop, labels: {{app: own, \
             leno.dev/use-waypoint: edge}}}}\nspec: {{command: [x]}}\n---\n"
        )
    };
    let waypoint = workload("labels: {leno.dev/waypoint: edge}");
    let used = services("leno.dev/use-waypoint: edge");
    assert_eq!(shown(&[&*used, &waypoint].concat()), [""; 0]);
    let found = shown(&[&*services(""), &waypoint].concat());
    let expected =
        "no Service of the workload uses the waypoint shop/edge: the workload permits no client";
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    let found = shown(&workload("labels: {leno.dev/use-waypoint: absent}"));
    let expected = "there is no waypoint shop/absent: the workload permits no client";
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    let found = shown(&workload("annotations: {leno.dev/waypoint: edge}"));
    assert!(found.len() == 1 && found[0].contains("it is a label"), "{found:?}");
}

#[test]
fn a_finding_is_one_line_with_its_place() {
    let text = route(
        PARENT,
        "  - backendRefs:\n      - {name: cart, port: 80}\n      - {name: cartt, port: 80}\n",
    );
    let line =
        MESH.lines().count() + 1 + text.lines().position(|line| line.contains("cartt")).unwrap();
    let [finding] = &findings(&text)[..] else { panic!("one finding") };
    assert_eq!((finding.line, finding.severity), (line as u64, Severity::Error));
    let start =
        format!("shop.yaml:{line}:9: spec.rules[0].backendRefs[1]: error[backend-not-found]: ");
    assert!(finding.to_string().starts_with(&start), "{finding}");
}

fn policy(name: &str, target: &str, parts: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
         metadata: {{name: {name}, namespace: shop}}\nspec:\n  targetRefs: [{target}]\n{parts}---\n"
    )
}

#[test]
fn parts_of_policies_without_effect_are_found() {
    let bytes = "{group: '', kind: Service, name: bytes}";
    assert_eq!(
        shown(&policy(
            "p",
            bytes,
            "  retries: {on: [5xx]}\n  limits: {requests: 5, connections: 5}\n  timeouts: {idle: 1h}\n"
        )),
        [
            "warning[policy-on-bytes] spec.retries: retries applies to requests, but Service shop/bytes is opaque (by its appProtocol); remove it, or declare appProtocol: http, http2 or \
             grpc",
            "warning[policy-on-bytes] spec.limits.requests: limits.requests applies to requests, but Service shop/bytes is opaque (by its appProtocol); remove it, or declare \
             appProtocol: http, http2 or grpc",
        ]
    );
    let cart = "{group: '', kind: Service, name: cart}";
    let both = policy("a", cart, "  retries: {on: [5xx]}\n  timeouts: {request: 1s}\n")
        + &policy("b", cart, "  retries: {on: [reset]}\n  limits: {requests: 5}\n");
    assert_eq!(
        shown(&both),
        [
            "warning[policy-conflict] spec.retries: has no effect: TrafficPolicy shop/a sets retries for \
          Service shop/cart, too, and takes precedence because it is first by name; remove retries here, or merge both policies"
        ]
    );
    // Each timeout counts as a separate part of a policy.
    let apart = policy("a", cart, "  timeouts: {request: 1s, idle: 1m}\n")
        + &policy("b", cart, "  timeouts: {response: 1s, idle: 2m}\n");
    let conflicts = shown(&apart);
    let start = "warning[policy-conflict] spec.timeouts.idle: ";
    assert!(conflicts.len() == 1 && conflicts[0].starts_with(start), "{conflicts:?}");
}

#[test]
fn of_two_conflicting_policies_the_newer_one_is_reported() {
    let created = |name: &str, day: u32| {
        policy(name, "{group: '', kind: Service, name: cart}", "  retries: {on: [5xx]}\n").replace(
            "namespace: shop",
            &format!("namespace: shop, creationTimestamp: 2026-01-0{day}T00:00:00Z"),
        )
    };
    let conflicts = findings(&(created("a", 2) + &created("b", 1)));
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0].object, "TrafficPolicy shop/a");
    let reason = "has no effect: TrafficPolicy shop/b sets retries for Service shop/cart, too, and takes \
                  precedence because it is older";
    assert_eq!(conflicts[0].reason, reason);
}

#[test]
fn mistakes_about_ports_are_found() {
    let service = |spec: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: shop}}\n\
             spec: {{clusterIP: 10.96.0.9, selector: {{app: cart}}, {spec}}}\n"
        )
    };
    for (text, expected) in [
        (
            service("ports: [{port: 8000, targetPort: 8080}]"),
            "warning[target-port-of-no-workload] spec.ports[0].targetPort: no selected workload has a \
             port 8080; they have 80: set targetPort, or declare it there",
        ),
        (
            service("ports: [{port: 8000}]"),
            "warning[target-port-of-no-workload] spec.ports[0].port: no selected workload has a port \
             8000; they have 80: set targetPort, or declare it there",
        ),
        (
            service("type: NodePort, ports: [{port: 80, nodePort: 30080}]"),
            "warning[port-of-nodes] spec.type: `leno up` opens no port of this machine for a Service of \
             type NodePort; give a port of the Workload `published: PORT`, or use leno port-forward",
        ),
        (
            service("ports: [{port: 80, appProtocol: htpp}]"),
            "warning[protocol-unknown] spec.ports[0].appProtocol: \"htpp\" is not a protocol that Leno supports, so the port is opaque; did you mean http?",
        ),
        (
            service("ports: [{port: 80, appProtocol: gopherish}]"),
            "warning[protocol-unknown] spec.ports[0].appProtocol: \"gopherish\" is not a protocol that Leno supports, so the port is opaque; declare http, http2, grpc, https, tls or tcp, or remove it",
        ),
        (
            external("port: 80", ""),
            "warning[https-cut-off] spec.ports[0]: an application that connects to https://pay.example.com is refused, because the name has a virtual address with only the listed ports; list port 443 as \
             well: {name: https, port: 443, appProtocol: https}",
        ),
    ] {
        assert_eq!(shown(&text), [expected], "{text}");
    }
    for good in ["mysql", "example.com/own", "gRPC", "kubernetes.io/h2c"] {
        let text = service(&format!("ports: [{{port: 80, appProtocol: {good}}}]"));
        assert_eq!(shown(&text), [""; 0], "{text}");
    }
}

#[test]
fn a_policy_of_another_mesh_is_an_error() {
    let document = |version: &str, kind: &str| {
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x, namespace: shop}}\n---\n"
        )
    };
    for (text, expected) in [
        (
            document("security.istio.io/v1", "AuthorizationPolicy"),
            "error[policy-of-another-mesh] : Leno ignores AuthorizationPolicy of Istio, so what it forbids is allowed here; rewrite it as a policy of leno.dev, then remove it from these files",
        ),
        (
            document("policy.linkerd.io/v1alpha1", "AuthorizationPolicy"),
            "error[policy-of-another-mesh] : Leno ignores AuthorizationPolicy of Linkerd, so what it forbids is allowed here; rewrite it as a policy of leno.dev, then remove it from these files",
        ),
        (
            document("networking.istio.io/v1", "VirtualService"),
            "warning[document-of-another-mesh] : Leno ignores VirtualService of Istio, so it has no effect here; rewrite it as a document of the Gateway API or of leno.dev",
        ),
        (
            document("networking.k8s.io/v1", "NetworkPolicy"),
            "warning[network-policy] : only the network of a cluster enforces it, so what it forbids is allowed in leno up; write an AuthorizationPolicy of leno.dev for what must be forbidden here too",
        ),
    ] {
        assert_eq!(shown(&text), [expected], "{text}");
    }
    assert_eq!(shown(&document("apps/v1", "Deployment")), [""; 0]);
}
