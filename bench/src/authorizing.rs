//! Measures what authorization costs: the decision on one request, by the number of policies that select its workload;
//! the check of a user's token; and a handshake between two proxies, in comparison with rustls alone and with Envoy.
//! The control plane sends a proxy only the policies that select its workload, so other policies cost nothing, however
//! many there are.

mod handshakes;
mod tokens;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use leno_console::{print_line, print_text};
use leno_index::{Index, MeshSettings, ObjectChange};
use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, ConnectionView, OtherAddresses,
};
use leno_resources::parse;
use leno_suite::tabular::{Column, markdown, rows};
use leno_types::authorization::Authorization;
use leno_types::{Identity, InstanceName};

pub(crate) use crate::rounds::DecisionRounds as Args;
use crate::rounds::nanos_of;

/// How many policies select the workload, in each measurement.
const POLICIES: [usize; 4] = [1, 10, 100, 1_000];
/// The measurement that has a time limit: `JUDGED` policies select the workload, among the `MESH` policies of the whole
/// mesh. A decision may then take at most `MOST_NS` nanoseconds.
const JUDGED: usize = 100;
const MESH: usize = 10_000;
const MOST_NS: f64 = 500.0;

/// The number of policies in the mesh, the number of those that select the workload, and the nanoseconds of one
/// decision.
type DecisionCost = (usize, usize, f64);

struct DecisionRequest(String);

impl AuthorizationRequest for DecisionRequest {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn authority(&self) -> &str {
        "orders:8080"
    }

    fn each_line(&self, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(&str, &[u8])) {
        if is_wanted("x-role") {
            see("x-role", b"user");
        }
    }
}

/// Prints the tables. Returns whether all bounds hold.
pub(crate) fn run(args: Args) -> Result<bool> {
    let of_mesh = POLICIES.map(|policies| (policies, policies)).into_iter().chain([(MESH, JUDGED)]);
    let costs = of_mesh.map(|(mesh, policies)| {
        let authorization = authorization(mesh, policies)?;
        Ok((mesh, policies, cost(&authorization, policies, args)))
    });
    let costs: Vec<DecisionCost> = costs.collect::<Result<_>>()?;
    let columns: [Column<'_, DecisionCost>; 3] = [
        ("policies of the mesh", &|(mesh, ..)| mesh.to_string()),
        ("of the workload", &|(_, policies, _)| policies.to_string()),
        ("ns of a request", &|(.., ns)| format!("{ns:.0}")),
    ];
    print_text!("{}", markdown(&rows(&costs, &columns)));
    let mut holds = costs.iter().all(|(mesh, _, ns)| *mesh != MESH || *ns <= MOST_NS);
    let verdict = if holds { "at most" } else { "MORE THAN" };
    print_line!("\nA request among {JUDGED} policies of {MESH} takes {verdict} {MOST_NS} ns\n");
    holds &= tokens::run(args)?;
    handshakes::run(args)?;
    Ok(holds)
}

/// Returns the policies that the control plane sends to the workload's proxy: those that select the workload.
fn authorization(of_mesh: usize, of_workload: usize) -> Result<std::sync::Arc<Authorization>> {
    let mut index = Index::new(MeshSettings::default());
    let mut changes = Vec::with_capacity(of_mesh);
    for number in 0..of_mesh {
        let parsed = parse("policy.yaml", &policy(number, number < of_workload));
        let parsed = parsed.map_err(|problems| {
            anyhow::Error::msg(problems.iter().map(ToString::to_string).collect::<String>())
        })?;
        changes.extend(parsed.objects.into_iter().map(|one| ObjectChange::Upsert(one.value)));
    }
    index.apply_all(changes);
    let labels = [("app".to_owned(), "orders".to_owned())].into();
    Ok(index.authorization(&InstanceName::new("shop", "orders-0")?, &labels))
}

/// Returns the nanoseconds of one decision.
fn cost(authorization: &Authorization, count: usize, args: Args) -> f64 {
    assert_eq!(authorization.policies.len(), count, "the policies of the workload");
    let table = AuthorizationTable::new(authorization, "shop");
    let identity: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().expect("an identity");
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let client = ConnectionView {
        identity: Some(&identity),
        certificate: None,
        address,
        others: OtherAddresses::Known(&[]),
        port: 8080,
    };
    let rules = table.connection(&client);
    let request = |number: usize| {
        let at = number * 7919 % count;
        DecisionRequest(format!("/api/things{}/all", if denies(at) { 0 } else { at }))
    };
    let requests: Vec<DecisionRequest> = (0..1_000).map(request).collect();
    nanos_of(args.rounds, args.requests, |number| {
        let request = &requests[number % requests.len()];
        let decision = table.decide(&rules, black_box(request), |_| ());
        assert!(matches!(black_box(decision), AuthorizationDecision::Permitted(Some(_))));
    })
}

fn denies(number: usize) -> bool {
    number % 10 == 9
}

/// Writes one policy. Most allow clients from one namespace, on some paths, methods and hosts, and with a certain
/// header. Every tenth policy denies requests on paths that no request has. A policy that does not select the workload
/// selects another workload, in the same namespace or elsewhere.
fn policy(number: usize, selects: bool) -> String {
    let namespace = if selects || number.is_multiple_of(2) { "shop" } else { "bank" };
    let app = if selects { "orders" } else { "others" };
    let to = |kind: &str| {
        format!(
            "{{methods: [GET, HEAD], hosts: [orders], paths: [{{prefix: /{kind}/things{number}}}], \
             headers: [{{name: x-role, values: [user]}}]}}"
        )
    };
    let (action, to) = match denies(number) {
        true => ("Deny", to("private")),
        false => ("Allow", format!("{}, {}", to("api"), to("static"))),
    };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: policy-{number}, namespace: {namespace}}}\n\
         spec:\n  selector: {{matchLabels: {{app: {app}}}}}\n  action: {action}\n  \
         rules: [{{from: [{{namespaces: [shop]}}], to: [{to}]}}]\n"
    )
}
