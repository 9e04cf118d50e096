//! Tests what clients of a service with a waypoint receive, and what the waypoint enforces.

use std::sync::Arc;

use leno_index::{Index, MeshSettings, ObjectWriters};
use leno_types::authorization::{Action, DefaultAuthorization};
use leno_types::mesh::{Resolution, Service, Subject, WireForm};
use leno_types::routes::{InvalidTarget, RouteTarget};

use crate::support::{SHOP, names, put};

/// A service that uses a waypoint. `@LABELS@` is replaced by `leno.dev/use-waypoint: edge` and other labels.
const WEB: &str = "apiVersion: v1\nkind: Service
metadata: {name: web, namespace: shop, labels: {@LABELS@}}
spec: {clusterIPs: [10.96.0.1, fd96::1], selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1\nkind: Service
metadata: {name: other, namespace: shop, labels: {@LABELS@}}
spec: {clusterIPs: [10.96.0.9], ports: [{name: http, port: 80, targetPort: 8080}]}
";

/// A waypoint. `ready` is whether its endpoint is ready.
fn waypoint(namespace: &str, account: &str, ready: bool, labels: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload
metadata: {{name: edge, namespace: {namespace}, labels: {{leno.dev/waypoint: edge{labels}}}}}
spec: {{serviceAccount: {account}, command: [x]}}
status: {{instances: [{{name: edge-0, addresses: [10.89.9.9], meshed: false}}]}}
---
apiVersion: v1\nkind: Service
metadata: {{name: edge, namespace: {namespace}}}
spec: {{clusterIPs: [10.96.9.9], ports: [{{name: hbone, port: 15008}}]}}
---
apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice
metadata: {{name: edge-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: edge}}}}
addressType: IPv4
ports: [{{name: hbone, port: 15008}}]
endpoints: [{{addresses: [10.89.9.9], conditions: {{ready: {ready}}}, targetRef: {{kind: Workload, name: edge-0}}}}]
"
    )
}

/// The workloads behind `web`, with these labels.
fn shop(labels: &str) -> String {
    let with = format!("{{name: web, namespace: shop, labels: {{{labels}}}}}");
    SHOP.replacen("{name: web, namespace: shop}", &with, 1)
}

fn web(labels: &str) -> String {
    WEB.replace("@LABELS@", labels)
}

fn mesh() -> Index {
    let mut index =
        Index::new(MeshSettings { writers: ObjectWriters::Operator, ..MeshSettings::default() });
    put(&mut index, &shop("app: web"));
    put(&mut index, &web("leno.dev/use-waypoint: edge"));
    put(&mut index, &waypoint("shop", "edge", true, ""));
    index
}

fn told(index: &Index, service: &str, client: &str) -> Arc<Service> {
    let subject = Subject::Service(service.parse().unwrap());
    match index.resolve(&subject, client) {
        Resolution::Service(service) => service,
        other => panic!("{other:?}"),
    }
}

/// The addresses, identities and wire formats of the endpoints that a client receives.
fn endpoints(index: &Index, client: &str) -> Vec<(String, Option<String>, WireForm)> {
    let service = told(index, "shop/web", client);
    let endpoints = service.ports[0].endpoints.iter();
    let of = |one: &leno_types::mesh::Endpoint| {
        let identity = one.identity.as_ref().map(|identity| identity.service_account().to_owned());
        (one.addresses[0].to_string(), identity, one.wire)
    };
    endpoints.map(of).collect()
}

const CLIENTS: [&str; 2] = ["shop", "elsewhere"];
const EDGE: &str = "shop/edge";

