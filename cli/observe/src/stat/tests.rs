use super::*;
use crate::admin::AdminReply;

fn instances() -> Vec<StatInstance> {
    let instance = |workload: &str, number: u32| StatInstance {
        namespace: "shop".into(),
        workload: workload.into(),
        name: format!("{workload}-{number}"),
        meshed: true,
        ready: number == 0,
        proxy: None,
    };
    vec![instance("cart", 0), instance("cart", 1), instance("web", 0)]
}

/// A scrape of the answers of the instances, in order. Each answer is the seconds after `begin`, and the metrics,
/// or `None` if the instance did not answer.
fn scrape(begin: Instant, answered: &[(u64, Option<&str>)]) -> Scrape {
    let answer = |(seconds, text): &(u64, Option<&str>)| {
        let text = text.ok_or_else(|| "nothing".to_owned())?;
        let reply = AdminReply { status: 200, body: text.to_owned() };
        ProxyCounters::at(&reply, begin + Duration::from_secs(*seconds))
    };
    let answers = answered.iter().map(|answered| Some(answer(answered)));
    let at = begin + Duration::from_secs(answered[0].0);
    Scrape::new("default", at, instances().into_iter().zip(answers).collect())
}

fn edge(direction: &str, client: &str, server: &str, mtls: bool) -> String {
    format!(
        "direction=\"{direction}\",client=\"{client}\",client_namespace=\"shop\",\
         server=\"{server}\",server_namespace=\"shop\",service=\"cart\",mtls=\"{mtls}\""
    )
}

fn over_ten_seconds(text: &str) -> StatReport {
    let begin = Instant::now();
    let before = scrape(begin, &[(0, Some("")); 3]);
    scrape(begin, &[(10, Some(text)), (10, Some("")), (10, Some(""))]).since(&before)
}

#[test]
fn replicas_add_up_to_one_edge() {
    let mut text = String::new();
    for server in ["cart-0", "cart-1"] {
        let labels = edge("outbound", "web-0", server, true);
        text += &format!(
            "leno_requests_total{{{labels},status=\"200\"}} 40\n\
             leno_requests_total{{{labels},status=\"503\"}} 10\n\
             leno_request_duration_seconds_bucket{{{labels},le=\"0.001\"}} 25\n\
             leno_request_duration_seconds_bucket{{{labels},le=\"0.003\"}} 50\n\
             leno_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 50\n"
        );
    }
    let report = over_ten_seconds(&text);
    let [edge] = report.edges.as_slice() else { panic!("{:?}", report.edges) };
    assert_eq!((edge.client.as_str(), edge.server.as_str()), ("web", "cart"));
    assert_eq!(edge.signals.success_rate, Some(0.8));
    assert_eq!(edge.signals.requests_per_s, 10.0);
    assert_eq!(edge.signals.requests, 100);
    assert_eq!(edge.signals.latency_ms.p50, Some(1.0));
    assert_eq!(edge.signals.reliable_latency_ms(), edge.signals.latency_ms);
    assert_eq!(edge.signals.mtls, Some(true));
}

#[test]
fn workloads_are_measured_where_they_serve() {
    let labels = edge("inbound", "web", "cart-0", true);
    let report = over_ten_seconds(&format!("leno_requests_total{{{labels},status=\"200\"}} 20\n"));
    assert!(report.edges.is_empty());
    let [cart, web] = report.workloads.as_slice() else { panic!("{:?}", report.workloads) };
    assert_eq!((cart.name.as_str(), cart.instances, cart.ready), ("cart", 2, 1));
    assert_eq!(cart.signals.requests_per_s, 2.0);
    assert_eq!((web.signals.success_rate, web.signals.mtls), (None, None));
}

