//! Tests the values that are built for an instance: the workload, its policy, and the identity that clients
//! expect.

use leno_index::{Index, MeshSettings, ObjectChange};
use leno_resources::{EGRESS_ANNOTATION, MTLS_ANNOTATION, Object};
use leno_types::mesh::{Resolution, WireForm, declared};
use leno_types::{Egress, MtlsMode, Protocol, Removal, TrustDomain};

use crate::support::{SHOP, endpoints, ip, names, objects, put, service, shop, workload};

fn policy_mode(index: &Index, name: &str) -> MtlsMode {
    index.server_policy(&name.parse().unwrap()).unwrap().mtls
}

/// `SHOP` with an annotation on its workload.
fn annotated(mode: &str) -> String {
    let with = format!("{{name: web, namespace: shop, annotations: {{leno.dev/mtls: {mode}}}}}");
    SHOP.replacen("{name: web, namespace: shop}", &with, 1)
}

fn namespace(mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, \
         annotations: {{leno.dev/mtls: {mode}}}}}}}"
    )
}

#[test]
fn an_instance_is_found_by_each_address() {
    let index = shop();
    let web = workload(&index, "shop/web-1");
    for address in ["10.89.0.3", "fd89::3"] {
        assert_eq!(index.resolve(&ip(address).into(), "client"), Resolution::Workload(web.clone()));
    }
    let identity = web.identity.as_ref().unwrap().to_string();
    assert_eq!(identity, "spiffe://cluster.local/ns/shop/sa/web");
    let listed: Vec<_> = index.workloads_in("shop").map(|w| w.name.to_string()).collect();
    assert_eq!(listed, ["shop/web-0", "shop/web-1"]);
    assert_eq!(index.workloads_in("sho").count(), 0);
    assert_eq!(index.services_in("shop").count(), 1);
}

#[test]
fn the_workload_sets_the_mode_before_its_namespace_before_the_mesh() {
    let trust_domain = TrustDomain::new("example.org").unwrap();
    let default_mtls = MtlsMode::Strict;
    let mut index =
        Index::new(MeshSettings { trust_domain, default_mtls, ..MeshSettings::default() });
    put(&mut index, SHOP);
    assert_eq!(policy_mode(&index, "shop/web-0"), MtlsMode::Strict);
    let identity = workload(&index, "shop/web-0").identity.as_ref().unwrap().to_string();
    assert_eq!(identity, "spiffe://example.org/ns/shop/sa/web");
    put(&mut index, &namespace("permissive"));
    assert_eq!(policy_mode(&index, "shop/web-0"), MtlsMode::Permissive);
    put(&mut index, &annotated("disabled"));
    assert_eq!(policy_mode(&index, "shop/web-0"), MtlsMode::Disabled);
}

#[test]
fn the_workload_says_of_egress_before_its_namespace_before_the_mesh() {
    let mut index =
        Index::new(MeshSettings { default_egress: Egress::Deny, ..MeshSettings::default() });
    let egress =
        |index: &Index| index.server_policy(&"shop/web-0".parse().unwrap()).unwrap().egress;
    let of = |yaml: &str, way: &str| yaml.replace("mtls: strict", &format!("egress: {way}"));
    put(&mut index, SHOP);
    assert_eq!(egress(&index), Egress::Deny);
    let changed = put(&mut index, &of(&namespace("strict"), "allow"));
    assert_eq!(names(&changed.policies), ["shop/web-0", "shop/web-1"]);
    assert_eq!(egress(&index), Egress::Allow);
    put(&mut index, &of(&annotated("strict"), "deny"));
    assert_eq!(egress(&index), Egress::Deny);
}

#[test]
fn a_value_that_cannot_be_read_is_the_strictest() {
    let mut index = shop();
    // The value is set as the API server could store it. In a file it would be an error.
    let mut stored = objects(&namespace("strict"));
    let Some(Object::Namespace(of_shop)) = stored.first_mut() else { panic!("not a namespace") };
    let values = [(MTLS_ANNOTATION, "stirct"), (EGRESS_ANNOTATION, "dney")];
    let values = values.map(|(key, value)| (key.to_owned(), value.to_owned()));
    of_shop.metadata.annotations = Some(values.into());
    index.apply_all(stored.into_iter().map(ObjectChange::Upsert).collect());
    assert_eq!(policy_mode(&index, "shop/web-0"), MtlsMode::Strict);
    let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
    assert_eq!(policy.egress, Egress::Deny);
}

/// `SHOP` without the mesh's proxies. Its workload has these annotations.
fn without_proxies(annotations: &str) -> String {
    let with = format!("{{name: web, namespace: shop, annotations: {{{annotations}}}}}");
    let shop = SHOP.replace("meshed: true", "meshed: false");
    shop.replacen("{name: web, namespace: shop}", &with, 1)
}

