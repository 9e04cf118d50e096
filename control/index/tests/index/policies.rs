//! Tests which policies the clients of a service and its workloads receive, and when.

use leno_index::{Index, ObjectChange};
use leno_types::mesh::{Resolution, Subject};
use leno_types::routes::RouteKind;
use leno_types::traffic::PolicyScope;

use crate::support::{SHOP, names, objects, put, shop};

fn traffic(name: &str, namespace: &str, targets: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         targetRefs: [{targets}]\n  retries: {{on: [503]}}\n"
    )
}

fn rate_limit(name: &str, targets: &str, requests: u32) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\n\
         metadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         targetRefs: [{targets}]\n  limits: [{{requests: {requests}}}]\n"
    )
}

fn route(name: &str, namespace: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  parentRefs: \
         [{{group: '', kind: Service, name: web, namespace: shop}}]\n  \
         rules: [{{name: slow, backendRefs: [{{name: web, namespace: shop, port: 80}}]}}]\n"
    )
}

/// Names and scopes of the policies that a client in `namespace` receives.
fn told(index: &Index, namespace: &str) -> Vec<(String, PolicyScope)> {
    let subject = Subject::Service("shop/web".parse().unwrap());
    let Resolution::Service(service) = index.resolve(&subject, namespace) else { panic!() };
    let of = |policy: &leno_types::traffic::Traffic| {
        (policy.source.name.to_string(), policy.scope.clone())
    };
    service.traffic.iter().map(|policy| of(policy)).collect()
}

/// Ports and requests of the rate limits that an instance receives.
fn limits(index: &Index, instance: &str) -> Vec<(Option<u16>, u32)> {
    let policy = index.server_policy(&instance.parse().unwrap()).unwrap();
    policy.limits.iter().map(|limit| (limit.port, limit.requests)).collect()
}

#[test]
fn a_policy_comes_with_the_service_or_port_that_it_names() {
    let mut index = shop();
    let whole = traffic("whole", "shop", "{group: '', kind: Service, name: web}");
    let port = "{group: '', kind: Service, name: web, sectionName: http}, \
                {group: '', kind: Service, name: web, sectionName: '80'}, \
                {group: '', kind: Service, name: web, sectionName: sql}";
    assert_eq!(names(&put(&mut index, &whole).services), ["shop/web"]);
    put(&mut index, &traffic("port", "shop", port));
    // A policy cannot target a service of another namespace.
    let foreign = traffic("foreign", "other", "{group: '', kind: Service, name: web}");
    assert!(put(&mut index, &foreign).is_empty());
    let port = || ("port".to_owned(), PolicyScope::Port(80));
    let whole_service = ("whole".to_owned(), PolicyScope::Service);
    assert_eq!(told(&index, "client"), [port(), port(), whole_service]);
    // The port with that name gets another number.
    put(&mut index, &SHOP.replace("port: 80,", "port: 81,"));
    assert_eq!(told(&index, "client")[0].1, PolicyScope::Port(81));
    let changed = index.apply(ObjectChange::Delete(objects(&whole)[0].key()));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(told(&index, "client").len(), 1);
}

#[test]
fn a_policy_of_a_route_goes_where_the_route_goes() {
    let mut index = shop();
    let target = "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r, sectionName: slow}";
    let own = traffic("own", "shop", target);
    let theirs = traffic("theirs", "client", target);
    assert!(put(&mut index, &own).is_empty());
    put(&mut index, &theirs);
    assert_eq!(names(&put(&mut index, &route("r", "shop")).services), ["shop/web"]);
    put(&mut index, &route("r", "client"));
    let scope = |namespace: &str| PolicyScope::Route {
        kind: RouteKind::Http,
        namespace: namespace.into(),
        name: "r".into(),
        rule: Some("slow".into()),
    };
    assert_eq!(told(&index, "other"), [("own".to_owned(), scope("shop"))]);
    assert_eq!(told(&index, "client"), [("theirs".to_owned(), scope("client"))]);
    let changed = index.apply(ObjectChange::Delete(objects(&theirs)[0].key()));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(told(&index, "client"), []);
}

#[test]
fn a_workload_takes_what_policies_of_its_own_and_of_its_services_say() {
    let mut index = shop();
    let own = rate_limit("own", "{group: leno.dev, kind: Workload, name: web}", 5);
    let changed = put(&mut index, &own);
    assert_eq!(names(&changed.policies), ["shop/web-0", "shop/web-1"]);
    assert!(changed.services.is_empty() && changed.workloads.is_empty());
    assert_eq!(limits(&index, "shop/web-1"), [(None, 5)]);
    // The limit applies to the port behind the service's port, and only once, although the policy names that port
    // twice.
    let of_service = "{group: '', kind: Service, name: web}, \
                      {group: '', kind: Service, name: web, sectionName: http}";
    put(&mut index, &rate_limit("service", of_service, 7));
    assert_eq!(limits(&index, "shop/web-0"), [(None, 5), (Some(8080), 7)]);
    // Limits for other targets do not apply to this instance.
    let other = "{group: leno.dev, kind: Workload, name: db}, {group: '', kind: Service, name: db}";
    assert!(put(&mut index, &rate_limit("other", other, 1)).is_empty());
    index.apply(ObjectChange::Delete(objects(&own)[0].key()));
    assert_eq!(limits(&index, "shop/web-0"), [(Some(8080), 7)]);
    // An instance without documents is found by its endpoints and by its name.
    let mut bare = crate::support::index();
    put(&mut bare, &own);
    assert_eq!(bare.rate_limits(&"shop/web-7".parse().unwrap()).len(), 1);
    assert_eq!(bare.rate_limits(&"shop/web-x".parse().unwrap()).len(), 0);
}
