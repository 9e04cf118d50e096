use super::*;
use crate::api::Restart;
use crate::history::{History, MarkKind};
use crate::query;
use crate::testing::{edge, growth, workload};
use crate::visible_namespaces::VisibleNamespaces;
use leno_observe::stat::UNMESHED;

mod culprits;

fn found(history: &History, state: Option<&MeshState>) -> Vec<Problem> {
    let end = history.end_ms().unwrap();
    let window = history.window(end.saturating_sub(60_000), end);
    let topology = query::topology(&history.view(), ("default", &BTreeMap::new()), &window);
    problems(&history.view(), &topology, &window, state)
}

/// One of the two instances of `cart`, which takes no traffic.
fn unready(instance: &str, reason: &str) -> Unready {
    Unready {
        namespace: "shop".to_owned(),
        workload: "cart".to_owned(),
        instance: instance.to_owned(),
        reason: reason.to_owned(),
        of: 2,
        starting: reason == "starting",
    }
}

/// The titles of the problems.
fn titles(all: &[Problem]) -> Vec<&str> {
    all.iter().map(|one| one.title.as_str()).collect()
}

#[test]
fn nothing_is_reported_for_a_healthy_mesh() {
    let mut history = History::default();
    for tick in 1..=20 {
        let mut now = growth(5.0, vec![edge("web", "cart", 50.0)]);
        // One failure may be chance.
        now.edges[0].counts.classes[4] = if tick == 20 { 1.0 } else { 0.0 };
        now.workloads = vec![workload("cart", (2, 2))];
        history.push(tick * 5_000, &now);
    }
    let state = MeshState { control_plane: ControlPlane::Running, ..MeshState::default() };
    assert_eq!(found(&history, Some(&state)), []);
}

#[test]
fn an_edge_that_fails_is_named_with_its_causes_and_its_begin() {
    let mut history = History::default();
    for tick in 1..=40 {
        let mut now = growth(5.0, vec![edge("web", "cart", 50.0)]);
        if tick > 20 {
            now.edges[0].counts.classes[4] = 5.0;
            now.edges[0].counts.causes = [("no-endpoints".to_owned(), 4.0)].into();
        }
        now.workloads = vec![workload("cart", (2, 0))];
        if tick > 35 {
            now.workloads[0].counts.causes = [("deadline".to_owned(), 1.0)].into();
        }
        history.push(tick * 5_000, &now);
    }
    for at_ms in [10_000, 60_000, 101_000, 150_000] {
        let lines = vec![format!("changed at {at_ms}")];
        history.mark(Mark { at_ms, kind: MarkKind::Documents, lines });
    }
    let state = MeshState {
        control_plane: ControlPlane::Away,
        unready: vec![unready("cart-0", "exited with 3"), unready("cart-1", "starting")],
        ..MeshState::default()
    };
    let all = found(&history, Some(&state));
    assert_eq!(
        titles(&all),
        [
            "the control plane does not answer: proxies continue with the last state that they received",
            "0 of 2 instances of shop/cart take traffic",
            "9.1 % of the requests from shop/web to shop/cart fail",
        ]
    );
    assert_eq!(all[1].evidence, ["cart-0: exited with 3", "cart-1: starting"]);
    assert_eq!(all[2].since_ms, Some(100_000));
    let changes: Vec<u64> = all[2].changes.iter().map(|mark| mark.at_ms).collect();
    assert_eq!(changes, [101_000, 60_000]);
    assert_eq!(
        all[2].evidence,
        [
            "60 of 660 requests answered 5xx",
            "at least 7 of them by the application itself",
            "48 times no-endpoints",
            "5 times deadline at the proxy of the server",
        ]
    );
}

#[test]
fn refusals_of_a_client_without_a_proxy_are_evidence_once() {
    let mut history = History::default();
    for tick in 1..=4 {
        let mut now = growth(5.0, vec![edge(UNMESHED, "cart", 0.0)]);
        now.workloads = vec![workload("cart", (1, 1))];
        let causes = [("plaintext-refused".to_owned(), 2.0)];
        now.edges[0].client.0.clear();
        now.edges[0].counts.causes = causes.clone().into();
        now.workloads[0].counts.causes = causes.into();
        history.push(tick * 5_000, &now);
    }
    let all = found(&history, None);
    assert_eq!(titles(&all), ["8 connections from (unmeshed) to shop/cart failed"]);
    assert_eq!(all[0].evidence, ["8 times plaintext-refused"]);
}

