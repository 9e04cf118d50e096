//! Tests that a tenant's objects cannot claim anything that belongs to other namespaces.

use leno_index::{AddressOwner, EndpointRefusal, Index, MeshSettings, ObjectChange, ObjectWriters};
use leno_resources::{Object, PodHost};
use leno_types::mesh::declared;
use leno_types::{Egress, InstanceName, MtlsMode, Protocol};

use crate::support::{SHOP, endpoints, ip, objects, put, service, workload};

const NODE: &str = "192.168.0.1";

/// The shop as it is in a cluster: its instances are pods.
fn cluster() -> Index {
    let mut index =
        Index::new(MeshSettings { writers: ObjectWriters::Tenants, ..MeshSettings::default() });
    put_pods(&mut index, SHOP, false);
    index
}

/// Inserts objects. Workloads are turned into pods; `shared` is whether these use their node's network.
fn put_pods(index: &mut Index, text: &str, shared: bool) {
    put_as(index, text, &PodHost { addresses: vec![ip(NODE)], shared, served: false });
}

/// Inserts objects. Workloads are turned into pods of this node.
fn put_as(index: &mut Index, text: &str, host: &PodHost) {
    let pod = |mut object: Object| {
        if let Object::Workload(workload) = &mut object {
            workload.metadata.name = format!("pod/{}", workload.metadata.name);
            for instance in workload.status.iter_mut().flat_map(|status| &mut status.instances) {
                instance.pod = Some(host.clone());
            }
        }
        ObjectChange::Upsert(object)
    };
    index.apply_all(objects(text).into_iter().map(pod).collect());
}

/// A service of a tenant, with a slice of these endpoints.
fn tenant(name: &str, extra: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: evil}}\n\
         spec: {{ports: [{{name: http, port: 80, targetPort: 8080{extra}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, namespace: evil, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: {endpoints}\n"
    )
}

/// The endpoints that clients of `evil/<name>` receive, and how many others are refused, by reason.
fn told(index: &Index, name: &str) -> (Vec<String>, Vec<(EndpointRefusal, usize)>) {
    let service = service(index, &format!("evil/{name}"));
    let refused = index.refused_endpoints().get(&service.name);
    let counts = refused.map(|refused| refused.counts.clone().into_iter().collect());
    (endpoints(service.port(80).unwrap()), counts.unwrap_or_default())
}

fn refused(index: &mut Index, endpoints: &str) -> Vec<(EndpointRefusal, usize)> {
    put(index, &tenant("trap", "", endpoints));
    let (served, refused) = told(index, "trap");
    assert_eq!(served, [""; 0], "{endpoints}");
    refused
}

/// A pod without a sidecar, as the source reads it.
fn bare_pod(labels: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: bare, namespace: shop, labels: {{{labels}}}}}\n\
         spec: {{serviceAccount: web, command: [web], ports: [{{name: http, port: 8080}}]}}\n\
         status: {{instances: [{{name: bare, addresses: [10.89.0.7], ready: true}}]}}\n"
    )
}

#[test]
fn a_pod_in_node_mode_is_meshed_as_its_namespace_or_it_says_and_when_that_changes() {
    let mut index = cluster();
    put_pods(&mut index, &bare_pod("app: bare"), false);
    put(
        &mut index,
        &tenant("bare", "", "[{addresses: [10.89.0.7], targetRef: {kind: Pod, name: bare}}]")
            .replace("evil", "shop"),
    );
    let identity = |index: &Index| {
        let service = service(index, "shop/bare");
        let port = service.port(80).unwrap();
        port.endpoints.first().unwrap().identity.as_ref().map(ToString::to_string)
    };
    let namespace = |labels: &str| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n")
    };
    let meshed = Some("spiffe://cluster.local/ns/shop/sa/web".to_owned());
    assert_eq!(identity(&index), None);
    for (labels, expected) in [
        ("leno.dev/inject: enabled, leno.dev/mode: node", &meshed),
        ("leno.dev/inject: enabled, leno.dev/mode: sidecar", &None),
        ("leno.dev/mode: node", &None),
        ("leno.dev/inject: enabled, leno.dev/mode: node", &meshed),
    ] {
        put(&mut index, &namespace(labels));
        assert_eq!(identity(&index), *expected, "{labels}");
    }
    put_pods(&mut index, &bare_pod("leno.dev/mode: sidecar"), false);
    assert_eq!(identity(&index), None, "the pod decides");
}