#[test]
fn clients_are_told_the_waypoint_and_the_waypoint_is_told_the_service() {
    let index = mesh();
    let of_waypoint = vec![("10.89.9.9".to_owned(), Some("edge".to_owned()), WireForm::Waypoint)];
    for client in CLIENTS {
        assert_eq!(endpoints(&index, client), of_waypoint, "{client}");
        assert!(told(&index, "shop/web", client).waypoint.is_none(), "it may serve no client");
    }
    let direct = endpoints(&index, EDGE);
    assert!(!direct.is_empty() && direct.iter().all(|(.., wire)| *wire == WireForm::Leno));
    let own = told(&index, "shop/web", EDGE);
    let policy = own.waypoint.as_ref().unwrap();
    assert_eq!((policy.workload.to_string(), policy.ports[0].port), ("shop/web".to_owned(), 80));
    assert_eq!(&*index.client_of(&"shop/edge-0".parse().unwrap()), EDGE);
    assert_eq!(&*index.client_of(&"shop/web-0".parse().unwrap()), "shop");
    // The waypoint's own service leads to the waypoint.
    let subject = Subject::Address("10.96.9.9".parse().unwrap());
    let Resolution::Service(edge) = index.resolve(&subject, "shop") else { panic!() };
    assert!(edge.ports[0].endpoints.iter().all(|one| one.wire != WireForm::Waypoint));
}

#[test]
fn what_is_no_waypoint_of_the_service_closes_it() {
    let mut index = mesh();
    let closed = |index: &Index| CLIENTS.iter().all(|client| endpoints(index, client).is_empty());
    put(&mut index, &waypoint("shop", "edge", false, ""));
    assert!(closed(&index), "none is ready");
    put(&mut index, &waypoint("shop", "web", true, ""));
    assert!(closed(&index), "it has another service account");
    assert_eq!(&*index.client_of(&"shop/edge-0".parse().unwrap()), "shop");
    put(&mut index, &waypoint("shop", "edge", true, ""));
    assert!(!closed(&index));
    for labels in ["leno.dev/use-waypoint: none-such", "leno.dev/use-waypoint: ''"] {
        // The API server does not check the value of the label.
        let object = crate::support::objects(&web("x: y")).remove(0);
        let leno_resources::Object::Service(mut service) = object else { panic!() };
        let (key, value) = labels.split_once(": ").unwrap();
        let label = (key.to_owned(), value.trim_matches('\'').to_owned());
        service.metadata.labels = Some([label].into());
        let changed =
            index.apply(leno_index::ObjectChange::Upsert(leno_resources::Object::Service(service)));
        assert_eq!(names(&changed.services), ["shop/web"]);
        assert!(closed(&index), "{labels}");
    }
    put(&mut index, &web("leno.dev/use-waypoint: none"));
    assert!(endpoints(&index, "shop").iter().all(|(.., wire)| *wire == WireForm::Leno));
}

#[test]
fn a_waypoint_of_another_namespace_has_to_permit_it() {
    let mut index = mesh();
    let far = "leno.dev/use-waypoint: edge, leno.dev/use-waypoint-namespace: far";
    put(&mut index, &web(far));
    put(&mut index, &waypoint("far", "edge", true, ""));
    assert!(endpoints(&index, "shop").is_empty());
    assert!(told(&index, "shop/web", "far/edge").waypoint.is_none(), "it would serve clients");
    let changed = put(&mut index, &waypoint("far", "edge", true, ", leno.dev/waypoint-from: all"));
    assert!(names(&changed.services).contains(&"shop/web".to_owned()), "{changed:?}");
    assert_eq!(endpoints(&index, "shop").len(), 1);
    assert!(told(&index, "shop/web", "far/edge").waypoint.is_some());
    assert!(told(&index, "shop/web", EDGE).waypoint.is_none(), "the other one may not serve it");
}

#[test]
fn a_namespace_sets_it_for_its_services_and_a_service_wins() {
    let mut index = mesh();
    put(&mut index, &web("x: y"));
    assert!(told(&index, "shop/web", EDGE).waypoint.is_none());
    let namespace = |labels: &str| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n")
    };
    let changed = put(&mut index, &namespace("leno.dev/use-waypoint: edge"));
    assert!(names(&changed.services).contains(&"shop/web".to_owned()));
    assert!(told(&index, "shop/web", EDGE).waypoint.is_some());
    put(&mut index, &web("leno.dev/use-waypoint: none"));
    assert!(told(&index, "shop/web", EDGE).waypoint.is_none());
    put(&mut index, &web("x: y"));
    put(&mut index, &namespace("x: y"));
    assert!(told(&index, "shop/web", EDGE).waypoint.is_none());
}

fn policy(name: &str, target: &str, rules: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy
metadata: {{name: {name}, namespace: shop}}
spec: {{{target}, rules: [{rules}]}}\n"
    )
}

