//! `leno explain` and `leno analyze` on a cluster.

use leno_testkit_api::binary;
use leno_testkit_api::objects::{http_route, pod, traffic_policy};
use serde_json::json;

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
    assert!(!text.contains("note"), "nothing is missing:\n{text}");
    for client in ["web", "pod/web-7d9c-bbbbb", "web-7d9c-bbbbb", "shop/web"] {
        assert_eq!(out(&ask(client, &to_cart)), text, "{client}");
    }
    assert!(out(&ask("sa/web", &to_cart)).contains("client       shop/cart\n"));

    let outside = json_of(&ask("sts/cart", &["-o", "json", "--", "http://example.com/"]));
    assert_eq!(outside["outcome"]["leno_error"], "egress-denied", "as it was installed: {outside}");
    let unmeshed = out(&ask("pod/plain", &to_cart));
    assert!(unmeshed.contains("client       shop/plain (no proxy)\n"), "{unmeshed}");
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
    assert_eq!(text, "leno: \"web\" may be any of deploy/web, sts/web: say which\n");
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
    assert!(said(&leno(&["analyze", "-n", "shop"])).contains("no cluster is named"));
}
