use leno_observe::metrics;
use leno_observe::stat::{DENIED, ProxyState};
use serde_json::json;

use super::*;
use crate::api::Edge;
use crate::hub::Hub;
use crate::inventory::lists::{LIMITED, NOT_ALLOWED};
use crate::policies::{Labels, MAX_POLICIES, PolicyDocument, SelectableObjects};

fn proxy(namespace: &str, workload: &str, policy: &str) -> ProxyReport {
    let decision = |policy: &str, count| ((policy.to_owned(), "deny".to_owned()), count);
    let decisions: BTreeMap<_, _> = [decision(policy, 4), decision(NOT_ALLOWED, 2)].into();
    let identity = Some(format!("spiffe://d/ns/{namespace}/sa/{workload}"));
    ProxyReport {
        namespace: namespace.to_owned(),
        workload: workload.to_owned(),
        instance: format!("{workload}-0"),
        ready: true,
        silent: None,
        state: Some(ProxyState { decisions: decisions.into(), identity, ..ProxyState::default() }),
    }
}

fn policies() -> MatchedPolicies {
    let (none, name) = (Labels::new(), |of: &str, name: &str| (of.to_owned(), name.to_owned()));
    let mut of = SelectableObjects { system: Some("leno-system"), ..SelectableObjects::default() };
    of.add(name("shop", "web"), &none);
    of.add(name("bank", "ledger"), &none);
    of.add(name("bank", "vault"), &none);
    let policy = |namespace: &str, policy: &str, target: &str| {
        let spec = json!({"targetRefs": [{"kind": target, "name": namespace}], "rules": [{}]});
        PolicyDocument::new("AuthorizationPolicy", (namespace, policy), &spec)
    };
    let all = [
        policy("shop", "front", "Namespace"),
        policy("bank", "ledger", "Namespace"),
        policy("leno-system", "all", "Mesh"),
    ];
    MatchedPolicies::of(all.iter(), &of)
}

fn page(bytes: u32) -> FlowCounts {
    let line = |namespace: &str, workload: &str, (of, peer): (&str, &str)| {
        format!(
            "leno_flow_bytes_total{{namespace=\"{namespace}\",workload=\"{workload}\",peer_namespace=\"{of}\",\
             peer_workload=\"{peer}\",role=\"client\",socket=\"proxy\",direction=\"sent\"}} {bytes}\n\
             leno_flow_drops_total{{namespace=\"{namespace}\",workload=\"{workload}\",reason=\"X\"}} {bytes}\n"
        )
    };
    let text = [
        line("shop", "web", ("bank", "ledger")),
        line("shop", "web", ("bank", "vault")),
        line("shop", "web", ("", "outside")),
        line("bank", "vault", ("shop", "web")),
        "leno_flow_level{level=\"full\"} 1\n".to_owned(),
    ];
    FlowCounts::of(&metrics::parse(&text.concat()))
}

/// Adds two namespaces, each with proxies, a policy and connections into the other.
pub(crate) fn fill(hub: &Hub) {
    hub.take_proxies(vec![
        proxy("shop", "web", "shop/front"),
        proxy("bank", "ledger", "bank/ledger"),
        // This proxy reports decisions of a policy in a namespace other than its own.
        proxy("bank", "vault", "shop/front"),
    ]);
    hub.take_policies(Ok(policies()));
    hub.take_flows(vec![("node-1".to_owned(), Ok(page(10)))]);
    // Two pages with the same time would give no rate.
    std::thread::sleep(std::time::Duration::from_millis(5));
    hub.take_flows(vec![("node-1".to_owned(), Ok(page(30)))]);
}

fn inventory() -> Inventory {
    let mut inventory = Inventory::default();
    inventory.take_proxies(
        vec![
            proxy("shop", "web", "shop/front"),
            proxy("bank", "ledger", "bank/ledger"),
            proxy("bank", "vault", "shop/front"),
        ],
        1_000,
    );
    inventory.take_policies(Ok(policies()));
    inventory.take_flows(vec![("node-1".to_owned(), Ok(page(10)))], 1_000);
    inventory.take_flows(vec![("node-1".to_owned(), Ok(page(30)))], 6_000);
    inventory
}

fn shop() -> VisibleNamespaces {
    VisibleNamespaces::Namespaces([("shop".to_owned(), 0)].into())
}

