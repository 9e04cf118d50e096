//! Tests explanations of requests.

use leno_analysis::{ExplainQuestion, Explanation, MeshModel, OutsideReach, QuestionError};
use leno_resources::parse;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [run]}
status: {instances: [{name: web-0, addresses: [10.89.0.2], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: guest}
spec: {command: [run]}
status: {instances: [{name: web-0, addresses: [10.89.0.3], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: shop}
spec: {command: [run]}
status: {instances: [{name: plain-0, addresses: [10.89.0.4], meshed: false, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec: {command: [run], serviceAccount: cart, ports: [{port: 8080}]}
status: {instances: [{name: cart-0, addresses: [10.89.0.5], meshed: true, ready: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  ports: [{name: http, port: 80, appProtocol: http}, {name: raw, port: 90, appProtocol: tcp}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [10.89.0.5], targetRef: {kind: Workload, name: cart-0, namespace: shop}}]
ports: [{name: http, port: 8080}, {name: raw, port: 9090}]
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}
---
";
const ROUTES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, port: 80}]
  rules:
    - matches: [{path: {type: Exact, value: /old}}]
      filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /new}, statusCode: 301}}]
    - name: items
      matches: [{path: {value: /items}, headers: [{name: x, value: y}]}]
      filters:
        - type: URLRewrite
          urlRewrite: {hostname: inner, path: {type: ReplacePrefixMatch, replacePrefixMatch: /v2}}
        - type: RequestHeaderModifier
          requestHeaderModifier: {set: [{name: a, value: b}], remove: [z]}
        - type: RequestMirror
          requestMirror: {backendRef: {name: next, port: 80}, percent: 5}
      timeouts: {request: 3s, backendRequest: 500ms}
      backendRefs: [{name: cart, port: 80, weight: 3}, {name: gone, port: 80}]
    - matches: [{path: {value: /empty}}]
      backendRefs: [{name: next, port: 80}]
    - matches: [{path: {value: /bad}}]
      backendRefs: [{name: gone, port: 80}]
    - matches: [{path: {value: /cors}}]
      filters: [{type: CORS, cors: {allowOrigins: ['http://a.example'], allowMethods: [PUT]}}]
      backendRefs: [{name: cart, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mine, namespace: guest}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, namespace: shop, port: 80}]
  rules: [{backendRefs: [{name: next, namespace: shop, port: 80}]}]
";

const STREAMS: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: inner, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, port: 90}]
  hostnames: [cart.shop]
  rules: [{backendRefs: [{name: cart, port: 90}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: rest, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, port: 90}]
  rules: [{backendRefs: [{name: next, port: 80, weight: 1}, {name: cart, port: 90, weight: 3}]}]
";

/// The outcome of a request to a destination outside of the mesh, with these annotations of the namespace and the
/// workload.
fn outside(namespace: &str, workload: &str) -> (&'static str, Option<u16>, Option<String>) {
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {namespace}}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: web, namespace: shop, annotations: {workload}}}\nspec: {{command: [run]}}\n"
    );
    let documents = leno_resources::parse("shop.yaml", &text).expect("documents");
    let mesh = MeshModel::new(documents.objects.into_iter().map(|located| located.value).collect());
    let question = question(Some("shop"), "web", "http://example.com/");
    let outcome = mesh.explain(&question).expect("an answer").outcome;
    (outcome.kind, outcome.status, outcome.leno_error)
}

#[test]
fn what_the_mesh_does_not_know_is_refused_where_egress_is_denied() {
    let denied = ("answered", Some(403), Some("egress-denied".to_owned()));
    let allowed = ("outside", None, None);
    let (nothing, deny, allow) = ("{}", "{leno.dev/egress: deny}", "{leno.dev/egress: allow}");
    assert_eq!(outside(nothing, nothing), allowed);
    assert_eq!(outside(deny, nothing), denied);
    assert_eq!(outside(nothing, deny), denied);
    // The workload's annotation takes precedence over the namespace's.
    assert_eq!(outside(deny, allow), allowed);
    assert_eq!(outside(allow, deny), denied);
}