/// Names and ports of the policies that the waypoint enforces for the service.
fn enforced(index: &Index, service: &str) -> Vec<(String, Option<Vec<u16>>)> {
    let service = told(index, service, EDGE);
    let authorization = &service.waypoint.as_ref().unwrap().authorization;
    let of = |policy: &leno_types::authorization::AuthorizationPolicy| {
        (policy.source.name.to_string(), policy.ports.as_ref().map(|ports| ports.to_vec()))
    };
    authorization.policies.iter().map(of).collect()
}

#[test]
fn the_waypoint_enforces_what_workloads_behind_it_would() {
    let mut index = mesh();
    let of_service = "targetRefs: [{group: '', kind: Service, name: web}]";
    let changed = put(&mut index, &policy("a-service", of_service, "{}"));
    assert_eq!(names(&changed.services), ["shop/web"], "the waypoint hears of it");
    // A policy that selects workloads by labels, with a port of theirs.
    let rule = "{to: [{ports: [8080]}, {ports: [9999]}]}";
    put(&mut index, &policy("b-label", "selector: {matchLabels: {app: web}}", rule));
    put(&mut index, &policy("c-other", "selector: {matchLabels: {app: absent}}", "{}"));
    put(
        &mut index,
        &policy("d-all", "targetRefs: [{group: '', kind: Namespace, name: shop}]", "{}"),
    );
    let all = [("a-service", Some(vec![80])), ("b-label", None), ("d-all", None)];
    let all = all.map(|(name, ports)| (name.to_owned(), ports));
    assert_eq!(enforced(&index, "shop/web"), all);
    assert_eq!(enforced(&index, "shop/other"), [("d-all".to_owned(), None)]);
    let service = told(&index, "shop/web", EDGE);
    let authorization = &service.waypoint.as_ref().unwrap().authorization;
    let rule = &authorization.policies[1].rules[0];
    assert_eq!(rule.to.iter().map(|to| to.ports.clone()).collect::<Vec<_>>(), [[80]]);
    assert_eq!(authorization.default, DefaultAuthorization::All);
}