/// Regression: clients expected mTLS of running pods from the label on, before the agent of their node had captured them.
#[test]
fn a_running_pod_in_node_mode_is_meshed_once_it_is_served_unless_plaintext_to_it_is_forbidden() {
    let mut index =
        Index::new(MeshSettings { writers: ObjectWriters::Tenants, ..MeshSettings::default() });
    let name: InstanceName = "shop/bare".parse().unwrap();
    let early = "leno.dev/inject: enabled, leno.dev/mode: node";
    put(
        &mut index,
        &format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{early}}}}}\n"
        ),
    );
    put_pods(&mut index, &bare_pod("app: bare"), false);
    let expects_mtls = |index: &Index| workload(index, "shop/bare").identity.is_some();
    assert!(expects_mtls(&index), "an agent of an earlier release may serve it");
    let changed = index.follow_reports();
    assert!(changed.workloads.contains(&name));
    assert!(!expects_mtls(&index));
    assert!(index.follow_reports().is_empty());
    let mut seen = |labels: &str, mtls: &str, served: bool| {
        put(
            &mut index,
            &format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}, \
                 annotations: {{leno.dev/mtls: {mtls}}}}}\n"
            ),
        );
        let host = PodHost { addresses: vec![ip(NODE)], shared: false, served };
        put_as(&mut index, &bare_pod("app: bare"), &host);
        let policy = index.server_policy(&name).unwrap();
        let expects_mtls = workload(&index, "shop/bare").identity.is_some();
        (index.is_meshed(&name), index.awaits_node_proxy(&name), expects_mtls, policy.mtls)
    };
    let node = "leno.dev/inject: enabled, leno.dev/mode: node";
    let (open, strict) = (MtlsMode::Permissive, MtlsMode::Strict);
    assert_eq!(seen("", "permissive", false), (false, false, false, open));
    assert_eq!(seen(node, "permissive", false), (false, true, false, open), "it has no proxy yet");
    assert_eq!(seen(node, "permissive", true), (true, false, true, open));
    assert_eq!(seen("", "permissive", true), (false, false, false, open), "its mode decides");
    // A report that is missing, or was removed, opens nothing: neither the client nor the server.
    assert_eq!(seen(node, "strict", true), (true, false, true, strict));
    assert_eq!(seen(node, "strict", false), (false, true, true, strict));
    assert_eq!(seen("", "strict", false), (false, false, false, strict), "it is in no mesh");
    let disabled = (false, true, false, MtlsMode::Disabled);
    assert_eq!(seen(node, "disabled", false), disabled);
}

/// A tenant's slice names a pod of another namespace, or the pod's address (CVE-2021-25740).
#[test]
fn a_foreign_endpoint_slice_sends_no_client_to_pods_of_another_namespace() {
    let mut index = cluster();
    let by_reference =
        "[{addresses: [10.89.0.2], targetRef: {kind: Pod, name: web-0, namespace: shop}}]";
    assert_eq!(refused(&mut index, by_reference), [(EndpointRefusal::ForeignTarget, 1)]);
    let by_address = "[{addresses: [10.89.0.2]}, {addresses: [10.89.0.3]}]";
    assert_eq!(refused(&mut index, by_address), [(EndpointRefusal::ForeignAddress, 2)]);
    let as_node = "[{addresses: [10.89.0.2], targetRef: {kind: Node, name: web-0}}]";
    assert_eq!(refused(&mut index, as_node), [(EndpointRefusal::ForeignAddress, 1)]);
    let first = &index.refused_endpoints()[&"evil/trap".parse().unwrap()].first;
    assert_eq!((first[0].address, first.len()), (ip("10.89.0.2"), 1));
    let still = endpoints(service(&index, "shop/web").port(80).unwrap());
    assert_eq!(still.len(), 2, "the pods' own service is as before");
}

