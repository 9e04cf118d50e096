//! Routes and grants: which are accepted, and the errors of the others.

use leno_resources::{Kind, Object, parse, to_yaml};

const ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop, creationTimestamp: "2026-01-02T03:04:05Z"}
spec:
  parentRefs: [{group: "", kind: Service, name: cart, port: 80, sectionName: http}]
  hostnames: [cart.example]
  rules:
  - name: items
    matches:
    - path: {type: PathPrefix, value: /items}
      headers: [{name: version, value: two}, {name: user, type: RegularExpression, value: "a.*"}]
      queryParams: [{name: page, type: RegularExpression, value: "[0-9]+"}]
      method: GET
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: a, value: b}], add: [{name: c, value: d}], remove: [e]}
    - type: URLRewrite
      urlRewrite: {hostname: cart-v2, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}
    - type: RequestMirror
      requestMirror: {backendRef: {name: cart-v3, port: 80}, fraction: {numerator: 1, denominator: 3}}
    - type: CORS
      cors: {allowOrigins: ["https://*.example"], allowMethods: ["*"], maxAge: 60}
    timeouts: {request: 10s, backendRequest: 500ms}
    backendRefs:
    - {name: cart-v1, port: 80, weight: 90}
    - name: cart-v2
      port: 80
      weight: 10
      filters:
      - type: ResponseHeaderModifier
        responseHeaderModifier: {remove: [x]}
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https, port: 8443, statusCode: 308}}]
status:
  parents:
  - parentRef: {group: "", kind: Service, name: cart}
    controllerName: leno.dev/controller
    conditions:
    - {type: Accepted, status: "True", reason: Accepted, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: orders}
spec:
  parentRefs: [{group: "", kind: Service, name: orders}]
  rules:
  - matches: [{method: {service: shop.Orders, method: Place}, headers: [{name: beta, value: "1"}]}]
    backendRefs: [{name: orders-v2, port: 9000}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: from-shop, namespace: stock}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: "", kind: Service, name: items}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
"#;

fn problems(text: &str) -> Vec<String> {
    match parse("routes.yaml", text) {
        Ok(documents) => panic!("accepted as {documents:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn routes_and_grants_are_read_and_written() {
    let documents = parse("routes.yaml", ROUTES).unwrap_or_else(|p| panic!("{p:#?}"));
    let kinds: Vec<_> = documents.objects.iter().map(|object| object.value.key().kind).collect();
    assert_eq!(kinds, [Kind::HttpRoute, Kind::GrpcRoute, Kind::ReferenceGrant]);
    assert_eq!(documents.ignored[0].value.kind, "Gateway");
    assert_eq!(documents.objects[1].value.key().to_string(), "GRPCRoute default/orders");
    let Object::HttpRoute(route) = &documents.objects[0].value else { panic!("no HTTPRoute") };
    let rules = route.spec.rules.as_deref().expect("rules");
    let timeouts = rules[0].timeouts.expect("timeouts");
    assert_eq!(timeouts.request.expect("given").0.as_secs(), 10);
    for object in &documents.objects {
        let written = to_yaml(&object.value);
        let again = parse("again.yaml", &written).unwrap_or_else(|p| panic!("{p:#?}\n{written}"));
        assert_eq!(again.objects[0].value, object.value, "{written}");
    }
}

fn route(rule: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: web}}\nspec:\n  rules:\n  - {rule}\n"
    )
}

#[track_caller]
fn refused(cases: &[(&str, &str)]) {
    for (rule, expected) in cases {
        let found = problems(&route(rule));
        let expected = format!("routes.yaml:{expected}");
        assert!(found[0].starts_with(&expected), "{rule}\n  {}\n  {expected}", found[0]);
    }
}

#[test]
fn every_mistake_of_a_rule_is_told_with_its_place() {
    refused(&[
        ("backends: []", "6:5: spec.rules[0].backends: unknown field"),
        (
            "matches: [{path: {value: items}}]",
            "6:30: spec.rules[0].matches[0].path.value: \"items\" is not a path: begin with /",
        ),
        (
            "matches: [{path: {type: RegularExpression, value: '/('}}]",
            "6:55: spec.rules[0].matches[0].path.value: \"/(\" is not a regular expression that can be used: unclosed group",
        ),
        ("matches: [{path: {type: Glob, value: /}}]", "6:29: spec.rules[0].matches[0].path.type: "),
        (
            "matches: [{method: FETCH}]",
            "6:24: spec.rules[0].matches[0].method: \"FETCH\" is not one of GET, HEAD",
        ),
        (
            "matches: [{headers: [{name: 'a b', value: c}]}]",
            "6:33: spec.rules[0].matches[0].headers[0].name: \"a b\" is not the name of a header",
        ),
        ("backendRefs: [{name: web}]", "6:19: spec.rules[0].backendRefs[0].port: is missing"),
        (
            "backendRefs: [{name: web, port: 80, weight: -1}]",
            "6:49: spec.rules[0].backendRefs[0].weight: -1 is not a weight",
        ),
        (
            "timeouts: {request: 10}",
            "6:25: spec.rules[0].timeouts.request: 10 has no unit: write a duration, such as 10s",
        ),
        (
            "timeouts: {request: 1.5s}",
            "6:25: spec.rules[0].timeouts.request: \"1.5s\" is not a duration: write whole numbers",
        ),
        (
            "timeouts: {request: 1s, backendRequest: 2s}",
            "6:45: spec.rules[0].timeouts.backendRequest: 2s is longer than the whole request may take, 1s",
        ),
    ]);
}