#[test]
fn a_policy_has_its_decisions_and_the_clients_it_denied() {
    let inventory = inventory();
    let edge: Edge = serde_json::from_value(json!({
        "client_namespace": "shop", "client": "front", "server_namespace": "shop", "server": "web", "mtls": "all",
        "success_rate": null, "requests": 9, "failed": 0, "given_up": 0, "denied": 7, "requests_per_s": 1.0,
        "statuses": [0, 0, 0, 9, 0], "latency_ms": {"p50": null, "p95": null, "p99": null}, "tcp_opened": 0,
        "tcp_open": 0, "tcp_read_bytes_per_s": 0.0, "tcp_written_bytes_per_s": 0.0, "connect_failures": 0,
        "retries": 0, "ejected": 0, "causes": [{"cause": DENIED, "count": 7}, {"cause": LIMITED, "count": 2}]
    }))
    .unwrap();
    let all = inventory
        .lists()
        .policies(&VisibleNamespaces::All, std::slice::from_ref(&edge), (0, 1))
        .policies;
    let names: Vec<&str> = all.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["ledger", "all", "front"]);
    let front = &all[2];
    let decisions = [("deny".to_owned(), 4), (NOT_ALLOWED.to_owned(), 2)].into();
    assert_eq!(front.decisions, decisions, "reports from another namespace are ignored");
    let denied: Vec<_> =
        front.denied.iter().map(|one| (&*one.client, &*one.server, one.count)).collect();
    assert_eq!(denied, [("front", "web", 7)]);
    assert!(all[0].denied.is_empty());
    assert_eq!(all[1].selection.workloads.len(), 3);

    let mut limits = inventory;
    let spec = json!({"targetRefs": [{"kind": "Workload", "name": "web"}], "limits": [{}, {}]});
    let none = Labels::new();
    let document = PolicyDocument::new("RateLimitPolicy", ("shop", "few"), &spec);
    let mut of = SelectableObjects::default();
    of.add(("shop".to_owned(), "web".to_owned()), &none);
    limits.take_policies(Ok(MatchedPolicies::of([document].iter(), &of)));
    let few = &limits.lists().policies(&shop(), &[edge], (0, 1)).policies[0];
    assert_eq!((few.rules, few.denied[0].count), (2, 2));
    limits.take_policies(Err("the documents are not read".to_owned()));
    let none = limits.lists().policies(&shop(), &[], (0, 1));
    assert_eq!(none.unavailable.as_deref(), Some("the documents are not read"));
}

#[test]
fn a_reader_of_one_namespace_sees_the_other_end_without_its_name() {
    let inventory = inventory();
    let flows = inventory.flows(&shop());
    let rows: Vec<_> = flows.flows.iter().map(|one| (&*one.peer, one.sent_bytes_per_s)).collect();
    assert_eq!(rows, [(HIDDEN, 8.0), ("outside", 4.0)], "two hidden workloads are shown as one");
    assert_eq!((flows.span_s, flows.level.as_deref()), (5.0, Some("full")));
    assert_eq!((flows.drops.len(), inventory.flows(&VisibleNamespaces::All).drops.len()), (1, 2));
    assert_eq!(flows.drops[0].count, 60, "the sum of three peers");
    assert_eq!(inventory.flows(&VisibleNamespaces::All).flows.len(), 4);
    // For this reader, the namespace was created again after the first page.
    let again = VisibleNamespaces::Namespaces([("shop".to_owned(), 2_000)].into());
    assert!(inventory.flows(&again).flows.is_empty());
    let seen = inventory.lists().policies(&shop(), &[], (0, 1)).policies;
    assert_eq!(seen.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["front"]);
    assert_eq!(inventory.lists().proxies(&shop()).proxies.len(), 1);
}