/// If a foreign slice could declare that a port of another namespace's pod is not HTTP, the pod's proxy would stop
/// applying its policies there.
#[test]
fn a_foreign_endpoint_slice_declares_nothing_of_a_pods_ports() {
    let mut index = cluster();
    let trap = "[{addresses: [10.89.0.2], targetRef: {kind: Pod, name: web-0, namespace: shop}}]";
    put(&mut index, &tenant("trap", ", appProtocol: mysql", trap).replace("8080", "9"));
    let limit = "apiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\n\
                 metadata: {name: none, namespace: evil}\nspec:\n  targetRefs: \
                 [{group: '', kind: Service, name: trap}]\n  limits: [{requests: 1}]\n";
    put(&mut index, limit);
    assert_eq!(declared(&workload(&index, "shop/web-0").ports, 9), Protocol::Detect);
    let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
    assert!(policy.limits.is_empty(), "a foreign limit would starve the pod");
}

#[test]
fn an_endpoint_whose_address_is_not_its_pods_is_ignored() {
    let mut index = cluster();
    let own = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: e, namespace: evil}\n\
               spec: {command: [e]}\nstatus: {instances: [{name: e-0, addresses: [10.89.0.66]}]}\n";
    put_pods(&mut index, own, false);
    let reference = "targetRef: {kind: Pod, name: e-0, namespace: evil}";
    put(&mut index, &tenant("fine", "", &format!("[{{addresses: [10.89.0.66], {reference}}}]")));
    assert_eq!(told(&index, "fine"), (vec!["evil/e-0 10.89.0.66 8080 -".to_owned()], vec![]));
    for address in ["10.89.0.2", "192.0.2.7"] {
        let trap = format!("[{{addresses: [{address}], {reference}}}]");
        assert_eq!(refused(&mut index, &trap), [(EndpointRefusal::NotOfTarget, 1)]);
    }
    // Until the pod was read, no client may reach it, because clients would use plaintext.
    let early = "[{addresses: [10.89.0.67], targetRef: {kind: Pod, name: e-1, namespace: evil}}]";
    put(&mut index, &tenant("early", "", early));
    assert_eq!(told(&index, "early"), (vec![], vec![(EndpointRefusal::UnknownTarget, 1)]));
    put_pods(&mut index, &own.replace("e-0", "e-1").replace("66", "67"), false);
    assert_eq!(told(&index, "early").0.len(), 1);
}

#[test]
fn an_endpoint_slice_of_bare_addresses_leads_out_of_the_cluster_only() {
    let mut index = cluster();
    for (address, reason) in [
        ("10.96.0.1", EndpointRefusal::ServiceAddress),
        (NODE, EndpointRefusal::NodeAddress),
        ("127.0.0.1", EndpointRefusal::ReservedAddress),
        ("169.254.169.254", EndpointRefusal::ReservedAddress),
    ] {
        let trap = format!("[{{addresses: [\"{address}\"]}}]");
        assert_eq!(refused(&mut index, &trap), [(reason, 1)], "{address}");
    }
    put(&mut index, &tenant("bank", "", "[{addresses: [192.0.2.7]}]"));
    assert_eq!(told(&index, "bank").0, ["- 192.0.2.7 8080 -"]);
    // When a new pod has that address, the address belongs to the pod's namespace. After the pod is deleted, the
    // address is free again.
    let pod = SHOP.replace("10.89.0.2", "192.0.2.7");
    put_pods(&mut index, &pod, false);
    assert_eq!(told(&index, "bank"), (vec![], vec![(EndpointRefusal::ForeignAddress, 1)]));
    put_pods(&mut index, SHOP, false);
    assert_eq!(told(&index, "bank").0.len(), 1);
}

