//! Tests `leno explain` and `leno analyze` on a cluster.

use std::net::SocketAddr;

use leno_testkit_api::objects::{http_route, pod, traffic_policy};
use leno_testkit_api::{Kubelet, binary, until};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::shop::{Shop, by, json_of, leno, leno_at, out, said};

#[tokio::test]
async fn a_request_of_a_pod_is_explained_from_the_clusters_objects() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &["egress=deny", "trustDomain=shop.example"]).await;
    let mut route = http_route("items", "cart");
    route["spec"]["parentRefs"][0]["name"] = json!("cart");
    route["spec"]["rules"][0]["matches"] = json!([{"path": {"value": "/items"}}]);
    shop.bed.apply(route).await;
    let more = json!({"retries": {"attempts": 2, "on": ["503"]}});
    shop.bed.apply(traffic_policy("cart", &more)).await;

    let ask = |client: &str, more: &[&str]| {
        let words = [&["explain", "-n", "shop", client][..], more].concat();
        leno_at(&shop.admin, &words)
    };
    let to_cart = ["--", "GET", "http://cart/items/7"];
    let answer = ask("deploy/web", &to_cart);
    let text = out(&answer);
    for line in [
        "client       shop/web\n",
        "destination  service shop/cart port 80 (http1) 10.96.",
        "rule         HTTPRoute shop/items rule 0\n",
        "cart-0 10.244.0.9:8080 (mTLS, spiffe://shop.example/ns/shop/sa/web)\n",
        "policy       => retries: TrafficPolicy shop/policy of shop/cart: ",
        "match        => HTTPRoute shop/items rule 0 match 0: holds\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}{}", said(&answer));
    }
    // There is no kubelet through which the proxies could be queried.
    let [note] = text.lines().filter(|line| line.starts_with("note")).collect::<Vec<_>>()[..]
    else {
        panic!("{text}")
    };
    let unknown = "unknown which endpoints are ejected by the proxy of shop/web-7d9c-aaaaa, and of 1 other pods: ";
    assert!(note.contains(unknown), "{text}");
    for client in ["web", "pod/web-7d9c-bbbbb", "web-7d9c-bbbbb", "shop/web"] {
        assert_eq!(out(&ask(client, &to_cart)), text, "{client}");
    }
    assert!(out(&ask("sa/web", &to_cart)).contains("client       shop/cart\n"));

    let outside = json_of(&ask("sts/cart", &["-o", "json", "--", "http://example.com/"]));
    assert_eq!(outside["outcome"]["leno_error"], "egress-denied", "as it was installed: {outside}");
    let unmeshed = out(&ask("pod/plain", &to_cart));
    assert!(unmeshed.contains("client       shop/plain (no proxy)\n"), "{unmeshed}");
}

/// Regression: `leno authz` listed clients as permitted, although a `Deny` policy that cannot be read denies all.
#[tokio::test]
async fn a_policy_that_cannot_be_read_denies_and_is_named() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let policy = |action: &str, role: &str| {
        let rules = json!([{"to": [{"headers": [{"name": "x-role", "values": [role]}]}]}]);
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "guests", "namespace": "shop"},
            "spec": {"selector": {}, "action": action, "rules": rules}})
    };
    until("the kind is served", async || shop.bed.serves(&policy("Deny", "guest")).await).await;
    let ask = || {
        let words = ["authz", "-n", "shop", "cart", "--from", "web", "--", "GET", "http://cart/"];
        leno_at(&shop.admin, &words)
    };
    let denies = "until it is corrected it denies every client of its targets";
    for (action, role, code) in
        [("Deny", "guest", 0), ("Deny", "guest ", 1), ("Audit", "guest ", 0), ("Deny", "guest", 0)]
    {
        shop.bed.apply(policy(action, role)).await;
        let answer = ask();
        assert_eq!(answer.status.code(), Some(code), "{action} {role:?}: {answer:?}");
        let note = "note: AuthorizationPolicy shop/guests: spec.rules";
        assert_eq!(said(&answer).contains(note), role.ends_with(' '), "{answer:?}");
        assert_eq!(said(&answer).contains(denies), code == 1, "{answer:?}");
        let all = out(&leno_at(&shop.admin, &["authz", "-n", "shop", "cart"]));
        assert_eq!(all.contains("policy       Allow shop/guests"), code == 1, "{all}");
        assert_eq!(all.contains(" denied "), code == 1, "{all}");
    }
}

/// Serves a page to every client; returns its address.
async fn page(body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap() > 2 {
                    line.clear();
                }
                let length = body.len();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.unwrap();
                // A relay in between may end together with this connection before it has passed on the data. So
                // the client ends the connection.
                let _reset = stream.read_line(&mut line).await;
            });
        }
    });
    address
}