#[test]
fn a_client_without_identity_has_an_edge_of_its_own() {
    let labels = edge("inbound", "", "cart-0", false);
    let text = format!("leno_requests_total{{{labels},status=\"200\"}} 20\n");
    let report = over_ten_seconds(&text);
    assert_eq!(report.edges[0].client, UNMESHED);
    assert_eq!(report.edges[0].signals.mtls, Some(false));

    // If the client is meshed but mTLS is disabled, its proxy has counted the requests itself.
    let labels = edge("outbound", "web-0", "cart-0", false);
    let text = text + &format!("leno_requests_total{{{labels},status=\"200\"}} 20\n");
    let report = over_ten_seconds(&text);
    assert_eq!(report.edges.len(), 1);
    assert_eq!(report.edges[0].client, "web");
}

#[test]
fn opaque_connections_are_an_edge_too() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let text = format!(
        "leno_tcp_open_connections{{{labels}}} 3\nleno_tcp_open_total{{{labels}}} 5\n\
         leno_tcp_read_bytes_total{{{labels}}} 100\nleno_tcp_written_bytes_total{{{labels}}} 900\n"
    );
    let signals = &over_ten_seconds(&text).edges[0].signals;
    assert_eq!((signals.tcp_open, signals.tcp_bytes_per_s), (3.0, 100.0));
    assert_eq!(signals.tcp_opened_per_s, 0.5);
    assert_eq!((signals.success_rate, signals.mtls), (None, Some(true)));
}

#[test]
fn a_restarted_proxy_counts_from_zero() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let text = |requests: u32, open: u32| {
        format!(
            "leno_requests_total{{{labels},status=\"200\"}} {requests}\n\
             leno_tcp_open_connections{{{labels}}} {open}\n"
        )
    };
    let values = |before: Option<u32>, after: u32| {
        let begin = Instant::now();
        let before = before.map(|requests| text(requests, 4));
        let before = scrape(begin, &[(0, None), (0, None), (0, before.as_deref())]);
        let after = text(after, 5);
        let report = scrape(begin, &[(10, None), (10, None), (10, Some(&after))]).since(&before);
        let signals = report.edges.first().map(|edge| &edge.signals);
        signals.map(|signals| (signals.requests_per_s, signals.tcp_open))
    };
    assert_eq!(values(Some(100), 120), Some((2.0, 5.0)));
    assert_eq!(values(Some(100), 70), Some((7.0, 5.0)));
    assert_eq!(values(None, 70), None, "it was silent: how much of it is new is unknown");
}

#[test]
fn each_proxy_has_counted_for_its_own_time() {
    let text = |server: &str, requests: u32| {
        let labels = edge("inbound", "web", server, true);
        format!("leno_requests_total{{{labels},status=\"200\"}} {requests}\n")
    };
    let (first, second) = (text("cart-0", 10), text("cart-1", 10));
    let begin = Instant::now();
    let before = scrape(begin, &[(0, Some(&first)), (6, Some(&second)), (6, Some(""))]);
    let (first, second) = (text("cart-0", 30), text("cart-1", 30));
    let after = scrape(begin, &[(10, Some(&first)), (11, Some(&second)), (20, Some(""))]);
    let report = after.since(&before);
    let cart = &report.workloads[0].signals;
    assert_eq!(cart.requests_per_s, 2.0 + 4.0, "20 in ten seconds, and 20 in five");
    assert_eq!(report.window_s, 10.0);
}

#[test]
fn a_proxy_that_has_come_since_has_counted_since_then() {
    let begin = Instant::now();
    let mut before = scrape(begin, &[(0, None); 3]);
    before.instances.retain(|one| one.workload != "web");
    before.unknown.retain(|(_, instance)| instance != "web-0");
    let labels = edge("outbound", "web-0", "cart-0", true);
    let text = format!("leno_requests_total{{{labels},status=\"200\"}} 50\n");
    let after = scrape(begin, &[(10, None), (10, None), (10, Some(&text))]);
    assert_eq!(after.since(&before).edges[0].signals.requests_per_s, 5.0);
}

#[test]
fn proxies_that_do_not_answer_are_named() {
    let now = scrape(Instant::now(), &[(0, Some("")), (0, None), (0, Some(""))]);
    assert_eq!(now.since(&now).silent, ["shop/cart-1: nothing"]);
    let reply = AdminReply { status: 503, body: String::new() };
    assert_eq!(ProxyCounters::of(&reply).unwrap_err(), "HTTP 503");
}