#[test]
fn connections_are_told_of_by_the_name_that_they_ask_for() {
    let documents = parse("shop.yaml", &format!("{MESH}{ROUTES}{STREAMS}")).expect("good");
    let mesh = MeshModel::new(documents.objects.into_iter().map(|one| one.value).collect());
    for (request, route, backends) in [
        ("tls://cart.shop:90", "inner", 1),
        ("tls://cart:90", "rest", 2),
        ("tcp://cart.shop:90", "rest", 2),
        ("https://10.96.0.1:90", "rest", 2),
    ] {
        let said = mesh.explain(&question(Some("shop"), "web", request)).expect("an answer");
        assert_eq!(said.outcome.kind, "relayed", "{said:?}");
        assert_eq!(said.rule.as_ref().map(|rule| &*rule.route), Some(route), "{request}");
        assert_eq!(said.backends.len(), backends, "{request}");
        let held: Vec<_> = said.considered.iter().filter(|one| one.holds).collect();
        assert!(held.len() == 1 && held[0].rule.contains(route), "{:?}", said.considered);
    }
}

fn mesh() -> MeshModel {
    let documents = parse("shop.yaml", &format!("{MESH}{ROUTES}")).expect("good documents");
    MeshModel::new(documents.objects.into_iter().map(|located| located.value).collect())
}

fn question(namespace: Option<&str>, client: &str, request: &str) -> ExplainQuestion {
    let words: Vec<String> = request.split('|').map(str::to_owned).collect();
    ExplainQuestion::parse(namespace, client, &words).expect("a request")
}

fn ask(namespace: &str, client: &str, request: &str) -> Explanation {
    mesh().explain(&question(Some(namespace), client, request)).expect("an answer")
}

#[test]
fn a_rule_is_told_with_all_that_it_does() {
    let said = ask("shop", "deploy/web", "GET|http://cart/items/1?q=2|-H|x: y");
    let rule = said.rule.as_ref().expect("a rule");
    assert_eq!((rule.kind, &*rule.route, rule.index), ("HTTPRoute", "cart", 1));
    assert_eq!(rule.name.as_deref(), Some("items"));
    assert_eq!(said.outcome.kind, "forwarded");
    assert_eq!(
        (said.timeouts.request_ms, said.timeouts.backend_request_ms),
        (Some(3000), Some(500))
    );
    let [cart, gone] = &said.backends[..] else { panic!("{said:?}") };
    assert_eq!((&*cart.service, cart.port, cart.share), ("shop/cart", 80, 0.75));
    assert_eq!(cart.host.as_deref(), Some("inner"));
    assert_eq!(cart.target.as_deref(), Some("/v2/1?q=2"));
    assert_eq!(cart.request_headers.set, [("a".to_owned(), "b".to_owned())]);
    assert_eq!(cart.request_headers.remove, ["z"]);
    assert_eq!((&*cart.mirrors[0].to, cart.mirrors[0].numerator), ("shop/next:80", 5));
    let endpoint = &cart.endpoints[0];
    assert_eq!(endpoint.address, "10.89.0.5:8080");
    assert_eq!(endpoint.identity.as_deref(), Some("spiffe://cluster.local/ns/shop/sa/cart"));
    let error = "backend-invalid; reason=BackendNotFound; by=\"HTTPRoute shop/cart rule items\"";
    assert_eq!((gone.share, gone.leno_error.as_deref()), (0.25, Some(error)));
    let considered: Vec<(bool, bool, String)> = said
        .considered
        .iter()
        .map(|one| (one.holds, one.reached, format!("{}: {}", one.rule, one.reason)))
        .collect();
    let of = |rest: &str| format!("HTTPRoute shop/cart rule {rest}");
    assert_eq!(considered[0], (false, true, of("0: the path is not /old")));
    assert!(considered.contains(&(true, true, of("items: holds"))), "{considered:?}");
    assert!(!considered.last().expect("some").1, "{considered:?}");
}

