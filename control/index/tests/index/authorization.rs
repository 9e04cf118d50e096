//! Tests which authorization policies a workload's proxy receives, and when.

use leno_index::{Index, MeshSettings, ObjectChange};
use leno_resources::Object;
use leno_types::authorization::{Authorization, DefaultAuthorization};

use crate::support::{SHOP, names, objects, put, shop};

fn policy(namespace: &str, name: &str, attached: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{attached}, rules: [{{}}]}}\n"
    )
}

fn of(index: &Index, instance: &str) -> Authorization {
    let policy = index.server_policy(&instance.parse().unwrap()).unwrap();
    Authorization::clone(&policy.authorization)
}

/// Names and ports of the policies that an instance receives.
fn told(index: &Index, instance: &str) -> Vec<(String, Option<Vec<u16>>)> {
    let policies = of(index, instance).policies;
    let one = |policy: &leno_types::authorization::AuthorizationPolicy| {
        (policy.source.name.to_string(), policy.ports.as_ref().map(|ports| ports.to_vec()))
    };
    policies.iter().map(one).collect()
}

fn named(name: &str, ports: Option<&[u16]>) -> (String, Option<Vec<u16>>) {
    (name.to_owned(), ports.map(<[u16]>::to_vec))
}

#[test]
fn a_policy_selects_by_name_service_labels_and_namespace() {
    let mut index = shop();
    put(
        &mut index,
        &SHOP.replace(
            "{name: web, namespace: shop}\nspec:\n  serviceAccount",
            "{name: web, namespace: shop, labels: {app: web}}\nspec:\n  serviceAccount",
        ),
    );
    let both = ["shop/web-0", "shop/web-1"];
    for (name, attached) in [
        ("a-workload", "targetRefs: [{group: leno.dev, kind: Workload, name: web}]"),
        ("b-service", "targetRefs: [{group: '', kind: Service, name: web, sectionName: http}]"),
        ("c-labels", "selector: {matchLabels: {app: web}}"),
        ("d-namespace", "targetRefs: [{group: '', kind: Namespace, name: shop}]"),
    ] {
        let changed = put(&mut index, &policy("shop", name, attached));
        assert_eq!(names(&changed.policies), both, "{name}");
    }
    let expected = [
        named("a-workload", None),
        named("b-service", Some(&[8080])),
        named("c-labels", None),
        named("d-namespace", None),
    ];
    assert_eq!(told(&index, "shop/web-0"), expected);
    // Neither a policy that selects no workload nor one of another namespace changes anything.
    for other in [
        policy("shop", "e", "selector: {matchLabels: {app: cart}}"),
        policy("bank", "f", "selector: {}"),
        policy("bank", "g", "targetRefs: [{group: leno.dev, kind: Workload, name: web}]"),
    ] {
        assert!(put(&mut index, &other).policies.is_empty(), "{other}");
    }
    let key = objects(&policy("shop", "c-labels", "selector: {}"))[0].key();
    assert_eq!(names(&index.apply(ObjectChange::Delete(key)).policies), both);
    assert_eq!(told(&index, "shop/web-1").len(), 3);
}

#[test]
fn a_policy_of_the_mesh_is_of_the_control_planes_namespace() {
    let mut index = shop();
    let attached = "targetRefs: [{group: leno.dev, kind: Mesh, name: mesh}]";
    assert!(put(&mut index, &policy("bank", "all", attached)).policies.is_empty());
    assert!(!put(&mut index, &policy("leno-system", "all", attached)).policies.is_empty());
    assert_eq!(told(&index, "shop/web-0"), [named("all", None)]);

    let namespace = Some("mesh".to_owned());
    let mut index = Index::new(MeshSettings { namespace, ..MeshSettings::default() });
    put(&mut index, SHOP);
    assert!(put(&mut index, &policy("leno-system", "all", attached)).policies.is_empty());
    assert!(!put(&mut index, &policy("mesh", "all", attached)).policies.is_empty());
}

#[test]
fn the_default_is_that_of_the_namespace() {
    let mut index = shop();
    assert!(of(&index, "shop/web-0").is_open());
    let namespace = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, \
             annotations: {{leno.dev/default-authorization: {value}}}}}\n"
        )
    };
    put(&mut index, &namespace("same-namespace"));
    assert_eq!(of(&index, "shop/web-0").default, DefaultAuthorization::SameNamespace);
    put(&mut index, &namespace("deny"));
    assert_eq!(of(&index, "shop/web-1").default, DefaultAuthorization::Deny);
    let key = objects(&namespace("deny"))[0].key();
    index.apply(ObjectChange::Delete(key));
    assert!(of(&index, "shop/web-0").is_open());
}

#[test]
fn how_paths_are_read_is_of_the_workload_or_else_of_its_namespace() {
    let mut index = shop();
    let read = |index: &Index| of(index, "shop/web-0").paths.to_string();
    assert_eq!(read(&index), "strict");
    let namespace = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, \
             annotations: {{leno.dev/path-normalisation: {value}}}}}\n"
        )
    };
    put(&mut index, &namespace("none"));
    assert_eq!(read(&index), "none");
    // A value that cannot be parsed leads to the strictest reading of paths.
    let mut objects = objects(SHOP);
    for (value, expected) in [("merge-slashes", "merge-slashes"), ("merge", "strict")] {
        for object in &mut objects {
            let Object::Workload(workload) = object else { continue };
            let annotations = &mut workload.metadata.annotations;
            annotations.insert("leno.dev/path-normalisation".to_owned(), value.to_owned());
        }
        index.apply_all(objects.iter().cloned().map(ObjectChange::Upsert).collect());
        assert_eq!(read(&index), expected, "{value}");
    }
}

#[test]
fn one_policy_for_two_ports_is_told_once() {
    let mut index = shop();
    let two = "targetRefs: [{group: '', kind: Service, name: web}, {group: '', kind: Service, name: sql}]";
    put(&mut index, &policy("shop", "p", two));
    put(
        &mut index,
        "apiVersion: v1\nkind: Service\nmetadata: {name: sql, namespace: shop}\n\
        spec: {clusterIP: 10.96.0.2, ports: [{name: sql, port: 5432}]}\n---\n\
        apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
        metadata: {name: sql-4, namespace: shop, labels: {kubernetes.io/service-name: sql}}\n\
        addressType: IPv4\nports: [{name: sql, port: 5432}]\n\
        endpoints: [{addresses: [10.89.0.2], targetRef: {kind: Workload, name: web-0, namespace: shop}}]\n",
    );
    assert_eq!(told(&index, "shop/web-0"), [named("p", Some(&[5432, 8080]))]);
    assert_eq!(told(&index, "shop/web-1"), [named("p", Some(&[8080]))]);
}

/// Otherwise the authorizer would be asked about the requests to the authorizer.
#[test]
fn the_workloads_of_an_authorizer_are_not_asked_about() {
    let mut index = shop();
    let external = |service: &str| {
        policy(
            "shop",
            "ask",
            &format!(
                "selector: {{}}, action: External, external: {{backendRef: {{name: {service}, port: 80}}}}"
            ),
        )
    };
    put(&mut index, &external("opa"));
    assert_eq!(told(&index, "shop/web-0"), [named("ask", None)]);
    let asked = of(&index, "shop/web-0").policies[0].external.clone().unwrap();
    assert_eq!((asked.service.to_string().as_str(), asked.port), ("shop/opa", 80));
    put(&mut index, &external("web"));
    assert!(told(&index, "shop/web-0").is_empty());
}