#[test]
fn every_mistake_of_a_filter_is_told_with_its_place() {
    refused(&[
        (
            "filters: [{type: URLRewrite}]",
            "6:15: spec.rules[0].filters[0]: urlRewrite is missing, which a URLRewrite needs",
        ),
        (
            "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [Content-Length]}}]",
            "6:78: spec.rules[0].filters[0].requestHeaderModifier.remove[0]: Content-Length delimits a message",
        ),
        (
            "filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]",
            "6:69: spec.rules[0].filters[0].requestRedirect.statusCode: 200 is not one of 301",
        ),
        (
            "filters: [{type: CORS, cors: {allowOrigins: [shop.example]}}]",
            "6:50: spec.rules[0].filters[0].cors.allowOrigins[0]: \"shop.example\" is not an origin",
        ),
        (
            "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}, percent: 101}}]",
            "6:95: spec.rules[0].filters[0].requestMirror.percent: 101 is not from 0 to 100",
        ),
        ("filters: [{type: ExtensionRef}]", "6:22: spec.rules[0].filters[0].type: "),
    ]);
}

#[test]
fn prefixes_are_replaced_only_where_prefixes_are_matched() {
    let rule = "matches: [{path: {type: Exact, value: /a}}]\n    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]";
    assert!(problems(&route(rule))[0].contains("must be of type PathPrefix"));
}

#[test]
fn a_service_as_a_parent_is_of_the_core_group() {
    let text = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web}\nspec:\n  parentRefs: [{kind: Service, name: web}]\n";
    let expected = "routes.yaml:5:16: spec.parentRefs[0].group: a Service is of the core group: write group: \"\"";
    assert_eq!(problems(text), [expected]);
}

#[test]
fn filters_that_only_http_knows_are_refused_for_grpc() {
    let text = "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: web}\nspec:\n  rules:\n  - matches: [{method: {service: a/b}}, {method: {}}]\n    filters: [{type: URLRewrite, urlRewrite: {}}]\n";
    let found = problems(text);
    assert!(found[0].contains("service: \"a/b\" holds a /"), "{found:?}");
    assert!(found[1].contains("names neither a service nor a method"), "{found:?}");
    assert!(found[2].contains("URLRewrite is not a filter of a GRPCRoute"), "{found:?}");
}

const BACKEND_TLS: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: pay, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: pay, sectionName: http}]
  validation:
    hostname: api.example.com
    caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]
    subjectAltNames: [{type: Hostname, hostname: a.example}, {type: URI, uri: 'spiffe://a/b'}]
  options: {vendor.example/x: y}
";

#[test]
fn a_policy_of_tls_is_taken_and_written_as_it_is() {
    let documents = parse("p.yaml", BACKEND_TLS).unwrap();
    let object = &documents.objects[0].value;
    let again = parse("again.yaml", &leno_resources::to_yaml(object)).unwrap();
    assert_eq!(again.objects[0].value, *object);
    let older = BACKEND_TLS.replace("io/v1\n", "io/v1alpha3\n");
    assert!(parse("p.yaml", &older).is_ok());
}

#[test]
fn mistakes_in_a_policy_of_tls_say_where_and_what_to_do() {
    for (from, to, expected) in [
        ("kind: Service", "kind: Pod", "targetRefs[0].kind: Pod of group \"\" cannot be a target"),
        ("hostname: api.example.com", "hostname: ''", "validation.hostname: is missing"),
        ("hostname: api.example.com", "hostname: 192.0.2.1", "validation.hostname: is an address"),
        ("kind: ConfigMap", "kind: Secret", "caCertificateRefs[0].kind: is not a ConfigMap"),
        (
            "    caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]\n",
            "",
            "spec.validation: trusts no authority: set caCertificateRefs",
        ),
        (
            "name: ca}]",
            "name: ca}]\n    wellKnownCACertificates: System",
            "wellKnownCACertificates: contradicts caCertificateRefs",
        ),
        ("uri: 'spiffe://a/b'", "hostname: x", "subjectAltNames[1]: needs uri, and no hostname"),
        ("uri: 'spiffe://a/b'", "uri: nothing", "uri: \"nothing\" is not a URI"),
    ] {
        let text = BACKEND_TLS.replacen(from, to, 1);
        assert_ne!(text, BACKEND_TLS, "{from}");
        let problems = parse("p.yaml", &text).expect_err(expected);
        let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|problem| problem.contains(expected)), "{expected}: {found:#?}");
    }
}

#[test]
fn an_alias_names_a_host_and_a_config_map_keeps_authorities_alone() {
    let alias = |name: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: pay}}\n\
             spec: {{type: ExternalName, {name}}}\n"
        );
        parse("p.yaml", &text).map(drop).map_err(|problems| problems[0].to_string())
    };
    assert!(alias("externalName: API.example.com.").is_ok());
    assert!(alias("ports: []").unwrap_err().contains("externalName: is missing"));
    assert!(alias("externalName: 192.0.2.1").unwrap_err().contains("is an address"));
    assert!(alias("externalName: 'a b'").is_err());
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca}\n\
               data: {ca.crt: x, other: y}\nbinaryData: {z: aGV5}\n";
    let documents = parse("p.yaml", map).unwrap();
    let leno_resources::Object::ConfigMap(map) = &documents.objects[0].value else {
        panic!("{documents:?}");
    };
    assert_eq!(map.data.as_ref().unwrap().keys().collect::<Vec<_>>(), ["ca.crt"]);
    assert!(map.binary_data.is_none());
}