#[test]
fn an_edge_that_was_hidden_for_a_while_counts_what_is_new_alone() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let count = |number: u32| format!("leno_requests_total{{{labels},status=\"200\"}} {number}\n");
    let begin = Instant::now();
    let first = scrape(begin, &[(0, Some("")), (0, Some("")), (0, Some(&count(40)))]);
    let mut idle = scrape(begin, &[(5, Some("")), (5, Some("")), (5, Some(""))]);
    idle.remember(&first);
    let mut silent = scrape(begin, &[(10, Some("")), (10, Some("")), (10, None)]);
    silent.remember(&idle);
    let again = scrape(begin, &[(15, Some("")), (15, Some("")), (15, Some(&count(43)))]);
    assert_eq!(idle.growth(&first).edges, []);
    assert_eq!(silent.growth(&idle).edges, []);
    assert_eq!(silent.growth(&idle).silent, ["shop/web-0: nothing"]);
    let growth = again.growth(&silent);
    let [edge] = growth.edges.as_slice() else { panic!("{growth:?}") };
    assert_eq!(edge.counts.classes, [0.0, 3.0, 0.0, 0.0, 0.0]);
}

#[test]
fn growth_has_classes_causes_and_attempts_that_failed() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let report = format!(
        "leno_requests_total{{{labels},status=\"503\"}} 2\n\
         leno_requests_total{{{labels},status=\"404\"}} 1\n\
         leno_errors_total{{{labels},cause=\"no-endpoints\"}} 2\n\
         leno_connect_failures_total{{{labels}}} 5\n"
    );
    let begin = Instant::now();
    let before = scrape(begin, &[(0, Some("")); 3]);
    let now = scrape(begin, &[(5, Some("")), (5, Some("")), (5, Some(&report))]);
    let growth = now.growth(&before);
    let [edge] = growth.edges.as_slice() else { panic!("{growth:?}") };
    assert_eq!(
        (edge.client.1.as_str(), edge.server.1.as_str(), edge.encrypted),
        ("web", "cart", true)
    );
    assert_eq!(edge.counts.classes, [0.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(edge.counts.causes, [("no-endpoints".to_owned(), 2.0)].into());
    assert_eq!(edge.counts.connect_failures, 5.0);
    assert_eq!(growth.workloads.len(), 2, "idle ones as well");
}

#[test]
fn what_was_refused_is_an_edge_with_its_cause() {
    let denied = edge("outbound", "web-0", "", false).replace("service=\"cart\"", "service=\"\"");
    let denied = denied.replace("server_namespace=\"shop\"", "server_namespace=\"\"");
    let text = format!(
        "leno_errors_total{{{denied},cause=\"egress-denied\"}} 4\n\
         leno_plaintext_refused_total{{direction=\"inbound\"}} 3\n\
         leno_connections_refused_total{{direction=\"inbound\",reason=\"limit\"}} 2\n\
         leno_connections_refused_total{{direction=\"outbound\",reason=\"limit\"}} 7\n"
    );
    let report = over_ten_seconds(&text);
    let shown: Vec<String> = report
        .edges
        .iter()
        .map(|edge| format!("{} {} {:?}", edge.client, edge.server, edge.signals.causes))
        .collect();
    assert_eq!(
        shown,
        [
            "(unmeshed) cart {\"connections-limit\": 2, \"plaintext-refused\": 3}",
            "cart (unknown) {\"connections-limit\": 7}",
            "web (outside) {\"egress-denied\": 4}",
        ]
    );
    assert!(report.edges.iter().all(|edge| edge.signals.mtls.is_none()));
}

#[test]
fn the_first_counts_of_a_mesh_are_new() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let text = format!("leno_requests_total{{{labels},status=\"500\"}} 20\n");
    let begin = Instant::now();
    let beginning = Scrape::beginning("default", begin);
    // The proxy exists but does not answer yet.
    let mut starting = scrape(begin, &[(1, Some("")), (1, Some("")), (1, None)]);
    starting.remember(&beginning);
    let now = scrape(begin, &[(6, Some("")), (6, Some("")), (6, Some(&text))]);
    let growth = now.growth(&starting);
    let [edge] = growth.edges.as_slice() else { panic!("{growth:?}") };
    assert_eq!(edge.counts.failures(), 20.0);
    assert_eq!(now.growth(&beginning).edges.len(), 1);
}

