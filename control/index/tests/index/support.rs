//! Documents as a user writes them, and short helpers that query the index.

use std::net::IpAddr;
use std::sync::Arc;

use leno_index::{ChangedNames, Index, MeshSettings, ObjectChange};
use leno_resources::{Object, parse};
use leno_types::mesh::{Endpoint, Service, ServicePort, Workload};

/// A shop of two meshed instances behind one dual-stack service.
pub(crate) const SHOP: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec:
  serviceAccount: web
  replicas: 2
  command: [web]
  ports: [{name: http, port: 8080, appProtocol: http}]
status:
  instances:
  - {name: web-0, addresses: [10.89.0.2, "fd89::2"], meshed: true, ready: true}
  - {name: web-1, addresses: [10.89.0.3, "fd89::3"], meshed: true, ready: true}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd96::1"]
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.89.0.2], targetRef: {kind: Workload, name: web-0, namespace: shop}}
- {addresses: [10.89.0.3], targetRef: {kind: Workload, name: web-1}, conditions: {ready: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: ["fd89::3"], targetRef: {kind: Workload, name: web-1, namespace: shop}}
- {addresses: ["fd89::2"], targetRef: {kind: Workload, name: web-0, namespace: shop}}
"#;

pub(crate) fn objects(text: &str) -> Vec<Object> {
    let documents = parse("test.yaml", text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    documents.objects.into_iter().map(|located| located.value).collect()
}

pub(crate) fn index() -> Index {
    Index::new(MeshSettings::default())
}

pub(crate) fn shop() -> Index {
    let mut index = index();
    put(&mut index, SHOP);
    index
}

pub(crate) fn put(index: &mut Index, text: &str) -> ChangedNames {
    index.apply_all(objects(text).into_iter().map(ObjectChange::Upsert).collect())
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn service(index: &Index, name: &str) -> Arc<Service> {
    index.service(&name.parse().unwrap()).unwrap()
}

pub(crate) fn workload(index: &Index, name: &str) -> Arc<Workload> {
    index.workload(&name.parse().unwrap()).unwrap()
}

/// The endpoints of a port: `instance addresses port identity`, with `-` for a missing part.
pub(crate) fn endpoints(port: &ServicePort) -> Vec<String> {
    let text = |endpoint: &Endpoint| {
        let Endpoint { workload, addresses, port, identity, .. } = endpoint;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let workload = workload.as_ref().map_or("-".to_owned(), ToString::to_string);
        let identity = identity.as_ref().map_or("-", |identity| identity.service_account());
        format!("{workload} {} {port} {identity}", addresses.join(","))
    };
    port.endpoints.iter().map(text).collect()
}

/// The names in a set, as text.
pub(crate) fn names<'a, T: ToString + 'a>(set: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    set.into_iter().map(ToString::to_string).collect()
}
