//! Tests which culprit is named, and which problem comes first.

use std::collections::BTreeSet;

use super::*;
use crate::api::{Restart, Sign, SignKind};
use leno_observe::stat::{EdgeGrowth, MeshGrowth};

/// An edge with a number of requests, some of which fail. Each request takes this many seconds.
fn served(client: &str, server: &str, (requests, failed): (f64, f64), seconds: f64) -> EdgeGrowth {
    let mut one = edge(client, server, requests - failed);
    one.counts.classes[4] = failed;
    one.counts.durations = leno_observe::metrics::CumulativeHistogram::default();
    one.counts.durations.add(seconds, requests);
    one.counts.durations.add(f64::INFINITY, requests);
    one
}

/// The counts of a mesh with these edges, and with workloads for both ends.
fn mesh(edges: Vec<EdgeGrowth>) -> MeshGrowth {
    let ends = edges.iter().flat_map(|one| [&one.client.1, &one.server.1]);
    let names: BTreeSet<String> = ends.cloned().collect();
    let workloads = names.iter().map(|name| workload(name, (1, 1))).collect();
    MeshGrowth { workloads, ..growth(5.0, edges) }
}

/// The history of a mesh that is healthy for five minutes; then, for half a minute, its edges are those that
/// `then` returns.
fn history(then: impl Fn() -> Vec<EdgeGrowth>) -> History {
    let mut history = History::default();
    for tick in 1..=66 {
        let well = || {
            let ends = [("customer", "front"), ("front", "cart"), ("cart", "db")];
            ends.map(|(client, server)| served(client, server, (50.0, 0.0), 0.007)).into()
        };
        let edges = if tick <= 60 { well() } else { then() };
        history.push(tick * 5_000, &mesh(edges));
    }
    history
}

fn sign(kind: SignKind, workload: &str, subject: &str, line: &str) -> Sign {
    let (namespace, workload) = ("shop".to_owned(), workload.to_owned());
    let (subject, line) = (subject.to_owned(), line.to_owned());
    Sign { kind, namespace, workload, subject, at_ms: 325_000, line }
}

fn judge(history: &History, state: &MeshState) -> Vec<Problem> {
    let end = history.end_ms().unwrap();
    let window = history.window(end.saturating_sub(60_000), end);
    let mut topology = query::topology(&history.view(), ("default", &BTreeMap::new()), &window);
    (topology.from_ms, topology.to_ms) = (end - 60_000, end);
    problems(&history.view(), &topology, &window, Some(state))
}

#[test]
fn a_server_that_is_slower_than_usual_is_where_its_clients_are_slow_or_fail() {
    let slow = || {
        vec![
            served("customer", "front", (50.0, 25.0), 1.0),
            served("front", "cart", (50.0, 0.0), 1.0),
            served("cart", "db", (50.0, 0.0), 0.7),
        ]
    };
    let history = history(slow);
    let state = MeshState { control_plane: ControlPlane::Running, ..MeshState::default() };
    let all = judge(&history, &state);
    assert!(all[0].title.starts_with("requests from shop/cart to shop/db take "), "{all:?}");
    assert_eq!(all[0].severity, Severity::Bad, "requests of customers fail by it");
    assert_eq!(all[0].culprit, "the application of shop/db, which is slow");
    assert_eq!(all[0].more, "leno tap -n shop cart --to shop/db");
    assert_eq!(all[0].since_ms, Some(300_000));
    let chain = "begins here: shop/customer -> shop/front -> shop/cart -> shop/db";
    assert_eq!(all[0].evidence[0], chain);

    let line = "db-0 was throttled by its CPU limit for 80 % of the last 30 s";
    let throttled = sign(SignKind::Throttled, "db", "db-0", line);
    let all = judge(&history, &MeshState { signs: vec![throttled.clone()], ..state.clone() });
    assert_eq!(all[0].culprit, "the CPU limit of shop/db");
    assert!(all[0].evidence.contains(&throttled.line), "{all:?}");
    let lost = "9 % of the TCP segments from shop/db to shop/cart were sent again";
    let lossy = sign(SignKind::Lossy, "db", "shop/cart", lost);
    let all = judge(&history, &MeshState { signs: vec![lossy], ..state });
    assert_eq!(all[0].culprit, "the network between shop/cart and shop/db");
}

