//! Tests the findings about authorization policies.

use leno_analysis::Severity;

use super::{findings, shown};

#[test]
fn an_authorization_policy_that_selects_nothing_is_found() {
    let policy = |attached: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
             metadata: {{name: p, namespace: shop}}\nspec:\n  {attached}\n  rules: [{{}}]\n---\n"
        )
    };
    assert_eq!(
        shown(&policy("selector: {matchLabels: {app: crat}}")),
        [
            "error[policy-selects-nothing] spec.selector.matchLabels: no workload of shop has the labels {app: crat}, so the policy has no effect; a policy selects workloads of its own \
             namespace by their labels"
        ]
    );
    let found = shown(&policy("targetRefs: [{group: leno.dev, kind: Mesh, name: mesh}]"));
    assert!(
        found.len() == 1 && found[0].starts_with("error[policy-not-for-the-mesh] "),
        "{found:?}"
    );
    let found = shown(&policy("targetRefs: [{group: leno.dev, kind: Workload, name: crat}]"));
    assert!(found.len() == 1 && found[0].starts_with("error[target-not-found] "), "{found:?}");
}

#[test]
fn an_authorizer_that_cannot_be_asked_is_found() {
    let policy = |reference: &str| {
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
             metadata: {{name: p, namespace: shop}}\nspec:\n  \
             targetRefs: [{{group: '', kind: Namespace, name: shop}}]\n  action: External\n  \
             rules: [{{}}]\n  external: {{backendRef: {reference}}}\n---\n"
        );
        let found = shown(&text);
        found.into_iter().filter(|one| one.contains("authorizer-not-found")).collect::<Vec<_>>()
    };
    let found = policy("{name: opa, port: 80}");
    let expected = "error[authorizer-not-found] spec.external.backendRef.name: there is no Service shop/opa, so requests that need its decision are denied";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    let found = policy("{name: cart, port: 9}");
    let expected =
        "error[authorizer-not-found] spec.external.backendRef.port: shop/cart has no port 9";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    assert_eq!(policy("{name: cart, port: 80}"), [""; 0]);
}

#[test]
fn keys_that_the_control_plane_may_not_fetch_are_found() {
    let policy = "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                  metadata: {name: p, namespace: shop}\nspec:\n  \
                  targetRefs: [{group: '', kind: Namespace, name: shop}]\n  rules: [{}]\n  tokens:\n  \
                  - {issuer: i, audiences: [a], jwksConfigMap: keys}\n  \
                  - {issuer: j, audiences: [a], jwksUrl: 'https://ID.example.com:443/keys'}\n---\n";
    let permitting = |namespace: &str, annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\n\
             metadata: {{name: {namespace}, annotations: {{{annotations}}}}}\n---\n"
        )
    };
    let found = |more: &str| {
        let found = shown(&format!("{policy}{more}"));
        found.into_iter().filter(|one| one.contains("keys-not-permitted")).collect::<Vec<_>>()
    };
    let said = "[keys-not-permitted] spec.tokens[1].jwksUrl: the control plane is not permitted to fetch keys from https://id.example.com, so no token of \"j\" is valid; add https://id.example.com to the \
                annotation leno.dev/keys-from of the Namespace leno-system";
    assert_eq!(found(""), [format!("warning{said}")], "a cluster may permit it");
    let others = "leno.dev/keys-from: 'http://id.example.com, https://id.example.com:8443'";
    for (namespace, annotations) in [("leno-system", ""), ("leno-system", others)] {
        assert_eq!(found(&permitting(namespace, annotations)), [format!("error{said}")]);
    }
    let right = "leno.dev/keys-from: 'http://10.0.0.1, https://id.example.com'";
    assert_eq!(found(&permitting("leno-system", right)), [""; 0]);
    let of_tenant = found(&permitting("shop", right));
    assert_eq!(of_tenant, [format!("warning{said}")], "another namespace permits nothing");
}

/// The findings about these documents in a mesh in which `cart` has a proxy and `plain` has none.
fn found_in_bank(documents: &str) -> Vec<String> {
    let workload = |name: &str, meshed: bool| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: {name}, namespace: bank, labels: {{app: {name}}}}}\n\
             spec: {{serviceAccount: {name}, command: [a], ports: [{{port: 8080}}]}}\n\
             status: {{instances: [{{name: {name}-0, addresses: [10.89.1.{}], meshed: {meshed}, ready: true}}]}}\n\
             ---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: bank}}\n\
             spec: {{clusterIP: None, selector: {{app: {name}}}, ports: [{{port: 8080}}]}}\n---\n",
            name.len()
        )
    };
    shown(&(workload("plain", false) + &workload("cart", true) + documents))
}