#[test]
fn connections_are_those_of_the_last_minute() {
    let mut inventory = Inventory::default();
    let span = |inventory: &Inventory| inventory.flows(&VisibleNamespaces::All).span_s;
    assert_eq!(
        inventory.flows(&VisibleNamespaces::All).unavailable.as_deref(),
        Some("no agent has been queried yet")
    );
    for tick in 0..60 {
        inventory.take_flows(vec![("node-1".to_owned(), Ok(page(tick)))], u64::from(tick) * 5_000);
        assert!(span(&inventory) <= 65.0);
        assert!(inventory.flows["node-1"].len() <= PAGES);
    }
    assert!(span(&inventory) >= 30.0);
    inventory.take_flows(vec![("node-1".to_owned(), Err("timed out".to_owned()))], 300_000);
    let gone = inventory.flows(&VisibleNamespaces::All);
    assert_eq!(
        (gone.silent.as_slice(), gone.flows.len()),
        (["node-1: timed out".to_owned()].as_slice(), 0)
    );
    assert_eq!(gone.unavailable.as_deref(), Some("no agent of a node answers the observer"));
    let off = FlowCounts { level: Some("off".to_owned()), ..FlowCounts::default() };
    inventory.take_flows(vec![("a".to_owned(), Ok(off)), ("b".to_owned(), Ok(page(1)))], 1);
    assert!(
        inventory
            .flows(&VisibleNamespaces::All)
            .unavailable
            .unwrap()
            .starts_with("flow metrics are off")
    );
    inventory.take_flows(vec![("a".to_owned(), Ok(FlowCounts::default()))], 1);
    assert!(
        inventory
            .flows(&VisibleNamespaces::All)
            .unavailable
            .unwrap()
            .contains("there are no flow metrics")
    );
}

#[test]
fn an_agent_that_misses_one_poll_has_counts_at_the_next_one() {
    let mut inventory = Inventory::default();
    let mut poll = |at_s: u32, answers: bool| {
        let answer = answers.then(|| page(at_s)).ok_or("timed out".to_owned());
        inventory.take_flows(vec![("node-1".to_owned(), answer)], u64::from(at_s) * 1_000);
        let flows = inventory.flows(&VisibleNamespaces::All);
        (flows.flows.is_empty(), flows.span_s)
    };
    let polls = [
        (0, true, (true, 0.0)),
        (30, true, (false, 30.0)),
        (60, false, (true, 0.0)),
        (90, true, (false, 60.0)),
        (120, false, (true, 0.0)),
        (150, false, (true, 0.0)),
        (180, true, (true, 0.0)),
        (210, true, (false, 30.0)),
    ];
    for (at_s, answers, shown) in polls {
        assert_eq!(poll(at_s, answers), shown, "after {at_s} s");
    }
}

#[test]
fn every_list_is_bounded_and_says_so() {
    let mut inventory = Inventory::default();
    let one = proxy("shop", "web", "x");
    inventory.take_proxies(vec![one; MAX_PROXIES + 3], 1);
    let document = PolicyDocument::new("AuthorizationPolicy", ("shop", "x"), &json!({"rules": []}));
    let documents = vec![document; MAX_POLICIES + 4];
    inventory
        .take_policies(Ok(MatchedPolicies::of(documents.iter(), &SelectableObjects::default())));
    let pairs = (0..MAX_FLOWS).map(|nth| {
        let own = ("shop".to_owned(), nth.to_string());
        (FlowEnds { own, ..FlowEnds::default() }, FlowSums::default())
    });
    let full = FlowCounts { pairs: pairs.collect(), ..FlowCounts::default() };
    inventory.take_flows(vec![("a".to_owned(), Ok(full)), ("b".to_owned(), Ok(page(1)))], 1);
    let beyond = page(1).rows() as u64;
    assert_eq!(inventory.left_out(), [("proxies", 3), ("policies", 4), ("flows", beyond)]);
    assert_eq!(inventory.lists().proxies(&VisibleNamespaces::All).left_out, 3);
    assert_eq!(inventory.lists().proxies(&shop()).left_out, 3);
    let bank = VisibleNamespaces::Namespaces([("bank".to_owned(), 0)].into());
    assert_eq!(inventory.lists().proxies(&bank).left_out, 0, "it counts those of other namespaces");
    assert_eq!(inventory.lists().policies(&shop(), &[], (0, 1)).left_out, 4);
    assert_eq!(inventory.lists().policies(&bank, &[], (0, 1)).left_out, 0);
    assert_eq!(inventory.lists().policies(&VisibleNamespaces::All, &[], (0, 1)).left_out, 4);
}