#[test]
fn requests_without_an_answer_are_no_success() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let report = over_ten_seconds(&format!(
        "leno_requests_total{{{labels},status=\"499\"}} 5\n\
         leno_requests_total{{{labels},status=\"403\"}} 15\n\
         leno_errors_total{{{labels},cause=\"closed\"}} 5\n\
         leno_errors_total{{{labels},cause=\"authorization-denied\"}} 15\n"
    ));
    let signals = &report.edges[0].signals;
    assert_eq!(signals.success_rate, None);
    assert_eq!((signals.given_up, signals.denied), (0.25, 0.75));
}

#[test]
fn calls_fail_by_their_grpc_status() {
    let labels = edge("outbound", "web-0", "cart-0", true);
    let success = |grpc: &str, own: u32| {
        let of_server = 10 - own;
        let report = over_ten_seconds(&format!(
            "leno_requests_total{{{labels},status=\"200\"}} {of_server}\n\
             leno_requests_total{{{labels},status=\"503\"}} {own}\n\
             leno_grpc_responses_total{{{labels},grpc_status=\"{grpc}\"}} 10\n\
             leno_errors_total{{{labels},cause=\"no-endpoints\"}} {own}\n"
        ));
        report.edges[0].signals.success_rate
    };
    for failed in ["2", "4", "13", "14", "15"] {
        assert_eq!(success(failed, 0), Some(0.0), "{failed}");
    }
    for good in ["0", "3", "5", "7", "8", "16"] {
        assert_eq!(success(good, 0), Some(1.0), "{good}");
    }
    // A call that the mesh itself answers has both an HTTP status and a grpc-status, and counts as one failure.
    assert_eq!(success("14", 4), Some(0.0));
}

#[test]
fn attempts_that_reach_no_server_are_not_in_plaintext() {
    let nowhere = edge("outbound", "web-0", "", false);
    let attempts = format!(
        "leno_requests_total{{{nowhere},status=\"503\"}} 9\n\
         leno_errors_total{{{nowhere},cause=\"endpoints-tried\"}} 9\n"
    );
    let report = over_ten_seconds(&attempts);
    assert_eq!(report.edges[0].signals.mtls, None);

    let labels = edge("outbound", "web-0", "cart-0", true);
    let tried =
        format!("leno_errors_total{{{labels},cause=\"application-unreachable\"}} 9\n{attempts}");
    let report = over_ten_seconds(&tried);
    let [edge] = report.edges.as_slice() else { panic!("{:?}", report.edges) };
    assert_eq!((edge.signals.mtls, edge.signals.success_rate), (Some(true), Some(0.0)));
}

/// The metrics of a client's proxy about one route rule.
fn rule(name: &str, good: u32, failed: u32) -> String {
    let labels = format!(
        "service=\"cart\",service_namespace=\"shop\",route=\"HTTPRoute shop/cart\",rule=\"{name}\""
    );
    format!(
        "leno_route_requests_total{{{labels},status=\"200\"}} {good}\n\
         leno_route_requests_total{{{labels},status=\"503\"}} {failed}\n\
         leno_route_errors_total{{{labels},cause=\"failfast\"}} {failed}\n\
         leno_route_retries_total{{{labels}}} 20\n\
         leno_route_request_duration_seconds_bucket{{{labels},le=\"0.001\"}} {good}\n\
         leno_route_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {good}\n"
    )
}