#[test]
fn the_deepest_edge_of_a_chain_of_failures_comes_first() {
    let mut history = History::default();
    for tick in 1..=4 {
        let ends = [("customer", "front"), ("front", "cart"), ("cart", "db"), ("other", "web")];
        let mut now = growth(5.0, ends.map(|(client, server)| edge(client, server, 0.0)).into());
        now.edges[0].counts.classes = [0.0, 0.0, 0.0, 0.0, 2.0];
        // A server that hangs shows only in requests that clients abandon.
        for hangs in [1, 2] {
            now.edges[hangs].counts.classes = [0.0, 0.0, 0.0, 2.0, 0.0];
            now.edges[hangs].counts.given_up = 2.0;
            now.edges[hangs].counts.causes = [("closed".to_owned(), 2.0)].into();
        }
        now.edges[3].counts.classes = [0.0, 0.0, 0.0, 0.0, 1.0];
        history.push(tick * 5_000, &now);
    }
    let all = found(&history, None);
    assert_eq!(
        titles(&all),
        [
            "100.0 % of the requests from shop/cart to shop/db are given up before a response",
            "100.0 % of the requests from shop/other to shop/web fail",
            "100.0 % of the requests from shop/front to shop/cart are given up before a response",
            "100.0 % of the requests from shop/customer to shop/front fail",
        ]
    );
    assert_eq!(
        all[0].evidence,
        [
            "begins here: shop/customer -> shop/front -> shop/cart -> shop/db",
            "8 of 8 requests given up by the client before a response",
        ]
    );
    assert_eq!(all[2].evidence[0], "follows from what fails from shop/cart to shop/db");
    assert_eq!(all[3].evidence[0], "follows in the end from what fails from shop/cart to shop/db");
}

#[test]
fn no_chain_continues_through_hidden_namespaces() {
    let mut history = History::default();
    let mut now = growth(5.0, vec![edge("front", "x", 0.0), edge("y", "cart", 0.0)]);
    now.edges[0].server.0 = "bank".to_owned();
    now.edges[1].client.0 = "bank".to_owned();
    for edge in &mut now.edges {
        edge.counts.classes[4] = 5.0;
        edge.counts.causes = [("tls-handshake-failed".to_owned(), 5.0)].into();
    }
    history.push(5_000, &now);
    let judge = |sight: &VisibleNamespaces| {
        let view = HistoryView::new(&history, sight);
        let window = view.window(0, 5_000);
        let topology = query::topology(&view, ("default", &BTreeMap::new()), &window);
        problems(&view, &topology, &window, None)
    };
    let all = judge(&VisibleNamespaces::Namespaces([("shop".to_owned(), 0)].into()));
    assert_eq!(all.len(), 2, "{all:?}");
    for one in &all {
        let text = format!("{one:?}");
        assert!(!text.contains("follows") && !text.contains("begins here"), "{text}");
        assert!(!text.contains("bank") && !one.more.contains("(other"), "{text}");
    }
    // Several hidden workloads have the same name, so it is not known which end these edges have in common.
    let culprits: Vec<_> = all.iter().map(|one| &*one.culprit).collect();
    let hidden = "the certificate of (other namespaces) (tls-handshake-failed)";
    let cart = "the certificate of shop/cart (tls-handshake-failed)";
    assert!(culprits.contains(&hidden) && culprits.contains(&cart), "{culprits:?}");
}

#[test]
fn a_circle_of_failures_has_no_begin() {
    let mut history = History::default();
    let mut now = growth(5.0, vec![edge("a", "b", 0.0), edge("b", "a", 0.0), edge("c", "a", 0.0)]);
    for edge in &mut now.edges {
        edge.counts.classes[4] = 5.0;
    }
    history.push(5_000, &now);
    assert_eq!(found(&history, None).len(), 3);
}

#[test]
fn calls_that_end_with_a_grpc_status_of_failure_fail() {
    let mut history = History::default();
    let mut now = growth(5.0, vec![edge("web", "cart", 50.0)]);
    now.edges[0].counts.grpc_failed = 50.0;
    history.push(5_000, &now);
    let all = found(&history, None);
    assert_eq!(titles(&all), ["100.0 % of the requests from shop/web to shop/cart fail"]);
    assert_eq!(all[0].evidence[0], "50 of 50 gRPC calls ended with a status of failure");
}

/// A history in which `web` calls `cart`. If `worked`, a policy denies this from the sixth of twelve observations
/// on; otherwise from the first.
fn denied(is_http: bool, worked: bool) -> History {
    let mut history = History::default();
    for tick in 1..=12 {
        let mut now = growth(5.0, vec![edge("web", "cart", 0.0)]);
        now.workloads = vec![workload("cart", (1, 1))];
        let client = &mut now.edges[0].counts;
        let denials: std::collections::BTreeMap<String, f64> =
            [("authorization-denied".to_owned(), 3.0)].into();
        match (worked && tick < 6, is_http) {
            (true, true) => client.classes[1] = 3.0,
            (true, false) => client.written_bytes = 3.0,
            (false, true) => (client.classes[3], client.causes) = (3.0, denials.clone()),
            (false, false) => {
                let causes = [("server-silent", 2.0), ("connect-failed", 1.0), ("failfast", 1.0)];
                client.causes = causes.map(|(cause, count)| (cause.to_owned(), count)).into();
                client.connect_failures = 1.0;
            }
        }
        if !worked || tick >= 6 {
            now.workloads[0].counts.causes = denials;
        }
        history.push(tick * 5_000, &now);
    }
    history
}

