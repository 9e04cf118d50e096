//! Tests the policies that are suggested for audited requests.
#![expect(clippy::unwrap_used, reason = "tests")]

use leno_analysis::{MeshModel, RecordedRequest, RecordedRequests, Suggestion};
use leno_resources::{Object, parse, to_yaml};
use leno_types::InstanceName;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: orders, namespace: shop, labels: {app: orders}}
spec: {command: [run], ports: [{name: http, port: 8080, appProtocol: http}]}
status: {instances: [{name: orders-0, addresses: [10.89.0.4], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: watch, namespace: shop}
spec: {selector: {matchLabels: {app: orders}}, action: Audit, rules: [{}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec: {selector: {}, action: Deny, rules: [{to: [{paths: [{prefix: /admin}]}]}]}
";

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const TELLER: &str = "spiffe://cluster.local/ns/bank/sa/teller";
const PARTNER: &str = "spiffe://partner.example/ns/a/sa/b";

fn objects(text: &str) -> Vec<Object> {
    parse("mesh.yaml", text).unwrap().objects.into_iter().map(|one| one.value).collect()
}

fn request(client: &str, method: &str, path: &str) -> RecordedRequest {
    let [policy, client, method, path] = ["shop/watch", client, method, path].map(str::to_owned);
    let address = client.is_empty().then(|| "10.89.0.9".parse().unwrap());
    RecordedRequest {
        policy,
        client,
        address,
        port: 8080,
        method,
        host: "orders".into(),
        path,
        count: 2,
    }
}

fn suggested(requests: Vec<RecordedRequest>) -> (Suggestion, String) {
    let mesh = MeshModel::new(objects(MESH));
    let server = InstanceName::new("shop", "orders-0").unwrap();
    assert_eq!(mesh.recording(Some("shop"), None), std::slice::from_ref(&server));
    let page = RecordedRequests { requests, not_kept: 1 };
    let suggestion = mesh.suggestions(Some("shop"), None, &[(server, page)]).remove(0);
    let policy = suggestion.policy.clone();
    let text = policy.map(|one| to_yaml(&Object::AuthorizationPolicy(Box::new(one))));
    (suggestion, text.unwrap_or_default())
}

#[test]
fn clients_are_permitted_what_they_have_requested() {
    let (found, text) = suggested(vec![
        request(WEB, "GET", "/items"),
        request(WEB, "POST", "/items"),
        request(WEB, "GET", "/%61"),
        request(TELLER, "GET", "/a"),
        request(PARTNER, "GET", "/a"),
        request("", "GET", "/items"),
        request("", "GET", "/other"),
    ]);
    assert_eq!((found.permitted, found.denied.len(), found.not_kept), (5, 0, 1), "{text}");
    assert_eq!(found.in_clear.len(), 1);
    assert_eq!(found.in_clear[0].count, 4);
    let expected = objects(
        "apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: watch-allow, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  action: Allow
  rules:
  - from: [{serviceAccounts: [bank/teller]}, {identities: [{exact: 'spiffe://partner.example/ns/a/sa/b'}]}]
    to: [{ports: [8080], methods: [GET], paths: [{exact: /a}]}]
  - from: [{serviceAccounts: [web]}]
    to:
    - {ports: [8080], methods: [GET], paths: [{exact: /a}, {exact: /items}]}
    - {ports: [8080], methods: [POST], paths: [{exact: /items}]}
",
    );
    assert_eq!(objects(&text), expected, "{text}");
}

#[test]
fn what_other_policies_deny_is_named() {
    let (found, _) = suggested(vec![
        request(WEB, "GET", "/admin"),
        request(WEB, "GET", "/a//b"),
        request(WEB, "GET", "/items"),
    ]);
    assert_eq!(found.permitted, 1);
    let reasons: Vec<&str> = found.denied.iter().map(|(_, reason)| reason.as_str()).collect();
    assert!(
        reasons[0].contains("ambiguous") && reasons[1].contains("shop/no-admin"),
        "{reasons:?}"
    );
}

/// Clients choose methods and paths freely. What they choose must not make the suggested policy invalid.
#[test]
fn what_no_document_may_name_is_left_out() {
    let many = (0..17).map(|number| request(WEB, "GET", &format!("/many*/{number}")));
    let odd = ["/x*", "/%2a", "/ok"].map(|path| request(WEB, "GET", path));
    let methods = ["delete", "M!#"].map(|method| request(WEB, method, "/m"));
    let only = request(TELLER, "get", "/ok");
    let (found, text) = suggested(many.chain(odd).chain(methods).chain([only]).collect());
    let read = objects(&text);
    let [Object::AuthorizationPolicy(policy)] = &read[..] else { panic!("{text}") };
    let to = "[{ports: [8080], methods: [GET], paths: [{exact: /ok}]}, {ports: [8080], methods: ['M!#'], paths: [{exact: /m}]}]";
    let expected = objects(&format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: watch-allow, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: orders}}}}, rules: [{{from: [{{serviceAccounts: [web]}}], to: {to}}}]}}\n"
    ));
    assert_eq!(read, expected, "{text}");
    assert_eq!(policy.spec.rules.len(), 1);
    // These requests are listed as denied.
    assert_eq!((found.permitted, found.denied.len()), (2, 21));
}

#[test]
fn connections_of_bytes_are_permitted_by_port() {
    let (found, text) = suggested(vec![request(WEB, "", "")]);
    assert!(text.contains("8080") && !text.contains("paths"), "{text}");
    // A policy that denies by path denies all opaque connections.
    assert_eq!((found.permitted, found.denied.len()), (0, 1));
}

#[test]
fn nothing_is_suggested_for_nothing() {
    let (found, text) = suggested(vec![request("", "GET", "/")]);
    assert!(found.policy.is_none() && text.is_empty());
}
