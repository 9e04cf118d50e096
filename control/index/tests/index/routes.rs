//! Tests which routes a client of a service receives, and when.

use leno_index::{Index, ObjectChange};
use leno_resources::ObjectKey;
use leno_types::mesh::{Resolution, Subject};
use leno_types::routes::{InvalidTarget, Route, RouteTarget};

use crate::support::{index, names, objects, put, shop};

fn route(name: &str, namespace: &str, parent: &str, rest: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         parentRefs: [{{group: \"\", kind: Service, {parent}}}]\n  rules: [{{{rest}}}]\n"
    )
}

fn service(name: &str, namespace: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{clusterIP: {ip}, ports: [{{name: http, port: 80}}]}}\n"
    )
}

/// The routes that a client in `namespace` receives.
fn routes(index: &Index, service: &str, namespace: &str) -> Vec<Route> {
    let subject = Subject::Service(service.parse().unwrap());
    match index.resolve(&subject, namespace) {
        Resolution::Service(service) => service.routes.iter().map(|r| (**r).clone()).collect(),
        other => panic!("{other:?}"),
    }
}

fn told(index: &Index, service: &str, namespace: &str) -> Vec<String> {
    routes(index, service, namespace).iter().map(|route| route.name.to_string()).collect()
}

fn key(object: &str) -> ObjectKey {
    objects(object)[0].key()
}

/// As in the conformance test MeshConsumerRoute.
#[test]
fn producer_routes_are_for_all_and_consumer_routes_for_their_own_namespace() {
    let mut index = shop();
    let own = route("own", "shop", "name: web", "");
    let consumer = route("theirs", "client", "name: web, namespace: shop", "");
    assert_eq!(names(&put(&mut index, &own).services), ["shop/web"]);
    assert_eq!(names(&put(&mut index, &consumer).services), ["shop/web"]);
    assert_eq!(told(&index, "shop/web", "shop"), ["own"]);
    assert_eq!(told(&index, "shop/web", "other"), ["own"]);
    assert_eq!(told(&index, "shop/web", "client"), ["theirs"]);
    index.apply(ObjectChange::Delete(key(&own)));
    assert_eq!(told(&index, "shop/web", "other"), [""; 0]);
    assert_eq!(told(&index, "shop/web", "client"), ["theirs"]);
    let changed = index.apply(ObjectChange::Delete(key(&consumer)));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(told(&index, "shop/web", "client"), [""; 0]);
    assert!(put(&mut index, &service("else", "shop", "10.96.0.7")).services.len() == 1);
}

#[test]
fn a_consumer_sees_changes_of_endpoints_too() {
    let mut index = shop();
    put(&mut index, &route("theirs", "client", "name: web, namespace: shop", ""));
    let gone = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 81}]}";
    put(&mut index, gone);
    let subject = Subject::Service("shop/web".parse().unwrap());
    let Resolution::Service(service) = index.resolve(&subject, "client") else { panic!("gone") };
    assert_eq!(service.ports[0].port, 81);
    assert_eq!(service.routes.len(), 1);
}

#[test]
fn a_route_attaches_to_the_ports_it_names() {
    let mut index = index();
    put(
        &mut index,
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
         spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: admin, port: 81}]}\n",
    );
    for (parent, ports) in [
        ("name: web", Some(vec![])),
        ("name: web, port: 81", Some(vec![81])),
        ("name: web, sectionName: http", Some(vec![80])),
        ("name: web, sectionName: http, port: 81", None),
        ("name: web, port: 82", None),
    ] {
        put(&mut index, &route("r", "shop", parent, ""));
        let found = routes(&index, "shop/web", "shop");
        assert_eq!(found.first().map(|route| route.ports.clone()), ports, "{parent}");
    }
    let gateway = route("r", "shop", "name: web", "").replace("group: \"\", kind: Service, ", "");
    put(&mut index, &gateway);
    assert_eq!(told(&index, "shop/web", "shop"), [""; 0]);
}

#[test]
fn references_are_good_while_there_is_what_they_refer_to() {
    let mut index = shop();
    let to =
        |index: &Index| routes(index, "shop/web", "shop")[0].rules[0].backends[0].target.clone();
    put(&mut index, &route("r", "shop", "name: web", "backendRefs: [{name: v2, port: 80}]"));
    assert_eq!(to(&index), RouteTarget::Invalid(InvalidTarget::NotFound));
    let v2 = service("v2", "shop", "10.96.0.2");
    assert_eq!(names(&put(&mut index, &v2).services), ["shop/v2", "shop/web"]);
    assert_eq!(to(&index), RouteTarget::Service { name: "shop/v2".parse().unwrap(), port: 80 });
    put(&mut index, &v2.replace("port: 80", "port: 81"));
    assert_eq!(to(&index), RouteTarget::Invalid(InvalidTarget::NoSuchPort));
    index.apply(ObjectChange::Delete(key(&v2)));
    assert_eq!(to(&index), RouteTarget::Invalid(InvalidTarget::NotFound));
}

/// As in the conformance tests HTTPRouteReferenceGrant and HTTPRoutePartiallyInvalidViaInvalidReferenceGrant.
#[test]
fn other_namespaces_have_to_grant_references() {
    let mut index = shop();
    put(&mut index, &service("far", "stock", "10.96.0.3"));
    let rest = "backendRefs: [{name: far, namespace: stock, port: 80}, {name: web, port: 80}]";
    put(&mut index, &route("r", "shop", "name: web", rest));
    let to = |index: &Index, place: usize| {
        routes(index, "shop/web", "shop")[0].rules[0].backends[place].target.clone()
    };
    let refused = RouteTarget::Invalid(InvalidTarget::NotGranted);
    let good = RouteTarget::Service { name: "stock/far".parse().unwrap(), port: 80 };
    assert_eq!(to(&index, 0), refused);
    assert!(matches!(to(&index, 1), RouteTarget::Service { .. }));
    let grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: stock}\nspec:\n  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]\n  to: [{group: \"\", kind: Service}]\n";
    put(&mut index, grant);
    assert_eq!(to(&index, 0), good);
    put(&mut index, &grant.replace("kind: Service}", "kind: Service, name: near}"));
    assert_eq!(to(&index, 0), refused);
    put(&mut index, &grant.replace("kind: Service}", "kind: Service, name: far}"));
    assert_eq!(to(&index, 0), good);
    index.apply(ObjectChange::Delete(key(grant)));
    assert_eq!(to(&index, 0), refused);
}

#[test]
fn a_consumer_may_send_requests_back_to_the_namespace_it_calls() {
    let mut index = shop();
    let rest = "backendRefs: [{name: web, namespace: shop, port: 80}]";
    put(&mut index, &route("r", "client", "name: web, namespace: shop", rest));
    let target = routes(&index, "shop/web", "client")[0].rules[0].backends[0].target.clone();
    assert_eq!(target, RouteTarget::Service { name: "shop/web".parse().unwrap(), port: 80 });
}