// The kubelet of the test runs while the test waits for `leno`.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_the_clients_proxies_eject_are_marked() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let kubelet = Kubelet::start(&shop.bed, "n1").await;
    let mut placed = by(pod("till-0", "10.244.0.12"), "StatefulSet", "till");
    placed["spec"]["nodeName"] = json!("n1");
    shop.run(placed).await;
    let ask = |client: &str, more: &[&str]| {
        let words =
            [&["explain", "-n", "shop", client][..], more, &["--", "http://cart/"]].concat();
        leno_at(&shop.admin, &words)
    };
    let text = out(&ask("sts/till", &[]));
    let unknown = "unknown which endpoints are ejected by the proxy of shop/till-0: ";
    assert!(text.contains(unknown) && text.contains("does not listen"), "{text}");

    let ejects = "leno_endpoint_ejected{direction=\"outbound\",client=\"till-0\",client_namespace=\"shop\",\
        server=\"cart-0\",server_namespace=\"shop\",service=\"cart\",mtls=\"true\",reason=\"failing\"} 1\n";
    kubelet.lead("shop/till-0", page(ejects).await);
    let text = out(&ask("sts/till", &[]));
    let marked =
        "cart-0 10.244.0.9:8080 (mTLS, spiffe://cluster.local/ns/shop/sa/web, ejected: failing)\n";
    assert!(text.contains(marked) && !text.contains("note"), "{text}");
    let json = json_of(&ask("pod/till-0", &["-o", "json"]));
    assert_eq!(json["backends"][0]["endpoints"][0]["ejected"], "failing", "{json}");
    let json = json_of(&ask("sts/cart", &["-o", "json"]));
    assert_eq!(json["backends"][0]["endpoints"][0]["ejected"], json!(null), "{json}");
}

#[tokio::test]
async fn a_name_that_is_nobodys_or_of_several_is_asked_back() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    shop.run(by(pod("web-0", "10.244.0.11"), "StatefulSet", "web")).await;
    let ask = |namespace: &str, client: &str| {
        let words = ["explain", "-n", namespace, client, "--", "http://cart/"];
        let answer = leno_at(&shop.admin, &words);
        (answer.status.code(), out(&answer) + &said(&answer))
    };
    let (code, text) = ask("shop", "web");
    assert_eq!(code, Some(2));
    assert_eq!(text, "leno: \"web\" may be any of deploy/web, sts/web: name one of them\n");
    assert_eq!(ask("shop", "sts/web").0, Some(0));
    assert_eq!(ask("shop", "deploy/web").0, Some(0));
    let (_, text) = ask("shop", "deploy/wep");
    assert_eq!(text, "leno: there is no workload \"shop/wep\": did you mean shop/web?\n");
    let (_, text) = ask("shopp", "web");
    assert_eq!(text, "leno: there is no namespace \"shopp\": did you mean shop?\n");
}

#[tokio::test]
async fn mistakes_of_a_namespace_are_found_and_those_of_others_are_not() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let all = ["analyze", "-A"];
    let none = leno_at(&shop.admin, &["analyze", "shop", "--strict"]);
    assert_eq!(
        (none.status.code(), &*out(&none)),
        (Some(0), "no mistakes found\n"),
        "{}",
        said(&none)
    );
    shop.bed.apply(http_route("bad", "cartt")).await;
    let mut misread = http_route("misread", "cart");
    misread["spec"]["rule"] = json!([]);
    shop.bed.apply(misread).await;
    let mut elsewhere = http_route("lost", "cart");
    elsewhere["metadata"]["namespace"] = json!("office");
    shop.bed.apply(elsewhere).await;

    let found = leno_at(&shop.admin, &["analyze", "shop"]);
    let text = out(&found);
    assert_eq!(found.status.code(), Some(1), "{text}{}", said(&found));
    let [unread, bad, counted] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(
        unread.starts_with("HTTPRoute shop/misread: error[invalid-document]: spec.rule "),
        "{text}"
    );
    let wanted = "HTTPRoute shop/bad: spec.rules[0].backendRefs[0]: error[backend-not-found]: there is no \
                  Service shop/cartt";
    assert!(bad.starts_with(wanted) && bad.ends_with("did you mean cart?"), "{text}");
    assert_eq!(counted, "2 errors, 0 warnings");

    let json = json_of(&leno_at(&shop.admin, &["analyze", "-n", "office", "-o", "json"]));
    assert_eq!(json["findings"][0]["object"], "HTTPRoute office/lost", "{json}");
    assert_eq!(json["findings"][0]["file"], "");
    let of_all = out(&leno_at(&shop.admin, &all));
    for object in ["shop/bad", "shop/misread", "office/lost"] {
        assert!(of_all.contains(&format!("HTTPRoute {object}: ")), "{of_all}");
    }
    let nowhere = leno_at(&shop.admin, &["analyze", "shopp"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(
        said(&nowhere).contains("no namespace \"shopp\": did you mean shop?"),
        "{}",
        said(&nowhere)
    );
    assert!(said(&leno(&["analyze", "-n", "shop"])).contains("no cluster is selected"));
}