#[test]
fn every_outcome_is_told() {
    for (client, request, kind, status, error) in [
        ("web", "http://cart/old", "answered", Some(301), None),
        ("web", "http://cart/else", "failed", Some(404), Some("no-route-matches")),
        ("web", "http://cart/items", "failed", Some(404), Some("no-route-matches")),
        ("web", "http://cart/empty", "failed", Some(503), Some("no-endpoints")),
        (
            "web",
            "http://cart.shop/bad",
            "failed",
            Some(500),
            Some("backend-invalid; reason=BackendNotFound; by=\"HTTPRoute shop/cart rule 3\""),
        ),
        (
            "web",
            "OPTIONS|http://cart/cors|-H|Origin: http://a.example|-H|Access-Control-Request-Method: PUT",
            "answered",
            Some(204),
            None,
        ),
        ("web", "http://cart/cors", "forwarded", None, None),
        ("web", "http://cart:90/", "relayed", None, None),
        ("web", "tcp://cart:80", "relayed", None, None),
        ("web", "http://cart:81/", "failed", None, None),
        ("web", "http://10.96.0.1/old", "answered", Some(301), None),
        ("web", "http://10.89.0.5:8080/", "forwarded", None, None),
        ("web", "http://cart-0.cart:8080/", "forwarded", None, None),
        ("web", "http://cart.shop.svc.cluster.local/old", "answered", Some(301), None),
        ("web", "http://example.com/", "outside", None, None),
        ("plain", "http://cart/", "unmeshed", None, None),
    ] {
        let said = ask("shop", client, request);
        let outcome = &said.outcome;
        let told = (outcome.kind, outcome.status, outcome.leno_error.as_deref());
        assert_eq!(told, (kind, status, error), "{request}: {said:?}");
    }
    let said = ask("shop", "web", "http://cart/old?a=b");
    assert_eq!(said.outcome.headers, [("Location".into(), "http://cart/new?a=b".into())]);
}

#[test]
fn a_consumer_route_holds_for_its_namespace_and_the_others_are_told() {
    let said = ask("guest", "web", "http://cart.shop/old");
    assert_eq!(said.rule.as_ref().map(|rule| &*rule.route), Some("mine"));
    let displaced = "HTTPRoute shop/cart is displaced by the routes of the namespace guest";
    assert!(said.ignored[0].starts_with(displaced), "{:?}", said.ignored);
    let said = ask("shop", "web", "http://cart/old");
    assert_eq!(said.ignored, ["HTTPRoute guest/mine applies only to clients in guest"]);
}

