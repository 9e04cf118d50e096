//! Tests endpoints outside of the mesh: host names, and TLS origination.

use std::sync::Arc;

use leno_index::Index;
use leno_types::mesh::{ExternalEndpoints, Roots, SubjectName};

use crate::support::{index, names, put, service};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: shop}
spec:
  type: ExternalName
  externalName: API.example.com.
  clusterIP: 10.96.0.7
  ports: [{name: http, port: 80, targetPort: 443}, {name: raw, port: 9000}]
";

fn policy(name: &str, target: &str, validation: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
         metadata: {{name: {name}, namespace: shop}}\nspec:\n  targetRefs: [{{{target}}}]\n  \
         validation: {{{validation}}}\n"
    )
}

const WHOLE: &str = "group: '', kind: Service, name: pay";
const SYSTEM: &str = "hostname: api.example.com, wellKnownCACertificates: System";
const GIVEN: &str =
    "hostname: api.example.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]";

fn external(index: &Index, port: u16) -> Option<Arc<ExternalEndpoints>> {
    service(index, "shop/pay").port(port).unwrap().external.clone()
}

fn roots(index: &Index) -> Roots {
    external(index, 80).unwrap().tls.clone().unwrap().roots
}

/// For each of the two ports, the policy that sets its TLS origination.
fn sources(index: &Index) -> [Option<String>; 2] {
    [80, 9000].map(|port| Some(external(index, port)?.tls.as_ref()?.source.to_string()))
}

#[test]
fn an_alias_with_ports_is_a_service_whose_endpoint_has_a_name() {
    let mut index = index();
    put(&mut index, SERVICE);
    let at = |port| {
        let external = external(&index, port).unwrap();
        let one = &external.names[0];
        (external.names.len(), format!("{}:{}", one.host, one.port))
    };
    assert_eq!(at(80), (1, "api.example.com:443".to_owned()));
    assert_eq!(at(9000), (1, "api.example.com:9000".to_owned()));
    assert!(external(&index, 80).unwrap().tls.is_none());
}

#[test]
fn names_of_slices_are_endpoints_while_they_are_ready() {
    let mut index = index();
    let slice = |ready: bool| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: pay, namespace: shop}}\n\
             spec: {{clusterIP: 10.96.0.7, ports: [{{name: http, port: 80}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: pay-1, namespace: shop, labels: {{kubernetes.io/service-name: pay}}}}\n\
             addressType: FQDN\nports: [{{name: http, port: 443}}]\nendpoints:\n\
             - {{addresses: [a.example.com]}}\n\
             - {{addresses: [B.example.com], conditions: {{ready: {ready}}}}}\n"
        )
    };
    let hosts = |index: &Index| {
        let external = external(index, 80).unwrap();
        external.names.iter().map(|one| format!("{}:{}", one.host, one.port)).collect::<Vec<_>>()
    };
    put(&mut index, &slice(true));
    assert_eq!(hosts(&index), ["a.example.com:443", "b.example.com:443"]);
    put(&mut index, &slice(false));
    assert_eq!(hosts(&index), ["a.example.com:443"]);
}

#[test]
fn the_policy_of_a_port_goes_before_that_of_the_service_and_the_first_by_name() {
    let mut index = index();
    put(&mut index, SERVICE);
    assert_eq!(sources(&index), [None, None]);
    let changed = put(&mut index, &policy("b", WHOLE, SYSTEM));
    assert_eq!(names(&changed.services), ["shop/pay"]);
    let b = || Some("BackendTLSPolicy shop/b".to_owned());
    assert_eq!(sources(&index), [b(), b()]);
    put(&mut index, &policy("a", WHOLE, SYSTEM));
    let a = || Some("BackendTLSPolicy shop/a".to_owned());
    assert_eq!(sources(&index), [a(), a()]);
    put(&mut index, &policy("z", &format!("{WHOLE}, sectionName: raw"), SYSTEM));
    assert_eq!(sources(&index), [a(), Some("BackendTLSPolicy shop/z".to_owned())]);
}

#[test]
fn authorities_come_from_config_maps_and_are_missed_where_there_are_none() {
    let mut index = index();
    put(&mut index, &format!("{SERVICE}{}", policy("a", WHOLE, GIVEN)));
    assert_eq!(roots(&index), Roots::Missing("there is no ConfigMap shop/ca with ca.crt".into()));
    let map = |data: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: ca, namespace: shop}}, data: {{{data}}}}}"
        )
    };
    let changed = put(&mut index, &map("ca.crt: nonsense"));
    assert_eq!(names(&changed.services), ["shop/pay"]);
    let why = "ConfigMap shop/ca: its ca.crt is not a certificate in PEM";
    assert_eq!(roots(&index), Roots::Missing(why.into()));
    // Any bytes will do here, because the proxy parses certificates, not the index.
    let pem = "-----BEGIN CERTIFICATE-----\\nAQID\\n-----END CERTIFICATE-----\\n";
    put(&mut index, &map(&format!("ca.crt: \"{pem}\"")));
    assert_eq!(roots(&index), Roots::Given([vec![1, 2, 3]].into()));
    put(&mut index, &policy("a", WHOLE, SYSTEM));
    assert_eq!(roots(&index), Roots::System);
}

#[test]
fn what_a_certificate_may_be_for_is_passed_on() {
    let names = "subjectAltNames: [{type: Hostname, hostname: x.example}, {type: URI, uri: 'spiffe://a/b'}]";
    let mut index = index();
    put(&mut index, &format!("{SERVICE}{}", policy("a", WHOLE, &format!("{SYSTEM}, {names}"))));
    let tls = external(&index, 80).unwrap().tls.clone().unwrap();
    assert_eq!(&*tls.hostname, "api.example.com");
    let expected = [SubjectName::Host("x.example".into()), SubjectName::Uri("spiffe://a/b".into())];
    assert_eq!(*tls.names, expected);
}