/// Pods in their node's network may be endpoints of services, and the API server may be an endpoint of its own
/// service.
#[test]
fn a_nodes_address_is_an_endpoint_by_a_pod_in_its_network_or_as_the_api_server() {
    let mut index = cluster();
    let pod = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: m, namespace: evil}}\n\
         spec: {{command: [m]}}\nstatus: {{instances: [{{name: m-0, addresses: [{NODE}]}}]}}\n"
    );
    put_pods(&mut index, &pod, true);
    let slice = format!("[{{addresses: [{NODE}], targetRef: {{kind: Pod, name: m-0}}}}]");
    put(&mut index, &tenant("metrics", "", &slice));
    assert_eq!(told(&index, "metrics").0, [format!("evil/m-0 {NODE} 8080 -")]);
    assert!(index.workload(&"evil/m-0".parse().unwrap()).is_none(), "it is no client of the mesh");
    let bare = format!("[{{addresses: [{NODE}]}}]");
    let server = tenant("kubernetes", "", &bare).replace("namespace: evil", "namespace: default");
    put(&mut index, &server);
    let api = service(&index, "default/kubernetes");
    assert_eq!(endpoints(api.port(80).unwrap()).len(), 1);
}

/// A `Workload` claims addresses that belong to a pod, a service or an older `Workload`.
#[test]
fn a_claimed_address_stays_with_its_pod_and_its_service() {
    let mut index = cluster();
    let claim = |name: &str, created: &str, addresses: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: {name}, namespace: aaa, creationTimestamp: \"{created}\"}}\n\
             spec: {{command: [x]}}\n\
             status: {{instances: [{{name: {name}-0, addresses: [{addresses}], meshed: true}}]}}\n"
        )
    };
    let holder = |index: &Index, at: &str| match index.address(ip(at)) {
        Some(AddressOwner::Service(service)) => service.name.to_string(),
        Some(AddressOwner::Workload(workload)) => workload.name.to_string(),
        None => "-".to_owned(),
    };
    put(&mut index, &claim("b", "2026-01-02T00:00:00Z", "10.89.0.2, 10.96.0.1, 10.0.0.9"));
    assert_eq!(holder(&index, "10.89.0.2"), "shop/web-0");
    assert_eq!(holder(&index, "10.96.0.1"), "shop/web");
    assert_eq!(holder(&index, "10.0.0.9"), "aaa/b-0");
    assert_eq!(workload(&index, "aaa/b-0").addresses, [ip("10.0.0.9")], "no other is its own");
    // The older object takes precedence over the first by name.
    put(&mut index, &claim("a", "2026-01-03T00:00:00Z", "10.0.0.9"));
    assert_eq!(holder(&index, "10.0.0.9"), "aaa/b-0");
    put(&mut index, &claim("z", "2026-01-01T00:00:00Z", "10.0.0.9"));
    assert_eq!(holder(&index, "10.0.0.9"), "aaa/z-0");
}

/// A `Workload` of the same namespace claims an instance with a pod's name.
#[test]
fn a_workload_cannot_take_the_name_of_a_pod() {
    let mut index = cluster();
    let fake = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: aa, namespace: shop}\n\
                spec: {command: [x], serviceAccount: admin}\n\
                status: {instances: [{name: web-0, addresses: [10.0.0.9], meshed: true}]}\n";
    put(&mut index, fake);
    let web = workload(&index, "shop/web-0");
    assert_eq!(web.identity.as_ref().unwrap().service_account(), "web");
    assert!(web.addresses.contains(&ip("10.89.0.2")) && !web.addresses.contains(&ip("10.0.0.9")));
}

/// In `leno up` and in a static configuration, one operator writes all documents, so claims are not checked.
#[test]
fn an_operators_own_documents_are_not_doubted() {
    let mut index = Index::new(MeshSettings::default());
    put(&mut index, SHOP);
    put(&mut index, &tenant("local", "", "[{addresses: [127.0.0.1]}, {addresses: [10.89.0.2]}]"));
    assert_eq!(told(&index, "local").0.len(), 2);
}