#[test]
fn the_nodes_with_the_most_flows_lose_rows_and_are_named() {
    let of = |node: &str, count: usize, bytes: f64| {
        let pairs = (0..count).map(|nth| {
            let own = ("shop".to_owned(), format!("{node}-{nth:05}"));
            let sums =
                FlowSums { bytes: [bytes * nth as f64, 0.0], opened: 1.0, ..FlowSums::default() };
            (FlowEnds { own, ..FlowEnds::default() }, sums)
        });
        (node.to_owned(), Ok(FlowCounts { pairs: pairs.collect(), ..FlowCounts::default() }))
    };
    let mut inventory = Inventory::default();
    let all = |bytes| vec![of("a", 4096, bytes), of("b", 12_000, bytes), of("c", 9_000, bytes)];
    inventory.take_flows(all(1.0), 1_000);
    let kept = |inventory: &Inventory, node: &str| inventory.flows[node][0].1.rows();
    let part = (MAX_FLOWS - 4096) / 2;
    assert_eq!(["a", "b", "c"].map(|node| kept(&inventory, node)), [4096, part, part]);
    inventory.take_flows(all(2.0), 2_000);
    let flows = inventory.flows(&VisibleNamespaces::All);
    let lost = [12_000 - part, 9_000 - part];
    assert_eq!(flows.trimmed, [format!("b: {} rows", lost[0]), format!("c: {} rows", lost[1])]);
    assert_eq!(flows.trimmed_nodes, 2);
    assert_eq!(inventory.left_out()[2], ("flows", (lost[0] + lost[1]) as u64));
    assert_eq!(&*flows.flows[0].workload, "b-11999", "the most bytes");
    assert!(inventory.flows(&shop()).trimmed.is_empty(), "it names other nodes");
    // A pair that was dropped earlier must not be mistaken for a new one.
    let mut grown = of("b", 12_000, 1.0);
    if let Ok(page) = &mut grown.1 {
        page.pairs.values_mut().next().unwrap().bytes[0] = 1e9;
    }
    inventory.take_flows(vec![of("a", 4096, 3.0), grown, of("c", 9_000, 3.0)], 3_000);
    let first = &inventory.flows(&VisibleNamespaces::All).flows[0];
    assert_ne!(&*first.workload, "b-00000", "{first:?}");
}

#[test]
fn equal_parts_are_as_large_as_they_can_be() {
    assert_eq!(equal_part(vec![3, 2], 5), usize::MAX);
    assert_eq!(equal_part(vec![9, 1, 9], 11), 5);
    assert_eq!(equal_part(vec![9, 9, 9], 10), 3);
    assert_eq!(equal_part(vec![], 10), usize::MAX);
    assert_eq!(equal_part(vec![1, 1], 0), 0);
}

#[test]
fn clients_that_were_denied_are_bounded_and_the_most_are_named() {
    let edge = |nth: u64| -> Edge {
        serde_json::from_value(json!({
            "client_namespace": "shop", "client": format!("c{nth}"), "server_namespace": "shop", "server": "web",
            "mtls": "all", "success_rate": null, "requests": 9, "failed": 0, "given_up": 0, "denied": 7,
            "requests_per_s": 1.0, "statuses": [0, 0, 0, 9, 0], "latency_ms": {"p50": null, "p95": null, "p99": null},
            "tcp_opened": 0, "tcp_open": 0, "tcp_read_bytes_per_s": 0.0, "tcp_written_bytes_per_s": 0.0,
            "connect_failures": 0, "retries": 0, "ejected": 0, "causes": [{"cause": DENIED, "count": nth + 1}]
        }))
        .unwrap()
    };
    let edges: Vec<Edge> = (0..150).map(edge).collect();
    let (none, mut of) = (Labels::new(), SelectableObjects::default());
    of.add(("shop".to_owned(), "web".to_owned()), &none);
    let answer = |count: usize| {
        let document = |nth: usize| {
            let name = format!("p{nth}");
            PolicyDocument::new("AuthorizationPolicy", ("shop", &name), &json!({"selector": {}}))
        };
        let documents: Vec<PolicyDocument> = (0..count).map(document).collect();
        let mut inventory = Inventory::default();
        inventory.take_policies(Ok(MatchedPolicies::of(documents.iter(), &of)));
        inventory.lists().policies(&VisibleNamespaces::All, &edges, (0, 1)).policies
    };
    let one = &answer(1)[0];
    assert_eq!((one.denied.len(), one.denied_left_out), (100, 50));
    assert_eq!((&*one.denied[0].client, one.denied[0].count), ("c149", 150));
    let many = answer(MAX_POLICIES);
    assert!(many.iter().all(|one| one.denied.len() == 3 && one.denied_left_out == 147));
}
