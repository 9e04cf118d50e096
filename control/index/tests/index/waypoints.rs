//! What clients of a service with a waypoint receive, and what the waypoint does.

use std::sync::Arc;

use leno_index::{Index, Settings, Writers};
use leno_types::authorization::{Action, DefaultAuthorization};
use leno_types::mesh::{Resolution, Service, Subject, WireForm};
use leno_types::routes::{InvalidTarget, Target};

use crate::support::{SHOP, names, put};

/// The label `leno.dev/use-waypoint: edge`, and more, in place of `@LABELS@`.
const WEB: &str = "apiVersion: v1\nkind: Service
metadata: {name: web, namespace: shop, labels: {@LABELS@}}
spec: {clusterIPs: [10.96.0.1, fd96::1], selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1\nkind: Service
metadata: {name: other, namespace: shop, labels: {@LABELS@}}
spec: {clusterIPs: [10.96.0.9], ports: [{name: http, port: 80, targetPort: 8080}]}
";

/// A waypoint, with a service account and whether its endpoint is ready.
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
    let mut index = Index::new(Settings { writers: Writers::Operator, ..Settings::default() });
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

/// Addresses, identity and wire form of the endpoints that a client is told.
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
    // The waypoint's own service leads to itself.
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
        // A text of the API server, which does not check it.
        let object = crate::support::objects(&web("x: y")).remove(0);
        let leno_resources::Object::Service(mut service) = object else { panic!() };
        let (key, value) = labels.split_once(": ").unwrap();
        let label = (key.to_owned(), value.trim_matches('\'').to_owned());
        service.metadata.labels = Some([label].into());
        let changed =
            index.apply(leno_index::Change::Upsert(leno_resources::Object::Service(service)));
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
    // By the labels of workloads, with a port of theirs.
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
    let only = allowed(&index);
    assert_eq!(only.len(), 1, "{only:?}");
    assert_eq!(only[0].service_accounts, [("shop".into(), "edge".into())]);
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
    let fine = Target::Service { name: "shop/other".parse().unwrap(), port: 80 };
    assert_eq!(target(&index), fine);
    assert!(told(&index, "shop/web", "shop").routes.is_empty(), "clients leave it to the waypoint");
    let all = policy("all", "targetRefs: [{group: '', kind: Namespace, name: shop}]", "{}");
    put(&mut index, &all);
    assert_eq!(target(&index), fine, "it holds for both");
    put(&mut index, &policy("own", "targetRefs: [{group: '', kind: Service, name: other}]", "{}"));
    assert_eq!(target(&index), Target::Invalid(InvalidTarget::NotGranted));
}