#[test]
fn a_small_slowdown_and_one_of_all_edges_are_not_reported() {
    let a_little = || vec![served("cart", "db", (50.0, 0.0), 0.05)];
    assert_eq!(judge(&history(a_little), &MeshState::default()), []);
    let mut everywhere = History::default();
    for tick in 1..=66 {
        let seconds = if tick <= 60 { 0.007 } else { 0.5 };
        let edges = (0..9).map(|nth| served(&format!("c{nth}"), "db", (50.0, 0.0), seconds));
        everywhere.push(tick * 5_000, &mesh(edges.collect()));
    }
    assert_eq!(judge(&everywhere, &MeshState::default()), [], "the machine is slow");
}

#[test]
fn failures_follow_from_a_denial_only_if_both_began_together() {
    let mut denied = served("cart", "db", (50.0, 0.0), 0.005);
    denied.counts.classes = [0.0, 0.0, 0.0, 50.0, 0.0];
    denied.counts.causes = [("authorization-denied".to_owned(), 50.0)].into();
    let then = || vec![served("front", "cart", (50.0, 50.0), 0.005), denied.clone()];
    let all = judge(&history(then), &MeshState::default());
    assert!(all[0].title.contains("from shop/cart to shop/db denied"), "{all:?}");
    assert_eq!(all[0].severity, Severity::Bad);
    assert_eq!(all[0].culprit, "an authorization policy of shop/db, which denies shop/cart");
    assert_eq!(all[0].more, "leno authz -n shop db");

    let mut always = History::default();
    for tick in 1..=66 {
        let failed = if tick <= 60 { 0.0 } else { 50.0 };
        let edges = vec![served("front", "cart", (50.0, failed), 0.005), denied.clone()];
        always.push(tick * 5_000, &mesh(edges));
    }
    let all = judge(&always, &MeshState::default());
    assert!(all[0].title.contains("from shop/front to shop/cart fail"), "{all:?}");
    assert_eq!(all[1].severity, Severity::Warning);
}

#[test]
fn causes_of_the_mesh_lead_to_their_subjects() {
    let culprit = |cause: &str| {
        let mut failed = served("front", "cart", (50.0, 50.0), 0.005);
        failed.counts.causes = [(cause.to_owned(), 50.0)].into();
        judge(&history(|| vec![failed.clone()]), &MeshState::default()).remove(0).culprit
    };
    assert_eq!(culprit("overloaded"), "a limit of shop/cart (overloaded)");
    assert_eq!(culprit("backend-invalid"), "the routes of shop/cart (backend-invalid)");
    assert_eq!(culprit("no-endpoints"), "shop/cart, which cannot be reached (no-endpoints)");
    let mut failed = served("front", "cart", (50.0, 50.0), 0.005);
    failed.counts.causes = [("no-endpoints".to_owned(), 50.0)].into();
    let all = judge(&history(|| vec![failed.clone()]), &MeshState::default());
    assert_eq!(all[0].more, "leno analyze", "its instances take traffic");
    let state = MeshState { unready: vec![unready("cart-0", "not ready")], ..MeshState::default() };
    let all = judge(&history(|| vec![failed.clone()]), &state);
    assert_eq!(all[0].more, "leno ps -n shop");
    assert_eq!(culprit("fault-abort"), "a policy of shop/cart that makes requests fail");
    assert_eq!(
        culprit("tls-handshake-failed"),
        "the certificate of shop/cart (tls-handshake-failed)"
    );
    assert_eq!(culprit("refused-by-server"), "the certificate of shop/front (refused-by-server)");
    assert_eq!(
        culprit("response-timeout"),
        "the application of shop/cart, which is slower than its timeout (response-timeout)"
    );
    assert_eq!(
        culprit("external-wrong-name"),
        "the TLS of shop/cart outside of the mesh (external-wrong-name)"
    );
    assert_eq!(
        culprit("external-unresolved"),
        "the name outside of the mesh that shop/cart stands for (external-unresolved)"
    );
    assert_eq!(
        culprit("authorizer-failed"),
        "the external authorizer of shop/cart, which does not decide"
    );
    assert_eq!(
        culprit("header-value"),
        "the application of shop/cart, whose responses are not HTTP (header-value)"
    );
    let mut limited = served("front", "cart", (50.0, 0.0), 0.005);
    limited.counts.classes = [0.0, 20.0, 0.0, 30.0, 0.0];
    limited.counts.causes = [("egress-denied".to_owned(), 30.0)].into();
    let all = judge(&history(|| vec![limited.clone()]), &MeshState::default());
    assert_eq!(titles(&all), ["180 requests from shop/front to shop/cart refused"]);
    assert_eq!(all[0].culprit, "egress, which is denied to shop/front");
    limited.counts.causes = [("head-too-large".to_owned(), 30.0)].into();
    let all = judge(&history(|| vec![limited.clone()]), &MeshState::default());
    assert_eq!(titles(&all), ["180 requests from shop/front to shop/cart refused"]);
    assert_eq!(
        all[0].culprit,
        "the application of shop/front, whose requests are not HTTP (head-too-large)"
    );
    assert_eq!(all[0].more, "leno logs -n shop front");
}