#[test]
fn a_workload_behind_a_waypoint_permits_it_alone() {
    let mut index = mesh();
    put(
        &mut index,
        &policy("any", "selector: {matchLabels: {app: web}}", "{from: [{namespaces: [x]}]}"),
    );
    let allowed = |index: &Index| {
        let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
        let policies = policy.authorization.policies.iter();
        let allow = policies.filter(|policy| policy.action == Action::Allow);
        allow
            .flat_map(|policy| policy.rules.iter().flat_map(|rule| rule.from.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(allowed(&index)[0].namespaces.len(), 1);
    put(&mut index, &shop("app: web, leno.dev/use-waypoint: edge"));
    assert!(allowed(&index).is_empty(), "no service of the workload uses it");
    put(&mut index, &web("leno.dev/use-waypoint: edge"));
    let only = allowed(&index);
    assert_eq!(only.len(), 1, "{only:?}");
    assert_eq!(only[0].service_accounts, [("shop".into(), "edge".into())]);
    // A policy of the mesh applies in addition, so a pod's label cannot bypass it.
    let mesh = policy(
        "mesh",
        "targetRefs: [{group: leno.dev, kind: Mesh, name: mesh}]",
        "{from: [{namespaces: [shop]}]}",
    );
    let mesh = mesh.replace("namespace: shop}", "namespace: leno-system}");
    put(&mut index, &mesh);
    let only = allowed(&index);
    assert_eq!((only.len(), only[0].namespaces.len()), (1, 1), "{only:?}");
    assert_eq!(only[0].service_accounts, [("shop".into(), "edge".into())]);
    // A waypoint that does not enforce policies for the workload is not permitted to connect.
    put(&mut index, &web("leno.dev/use-waypoint: none"));
    assert!(allowed(&index).is_empty());
    put(&mut index, &web("leno.dev/use-waypoint: edge"));
    assert_eq!(allowed(&index).len(), 1);
    let slice = "discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: edge-1, namespace: shop, \
                 labels: {kubernetes.io/service-name: edge}}\naddressType: IPv4\nendpoints: []\n";
    put(&mut index, &format!("apiVersion: {slice}"));
    assert!(allowed(&index).is_empty(), "its waypoint is gone");
}

#[test]
fn no_route_leads_past_the_policies_of_another_service_of_the_waypoint() {
    let mut index = mesh();
    put(
        &mut index,
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\n\
         spec: {parentRefs: [{group: '', kind: Service, name: web}], rules: [{backendRefs: [{name: other, port: 80}]}]}\n",
    );
    let target =
        |index: &Index| told(index, "shop/web", EDGE).routes[0].rules[0].backends[0].target.clone();
    let fine = RouteTarget::Service { name: "shop/other".parse().unwrap(), port: 80 };
    assert_eq!(target(&index), fine);
    assert!(told(&index, "shop/web", "shop").routes.is_empty(), "clients leave it to the waypoint");
    let all = policy("all", "targetRefs: [{group: '', kind: Namespace, name: shop}]", "{}");
    put(&mut index, &all);
    assert_eq!(target(&index), fine, "it holds for both");
    put(&mut index, &policy("own", "targetRefs: [{group: '', kind: Service, name: other}]", "{}"));
    assert_eq!(target(&index), RouteTarget::Invalid(InvalidTarget::NotGranted));
}

/// A route from `web` to another service.
const ROUTE: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}
spec: {parentRefs: [{group: '', kind: Service, name: web}], rules: [{backendRefs: [{name: other, port: 80}]}]}\n";

fn is_led(index: &Index, waypoint: &str) -> bool {
    let service = told(index, "shop/web", waypoint);
    matches!(service.routes[0].rules[0].backends[0].target, RouteTarget::Service { .. })
}

#[test]
fn a_route_leads_past_no_rule_that_names_ports_and_no_other_reading_of_paths() {
    let of_all = "targetRefs: [{group: '', kind: Namespace, name: shop}]";
    for (action, rule, leads) in [
        ("Deny", "{to: [{paths: [{prefix: /admin}]}]}", true),
        ("Deny", "{to: [{ports: [9090], paths: [{prefix: /admin}]}]}", false),
        ("Allow", "{to: [{ports: [8080]}]}", false),
    ] {
        let mut index = mesh();
        put(&mut index, ROUTE);
        assert!(is_led(&index, EDGE));
        let policy = policy("all", &format!("{of_all}, action: {action}"), rule);
        put(&mut index, &policy);
        assert_eq!(is_led(&index, EDGE), leads, "{action} {rule}");
    }
    // The first service permits a client that the other service does not permit.
    let mut index = mesh();
    put(&mut index, ROUTE);
    put(&mut index, &policy("all", of_all, "{from: [{namespaces: [a]}]}"));
    assert!(is_led(&index, EDGE));
    put(&mut index, &policy("own", "targetRefs: [{group: '', kind: Service, name: web}]", "{}"));
    assert!(!is_led(&index, EDGE));
    // The applications of the two services interpret paths in different ways.
    let mut index = mesh();
    put(&mut index, ROUTE);
    let reads = "annotations: {leno.dev/path-normalisation: decode-slashes}, labels: {app: web}";
    let reading = shop("app: web").replacen("labels: {app: web}", reads, 1);
    put(&mut index, &reading);
    put(&mut index, &web("leno.dev/use-waypoint: edge"));
    assert!(!is_led(&index, EDGE));
}

#[test]
fn a_route_leads_to_no_other_port_of_its_service_where_policies_name_ports() {
    let mut index = mesh();
    let ports = "{name: http, port: 80, targetPort: 8080}";
    let two = format!("{ports}, {{name: admin, port: 90, targetPort: 9090}}");
    put(&mut index, &web("leno.dev/use-waypoint: edge").replace(ports, &two));
    put(&mut index, &ROUTE.replace("name: other, port: 80", "name: web, port: 90"));
    assert!(is_led(&index, EDGE));
    let of_all = "targetRefs: [{group: '', kind: Namespace, name: shop}], action: Deny";
    put(&mut index, &policy("all", of_all, "{to: [{ports: [9090]}]}"));
    assert!(!is_led(&index, EDGE));
    put(&mut index, &policy("all", of_all, "{to: [{paths: [{prefix: /x}]}]}"));
    assert!(is_led(&index, EDGE));
}

#[test]
fn a_pod_with_the_labels_of_a_waypoint_opens_no_service() {
    for (name, account) in [("edge", "edge"), ("web", "web")] {
        let mut index = mesh();
        let pod = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload
metadata: {{name: bad, namespace: shop, labels: {{leno.dev/waypoint: {name}}}}}
spec: {{serviceAccount: {account}, command: [x]}}
status: {{instances: [{{name: bad-0, addresses: [10.89.7.7], meshed: false}}]}}
---
apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice
metadata: {{name: web-bad, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4\nports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.89.7.7], targetRef: {{kind: Workload, name: bad-0}}}}]\n"
        );
        put(&mut index, &pod);
        let told_clients = endpoints(&index, "shop");
        assert!(told_clients.iter().all(|(.., wire)| *wire == WireForm::Waypoint), "{name}");
        assert_eq!(told_clients.len(), 1);
        let direct = endpoints(&index, EDGE);
        assert!(!direct.iter().any(|(ip, ..)| ip == "10.89.7.7"), "{direct:?}");
    }
}