#[test]
fn a_workload_that_takes_hbone_has_an_identity_and_clients_are_told_how_to_speak_to_it() {
    let mut index = shop();
    let seen = |index: &Index| {
        let web = workload(index, "shop/web-0");
        let of_service = service(index, "shop/web");
        for endpoint in &*of_service.ports[0].endpoints {
            assert_eq!((&endpoint.identity, endpoint.wire), (&web.identity, web.wire));
        }
        (web.identity.is_some(), web.wire)
    };
    let hbone = "leno.dev/tunnel: hbone";
    // For a proxy of the mesh, the annotation has no effect.
    put(&mut index, &annotated("strict").replace("leno.dev/mtls: strict", hbone));
    assert_eq!(seen(&index), (true, WireForm::Leno));
    put(&mut index, &without_proxies(""));
    assert_eq!(seen(&index), (false, WireForm::Leno));
    put(&mut index, &without_proxies(hbone));
    assert_eq!(seen(&index), (true, WireForm::Hbone));
    put(&mut index, &without_proxies("leno.dev/tunnel: hbone, leno.dev/mtls: disabled"));
    assert!(!seen(&index).0, "plaintext, as it says");

    // The annotation of a namespace applies only to those of its workloads that a ztunnel serves.
    let of_namespace = namespace("strict").replace("leno.dev/mtls: strict", hbone);
    put(&mut index, &of_namespace);
    put(&mut index, &without_proxies(""));
    assert_eq!(seen(&index), (false, WireForm::Leno));
    let redirected = "ambient.istio.io/redirection: enabled";
    put(&mut index, &without_proxies(redirected));
    assert_eq!(seen(&index), (true, WireForm::Hbone));
    put(&mut index, &without_proxies(&format!("{redirected}, leno.dev/tunnel: none")));
    assert_eq!(seen(&index), (false, WireForm::Leno));
    put(&mut index, &without_proxies(redirected));
    let changed = put(&mut index, &namespace("permissive"));
    assert_eq!(names(&changed.services), ["shop/web"], "those who call it hear of it");
    assert_eq!(seen(&index), (false, WireForm::Leno), "Istio's word alone changes nothing");
}

#[test]
fn a_workload_that_wants_no_tunnels_has_the_port_of_hbone_for_its_own() {
    let mut index = shop();
    let is_own = |index: &Index| {
        let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
        policy.ports.iter().any(|named| named.port == leno_types::ports::HBONE)
    };
    assert!(!is_own(&index));
    let none = "leno.dev/tunnel: none";
    put(&mut index, &annotated("strict").replace("leno.dev/mtls: strict", none));
    assert!(is_own(&index));
    put(&mut index, &annotated("strict"));
    assert!(!is_own(&index));
    put(&mut index, &namespace("strict").replace("leno.dev/mtls: strict", none));
    assert!(is_own(&index), "what the namespace says");
    let hbone = "leno.dev/tunnel: hbone";
    put(&mut index, &annotated("strict").replace("leno.dev/mtls: strict", hbone));
    assert!(!is_own(&index), "what the workload says goes before");
}

#[test]
fn an_instance_that_was_told_to_end_tells_its_proxy() {
    let mut index = shop();
    let ending =
        |index: &Index| index.server_policy(&"shop/web-0".parse().unwrap()).unwrap().ending;
    assert!(!ending(&index));
    put(&mut index, &SHOP.replacen("ready: true}", "ready: true, ending: true}", 1));
    assert!(ending(&index));
    assert!(!index.server_policy(&"shop/web-1".parse().unwrap()).unwrap().ending);
}

#[test]
fn a_mesh_that_is_removed_takes_plaintext_before_it_speaks_it() {
    let settings = MeshSettings {
        default_mtls: MtlsMode::Strict,
        namespace: Some("mesh".to_owned()),
        ..MeshSettings::default()
    };
    let mut index = Index::new(settings);
    put(&mut index, SHOP);
    let step = |index: &mut Index, namespace: &str, removal: Removal| {
        let text = format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, \
             annotations: {{leno.dev/removal: {removal}}}}}}}"
        );
        put(index, &text);
    };
    let seen = |index: &Index| {
        let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
        let of_workload = workload(index, "shop/web-0").identity.is_some();
        let web = service(index, "shop/web");
        let of_service = web.ports[0].endpoints.iter().all(|one| one.identity.is_some());
        assert_eq!(of_workload, of_service);
        (policy.mtls, of_service, policy.removal, policy.closes())
    };
    step(&mut index, "shop", Removal::Released);
    let stays = (MtlsMode::Strict, true, Removal::None, false);
    assert_eq!(seen(&index), stays, "another namespace has no say");
    for (removal, mtls, closes) in [
        (Removal::Permissive, true, false),
        (Removal::Plaintext, false, false),
        (Removal::Released, false, true),
    ] {
        step(&mut index, "mesh", removal);
        assert_eq!(seen(&index), (MtlsMode::Permissive, mtls, removal, closes));
    }
    put(&mut index, "{apiVersion: v1, kind: Namespace, metadata: {name: mesh}}");
    assert_eq!(seen(&index), stays, "a removal can be taken back");
}

