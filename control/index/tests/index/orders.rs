//! Tests that the order of changes does not matter: the tables are the same as if the last state had been applied
//! at once, and the index reports exactly the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use leno_index::{AddressOwner, ChangedNames, Index, MeshSettings, ObjectChange, ObjectWriters};
use leno_resources::{
    EndpointSlice, INJECT_ANNOTATION, InstanceStatus, MODE_ANNOTATION, MTLS_ANNOTATION, Metadata,
    Namespace, Object, ObjectKey, PodHost, PolicyTarget, RateLimitPolicy, RateLimitPolicySpec,
    RateLimitSpec, RetriesSpec, SERVICE_NAME_LABEL, Service, TrafficPolicy, TrafficPolicySpec,
    Workload, WorkloadPort, WorkloadSpec, WorkloadStatus,
};
use leno_types::mesh::{self, Resolution, ServerPolicy, Subject};
use leno_types::{InstanceName, ServiceName};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::support::ip;

// Each list is short, so that objects often share names and claim the same addresses.
const NAMESPACES: [&str; 2] = ["a", "b"];
const SERVICES: [&str; 2] = ["s", "t"];
const SLICES: [&str; 3] = ["x", "y", "z"];
const WORKLOADS: [&str; 2] = ["v", "w"];
const POLICIES: [&str; 2] = ["p", "q"];
const ROUTES: [&str; 2] = ["k", "l"];
const INSTANCES: [&str; 3] = ["v-0", "w-0", "w-1"];
const ADDRESSES: [&str; 6] =
    ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2", "::ffff:10.0.0.1"];
const PORT_NAMES: [&str; 2] = ["http", "sql"];
const PROTOCOLS: [&str; 3] = ["http", "grpc", "mysql"];
const MODES: [&str; 3] = ["strict", "permissive", "disabled"];

