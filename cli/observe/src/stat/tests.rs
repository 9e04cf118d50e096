use super::*;

fn instances() -> Vec<Instance> {
    let instance = |workload: &str, number: u32| Instance {
        namespace: "shop".into(),
        workload: workload.into(),
        name: format!("{workload}-{number}"),
        meshed: true,
        ready: number == 0,
    };
    vec![instance("cart", 0), instance("cart", 1), instance("web", 0)]
}

/// What was answered: metrics by the instances in their order, where there are any.
fn scrape(metrics: &[Option<&str>]) -> Scrape {
    let answer = |text: Option<&str>| match text {
        Some(text) => Ok(Reply { status: 200, body: text.to_owned() }),
        None => Err("nothing".to_owned()),
    };
    let answers = metrics.iter().map(|text| Some(answer(*text)));
    Scrape::new("default", Instant::now(), instances().into_iter().zip(answers).collect())
}

fn edge(direction: &str, client: &str, server: &str, mtls: bool) -> String {
    format!(
        "direction=\"{direction}\",client=\"{client}\",client_namespace=\"shop\",\
         server=\"{server}\",server_namespace=\"shop\",service=\"cart\",mtls=\"{mtls}\""
    )
}

fn over_ten_seconds(text: &str) -> Report {
    let now = scrape(&[Some(text), Some(""), Some("")]);
    report(&now, &metrics::parse(text), Duration::from_secs(10))
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
    assert_eq!(edge.signals.latency_ms.p50, Some(1.0));
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

    // Unless it was a meshed client under disabled mTLS, which counted it itself.
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
        "leno_tcp_open_connections{{{labels}}} 3\n\
         leno_tcp_read_bytes_total{{{labels}}} 100\nleno_tcp_written_bytes_total{{{labels}}} 900\n"
    );
    let signals = &over_ten_seconds(&text).edges[0].signals;
    assert_eq!((signals.tcp_open, signals.tcp_bytes_per_s), (3.0, 100.0));
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
        let before = before.map(|requests| text(requests, 4));
        let before = scrape(&[None, None, before.as_deref()]);
        let increase = scrape(&[None, None, Some(&text(after, 5))]).increase(&before);
        increase.iter().map(|sample| sample.value).collect::<Vec<_>>()
    };
    assert_eq!(values(Some(100), 120), [20.0, 5.0]);
    assert_eq!(values(Some(100), 7), [7.0, 5.0]);
    assert_eq!(values(None, 7), [0.0; 0], "it was silent: how much of it is new nobody knows");
}

#[test]
fn whoever_does_not_answer_is_named() {
    let now = scrape(&[Some(""), None, Some("")]);
    assert_eq!(now.since(&now).silent, ["shop/cart-1: nothing"]);
}