#[test]
fn denials_by_a_policy_are_a_warning_and_no_failure() {
    for is_http in [true, false] {
        let all = found(&denied(is_http, false), None);
        let what = if is_http { "requests" } else { "connections" };
        let title =
            format!("36 {what} from shop/web to shop/cart denied by an authorization policy");
        assert_eq!(titles(&all), [title.as_str()]);
        assert_eq!(all[0].severity, Severity::Warning);
        // Connections that fail without a denial by the server are reported as failed.
        let mut history = denied(is_http, false);
        let mut now = growth(5.0, vec![edge("job", "db", 0.0)]);
        now.edges[0].counts.causes = [("server-silent".to_owned(), 3.0)].into();
        history.push(65_000, &now);
        assert_eq!(found(&history, None)[0].title, "3 connections from shop/job to shop/db failed");
    }
}

#[test]
fn an_edge_that_worked_until_a_policy_was_edited_is_broken() {
    for is_http in [true, false] {
        let mut history = denied(is_http, true);
        assert_eq!(found(&history, None)[0].severity, Severity::Warning, "no policy was edited");
        let lines = vec!["AuthorizationPolicy shop/cart added; nothing restarts".to_owned()];
        history.mark(Mark { at_ms: 24_000, kind: MarkKind::Documents, lines });
        let all = found(&history, None);
        assert_eq!((all[0].severity, all[0].since_ms), (Severity::Bad, Some(25_000)));
        assert_eq!(all[0].changes.len(), 1);
    }
}

#[test]
fn the_state_is_judged_before_anything_was_counted() {
    let history = History::default();
    let window = history.window(0, 60_000);
    let topology = query::topology(&history.view(), ("default", &BTreeMap::new()), &window);
    let judge = |state: &MeshState| problems(&history.view(), &topology, &window, Some(state));

    let waits =
        MeshState { unready: vec![unready("cart-0", "exited with 3")], ..MeshState::default() };
    let all = judge(&waits);
    assert_eq!(titles(&all), ["1 of 2 instances of shop/cart take traffic"]);
    let starts = ["cart-0", "cart-1"].map(|instance| unready(instance, "starting"));
    let all = judge(&MeshState { unready: starts.into(), ..MeshState::default() });
    assert_eq!(all[0].severity, Severity::Warning, "it starts");

    let deaf = vec![unready("cart-0", "does not listen on port 8080")];
    let all = judge(&MeshState { deaf, ..MeshState::default() });
    assert_eq!(titles(&all), ["shop/cart does not listen on every port that it declares"]);
    assert_eq!(all[0].evidence, ["cart-0: does not listen on port 8080"]);
}

#[test]
fn proxies_that_were_started_again_are_named_while_the_window_has_them() {
    let history = History::default();
    let window = history.window(0, 60_000);
    let empty = query::topology(&history.view(), ("default", &BTreeMap::new()), &window);
    let start = |instance: &str, at_ms, times| Restart {
        namespace: "shop".to_owned(),
        workload: "cart".to_owned(),
        instance: instance.to_owned(),
        at_ms,
        times,
        ended: "was ended by SIGKILL".to_owned(),
    };
    let judge = |restarted: &[Restart], from_ms| {
        let topology = Topology { from_ms, to_ms: 60_000, ..empty.clone() };
        let state = MeshState { restarted: restarted.to_vec(), ..MeshState::default() };
        problems(&history.view(), &topology, &window, Some(&state))
    };
    let one = [start("cart-0", 10_000, 1), start("cart-0", 48_000, 2)];
    let all = judge(&one, 0);
    assert_eq!(titles(&all), ["the proxy of shop/cart-0 was started again 3 times"]);
    assert_eq!(all[0].evidence, ["cart-0: 3 times, last 12 s ago: was ended by SIGKILL"]);
    assert_eq!(all[0].severity, Severity::Warning);
    assert_eq!(titles(&judge(&one[..1], 0)), ["the proxy of shop/cart-0 was started again once"]);
    assert_eq!(judge(&one, 50_000), []);
    let two = [start("cart-0", 10_000, 1), start("cart-1", 48_000, 1)];
    let all = judge(&two, 0);
    assert_eq!(titles(&all), ["proxies of shop/cart were started again 2 times"]);
    assert_eq!(all[0].evidence.len(), 2);
}