#[test]
fn slowness_before_the_proxies_of_the_server_is_not_blamed_on_its_application() {
    let with_server = |seconds: f64| {
        let mut history = History::default();
        for tick in 1..=66 {
            let (at_client, at_server) = if tick <= 60 { (0.007, 0.006) } else { (0.7, seconds) };
            let mut now = mesh(vec![served("front", "cart", (50.0, 0.0), at_client)]);
            let cart = now.workloads.iter_mut().find(|one| one.name.1 == "cart").unwrap();
            cart.counts = served("front", "cart", (50.0, 0.0), at_server).counts;
            history.push(tick * 5_000, &now);
        }
        judge(&history, &MeshState::default()).remove(0)
    };
    let far = with_server(0.006);
    assert_eq!(far.culprit, "the network or a proxy between shop/front and shop/cart");
    let line = "the proxies of the server have seen few that took as long";
    assert!(far.evidence.iter().any(|one| one == line), "{far:?}");
    assert_eq!(with_server(0.65).culprit, "the application of shop/cart, which is slow");
}

#[test]
fn a_proxy_that_hangs_is_not_mistaken_for_its_application() {
    let given_up = || {
        let mut one = served("front", "cart", (50.0, 0.0), 1.0);
        one.counts.classes = [0.0, 20.0, 0.0, 30.0, 0.0];
        one.counts.given_up = 30.0;
        vec![one]
    };
    let of = |line: &str| {
        let state = MeshState { silent: vec![line.to_owned()], ..MeshState::default() };
        judge(&history(given_up), &state).remove(0)
    };
    let all = of("shop/cart-0: timed out");
    assert_eq!(all.culprit, "the proxy of shop/cart-0, which does not answer");
    assert_eq!(all.more, "leno logs --proxy -n shop cart");
    assert_eq!(all.evidence[0], "shop/cart-0: timed out");
    let all = of("shop/cart-next-0: timed out");
    assert_eq!(all.culprit, "the application of shop/cart, which does not answer in time");
}

#[test]
fn answers_of_4xx_are_reported_if_they_are_new() {
    let rejected = |share: f64| {
        let mut one = served("front", "cart", (50.0, 0.0), 0.005);
        one.counts.classes = [0.0, 50.0 * (1.0 - share), 0.0, 50.0 * share, 0.0];
        one
    };
    let all = judge(&history(|| vec![rejected(0.9)]), &MeshState::default());
    let title =
        "90 % of the requests from shop/front to shop/cart are answered 4xx, usually next to none";
    assert_eq!(titles(&all), [title]);
    assert_eq!(all[0].severity, Severity::Warning);
    assert_eq!(all[0].culprit, "the application of shop/cart, which answers 4xx");
    assert_eq!(judge(&history(|| vec![rejected(0.2)]), &MeshState::default()), []);
    let mut always = History::default();
    (1..=66).for_each(|tick| always.push(tick * 5_000, &mesh(vec![rejected(0.9)])));
    assert_eq!(judge(&always, &MeshState::default()), [], "it is usual");

    let failing = || vec![served("customer", "front", (50.0, 50.0), 0.005), rejected(1.0)];
    let all = judge(&history(failing), &MeshState::default());
    assert!(all[0].title.contains("from shop/front to shop/cart are answered"), "{all:?}");
    assert_eq!(all[0].severity, Severity::Bad, "requests of customers fail by it");
}

#[test]
fn a_service_without_a_workload_of_its_name_has_no_logs_to_read() {
    let mut history = History::default();
    for tick in 1..=66 {
        let failed = if tick <= 60 { 0.0 } else { 50.0 };
        let mut now = mesh(vec![served("front", "bank", (50.0, failed), 0.005)]);
        now.workloads.retain(|one| one.name.1 != "bank");
        history.push(tick * 5_000, &now);
    }
    let all = judge(&history, &MeshState::default());
    assert_eq!(
        (&*all[0].culprit, &*all[0].more),
        ("shop/bank", "leno tap -n shop front --to shop/bank")
    );
}