#[test]
fn no_identity_is_expected_of_endpoints_without_mtls() {
    let mut index = shop();
    let expected = |index: &Index| {
        let port = endpoints(service(index, "shop/web").port(80).unwrap()).swap_remove(0);
        (workload(index, "shop/web-0").identity.is_some(), !port.ends_with('-'))
    };
    assert_eq!(expected(&index), (true, true));
    put(&mut index, &annotated("disabled"));
    assert_eq!(expected(&index), (false, false));
    put(&mut index, &annotated("strict"));
    assert_eq!(expected(&index), (true, true));
    put(&mut index, &SHOP.replace("meshed: true", "meshed: false"));
    assert_eq!(expected(&index), (false, false));
}

#[test]
fn a_namespace_that_turns_mtls_off_changes_all_that_names_its_instances() {
    let mut index = shop();
    let changed = put(&mut index, &namespace("disabled"));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(names(&changed.workloads), ["shop/web-0", "shop/web-1"]);
    assert_eq!(names(&changed.policies), ["shop/web-0", "shop/web-1"]);
    let all = ["10.89.0.2", "10.89.0.3", "10.96.0.1", "fd89::2", "fd89::3", "fd96::1"];
    assert_eq!(names(&changed.addresses), all);
    // Only the server treats strict and permissive mode differently. Clients use mTLS in both.
    let mut index = shop();
    let changed = put(&mut index, &namespace("strict"));
    assert_eq!(names(&changed.policies), ["shop/web-0", "shop/web-1"]);
    assert!(changed.services.is_empty() && changed.workloads.is_empty());
    assert!(changed.addresses.is_empty());
}

#[test]
fn the_ports_of_an_instance_are_declared_by_itself_then_by_its_services() {
    let mut index = shop();
    put(
        &mut index,
        r#"
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  ports:
  - {name: sql, port: 3306, appProtocol: mysql}
  - {name: web, port: 80, targetPort: 8080, appProtocol: mysql}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: sql, port: 13306}, {name: web, port: 8080}]
endpoints: [{addresses: [10.89.0.2], targetRef: {kind: Workload, name: web-0}}]
"#,
    );
    let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
    assert_eq!(declared(&policy.ports, 8080), Protocol::Http1, "its own word");
    assert_eq!(declared(&policy.ports, 13306), Protocol::Opaque, "the service's");
    assert_eq!(declared(&policy.ports, 3306), Protocol::Detect, "not the port that is dialled");
    assert_eq!(policy.ports, workload(&index, "shop/web-0").ports);
    let other = index.server_policy(&"shop/web-1".parse().unwrap()).unwrap();
    assert_eq!(declared(&other.ports, 13306), Protocol::Detect);
}

#[test]
fn a_workload_that_ends_leaves_nothing_behind() {
    let mut index = shop();
    let key = objects(SHOP)[0].key();
    let changed = index.apply(leno_index::ObjectChange::Delete(key));
    assert!(index.workload(&"shop/web-0".parse().unwrap()).is_none());
    assert!(index.server_policy(&"shop/web-0".parse().unwrap()).is_none());
    assert_eq!(index.resolve(&ip("fd89::2").into(), "client"), Resolution::Unknown);
    assert_eq!(names(&changed.policies), ["shop/web-0", "shop/web-1"]);
    // The slices still name the deleted instances, but clients no longer expect an identity there.
    let left = endpoints(service(&index, "shop/web").port(80).unwrap());
    assert!(left.iter().all(|endpoint| endpoint.ends_with('-')), "{left:?}");
}

#[test]
fn a_second_service_on_a_port_cannot_switch_off_what_holds_for_its_requests() {
    let mut index = shop();
    let document = |name: &str, protocol: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
             spec: {{ports: [{{port: 9, appProtocol: {protocol}}}]}}}}\n---\n\
             {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, \
             namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}, \
             addressType: IPv4, ports: [{{port: 9}}], endpoints: [{{addresses: [10.89.0.2], \
             targetRef: {{kind: Workload, name: web-0}}}}]}}\n"
        )
    };
    let of_nine = |index: &Index| declared(&workload(index, "shop/web-0").ports, 9);
    put(&mut index, &document("a", "mysql"));
    assert_eq!(of_nine(&index), Protocol::Opaque);
    put(&mut index, &document("b", "http"));
    assert_eq!(of_nine(&index), Protocol::Http1, "the stricter one holds");
    put(&mut index, &document("b", "redis"));
    assert_eq!(of_nine(&index), Protocol::Opaque);
}