fn denying(attached: &str, rule: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: p, namespace: bank}}\nspec:\n  {attached}\n  action: Deny\n  \
         rules: [{rule}]\n---\n"
    )
}

fn target(kind: &str, name: &str) -> String {
    let group = if kind == "Workload" { "leno.dev" } else { "''" };
    format!("targetRefs: [{{group: {group}, kind: {kind}, name: {name}}}]")
}

#[test]
fn an_authorization_policy_that_is_not_enforced_is_found_for_every_target() {
    let reason = "bank/plain has no proxy, so the policy is not enforced there; give it a proxy (leno.dev/inject)";
    for attached in [
        "selector: {matchLabels: {app: plain}}".to_owned(),
        target("Workload", "plain"),
        target("Service", "plain"),
    ] {
        let found = found_in_bank(&denying(&attached, "{}"));
        assert_eq!(found.len(), 1, "{attached}: {found:?}");
        assert!(
            found[0].starts_with("error[policy-not-enforced] ") && found[0].ends_with(reason),
            "{found:?}"
        );
    }
    let some = found_in_bank(&denying(&target("Namespace", "bank"), "{}"));
    assert_eq!(some, [format!("warning[policy-not-enforced] spec.targetRefs[0]: {reason}")]);
    let default = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank, annotations: \
                   {leno.dev/default-authorization: deny}}\n---\n";
    let default = found_in_bank(default);
    assert_eq!(default.len(), 1, "{default:?}");
    assert!(default[0].starts_with("warning[policy-not-enforced] metadata.annotations"));
}

#[test]
fn an_entry_of_an_authorization_policy_that_matches_nothing_is_found() {
    let cart = target("Workload", "cart");
    for (rule, expected) in [
        (
            "{to: [{ports: [80]}]}",
            "to[0].ports[0]: no workload that the policy selects declares port 80",
        ),
        (
            "{from: [{serviceAccounts: [crat]}]}",
            "from[0].serviceAccounts[0]: no workload has the service account bank/crat",
        ),
        (
            "{from: [{namespaces: [bnak]}]}",
            "from[0].namespaces[0]: no workload has the namespace bnak",
        ),
        (
            "{from: [{identities: [{exact: 'spiffe://cluster.local/ns/bank/sa/crat'}]}]}",
            "from[0].identities[0]: no workload has the identity spiffe://cluster.local/ns/bank/sa/crat",
        ),
        (
            "{from: [{identities: [{prefix: 'spiffe://cluster.local/ns/ban'}]}]}",
            "from[0].identities[0]: no workload has the identity spiffe://cluster.local/ns/ban",
        ),
        (
            "{from: [{identities: [{prefix: 'spiffe://cluster.local/ns/bank*'}]}]}",
            "from[0].identities[0]: no workload has the identity spiffe://cluster.local/ns/bank*",
        ),
    ] {
        let found = found_in_bank(&denying(&cart, rule));
        let start = format!("warning[policy-matches-nothing] spec.rules[0].{expected}");
        assert!(found.len() == 1 && found[0].starts_with(&start), "{found:?}");
    }
    for right in [
        "{from: [{serviceAccounts: [plain, bank/cart], namespaces: [bank]}], to: [{ports: [8080]}]}",
        "{from: [{identities: [{exact: 'spiffe://cluster.local/ns/bank/sa/cart'}]}]}",
        "{from: [{identities: [{prefix: 'spiffe://cluster.local/ns/bank/'}, {prefix: 'spiffe://cluster.local'}]}]}",
        "{from: [{identities: [{prefix: 'spiffe://partner.example/ns/x'}]}]}",
    ] {
        assert_eq!(found_in_bank(&denying(&cart, right)), [""; 0], "{right}");
    }
}

#[test]
fn more_policies_than_a_proxy_applies_are_found() {
    let workload = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                    metadata: {name: many, namespace: shop, labels: {app: many}}\n\
                    spec: {command: [run]}\n\
                    status: {instances: [{name: many-0, addresses: [10.89.0.9], meshed: true, ready: true}]}\n---\n";
    let policies = |number: usize| -> String {
        let policy = |number| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                 metadata: {{name: p{number:04}, namespace: shop}}\n\
                 spec: {{selector: {{matchLabels: {{app: many}}}}, rules: [{{}}]}}\n---\n"
            )
        };
        (0..number).map(policy).collect()
    };
    assert_eq!(shown(&(workload.to_owned() + &policies(1024))), [""; 0]);
    let found = findings(&(workload.to_owned() + &policies(1025)));
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!((finding.code, finding.severity), ("too-many-policies", Severity::Error));
    assert_eq!(finding.object, "AuthorizationPolicy shop/p1024");
    let expected = "workload shop/many-0 denies every client: 1025 policies select it";
    assert!(finding.reason.starts_with(expected), "{finding}");
}