#[test]
fn the_edit_just_before_is_named_with_the_culprit() {
    let mut history = history(|| vec![served("front", "cart", (50.0, 50.0), 0.005)]);
    for line in [
        "HTTPRoute shop/other changed; nothing restarts",
        "Workload shop/cart changed; 1 instance is replaced",
    ] {
        history.mark(Mark {
            at_ms: 298_000,
            kind: MarkKind::Documents,
            lines: vec![line.to_owned()],
        });
    }
    let all = judge(&history, &MeshState::default());
    assert_eq!(
        all[0].culprit,
        "the application of shop/cart; Workload shop/cart was changed just before"
    );
    assert_eq!(all[0].more, "leno logs -n shop cart");
}

#[test]
fn an_opaque_edge_whose_server_stops_answering_is_broken() {
    let mut history = History::default();
    for tick in 1..=66 {
        let mut one = edge("web", "db", 0.0);
        one.counts.read_bytes = 100.0;
        one.counts.written_bytes = if tick <= 60 { 1000.0 } else { 0.0 };
        one.counts.tcp_open = 1.0;
        history.push(tick * 5_000, &mesh(vec![one]));
    }
    let all = judge(&history, &MeshState::default());
    assert_eq!(titles(&all), ["the bytes from shop/web to shop/db are no longer answered"]);
    assert_eq!(all[0].culprit, "the application of shop/db, which does not answer");
    assert_eq!((all[0].severity, all[0].since_ms), (Severity::Bad, Some(300_000)));

    // Connections to a stopped process fill its backlog, and the kernel then retransmits the handshakes of further
    // connections.
    let lost = "3 % of the TCP segments from shop/web to shop/db were sent again";
    let lossy = sign(SignKind::Lossy, "web", "shop/db", lost);
    let all = judge(&history, &MeshState { signs: vec![lossy], ..MeshState::default() });
    assert_eq!(all[0].culprit, "the application of shop/db, which does not answer");
    assert_eq!(all[0].evidence[0], lost);
}

#[test]
fn an_application_that_ends_repeatedly_is_broken_and_the_culprit_of_its_edges() {
    let end = |times| Restart {
        namespace: "shop".to_owned(),
        workload: "cart".to_owned(),
        instance: "cart-0".to_owned(),
        at_ms: 325_000,
        times,
        ended: "was ended by SIGKILL (its limit of 64Mi of memory)".to_owned(),
    };
    let well = history(|| vec![served("front", "cart", (50.0, 0.0), 0.005)]);
    let once = judge(&well, &MeshState { ended: vec![end(1)], ..MeshState::default() });
    assert_eq!(titles(&once), ["the application of shop/cart has ended once"]);
    assert_eq!(once[0].severity, Severity::Warning);
    let failing = history(|| vec![served("front", "cart", (50.0, 50.0), 0.005)]);
    let all = judge(&failing, &MeshState { ended: vec![end(3)], ..MeshState::default() });
    assert_eq!(titles(&all)[0], "the application of shop/cart has ended 3 times");
    assert_eq!(
        all[0].evidence,
        ["cart-0: 3 times, last 5 s ago: was ended by SIGKILL (its limit of 64Mi of memory)"]
    );
    assert_eq!(all[1].culprit, "the application of shop/cart, which ends");
}

#[test]
fn a_workload_that_is_not_ready_because_of_a_failing_call_comes_after_that_edge() {
    let failing = history(|| vec![served("cart", "db", (50.0, 50.0), 0.005)]);
    let waits = vec![unready("cart-0", "not ready"), unready("cart-1", "not ready")];
    let all = judge(&failing, &MeshState { unready: waits, ..MeshState::default() });
    assert_eq!(
        titles(&all),
        [
            "50.0 % of the requests from shop/cart to shop/db fail",
            "0 of 2 instances of shop/cart take traffic"
        ]
    );
    assert_eq!(all[1].evidence[0], "its own requests or connections to shop/db fail");
}

#[test]
fn signs_without_a_broken_edge_are_warnings_of_their_own() {
    let well = history(|| vec![served("front", "cart", (50.0, 0.0), 0.005)]);
    let name = "front-0 has looked up cat.shop 9 times in 30 s: there is no such name";
    let all = [
        sign(SignKind::UnknownName, "front", "cat.shop", name),
        sign(SignKind::Throttled, "front", "front-0", "it waits"),
        Sign { at_ms: 1_000, ..sign(SignKind::Outlier, "cart", "cart-1", "of long ago") },
    ];
    let all = judge(&well, &MeshState { signs: all.into(), ..MeshState::default() });
    assert_eq!(titles(&all), ["shop/front looks up cat.shop, without success"]);
    assert_eq!(all[0].culprit, "the name cat.shop that shop/front looks up");
    assert_eq!(all[0].evidence, [name]);
}