#[test]
fn the_waypoint_hears_of_a_policy_that_targets_a_workload() {
    let mut index = mesh();
    let target = "targetRefs: [{group: leno.dev, kind: Workload, name: web}], action: Deny";
    let changed = put(&mut index, &policy("of-workload", target, "{}"));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(enforced(&index, "shop/web"), [("of-workload".to_owned(), None)]);
    let key = crate::support::objects(&policy("of-workload", target, "{}"))[0].key();
    let changed = index.apply(leno_index::ObjectChange::Delete(key));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert!(enforced(&index, "shop/web").is_empty());
}

#[test]
fn a_denial_with_ports_holds_for_servers_known_by_name() {
    let mut index = mesh();
    put(
        &mut index,
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice
metadata: {name: other-1, namespace: shop, labels: {kubernetes.io/service-name: other}}
addressType: FQDN\nports: [{name: http, port: 8443}]\nendpoints: [{addresses: [api.example.com]}]\n",
    );
    let of_all = "targetRefs: [{group: '', kind: Namespace, name: shop}], action: Deny";
    put(&mut index, &policy("known", of_all, "{to: [{ports: [8443]}]}"));
    let rules = |index: &Index| {
        let service = told(index, "shop/other", EDGE);
        let policies = &service.waypoint.as_ref().unwrap().authorization.policies;
        policies[0].rules.iter().map(|rule| rule.to[0].ports.clone()).collect::<Vec<_>>()
    };
    assert_eq!(rules(&index), [[80]]);
    put(&mut index, &policy("known", of_all, "{to: [{ports: [9999]}]}"));
    assert!(rules(&index).is_empty(), "no port leads there");
    let key = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice
metadata: {name: other-1, namespace: shop, labels: {kubernetes.io/service-name: other}}
addressType: IPv4\nendpoints: []\n";
    put(&mut index, key);
    assert_eq!(rules(&index), [[80]], "a port that may lead anywhere is denied");
}

#[test]
fn no_request_goes_round_between_waypoints() {
    let mut index = mesh();
    // `other` has another waypoint and a route that leads back.
    let both = web("leno.dev/use-waypoint: edge");
    let (first, other) = both.split_once("---").unwrap();
    let other = other.replace("use-waypoint: edge", "use-waypoint: second");
    put(&mut index, &format!("{first}---{other}"));
    put(&mut index, ROUTE);
    assert!(is_led(&index, EDGE), "a second waypoint is fine");
    let back = ROUTE
        .replace("name: r,", "name: back,")
        .replace("name: other", "name: @")
        .replace("name: web", "name: other")
        .replace("name: @", "name: web");
    let changed = put(&mut index, &back);
    assert_eq!(names(&changed.services), ["shop/other", "shop/web"]);
    assert!(!is_led(&index, EDGE));
    let service = told(&index, "shop/other", "shop/second");
    let target = &service.routes[0].rules[0].backends[0].target;
    assert_eq!(*target, RouteTarget::Invalid(InvalidTarget::NotGranted));
}