#[test]
fn a_rule_of_a_route_is_the_sum_of_its_clients() {
    let begin = Instant::now();
    let earlier = rule("canary", 10, 0);
    let before = scrape(begin, &[(0, Some(&earlier)), (0, Some("")), (0, Some(""))]);
    let (one, two) = (rule("canary", 40, 10), rule("canary", 60, 0));
    let now = scrape(begin, &[(10, Some(&one)), (10, Some(&two)), (10, Some(""))]);
    let report = now.since(&before);
    let [route] = report.routes.as_slice() else { panic!("{:?}", report.routes) };
    assert_eq!((route.service.as_str(), route.route.as_str()), ("cart", "HTTPRoute shop/cart"));
    let signals = &route.signals;
    assert_eq!((signals.requests_per_s, signals.success_rate), (10.0, Some(0.9)));
    assert_eq!((signals.retries_per_s, signals.causes["failfast"]), (2.0, 10));
    assert!(signals.latency_ms.p99.is_some() && signals.mtls.is_none(), "{signals:?}");
    assert_eq!(now.growth(&before).routes[0].counts.requests(), 100.0);
    assert_eq!(report.of_namespace("bank").routes, []);

    // A proxy that omits an idle rule does not start its counters at zero again.
    let mut idle = scrape(begin, &[(20, Some("")), (20, Some("")), (20, Some(""))]);
    idle.remember(&now);
    let last = scrape(begin, &[(30, Some(&one)), (30, Some(&two)), (30, Some(""))]);
    assert_eq!(last.since(&idle).routes, []);
}

#[test]
fn identities_are_those_that_proxies_prove_over_mtls() {
    let info = |name: &str| {
        format!("leno_identity_info{{identity=\"spiffe://cluster.local/ns/shop/sa/{name}\"}} 1\n")
    };
    let of = |mtls: bool| {
        let begin = Instant::now();
        let labels = edge("outbound", "web-0", "cart-0", mtls);
        let web = info("web") + &format!("leno_requests_total{{{labels},status=\"200\"}} 20\n");
        let cart = info("cart");
        let before = scrape(begin, &[(0, Some("")); 3]);
        let now = scrape(begin, &[(10, Some(&cart)), (10, Some("")), (10, Some(&web))]);
        let mut report = now.since(&before);
        let edge = report.edges.remove(0);
        (edge.client_identity, edge.server_identity)
    };
    let identity = |name: &str| Some(format!("spiffe://cluster.local/ns/shop/sa/{name}"));
    assert_eq!(of(true), (identity("web"), identity("cart")));
    assert_eq!(of(false), (None, None));
}

#[test]
fn what_a_prometheus_has_recorded_is_the_same_report() {
    let labels = edge("outbound", "web-0", "cart-1", true);
    let text = format!(
        "leno_requests_total{{{labels},status=\"200\"}} 40\n\
         leno_requests_total{{{labels},status=\"503\"}} 10\n\
         leno_tcp_open_connections{{{labels}}} 2\n\
         leno_identity_info{{identity=\"spiffe://d/ns/shop/sa/web\",workload=\"web\",workload_namespace=\"shop\"}} 1700000060\n\
         leno_identity_info{{identity=\"spiffe://d/ns/shop/sa/web-before\",workload=\"web\",workload_namespace=\"shop\"}} 1700000000\n\
         leno_identity_info{{identity=\"spiffe://d/ns/shop/sa/old\"}} 1\n"
    );
    let samples = crate::metrics::parse(&text);
    let window = Duration::from_secs(10);
    let report = Scrape::recorded("default", instances(), &samples, window);
    let [only] = report.edges.as_slice() else { panic!("{:?}", report.edges) };
    assert_eq!((&*only.client, &*only.server, only.signals.mtls), ("web", "cart", Some(true)));
    assert_eq!((only.signals.requests_per_s, only.signals.success_rate), (5.0, Some(0.8)));
    assert_eq!((report.workloads.len(), report.window_s), (2, 10.0));
    let identities = (only.client_identity.as_deref(), only.server_identity.as_deref());
    assert_eq!(
        identities,
        (Some("spiffe://d/ns/shop/sa/web"), None),
        "a proxy of before names no workload"
    );
}
