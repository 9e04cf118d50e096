//! Tests which clients may reach a workload, the check of one request, and the effect of a change of policies.
#![expect(clippy::unwrap_used, reason = "tests")]

use leno_analysis::{CheckClient, ClientAccess, ExplainQuestion, MeshModel, access_changes};
use leno_index::MeshSettings;
use leno_resources::{Object, PodHost, parse};

/// `web` and `cart` call `orders`; `plain` has no proxy.
const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [run], serviceAccount: web}
status: {instances: [{name: web-0, addresses: [10.89.0.1], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [run], serviceAccount: cart}
status: {instances: [{name: cart-0, addresses: [10.89.0.2], meshed: true, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: shop}
spec: {command: [run], serviceAccount: web}
status: {instances: [{name: plain-0, addresses: [10.89.0.3], meshed: false, ready: true}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: orders, namespace: shop, labels: {app: orders}}
spec: {command: [run], serviceAccount: orders, ports: [{name: http, port: 8080, appProtocol: http}]}
status: {instances: [{name: orders-0, addresses: [10.89.0.4], meshed: true, ready: true}]}
---
apiVersion: v1
kind: Service
metadata: {name: orders, namespace: shop}
spec:
  clusterIP: 10.96.0.4
  selector: {app: orders}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: orders-1, namespace: shop, labels: {kubernetes.io/service-name: orders}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.89.0.4], targetRef: {kind: Workload, name: orders-0, namespace: shop}}]
";

const CLIENTS: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  rules: [{from: [{serviceAccounts: [web]}]}]
";

const NO_ADMIN: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  action: Deny
  rules: [{to: [{paths: [{prefix: /admin}]}]}]
";

fn objects(text: &str) -> Vec<Object> {
    let documents = parse("shop.yaml", text).expect("good documents");
    documents.objects.into_iter().map(|located| located.value).collect()
}

fn mesh(more: &str) -> MeshModel {
    MeshModel::new(objects(&format!("{MESH}{more}")))
}

fn question(request: &str) -> ExplainQuestion {
    let words: Vec<String> = request.split(' ').map(str::to_owned).collect();
    ExplainQuestion::parse(Some("shop"), "web", &words).unwrap()
}

fn lines(mesh: &MeshModel) -> Vec<(String, &'static str, Option<String>)> {
    let access = mesh.access(Some("shop"), Some("orders")).unwrap().remove(0);
    let line = |one: ClientAccess| (one.client, one.access, one.policy);
    access.clients.into_iter().map(line).collect()
}

fn line(
    client: &str,
    access: &'static str,
    policy: Option<&str>,
) -> (String, &'static str, Option<String>) {
    (client.to_owned(), access, policy.map(str::to_owned))
}

#[test]
fn every_client_is_listed_with_the_policy_that_decides() {
    let open = mesh("");
    assert!(
        lines(&open)
            .iter()
            .all(|(_, access, policy)| { *access == "permitted" && policy.is_none() })
    );
    let closed = mesh(CLIENTS);
    let expected = [
        line("shop/cart", "denied", None),
        line("shop/orders", "denied", None),
        line("shop/plain", "denied", None),
        line("shop/web", "permitted", Some("shop/clients")),
        line("(anything else)", "denied", None),
    ];
    assert_eq!(lines(&closed), expected);
    let both = mesh(&format!("{CLIENTS}{NO_ADMIN}"));
    let web = lines(&both).into_iter().find(|(client, ..)| client == "shop/web");
    assert_eq!(web, Some(line("shop/web", "requests", Some("shop/clients"))));
}

#[test]
fn a_default_and_strict_decide_where_no_policy_does() {
    let deny = MESH.replace(
        "{name: shop}",
        "{name: shop, annotations: {leno.dev/default-authorization: same-namespace}}",
    );
    let lines_of = |text: &str| lines(&MeshModel::new(objects(text)));
    let denied: Vec<String> = lines_of(&deny)
        .into_iter()
        .filter(|(_, access, _)| *access == "denied")
        .map(|(client, ..)| client)
        .collect();
    assert_eq!(denied, ["shop/plain", "(anything else)"]);
    let strict = MESH.replace("{name: shop}", "{name: shop, annotations: {leno.dev/mtls: strict}}");
    let mesh = MeshModel::new(objects(&strict));
    let access = mesh.access(Some("shop"), Some("orders")).unwrap().remove(0);
    let plain = access.clients.iter().find(|one| one.client == "shop/plain").unwrap();
    assert_eq!((plain.access, plain.reason.contains("mTLS is strict")), ("denied", true));
}

#[test]
fn a_pod_in_node_mode_has_a_proxy_by_what_its_namespace_sets() {
    let of = |mode: &str| {
        let settings = format!(
            "{{name: shop, labels: {{leno.dev/inject: enabled}}, annotations: {{leno.dev/mode: {mode}}}}}"
        );
        let mut objects = objects(&MESH.replace("{name: shop}", &settings));
        for object in &mut objects {
            if let Object::Workload(plain) = object
                && plain.metadata.name == "plain"
            {
                // The pod is as the API server has it, without a proxy.
                plain.status.as_mut().unwrap().instances[0].pod = Some(PodHost::default());
            }
        }
        let mesh = MeshModel::new(objects);
        let enforced = mesh.access(Some("shop"), None).unwrap();
        let enforced = enforced.iter().any(|one| one.workload == "shop/plain" && one.enforced);
        let words: Vec<String> = vec!["http://orders/".to_owned()];
        let question = ExplainQuestion::parse(Some("shop"), "plain", &words).unwrap();
        let explained = mesh.explain(&question).unwrap();
        let client = CheckClient::Named("plain".into());
        let checked = mesh.check(Some("shop"), "orders", &client, (&question, &[])).unwrap();
        (enforced, explained.client.meshed, explained.outcome.kind, checked.identity.is_some())
    };
    assert_eq!(of("node"), (true, true, "forwarded", true));
    assert_eq!(of("sidecar"), (false, false, "unmeshed", false));
}

#[test]
fn a_pod_in_node_mode_that_is_not_served_yet_is_said_to_be() {
    let of = |mtls: &str, asks: &str, host: &str| {
        let settings = format!(
            "{{name: shop, labels: {{leno.dev/inject: enabled}}, \
             annotations: {{leno.dev/mode: node, leno.dev/mtls: {mtls}}}}}"
        );
        let mut objects = objects(&MESH.replace("{name: shop}", &settings));
        for object in &mut objects {
            if let Object::Workload(plain) = object
                && plain.metadata.name == "plain"
            {
                plain.status.as_mut().unwrap().instances[0].pod = Some(PodHost::default());
            }
        }
        let settings = MeshSettings { agents_report: true, ..MeshSettings::default() };
        let mesh = MeshModel::told(settings, objects);
        let words: Vec<String> = vec![host.to_owned()];
        let question = ExplainQuestion::parse(Some("shop"), asks, &words).unwrap();
        let explained = mesh.explain(&question).unwrap();
        (explained.client.meshed, explained.notes.join("; "))
    };
    let (meshed, notes) = of("permissive", "plain", "http://orders/");
    assert!(!meshed && notes.contains("the client is in node mode, and no proxy"), "{notes}");
    let address = "http://10.89.0.3/";
    let awaited = "1 of 1 instances are in node mode and no proxy of their node serves them yet";
    for (mtls, meanwhile) in [("permissive", "plaintext until"), ("strict", "fail until then")] {
        let (meshed, notes) = of(mtls, "web", address);
        assert!(meshed && notes.contains(awaited) && notes.contains(meanwhile), "{mtls}: {notes}");
    }
    let (_, notes) = of("permissive", "web", "http://orders/");
    assert!(!notes.contains("node mode"), "{notes}");
}

/// Regression: the answer was about the first instance of `orders`, which has the same name.
#[test]
fn a_workload_wins_over_an_instance_of_another_one() {
    let other = "\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                 metadata: {name: orders-0, namespace: shop, labels: {app: closed}}\n\
                 spec: {command: [run], ports: [{name: http, port: 8080, appProtocol: http}]}\n\
                 status: {instances: [{name: orders-0-0, addresses: [10.89.0.5], meshed: true, ready: true}]}\n\
                 ---\napiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                 metadata: {name: closed, namespace: shop}\n\
                 spec: {selector: {matchLabels: {app: closed}}, action: Deny, rules: [{}]}\n";
    let mesh = mesh(other);
    let permitted = |workload: &str| {
        let web = CheckClient::Named("web".into());
        let asked = question("http://orders/");
        mesh.check(Some("shop"), workload, &web, (&asked, &[])).unwrap().answer.permitted
    };
    assert!(permitted("orders") && !permitted("orders-0") && !permitted("orders-0-0"));
}

#[test]
fn one_request_is_decided_on_with_the_reason_of_every_policy() {
    let mesh = mesh(&format!("{CLIENTS}{NO_ADMIN}"));
    let check = |client: CheckClient, request: &str| {
        mesh.check(Some("shop"), "orders", &client, (&question(request), &[])).unwrap()
    };
    let web = || CheckClient::Named("web".into());
    let permitted = check(web(), "http://orders/items");
    assert!(permitted.answer.permitted && permitted.port == 8080, "{permitted:?}");
    assert_eq!(permitted.answer.policy.as_deref(), Some("shop/clients"));
    let denied = check(web(), "http://orders/%61dmin/x");
    assert_eq!(denied.answer.policy.as_deref(), Some("shop/no-admin"));
    let why: Vec<_> =
        denied.answer.policies.iter().map(|one| (&*one.name, one.matches, one.reason)).collect();
    assert_eq!(why, [("shop/clients", true, "it matches"), ("shop/no-admin", true, "it matches")]);
    let ambiguous = check(web(), "http://orders/x/../admin");
    assert!(!ambiguous.answer.permitted && ambiguous.answer.reason.contains("ambiguous"));
    let cart = check(CheckClient::Named("cart".into()), "http://orders/items");
    assert_eq!(cart.answer.policies[0].reason, "no rule matches the client");
    assert_eq!(
        cart.answer.policies[1].reason,
        "no rule that matches the client matches the request"
    );
    assert!(!cart.answer.permitted);
    let stranger: leno_types::Identity = "spiffe://cluster.local/ns/bank/sa/web".parse().unwrap();
    assert!(!check(CheckClient::Identity(stranger), "http://orders/").answer.permitted);
    assert!(!check(CheckClient::Anything, "http://orders/").answer.permitted);
    // A workload without a proxy has no certificate, so its service account counts for nothing.
    let plain = check(CheckClient::Named("plain".into()), "http://orders/");
    assert_eq!((plain.answer.permitted, plain.identity), (false, None));
}

#[test]
fn other_policies_show_what_they_would_change() {
    let before = mesh(CLIENTS);
    let wider = CLIENTS.replace("[web]", "[web, cart]");
    let after = before.with_objects(objects(&wider));
    let of = |mesh: &MeshModel| mesh.access(Some("shop"), None).unwrap();
    let changes = access_changes(&of(&before), &of(&after));
    let told: Vec<_> = changes
        .iter()
        .map(|one| {
            let state = |line: &Option<ClientAccess>| line.as_ref().unwrap().access;
            (&*one.workload, state(&one.before), state(&one.after))
        })
        .collect();
    assert_eq!(told, [("shop/orders", "denied", "permitted")]);
    assert_eq!(changes[0].after.as_ref().unwrap().client, "shop/cart");
    assert!(access_changes(&of(&before), &of(&before)).is_empty());
}

#[test]
fn an_explanation_names_the_policy_that_denies() {
    let mesh = mesh(&format!("{CLIENTS}{NO_ADMIN}"));
    let explain = |client: &str, request: &str| {
        let words: Vec<String> = request.split(' ').map(str::to_owned).collect();
        mesh.explain(&ExplainQuestion::parse(Some("shop"), client, &words).unwrap()).unwrap()
    };
    let denied = explain("web", "GET http://orders/admin");
    assert_eq!(denied.outcome.status, Some(403));
    assert_eq!(denied.outcome.leno_error.as_deref(), Some("authorization-denied"));
    assert!(denied.outcome.text.contains("AuthorizationPolicy shop/no-admin denies it"));
    assert_eq!(denied.authorization[0].servers, ["shop/orders-0:8080"]);
    let permitted = explain("web", "GET http://orders/items");
    assert_eq!((permitted.outcome.kind, permitted.outcome.status), ("forwarded", None));
    assert_eq!(permitted.authorization[0].policy.as_deref(), Some("shop/clients"));
    let plain = explain("plain", "GET http://orders/items");
    assert_eq!(plain.outcome.status, Some(403));
    let bytes = explain("cart", "tcp://orders:80");
    assert_eq!((bytes.outcome.kind, bytes.outcome.status), ("failed", None));
}

/// If the workload has several ports, the request is checked on the one to which the service forwards.
#[test]
fn a_request_to_a_service_is_checked_on_the_port_behind_it() {
    let several = MESH
        .replace(
            "{name: http, port: 8080, appProtocol: http}]}\nstatus",
            "{name: http, port: 8080}, {name: admin, port: 9090}]}\nstatus",
        )
        .replace(
            "targetPort: 8080, appProtocol: http}",
            "targetPort: 8080, appProtocol: http}, {name: admin, port: 81, targetPort: 9090}",
        )
        .replace(
            "ports: [{name: http, port: 8080}]\nendpoints",
            "ports: [{name: http, port: 8080}, {name: admin, port: 9090}]\nendpoints",
        );
    let policy = CLIENTS
        .replace("serviceAccounts: [web]}]", "serviceAccounts: [web]}], to: [{ports: [9090]}]");
    let mesh = MeshModel::new(objects(&format!("{several}{policy}")));
    let web = CheckClient::Named("web".to_owned());
    for (url, port, permitted) in [
        ("http://orders/", 8080, false),
        ("http://orders.shop:81/", 9090, true),
        ("http://10.89.0.4:9090/", 9090, true),
    ] {
        let check = mesh
            .check(Some("shop"), "orders", &web, (&question(&format!("GET {url}")), &[]))
            .unwrap();
        assert_eq!((check.port, check.answer.permitted), (port, permitted), "{url}");
    }
}

#[test]
fn a_check_may_assume_the_claims_of_a_token() {
    let x = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
    let jwks = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#);
    let tokens = format!("tokens: [{{issuer: a, audiences: [b], jwks: '{jwks}'}}]");
    let claims = "claims: [{name: groups, values: [ops]}]";
    let users = CLIENTS
        .replace("rules:", &format!("{tokens}\n  rules:"))
        .replace("[web]}]}", &format!("[web]}}], {claims}}}"));
    let mesh = mesh(&users);
    let web = CheckClient::Named("web".into());
    let request = question("http://orders/items");
    for (claims, permitted) in [
        (vec![], false),
        (vec![("groups".to_owned(), "dev".to_owned())], false),
        (vec![("groups".to_owned(), "ops".to_owned())], true),
    ] {
        let check = mesh.check(Some("shop"), "orders", &web, (&request, &claims)).unwrap();
        assert_eq!(check.answer.permitted, permitted, "{claims:?}: {check:?}");
    }
    assert_eq!(lines(&mesh)[3], line("shop/web", "requests", None));
}

#[test]
fn blocks_of_one_family_are_for_a_client_with_both() {
    let both = MESH.replace("[10.89.0.1]", "['fd00::1', 10.89.0.1]");
    let policy = CLIENTS.replace("serviceAccounts: [web]", "ipBlocks: [{cidr: 10.89.0.1}]");
    let mesh = MeshModel::new(objects(&format!("{both}{policy}")));
    assert_eq!(lines(&mesh)[3], line("shop/web", "permitted", Some("shop/clients")));
    let request = question("http://orders/items");
    let permits = |client: &CheckClient| {
        mesh.check(Some("shop"), "orders", client, (&request, &[])).unwrap().answer.permitted
    };
    assert!(permits(&CheckClient::Named("web".into())));
    assert!(permits(&CheckClient::Address("fd00::1".parse().unwrap())), "the address of web");
    assert!(!permits(&CheckClient::Address("fd00::2".parse().unwrap())));
    assert!(!permits(&CheckClient::Named("cart".into())));
}

const ASK: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  action: External
  rules: [{to: [{paths: [{prefix: /v1}]}]}]
  external: {backendRef: {name: opa, port: 9191}}
";

#[test]
fn an_external_authorizer_is_named_where_it_is_asked() {
    let mesh = mesh(&format!("{CLIENTS}{ASK}"));
    let access = mesh.access(Some("shop"), Some("orders")).unwrap();
    let of = |name: &str| {
        let line = access[0].clients.iter().find(|line| line.client == name).unwrap();
        (line.access, line.reason.clone())
    };
    let (web, reason) = of("shop/web");
    assert_eq!(web, "requests");
    assert!(
        reason.ends_with(", if shop/opa:9191 does too, which is consulted about some requests")
    );
    assert_eq!(of("shop/cart").0, "denied", "nothing is asked about what is denied");
    let check = |client: &str, url: &str| {
        let client = CheckClient::Named(client.to_owned());
        mesh.check(Some("shop"), "orders", &client, (&question(url), &[])).unwrap().answer
    };
    let asked = check("web", "http://orders/v1/a");
    assert!(asked.permitted && asked.reason.ends_with("which is consulted"), "{asked:?}");
    let other = check("web", "http://orders/a");
    assert!(other.permitted && !other.reason.contains("asked"), "{other:?}");
    let denied = check("cart", "http://orders/v1/a");
    assert!(!denied.permitted && !denied.reason.contains("asked"), "{denied:?}");
}

/// An authorizer's answer sets `x-role`, so a header of that name from a client is dropped, however it is spelt.
#[test]
fn headers_that_policies_set_are_not_believed_of_clients() {
    let owns = ASK.replace("port: 9191}", "port: 9191}, headers: {onRequest: [X-Role]}");
    let admins = CLIENTS.replace(
        "rules: [{from: [{serviceAccounts: [web]}]}]",
        "rules: [{to: [{headers: [{name: x-role, values: [admin]}]}]}]",
    );
    let permits = |documents: &str, name: &str| {
        let mesh = mesh(documents);
        let mut asked = question("http://orders/items");
        asked.headers.push((name.to_owned(), "admin".to_owned()));
        let web = CheckClient::Named("web".to_owned());
        mesh.check(Some("shop"), "orders", &web, (&asked, &[])).unwrap().answer.permitted
    };
    assert!(permits(&admins, "x-role"));
    for name in ["x-role", "X_Role"] {
        assert!(!permits(&format!("{admins}{owns}"), name), "{name}");
    }
}

const YOUNG: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: young, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  rules: [{from: [{serviceAccounts: [web], certificate: {maxAge: 1h}}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: ending, namespace: shop}
spec:
  selector: {matchLabels: {app: orders}}
  rules: [{from: [{serviceAccounts: [cart], certificate: {maxLeft: 2h}}]}]
";

/// Regression: `leno authz` assumed that every certificate was just issued, and did not mention it.
#[test]
fn what_depends_on_the_age_of_a_certificate_is_said_with_that_age() {
    let hours = |hours| Some(std::time::Duration::from_hours(hours));
    let of = |client: &str, age, left| {
        let mesh = mesh(YOUNG).with_certificates(age, left);
        let access = mesh.access(Some("shop"), Some("orders")).unwrap().remove(0);
        let line = access.clients.into_iter().find(|one| one.client == client).unwrap();
        let later: Vec<String> = line.later.iter().map(ToString::to_string).collect();
        let asked = CheckClient::Named(client.to_owned());
        let check = mesh.check(None, "orders", &asked, (&question("http://orders/"), &[])).unwrap();
        // The check of a single request decides in the same way.
        assert_eq!(check.answer.permitted, line.access == "permitted");
        assert_eq!(check.answer.later, line.later);
        (line.access, later.join("|"))
    };
    let denied = "Allow policies apply to the port, but none matches";
    let permits = |name: &str| format!("AuthorizationPolicy shop/{name} permits it");
    let never = String::new();
    let web = ("permitted", format!("denied once the certificate is 1h1s old: {denied}"));
    assert_eq!(of("shop/web", None, None), web);
    assert_eq!(of("shop/web", hours(2), None), ("denied", never.clone()));
    assert_eq!(of("shop/web", hours(1), hours(1)), ("permitted", web.1));
    let cart = format!("permitted once the certificate is 22h5m old: {}", permits("ending"));
    assert_eq!(of("shop/cart", None, None), ("denied", cart));
    assert_eq!(of("shop/cart", hours(23), None), ("permitted", never.clone()));
    assert_eq!(of("shop/cart", None, hours(2)), ("permitted", never.clone()));
    assert_eq!(of("shop/plain", None, None), ("denied", never), "it has no certificate");
}

/// On an opaque port, a policy about requests can deny every connection but permit none.
#[test]
fn at_a_port_of_bytes_nothing_depends_on_a_request() {
    let of_bytes = MESH.replace("port: 8080, appProtocol: http}", "port: 8080, appProtocol: tcp}");
    let mesh = |more: &str| MeshModel::new(objects(&format!("{of_bytes}{more}")));
    let denied = mesh(NO_ADMIN);
    for (client, access, policy) in lines(&denied) {
        assert_eq!((access, policy.as_deref()), ("denied", Some("shop/no-admin")), "{client}");
    }
    let client = CheckClient::Named("web".to_owned());
    for request in ["tcp://orders:8080", "GET http://orders:8080/items"] {
        let checked = denied.check(Some("shop"), "orders", &client, (&question(request), &[]));
        let answer = checked.unwrap().answer;
        let [no_admin] = &answer.policies[..] else { panic!("{answer:?}") };
        assert!(!answer.permitted && no_admin.matches, "{request}: {answer:?}");
    }
    let about_requests = NO_ADMIN.replace("action: Deny", "action: Allow");
    assert!(lines(&mesh(&about_requests)).iter().all(|(_, access, _)| *access == "denied"));
    let permitted = lines(&mesh(CLIENTS));
    assert!(
        permitted.contains(&line("shop/web", "permitted", Some("shop/clients"))),
        "{permitted:?}"
    );
}