#[test]
fn clients_are_found_by_every_name_and_others_are_refused() {
    let mesh = mesh();
    let client = |namespace: Option<&str>, client: &str| {
        let answer = mesh.explain(&question(namespace, client, "http://cart.shop/"));
        answer.map(|said| format!("{}/{}", said.client.namespace, said.client.workload))
    };
    for (namespace, name, expected) in [
        (None, "cart", "shop/cart"),
        (None, "cart-0", "shop/cart"),
        (None, "shop/web", "shop/web"),
        (None, "guest/web-0", "guest/web"),
        (Some("guest"), "deploy/web", "guest/web"),
        (Some("shop"), "pod/web-0", "shop/web"),
    ] {
        assert_eq!(client(namespace, name).as_deref(), Ok(expected), "{name}");
    }
    for (namespace, name, expected) in [
        (None, "web", "\"web\" is in the namespaces guest, shop: choose one with -n"),
        (Some("shop"), "crat", "there is no workload \"shop/crat\": did you mean shop/cart?"),
        (Some("guest"), "cart", "there is no workload \"guest/cart\": did you mean shop/cart?"),
        (
            None,
            "database",
            "there is no workload \"database\": use one of guest/web, shop/cart, shop/plain, shop/web",
        ),
    ] {
        let error = client(namespace, name).expect_err(name);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_host_that_nothing_has_is_named_with_one_like_it() {
    for (namespace, client, host, meant) in [
        ("shop", "web", "catr", Some("cart")),
        ("shop", "plain", "catr", Some("cart")),
        ("shop", "web", "catr.shop.svc.cluster.local", Some("cart.shop")),
        ("shop", "web", "catr.shop.svc", Some("cart.shop")),
        ("guest", "web", "catr.shop", Some("cart.shop")),
        ("guest", "web", "cart", Some("cart.shop")),
        ("guest", "web", "cart.svc.cluster.local", Some("cart.shop")),
        ("shop", "web", "example.com", None),
        ("guest", "web", "cart.example.com", None),
        ("shop", "web", "10.1.2.3", None),
    ] {
        let said = ask(namespace, client, &format!("http://{host}/"));
        let meant = meant.map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
        assert_eq!(
            said.notes[0],
            format!("nothing in the mesh has the name {host}{meant}"),
            "{said:?}"
        );
    }
}

#[test]
fn requests_are_read_as_people_write_them() {
    let read = |request: &str| question(None, "web", request);
    let plain = read("cart/items?a=b#c");
    assert_eq!((&*plain.method, &*plain.host, plain.port), ("GET", "cart", 80));
    assert_eq!(plain.target, "/items?a=b");
    assert_eq!(read("-X|PUT|http://cart:81").port, 81);
    assert_eq!(read("-X|PUT|http://cart:81").method, "PUT");
    assert_eq!(read("http://[fd00::1]:81/").host, "fd00::1");
    let call = read("grpc://cart:90/shop.Cart/Add");
    assert_eq!((&*call.method, &*call.target), ("POST", "/shop.Cart/Add"));
    assert_eq!(read("http://cart|-H|Host: other").authority(), "other");
    let error = |request: &str| {
        let words: Vec<String> = request.split('|').map(str::to_owned).collect();
        ExplainQuestion::parse(None, "web", &words).expect_err(request)
    };
    assert_eq!(error("GET"), QuestionError::Missing);
    assert_eq!(error("ftp://cart"), QuestionError::Scheme("ftp".into()));
    assert_eq!(error("http://cart:0"), QuestionError::Port("0".into()));
    assert_eq!(error("tcp://cart"), QuestionError::NoPort("tcp".into()));
    assert_eq!(error("http://cart|-H|nothing"), QuestionError::Header("nothing".into()));
    assert_eq!(error("http://cart|more"), QuestionError::Word("more".into()));
    assert_eq!(error("http:///x"), QuestionError::Url("http:///x".into()));
}

/// A server with strict mTLS, services that represent names outside, and a client whose egress is denied.
const NAMES: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: strict, namespace: shop, annotations: {leno.dev/mtls: strict}}
spec: {command: [run], ports: [{port: 80}]}
status: {instances: [{name: strict-0, addresses: [10.89.0.7], meshed: true, ready: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: strict, namespace: shop}
spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: strict-1, namespace: shop, labels: {kubernetes.io/service-name: strict}}
addressType: IPv4
endpoints: [{addresses: [10.89.0.7], targetRef: {kind: Workload, name: strict-0, namespace: shop}}]
ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: alias2.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: alias2, namespace: shop}
spec: {type: ExternalName, externalName: strict.shop.svc.cluster.local.}
---
apiVersion: v1
kind: Service
metadata: {name: away, namespace: shop}
spec: {type: ExternalName, externalName: api.example}
---
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: shop}
spec: {clusterIP: 10.96.0.8, ports: [{name: http, port: 80, appProtocol: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pay-1, namespace: shop, labels: {kubernetes.io/service-name: pay}}
addressType: FQDN
endpoints: [{addresses: [pay.example]}]
ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: to-pay, namespace: shop}
spec: {type: ExternalName, externalName: pay.example}
---
apiVersion: v1
kind: Service
metadata: {name: loop, namespace: shop}
spec: {type: ExternalName, externalName: loop.shop.svc.cluster.local}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [run]}
status: {instances: [{name: web-0, addresses: [10.89.0.2], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: denied, namespace: shop, annotations: {leno.dev/egress: deny}}
spec: {command: [run]}
status: {instances: [{name: denied-0, addresses: [10.89.0.3], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: shop}
spec: {command: [run]}
status: {instances: [{name: plain-0, addresses: [10.89.0.4], meshed: false, ready: true}]}
";

#[test]
fn names_of_names_and_clients_without_a_proxy_are_told_of() {
    let documents = parse("shop.yaml", NAMES).expect("good");
    let objects = documents.objects.into_iter().map(|one| one.value).collect();
    let mesh = MeshModel::new(objects).of_leno_up(OutsideReach::None);
    for (client, url, kind, status, text) in [
        ("web", "http://alias/", "forwarded", None, "goes to one endpoint of the backend"),
        ("web", "http://loop/", "failed", None, "refers to itself in a circle"),
        ("web", "http://away/", "failed", None, "without --uplink"),
        ("web", "https://198.51.100.2/", "failed", None, "without --uplink"),
        ("denied", "http://away/", "answered", Some(403), "the client has leno.dev/egress: deny"),
        ("denied", "https://198.51.100.2/", "failed", None, "is reset"),
        ("plain", "http://strict/", "failed", None, "accepts only mTLS"),
        ("plain", "http://alias/", "failed", None, "accepts only mTLS"),
        ("plain", "http://strict-0.strict/", "failed", None, "accepts only mTLS"),
        ("plain", "http://198.51.100.2/", "unmeshed", None, "has no proxy"),
    ] {
        let said = mesh.explain(&question(Some("shop"), client, url)).expect("an answer");
        let outcome = &said.outcome;
        assert_eq!((outcome.kind, outcome.status), (kind, status), "{client} {url}: {said:?}");
        assert!(outcome.text.contains(text), "{client} {url}: {}", outcome.text);
    }
    // For a client without a proxy, a name leads to the same destination as for one with a proxy.
    for (url, kind, name) in [
        ("http://strict/", "service", "shop/strict"),
        ("http://strict-0.strict/", "workload", "shop/strict-0"),
    ] {
        let said = mesh.explain(&question(Some("shop"), "plain", url)).expect("an answer");
        assert_eq!((said.destination.kind, &*said.destination.name), (kind, name), "{url}");
    }
    let mut said =
        mesh.explain(&question(Some("shop"), "web", "http://alias/")).expect("an answer");
    assert_eq!(
        said.notes,
        [
            "the Service shop/alias is another name for alias2.shop.svc.cluster.local",
            "the Service shop/alias2 is another name for strict.shop.svc.cluster.local",
        ]
    );
    said.eject(("shop", "other"), "strict-0", "failing");
    assert_eq!(said.backends[0].endpoints[0].ejected, None);
    said.eject(("shop", "strict"), "strict-0", "unreachable");
    assert_eq!(said.backends[0].endpoints[0].ejected.as_deref(), Some("unreachable"));
}

#[test]
fn a_name_outside_stands_for_a_service_of_the_clients_namespace_under_leno_up() {
    let objects: Vec<_> = parse("shop.yaml", NAMES).expect("good").objects;
    let objects: Vec<_> = objects.into_iter().map(|one| one.value).collect();
    let mesh = MeshModel::new(objects.clone()).of_leno_up(OutsideReach::Open);
    for (client, url, kind, status, text) in [
        ("web", "http://pay.example/", "forwarded", None, "one endpoint of the backend"),
        ("denied", "http://Pay.example./", "forwarded", None, "one endpoint of the backend"),
        ("web", "https://pay.example/", "failed", None, "the Service has no such port"),
        ("denied", "http://to-pay/", "answered", Some(403), "the address is outside of the mesh"),
        ("plain", "https://pay.example/", "unmeshed", None, "has no proxy"),
    ] {
        let outcome = mesh.explain(&question(Some("shop"), client, url)).expect("good").outcome;
        assert_eq!((outcome.kind, outcome.status), (kind, status), "{client} {url}: {outcome:?}");
        assert!(outcome.text.contains(text), "{client} {url}: {}", outcome.text);
    }
    let of_cluster = MeshModel::new(objects);
    let said = of_cluster.explain(&question(Some("shop"), "web", "https://pay.example/"));
    assert_eq!(said.expect("good").outcome.kind, "outside", "a cluster's DNS has no such name");
}