/// Tenants write the annotations of their pods, but the cluster administrator writes those of namespaces.
#[test]
fn a_pods_annotations_tighten_and_never_loosen_what_its_namespace_says() {
    let namespace = |annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\n\
             metadata: {{name: shop, annotations: {{{annotations}}}}}\n"
        )
    };
    let pod = |annotations: &str| {
        let with = format!("{{name: web, namespace: shop, annotations: {{{annotations}}}}}");
        SHOP.replacen("{name: web, namespace: shop}", &with, 1)
    };
    let effective = |of_mesh: MeshSettings, of_namespace: &str, of_pod: &str| {
        let mut index = Index::new(MeshSettings { writers: ObjectWriters::Tenants, ..of_mesh });
        put(&mut index, &namespace(of_namespace));
        put_pods(&mut index, &pod(of_pod), false);
        let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
        (policy.mtls, policy.egress)
    };
    let (strict, deny) = ("leno.dev/mtls: strict", "leno.dev/egress: deny");
    let (disabled, allow) = ("leno.dev/mtls: disabled", "leno.dev/egress: allow");
    let mesh = |default_mtls, default_egress| MeshSettings {
        default_mtls,
        default_egress,
        ..MeshSettings::default()
    };
    let open = || mesh(MtlsMode::Permissive, Egress::Allow);
    let closed = || mesh(MtlsMode::Strict, Egress::Deny);
    let tight = (MtlsMode::Strict, Egress::Deny);
    let both = |mtls: &str, egress: &str| format!("{mtls}, {egress}");
    let (loosened, tightened) = (both(disabled, allow), both(strict, deny));
    assert_eq!(effective(open(), &tightened, &loosened), tight, "its namespace's floor");
    assert_eq!(effective(closed(), "", &loosened), tight, "the mesh's floor");
    assert_eq!(effective(open(), "", &tightened), tight, "a pod may tighten");
    let lifted = effective(closed(), &loosened, "");
    assert_eq!(lifted, (MtlsMode::Disabled, Egress::Allow), "a namespace may loosen");
}

#[test]
fn an_exemption_lets_the_pods_that_it_selects_loosen_what_it_names_while_it_is_there() {
    let exemption = |labels: &str, settings: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: PodExemption\n\
             metadata: {{name: some, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{{labels}}}}}, settings: [{settings}]}}\n"
        )
    };
    let settings = MeshSettings {
        default_mtls: MtlsMode::Strict,
        default_egress: Egress::Deny,
        ..MeshSettings::default()
    };
    let mut index = Index::new(MeshSettings { writers: ObjectWriters::Tenants, ..settings });
    let with = "{name: web, namespace: shop, labels: {app: web}, \
                annotations: {leno.dev/mtls: permissive, leno.dev/egress: allow}}";
    put_pods(&mut index, &SHOP.replacen("{name: web, namespace: shop}", with, 1), false);
    let effective = |index: &Index| {
        let policy = index.server_policy(&"shop/web-0".parse().unwrap()).unwrap();
        (policy.mtls, policy.egress)
    };
    let tight = (MtlsMode::Strict, Egress::Deny);
    assert_eq!(effective(&index), tight);
    put(&mut index, &exemption("app: other", "mtls, egress"));
    assert_eq!(effective(&index), tight, "it is for other pods");
    let changed = put(&mut index, &exemption("app: web", "mtls"));
    assert!(!changed.policies.is_empty(), "the proxy is sent its new policy");
    assert_eq!(effective(&index), (MtlsMode::Permissive, Egress::Deny));
    put(&mut index, &exemption("", "mtls, egress"));
    assert_eq!(effective(&index), (MtlsMode::Permissive, Egress::Allow), "all pods");
    let foreign = exemption("", "mtls, egress").replace("namespace: shop", "namespace: evil");
    index.apply(ObjectChange::Delete(objects(&exemption("", "mtls"))[0].key()));
    put(&mut index, &foreign);
    assert_eq!(effective(&index), tight, "one of another namespace is nothing to it");
}
