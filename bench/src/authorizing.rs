//! The cost of authorizing a request, by the number of policies that select its workload. Policies that do
//! not select it are never sent to its proxy, so that they cost nothing whatever their number.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, ConnectionView, OtherAddresses,
};
use leno_types::Identity;
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, ClientMatch, HeaderMatch, PathMatch, RequestMatch,
    Rule, SegmentMatch,
};
use leno_types::traffic::Source;

/// Numbers of policies of one workload.
const POLICIES: [usize; 4] = [1, 10, 100, 1_000];
/// The number of policies that the bound is for, and the bound.
const JUDGED: usize = 100;
const MOST_NS: f64 = 500.0;

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests of a round
    #[arg(long, default_value_t = 200_000)]
    requests: usize,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

struct Get(String);

impl AuthorizationRequest for Get {
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

/// Prints the median by the number of policies. Returns whether a request among 100 policies takes at most
/// half a microsecond.
pub(crate) fn run(args: Args) -> bool {
    println!("| policies of the workload | ns of a request |");
    println!("|---|---|");
    let mut holds = true;
    for policies in POLICIES {
        let found = cost(policies, args);
        println!("| {policies} | {found:.0} |");
        holds &= policies != JUDGED || found <= MOST_NS;
    }
    let verdict = if holds { "at most" } else { "MORE THAN" };
    println!("\nA request among {JUDGED} policies takes {verdict} {MOST_NS} ns");
    holds
}

/// Nanoseconds of one decision.
fn cost(policies: usize, args: Args) -> f64 {
    let policies = (0..policies).map(policy).collect::<Vec<_>>();
    let count = policies.len();
    let authorization = Authorization { policies: policies.into(), ..Authorization::default() };
    let table = AuthorizationTable::new(&authorization, "shop");
    let identity: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().expect("an identity");
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let client = ConnectionView {
        identity: Some(&identity),
        address,
        others: OtherAddresses::Known(&[]),
        port: 8080,
    };
    let rules = table.connection(&client);
    let request = |number: usize| {
        let at = number * 7919 % count;
        Get(format!("/api/things{}/all", if denies(at) { 0 } else { at }))
    };
    let requests: Vec<Get> = (0..1_000).map(request).collect();
    let round = |_| {
        let started = Instant::now();
        for number in 0..args.requests {
            let request = &requests[number % requests.len()];
            let decision = table.decide(&rules, black_box(request), |_| ());
            assert!(matches!(black_box(decision), AuthorizationDecision::Permitted(Some(_))));
        }
        started.elapsed().as_nanos() as f64 / args.requests as f64
    };
    let mut rounds: Vec<f64> = (0..args.rounds.max(1)).map(round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn denies(number: usize) -> bool {
    number % 10 == 9
}

/// Each permits clients of a namespace a part of the paths, by method, host and header. Every tenth denies
/// instead, on paths that no request has.
fn policy(number: usize) -> AuthorizationPolicy {
    let client = ClientMatch { namespaces: vec!["shop".into()], ..ClientMatch::default() };
    let path = |kind: &str| {
        let text = format!("/{kind}/things{number}");
        PathMatch::Segment(SegmentMatch::prefix(&text))
    };
    let request = |path: PathMatch| RequestMatch {
        methods: vec!["GET".into(), "HEAD".into()],
        hosts: vec!["orders".into()],
        paths: vec![path],
        headers: vec![HeaderMatch { name: "x-role".into(), values: vec!["user".into()] }],
        ..RequestMatch::default()
    };
    let rule = |to: Vec<RequestMatch>| Rule { from: vec![client.clone()], to, ..Rule::default() };
    let (action, rules) = match denies(number) {
        true => (Action::Deny, vec![rule(vec![request(path("private"))])]),
        false => (Action::Allow, vec![rule(vec![request(path("api")), request(path("static"))])]),
    };
    AuthorizationPolicy {
        source: Source {
            created: 0,
            namespace: "shop".into(),
            name: format!("policy-{number}").into(),
        },
        action,
        ports: None,
        rules: rules.into(),
        tokens: [].into(),
        external: None,
    }
}
