//! Vulnerabilities of other meshes: a test for each.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationTable, ConnectionView, Denial, OtherAddresses,
};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, ClientMatch, HeaderMatch, PathPermission,
    PermissionRule, RequestMatch, SegmentMatch,
};
use leno_types::traffic::PolicySource;

use super::Request;

fn table(action: Action, rule: PermissionRule) -> AuthorizationTable {
    let policy = AuthorizationPolicy {
        source: PolicySource { created: 0, namespace: "shop".into(), name: "p".into() },
        action,
        ports: None,
        rules: [rule].into(),
        tokens: [].into(),
        external: None,
    };
    let all = Authorization { policies: [policy].into(), ..Authorization::default() };
    AuthorizationTable::new(&all, "shop")
}

fn decide(table: &AuthorizationTable, client: &str, request: &Request) -> AuthorizationDecision {
    let identity = client.parse().ok();
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let others = OtherAddresses::Known(&[]);
    let identity = identity.as_ref();
    let view = ConnectionView { identity, certificate: None, address, others, port: 80 };
    table.decide(&table.connection(&view), request, |_| ())
}

fn request(authority: &'static str, headers: &[(&'static str, &'static str)]) -> Request {
    let (path, headers) = ("/".to_owned(), headers.to_vec());
    Request { method: "GET", path, authority, headers, claims: None }
}

fn is_denied(decision: AuthorizationDecision) -> bool {
    matches!(decision, AuthorizationDecision::Denied(Denial::Policy(_)))
}

fn is_permitted(decision: AuthorizationDecision) -> bool {
    matches!(decision, AuthorizationDecision::Permitted(_))
}

/// Istio turned names into regular expressions, so that a dot matched any character.
#[test]
fn cve_2026_39350_names_are_no_patterns() {
    let texts = |list: &[&str]| list.iter().map(|one| Arc::from(*one)).collect();
    for (from, of_name) in [
        (
            ClientMatch {
                service_accounts: vec![("shop".into(), "web.v1".into())],
                ..ClientMatch::default()
            },
            true,
        ),
        (ClientMatch { namespaces: texts(&["shop|bank", ".*"]), ..ClientMatch::default() }, false),
        (
            ClientMatch {
                identities: vec![SegmentMatch::Exact(
                    "spiffe://cluster.local/ns/shop/sa/web.v1".into(),
                )],
                ..ClientMatch::default()
            },
            true,
        ),
    ] {
        let table =
            table(Action::Allow, PermissionRule { from: vec![from], ..PermissionRule::default() });
        let of = |name: &str| {
            let client = format!("spiffe://cluster.local/ns/shop/sa/{name}");
            is_permitted(decide(&table, &client, &request("web", &[])))
        };
        assert_eq!(of("web.v1"), of_name);
        for other in ["webxv1", "web-v1", "web.v12", "xweb.v1"] {
            assert!(!of(other), "{other}");
        }
    }
    let to = RequestMatch {
        paths: vec![PathPermission::Segment(SegmentMatch::Exact("/a.c".into()))],
        ..RequestMatch::default()
    };
    let table = table(Action::Allow, PermissionRule { to: vec![to], ..PermissionRule::default() });
    let of_path = |path: &str| {
        let request = Request { path: path.to_owned(), ..request("web", &[]) };
        is_permitted(decide(&table, "", &request))
    };
    assert!(of_path("/a.c") && !of_path("/abc"));
}

#[test]
fn istio_61211_an_account_of_the_same_name_elsewhere_is_another_client() {
    let from = ClientMatch {
        service_accounts: vec![("shop".into(), "web".into())],
        trust_domains: vec![leno_types::TrustDomain::default()],
        ..ClientMatch::default()
    };
    let table =
        table(Action::Allow, PermissionRule { from: vec![from], ..PermissionRule::default() });
    for (client, expected) in [
        ("spiffe://cluster.local/ns/shop/sa/web", true),
        ("spiffe://cluster.local/ns/bank/sa/web", false),
        ("spiffe://cluster.local/ns/shop/sa/cart", false),
        ("spiffe://other/ns/shop/sa/web", false),
        ("", false),
    ] {
        assert_eq!(
            is_permitted(decide(&table, client, &request("web", &[]))),
            expected,
            "{client}"
        );
    }
}

/// Istio compared hosts case-sensitively, which servers do not.
#[test]
fn cve_2021_39155_hosts_have_no_case() {
    let to = RequestMatch { hosts: vec!["admin.example.com".into()], ..RequestMatch::default() };
    let table = table(Action::Deny, PermissionRule { to: vec![to], ..PermissionRule::default() });
    for host in ["admin.example.com", "Admin.EXAMPLE.com", "admin.example.com:80"] {
        assert!(is_denied(decide(&table, "", &request(host, &[]))), "{host}");
    }
}

/// Envoy only checked the first of several lines of a header.
#[test]
fn cve_2020_25017_every_line_of_a_header_counts() {
    let role = HeaderMatch { name: "x-role".into(), values: vec!["admin".into()] };
    let to = RequestMatch { headers: vec![role], ..RequestMatch::default() };
    let rule = PermissionRule { to: vec![to], ..PermissionRule::default() };
    let lines = [("x-role", "guest"), ("X-Role", "admin")];
    let denying = table(Action::Deny, rule.clone());
    assert!(is_denied(decide(&denying, "", &request("web", &lines))));
    let allowing = table(Action::Allow, rule);
    assert!(!is_permitted(decide(&allowing, "", &request("web", &lines))));
}