fn one_of<const N: usize>(texts: [&'static str; N]) -> impl Strategy<Value = String> {
    select(texts.to_vec()).prop_map(str::to_owned)
}

fn some_of<const N: usize>(texts: [&'static str; N]) -> impl Strategy<Value = Vec<String>> {
    let subset = subsequence(texts.to_vec(), 0..=N).prop_shuffle();
    subset.prop_map(|texts| texts.into_iter().map(str::to_owned).collect())
}

fn mode() -> impl Strategy<Value = BTreeMap<String, String>> {
    let annotation = |mode| (MTLS_ANNOTATION.to_owned(), mode);
    of(one_of(MODES)).prop_map(move |mode| mode.into_iter().map(annotation).collect())
}

prop_compose! {
    fn namespace()(
        name in one_of(NAMESPACES),
        annotations in mode(),
        is_node in any::<bool>(),
    ) -> Object {
        let node = [(INJECT_ANNOTATION, "enabled"), (MODE_ANNOTATION, "node")];
        let labels = node.into_iter().filter(|_| is_node);
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let metadata = ObjectMeta {
            name: Some(name),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        Object::Namespace(Box::new(Namespace { metadata, ..Namespace::default() }))
    }
}

prop_compose! {
    fn service_port()(
        name in one_of(PORT_NAMES),
        port in 80..=82_i32,
        target in of(prop_oneof![
            (8080..=8082_i32).prop_map(IntOrString::Int),
            one_of(PORT_NAMES).prop_map(IntOrString::String),
        ]),
        app_protocol in of(one_of(PROTOCOLS)),
        transport in of(select(vec!["TCP", "TCP", "UDP"])),
    ) -> ServicePort {
        ServicePort {
            name: Some(name),
            port,
            target_port: target,
            app_protocol,
            protocol: transport.map(str::to_owned),
            ..ServicePort::default()
        }
    }
}

prop_compose! {
    fn service()(
        namespace in one_of(NAMESPACES),
        name in one_of(SERVICES),
        vips in some_of(ADDRESSES),
        ports in prop::collection::vec(service_port(), 0..3),
        type_ in select(vec![None, None, None, Some("ExternalName")]),
        distribution in of(select(vec!["PreferClose", "PreferSameNode"])),
    ) -> Object {
        let metadata =
            ObjectMeta { namespace: Some(namespace), name: Some(name), ..ObjectMeta::default() };
        let spec = ServiceSpec {
            cluster_ip: Some(vips.first().cloned().unwrap_or("None".to_owned())),
            cluster_ips: Some(vips),
            ports: Some(ports),
            type_: type_.map(str::to_owned),
            traffic_distribution: distribution.map(str::to_owned),
            ..ServiceSpec::default()
        };
        Object::Service(Box::new(Service { metadata, spec: Some(spec), status: None }))
    }
}

prop_compose! {
    fn endpoint()(
        address in one_of(ADDRESSES),
        ready in of(any::<bool>()),
        target in of((one_of(INSTANCES), of(one_of(NAMESPACES)))),
        (zone, node) in (of(select(vec!["a", "b"])), of(select(vec!["n1", "n2"]))),
    ) -> Endpoint {
        let reference = |(name, namespace)| ObjectReference {
            kind: Some("Workload".to_owned()),
            name: Some(name),
            namespace,
            ..ObjectReference::default()
        };
        Endpoint {
            addresses: vec![address],
            conditions: Some(EndpointConditions { ready, ..EndpointConditions::default() }),
            target_ref: target.map(reference),
            zone: zone.map(str::to_owned),
            node_name: node.map(str::to_owned),
            ..Endpoint::default()
        }
    }
}

prop_compose! {
    fn slice()(
        namespace in one_of(NAMESPACES),
        name in one_of(SLICES),
        service in one_of(SERVICES),
        ports in prop::collection::vec(
            (one_of(PORT_NAMES), of(8080..=8082_i32), of(one_of(PROTOCOLS))), 0..3),
        endpoints in prop::collection::vec(endpoint(), 0..4),
    ) -> Object {
        let port = |(name, port, app_protocol)| EndpointPort {
            name: Some(name),
            port,
            app_protocol,
            ..EndpointPort::default()
        };
        let metadata = ObjectMeta {
            namespace: Some(namespace),
            name: Some(name),
            labels: Some(BTreeMap::from([(SERVICE_NAME_LABEL.to_owned(), service)])),
            ..ObjectMeta::default()
        };
        Object::EndpointSlice(Box::new(EndpointSlice {
            address_type: "IPv4".to_owned(),
            metadata,
            ports: Some(ports.into_iter().map(port).collect()),
            endpoints: Some(endpoints),
        }))
    }
}

prop_compose! {
    fn workload()(
        namespace in one_of(NAMESPACES),
        name in one_of(WORKLOADS),
        annotations in mode(),
        service_account in select(vec!["one", "two", "not a name"]),
        ports in prop::collection::vec(
            (one_of(PORT_NAMES), 8080..=8082_u16, of(one_of(PROTOCOLS))), 0..3),
        instances in some_of(INSTANCES),
        rest in prop::collection::vec((some_of(ADDRESSES), any::<bool>()), INSTANCES.len()),
        (age_s, ending) in (of(1..3_i64), any::<bool>()),
        pod in of((some_of(ADDRESSES), any::<bool>(), any::<bool>())),
    ) -> Object {
        let pod = pod.map(|(addresses, shared, served)| PodHost {
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            shared,
            served,
        });
        let port = |(name, port, app_protocol)| WorkloadPort {
            name,
            port,
            app_protocol,
            ..WorkloadPort::default()
        };
        let instance = |(name, (addresses, meshed)): (String, (Vec<String>, bool))| {
            let addresses = addresses.iter().map(|text| ip(text)).collect();
            InstanceStatus { name, addresses, meshed, ready: true, ending, pod: pod.clone() }
        };
        Object::Workload(Box::new(Workload {
            metadata: Metadata { name, namespace, annotations, creation_timestamp: age(age_s), ..Metadata::default() },
            spec: WorkloadSpec {
                service_account: service_account.to_owned(),
                replicas: 1,
                command: vec!["w".to_owned()],
                ports: ports.into_iter().map(port).collect(),
                ..WorkloadSpec::default()
            },
            status: Some(WorkloadStatus {
                instances: instances.into_iter().zip(rest).map(instance).collect(),
            }),
        }))
    }
}

fn age(seconds: Option<i64>) -> Option<Time> {
    seconds.map(|seconds| Time(Timestamp::from_second(seconds).unwrap()))
}

fn metadata(namespace: &str, name: &str) -> Metadata {
    Metadata { name: name.to_owned(), namespace: namespace.to_owned(), ..Metadata::default() }
}

fn target<const N: usize>(
    (group, kind): (&'static str, &'static str),
    known: [&'static str; N],
    sections: Vec<&'static str>,
) -> impl Strategy<Value = PolicyTarget> {
    (one_of(known), of(select(sections))).prop_map(move |(name, section)| PolicyTarget {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name,
        section_name: section.map(str::to_owned),
    })
}

fn services_or(
    other: impl Strategy<Value = PolicyTarget> + 'static,
) -> impl Strategy<Value = Vec<PolicyTarget>> {
    let service = target(("", "Service"), SERVICES, vec!["http", "sql", "81"]);
    prop::collection::vec(prop_oneof![service, other], 1..3)
}

prop_compose! {
    fn traffic_policy()(
        namespace in one_of(NAMESPACES),
        name in one_of(POLICIES),
        target_refs in services_or(
            target(("gateway.networking.k8s.io", "HTTPRoute"), ROUTES, vec!["fast", "slow"])),
        attempts in 1..4_u32,
    ) -> Object {
        let retries = Some(RetriesSpec { attempts: Some(attempts), ..RetriesSpec::default() });
        let spec = TrafficPolicySpec { target_refs, retries, ..TrafficPolicySpec::default() };
        let metadata = metadata(&namespace, &name);
        Object::TrafficPolicy(Box::new(TrafficPolicy { metadata, spec, status: None }))
    }
}

prop_compose! {
    fn rate_limit_policy()(
        namespace in one_of(NAMESPACES),
        name in one_of(POLICIES),
        target_refs in services_or(target(("leno.dev", "Workload"), WORKLOADS, vec!["http"])),
        requests in 1..4_u32,
    ) -> Object {
        let limit = RateLimitSpec { requests, per: None, burst: None, by: None, scope: None };
        let spec = RateLimitPolicySpec { target_refs, limits: vec![limit] };
        let metadata = metadata(&namespace, &name);
        Object::RateLimitPolicy(Box::new(RateLimitPolicy { metadata, spec, status: None }))
    }
}

prop_compose! {
    fn route()(
        namespace in one_of(NAMESPACES),
        name in one_of(ROUTES),
        (parent, of) in (one_of(SERVICES), one_of(NAMESPACES)),
        (backend, rule) in (one_of(SERVICES), select(vec!["fast", "slow"])),
    ) -> Object {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  parentRefs: \
             [{{group: '', kind: Service, name: {parent}, namespace: {of}}}]\n  \
             rules: [{{name: {rule}, backendRefs: [{{name: {backend}, port: 80}}]}}]\n"
        );
        crate::support::objects(&text).swap_remove(0)
    }
}

fn change() -> impl Strategy<Value = ObjectChange> {
    let object = prop_oneof![
        1 => namespace(), 3 => service(), 5 => slice(), 3 => workload(),
        2 => route(), 2 => traffic_policy(), 2 => rate_limit_policy(),
    ];
    (object, 0..4_u8).prop_map(|(object, dice)| match dice {
        0 => ObjectChange::Delete(object.key()),
        _ => ObjectChange::Upsert(object),
    })
}

/// The answers to all queries.
#[derive(Default, PartialEq, Debug)]
struct Answers {
    services: BTreeMap<String, Arc<mesh::Service>>,
    /// For each service, the answer to the clients of each namespace.
    told: BTreeMap<String, Vec<Resolution>>,
    workloads: BTreeMap<String, Arc<mesh::Workload>>,
    policies: BTreeMap<String, Arc<ServerPolicy>>,
    addresses: BTreeMap<IpAddr, AddressOwner>,
}

impl Answers {
    fn of(index: &Index) -> Self {
        let mut all = Self::default();
        for (namespace, name) in NAMESPACES.iter().flat_map(|ns| SERVICES.map(|name| (ns, name))) {
            let subject = Subject::Service(ServiceName::new(namespace, name).unwrap());
            let clients = NAMESPACES.iter().chain(&["elsewhere"]);
            let told = clients.map(|client| index.resolve(&subject, client)).collect();
            all.told.insert(format!("{namespace}/{name}"), told);
        }
        for namespace in NAMESPACES {
            let services = index.services_in(namespace);
            all.services.extend(services.map(|s| (s.name.to_string(), s.clone())));
            let workloads = index.workloads_in(namespace);
            all.workloads.extend(workloads.map(|w| (w.name.to_string(), w.clone())));
            for name in INSTANCES {
                let name = InstanceName::new(namespace, name).unwrap();
                let policy = index.server_policy(&name);
                all.policies.extend(policy.map(|policy| (name.to_string(), policy)));
            }
        }
        for ip in ADDRESSES.map(ip) {
            let address = index.address(ip);
            all.addresses.extend(address.map(|address| (ip.to_canonical(), address)));
        }
        all
    }
}

/// The keys whose values differ.
fn differing<K: Ord + Clone, V: PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> BTreeSet<K> {
    let keys: BTreeSet<&K> = before.keys().chain(after.keys()).collect();
    keys.into_iter().filter(|key| before.get(key) != after.get(key)).cloned().collect()
}

/// Asserts that a value that did not change is still the same `Arc`.
fn kept<K: Ord + Debug, V: PartialEq>(
    before: &BTreeMap<K, Arc<V>>,
    after: &BTreeMap<K, Arc<V>>,
) -> bool {
    before
        .iter()
        .all(|(key, old)| after.get(key).is_none_or(|new| Arc::ptr_eq(old, new) || old != new))
}

fn check_told(before: &Answers, after: &Answers, changed: &ChangedNames) {
    let texts = |set: Vec<String>| set.into_iter().collect::<BTreeSet<_>>();
    let services = texts(crate::support::names(&changed.services));
    let workloads = texts(crate::support::names(&changed.workloads));
    let policies = texts(crate::support::names(&changed.policies));
    assert_eq!(services, differing(&before.told, &after.told));
    assert_eq!(workloads, differing(&before.workloads, &after.workloads));
    assert_eq!(policies, differing(&before.policies, &after.policies));
    assert_eq!(changed.addresses, differing(&before.addresses, &after.addresses));
    assert!(kept(&before.services, &after.services));
    assert!(kept(&before.workloads, &after.workloads));
    assert!(kept(&before.policies, &after.policies));
}

/// Asserts that the object at each address has this address among its aliases.
fn check_aliases(index: &Index, answers: &Answers) {
    for (ip, address) in &answers.addresses {
        assert!(index.aliases(address).contains(ip));
    }
    let services = answers.services.values().cloned().map(AddressOwner::Service);
    let workloads = answers.workloads.values().cloned().map(AddressOwner::Workload);
    for address in services.chain(workloads) {
        for alias in index.aliases(&address) {
            assert_eq!(answers.addresses[&alias], address);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn step_by_step_is_the_same_as_at_once(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..16),
        seed in any::<u64>(),
        writers in select(vec![ObjectWriters::Operator, ObjectWriters::Tenants]),
    ) {
        let index = || Index::new(MeshSettings { writers, agents_report: true, ..MeshSettings::default() });
        let mut stepwise = index();
        let mut live: BTreeMap<ObjectKey, Object> = BTreeMap::new();
        let mut early = batches.clone();
        let (first, last) = (early.remove(0), early.pop().unwrap_or_default());
        for batch in batches {
            let before = Answers::of(&stepwise);
            for change in &batch {
                match change {
                    ObjectChange::Upsert(object) => drop(live.insert(object.key(), object.clone())),
                    ObjectChange::Delete(key) => drop(live.remove(key)),
                }
            }
            let changed = stepwise.apply_all(batch);
            let after = Answers::of(&stepwise);
            check_told(&before, &after, &changed);
            check_aliases(&stepwise, &after);
        }
        let mut order: Vec<_> = live.values().cloned().map(ObjectChange::Upsert).collect();
        // Any other order than the first will do.
        order.sort_by_cached_key(|change| {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            (seed, format!("{change:?}")).hash(&mut hasher);
            hasher.finish()
        });
        let mut at_once = index();
        at_once.apply_all(order.clone());
        // The internal state must be equal as well, because deleted objects must leave nothing behind.
        prop_assert_eq!(format!("{stepwise:#?}"), format!("{at_once:#?}"));
        let mut one_by_one = index();
        for change in order {
            one_by_one.apply(change);
        }
        prop_assert_eq!(format!("{stepwise:?}"), format!("{one_by_one:?}"));
        let mut preloaded = index();
        preloaded.apply_all(first);
        let before = Answers::of(&preloaded);
        for batch in early {
            preloaded.preload(batch);
            prop_assert!(before == Answers::of(&preloaded), "it is not complete");
        }
        let changed = preloaded.apply_all(last);
        check_told(&before, &Answers::of(&preloaded), &changed);
        prop_assert_eq!(format!("{stepwise:?}"), format!("{preloaded:?}"));
        let gone = live.into_keys().map(ObjectChange::Delete).collect();
        stepwise.apply_all(gone);
        prop_assert_eq!(format!("{stepwise:?}"), format!("{:?}", index()));
    }
}
