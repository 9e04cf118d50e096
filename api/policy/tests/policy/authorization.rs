//! Compares the compiled table with an evaluator that interprets the policies directly. Policies, clients and requests
//! are generated. `LENO_AUTHORIZATION_CASES` sets the number of cases.
#![expect(clippy::unwrap_used, reason = "tests")]

mod holes;
mod naive;

use std::net::IpAddr;
use std::sync::Arc;

use leno_policy::authorization::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, CertificateView,
    ConnectionView, Denial, OtherAddresses, PolicyIndex, PolicyMatch, ServerNameView,
};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, CertificateMatch, CertificateValidity, ClientMatch,
    DefaultAuthorization, HeaderMatch, IpBlock, PathPermission, PathReading, PermissionRule,
    RequestMatch, SegmentMatch,
};
use leno_types::authorizer::ExternalAuthorizer;
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenIssuer};
use leno_types::traffic::PolicySource;
use leno_types::{Identity, TrustDomain};

/// The number of decisions that are compared by default.
const CASES: usize = 1_000_000;
/// The number of decisions for each generated set of policies.
const PER_SET: usize = 50;

const ACTIONS: [Action; 5] =
    [Action::Allow, Action::Allow, Action::Deny, Action::Audit, Action::External];
const NAMESPACE: &str = "shop";
const PORTS: [u16; 3] = [80, 81, 443];
const METHODS: [&str; 5] = ["GET", "POST", "get", "DELETE", "DeLeTe"];
const HOSTS: [&str; 5] = ["web", "api.example.com", "*.example.com", "*.com", "example.com"];
const AUTHORITIES: [&str; 7] =
    ["web", "WEB:80", "api.example.com.", "a.b.Example.com:1", "example.com", "", "[fd00::1]:80"];
const SEGMENTS: [&str; 5] = ["a", "b", "admin", "a-x", "C"];
const VALUES: [&str; 5] = ["1", "2", "1,2", "1, 3", ""];
const NAMES: [&str; 2] = ["x-role", "x-team"];
const CLAIMS: [&str; 2] = ["sub", "groups"];
const TRICKS: [&str; 24] = [
    "//admin",
    "/a//admin",
    "/a///b//",
    "/a/../admin",
    "/../admin",
    "/a/%2e%2E/admin",
    "/a/b/..",
    "/a//../admin",
    "/a%2F%2e%2e%2fadmin",
    "/a%2Fadmin",
    "/%61dmin",
    "/a;x/admin",
    "/admin%00",
    "/a\\admin",
    "/a/./b",
    "/%252e/a",
    "*",
    "/a/%c0%af",
    "/admin#x",
    "/admin%3Fx",
    "/admin%23x",
    "/admin%20",
    "/admin\u{a0}",
    "/a%c2%85",
];

/// A generator of pseudo-random numbers (xorshift64*), which are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Zero to two values, mostly zero.
    fn some<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = [0, 0, 0, 1, 2][self.below(5)];
        (0..count).map(|_| make(self)).collect()
    }
}

pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) authority: &'static str,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// The claims of the request's token, if it has a valid token.
    pub(crate) claims: Option<Vec<(&'static str, &'static str)>>,
}

impl Request {
    pub(crate) fn fulfils(&self, wanted: &[ClaimMatch]) -> bool {
        let Some(claims) = &self.claims else { return false };
        let has = |one: &ClaimMatch| {
            let mut named = claims.iter().filter(|(name, _)| *name == &*one.name);
            named.any(|(_, value)| {
                one.values.is_empty() || one.values.iter().any(|wanted| **wanted == **value)
            })
        };
        wanted.iter().all(has)
    }
}

impl AuthorizationRequest for Request {
    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn authority(&self) -> &str {
        self.authority
    }

    fn each_line(&self, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(&str, &[u8])) {
        let wanted = self.headers.iter().filter(|(name, _)| is_wanted(name));
        wanted.for_each(|(name, value)| see(name, value.as_bytes()));
    }

    fn has_token(&self, _policy: PolicyIndex, claims: &[ClaimMatch]) -> bool {
        self.fulfils(claims)
    }
}

fn path(dice: &mut Dice) -> String {
    let count = dice.below(4);
    let mut path: String = (0..count).map(|_| format!("/{}", dice.pick(&SEGMENTS))).collect();
    if path.is_empty() || dice.one_in(5) {
        path.push('/');
    }
    path
}

fn segment(dice: &mut Dice, text: &str) -> SegmentMatch {
    if dice.one_in(2) { SegmentMatch::Exact(text.into()) } else { SegmentMatch::prefix(text) }
}

fn client_match(dice: &mut Dice) -> ClientMatch {
    let texts = [
        "spiffe://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop",
        "spiffe://other",
    ];
    let identities = dice.some(|dice| {
        let text = dice.pick(&texts);
        segment(dice, text)
    });
    let domain =
        |dice: &mut Dice| TrustDomain::new(dice.pick(&["cluster.local", "other"])).unwrap();
    let name = |dice: &mut Dice| -> Arc<str> { dice.pick(&["shop", "bank"]).into() };
    let account =
        |dice: &mut Dice| (dice.pick(&["shop", "bank"]).into(), dice.pick(&["web", "cart"]).into());
    let cidr =
        |dice: &mut Dice| dice.pick(&["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"]).parse().unwrap();
    ClientMatch {
        identities,
        trust_domains: dice.some(domain),
        namespaces: dice.some(name),
        service_accounts: dice.some(account),
        blocks: dice.some(|dice| IpBlock { cidr: cidr(dice), except: dice.some(cidr) }),
        unauthenticated: dice.one_in(6),
        certificate: if dice.one_in(4) {
            certificate_match(dice)
        } else {
            CertificateMatch::default()
        },
    }
}

/// The time of all requests.
const NOW_S: i64 = 1_000_000;

fn certificate_match(dice: &mut Dice) -> CertificateMatch {
    let mut time = || {
        let seconds = dice.pick(&[299, 300, 301, 3_600, 86_400]);
        dice.one_in(2).then_some(std::time::Duration::from_secs(seconds))
    };
    CertificateMatch { max_age: time(), min_age: time(), min_left: time(), max_left: time() }
}

fn certificate(dice: &mut Dice) -> Option<CertificateView> {
    let mut time = || dice.pick(&[-10, 0, 299, 300, 301, 3_601, 86_400]);
    let (not_before_s, not_after_s) = (NOW_S - time(), NOW_S + time());
    let validity = CertificateValidity { not_before_s, not_after_s };
    (!dice.one_in(8)).then_some(CertificateView { validity, now_s: NOW_S })
}

/// A reading of paths, mostly the strict one.
fn reading(dice: &mut Dice) -> PathReading {
    match dice.below(6) {
        0 => PathReading { verbatim: true, ..PathReading::default() },
        1 | 2 => PathReading {
            verbatim: false,
            merges_slashes: dice.one_in(2),
            resolves_dots: dice.one_in(2),
            decodes_slashes: dice.one_in(2),
        },
        _ => PathReading::default(),
    }
}

fn request_match(dice: &mut Dice) -> RequestMatch {
    let any = |list: &'static [&'static str]| {
        move |dice: &mut Dice| -> Arc<str> { dice.pick(list).into() }
    };
    let path_match = |dice: &mut Dice| {
        if dice.one_in(5) {
            return PathPermission::GrpcMethod(dice.pick(&SEGMENTS).into());
        }
        let text = path(dice);
        PathPermission::Segment(segment(dice, &text))
    };
    RequestMatch {
        ports: dice.some(|dice| dice.pick(&PORTS)),
        methods: dice.some(any(&METHODS)),
        hosts: dice.some(any(&HOSTS)),
        paths: dice.some(path_match),
        headers: dice.some(|dice| HeaderMatch {
            name: dice.pick(&NAMES).into(),
            values: dice.some(any(&["1", "2", "1,2", ""])),
        }),
        server_names: if dice.one_in(4) { dice.some(any(&HOSTS)) } else { Vec::new() },
    }
}

/// Headers that a policy sets, mostly none.
fn owned(dice: &mut Dice) -> Vec<Arc<str>> {
    let names = ["x-role", "x_team", "x-other"];
    if dice.one_in(4) { dice.some(|dice| dice.pick(&names).into()) } else { Vec::new() }
}

fn issuer(dice: &mut Dice) -> TokenIssuer {
    let claim_header = |header| ClaimHeader { header, claim: "sub".into() };
    TokenIssuer {
        issuer: "https://id.example".into(),
        audiences: Vec::new(),
        keys: Vec::new(),
        header: "authorization".into(),
        clock_skew: std::time::Duration::ZERO,
        claim_headers: owned(dice).into_iter().map(claim_header).collect(),
    }
}

fn authorization(dice: &mut Dice) -> Authorization {
    let policy = |number: usize, dice: &mut Dice| {
        let claim = |dice: &mut Dice| ClaimMatch {
            name: dice.pick(&CLAIMS).into(),
            values: dice.some(|dice| dice.pick(&["1", "2"]).into()),
        };
        let rule = |dice: &mut Dice| PermissionRule {
            from: dice.some(client_match),
            to: dice.some(request_match),
            claims: dice.some(claim),
        };
        let action = dice.pick(&ACTIONS);
        let external =
            || ExternalAuthorizer { on_request: owned(dice), ..ExternalAuthorizer::none() };
        let external = (action == Action::External).then(external).map(Arc::new);
        AuthorizationPolicy {
            source: PolicySource {
                created: 0,
                namespace: NAMESPACE.into(),
                name: format!("p{number}").into(),
            },
            action,
            ports: dice.one_in(4).then(|| vec![dice.pick(&PORTS)].into()),
            rules: (0..dice.below(4)).map(|_| rule(dice)).collect(),
            tokens: if dice.one_in(4) { [issuer(dice)].into() } else { [].into() },
            external,
        }
    };
    let policies = (0..dice.below(6)).map(|number| policy(number, dice)).collect();
    let default = dice.pick(&DefaultAuthorization::ALL);
    let paths = reading(dice);
    Authorization { policies, default, paths, ..Authorization::default() }
}

fn identity(dice: &mut Dice) -> Option<Identity> {
    let known = [
        "spiffe://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/cart",
        "spiffe://cluster.local/ns/bank/sa/web",
        "spiffe://other/ns/shop/sa/web",
    ];
    (!dice.one_in(4)).then(|| dice.pick(&known).parse().unwrap())
}

fn request(dice: &mut Dice) -> Request {
    let path = if dice.one_in(6) { dice.pick(&TRICKS).to_owned() } else { path(dice) };
    let names = ["x-role", "X-Team", "X_Role", "x.team", "other"];
    Request {
        method: dice.pick(&METHODS),
        path,
        authority: dice.pick(&AUTHORITIES),
        headers: dice.some(|dice| (dice.pick(&names), dice.pick(&VALUES))),
        claims: (!dice.one_in(3))
            .then(|| dice.some(|dice| (dice.pick(&CLAIMS), dice.pick(&["1", "2"])))),
    }
}

fn server_name(dice: &mut Dice) -> ServerNameView<'static> {
    let names = ["web", "API.example.com", "example.com"];
    match dice.below(3) {
        0 => ServerNameView::NoTls,
        1 => ServerNameView::Unknown,
        _ => ServerNameView::Name(dice.pick(&names)),
    }
}

/// Checks that [`AuthorizationTable::examine`] agrees with the decision: it reports the policy that decided as
/// matching, and it reports no matching deny policy if the request is permitted.
fn examine(
    (table, authorization): (&AuthorizationTable, &Authorization),
    client: &ConnectionView<'_>,
    request: &Request,
    found: AuthorizationDecision,
) -> Result<(), String> {
    let examined = table.examine(client, Some(request));
    let matches = |action: Action| {
        let all = authorization.policies.iter().zip(&examined.policies);
        all.filter(move |(policy, found)| {
            policy.action == action && **found == PolicyMatch::Matches
        })
        .count()
    };
    let is = |policy: PolicyIndex| examined.policies[policy.position()] == PolicyMatch::Matches;
    let agrees = match found {
        AuthorizationDecision::Denied(Denial::Policy(policy)) => is(policy),
        // A request with an ambiguous path is denied only if no deny policy matches. An allow policy may match by a
        // rule that does not depend on the path.
        AuthorizationDecision::Denied(Denial::Path(_)) => matches(Action::Deny) == 0,
        AuthorizationDecision::Denied(_) => matches(Action::Allow) == 0,
        AuthorizationDecision::Permitted(Some(policy)) => is(policy) && matches(Action::Deny) == 0,
        AuthorizationDecision::Permitted(None) => {
            matches(Action::Deny) == 0 && matches(Action::Allow) == 0
        }
    };
    if agrees { Ok(()) } else { Err(format!("{found:?} and {examined:?}")) }
}

/// Compares a decision with that of the naive evaluator: the kind of decision, and that the policy it names matches.
fn compare(
    table: &AuthorizationTable,
    (found, mut audited): (AuthorizationDecision, Vec<String>),
    expected: &naive::Expected,
) -> Result<(), String> {
    let name = |index| table.source(index).unwrap().name.to_string();
    audited.sort();
    let agrees = match found {
        AuthorizationDecision::Denied(Denial::Policy(policy)) => {
            expected.denied.contains(&name(policy))
        }
        AuthorizationDecision::Denied(Denial::Path(_)) => {
            expected.is_path_denied && expected.denied.is_empty()
        }
        AuthorizationDecision::Denied(Denial::Bytes(policy)) => {
            expected.external.contains(&name(policy))
                && expected.denied.is_empty()
                && expected.refused.is_none()
        }
        AuthorizationDecision::Denied(denial) => {
            expected.refused == Some(denial.label())
                && expected.denied.is_empty()
                && !expected.is_path_denied
        }
        AuthorizationDecision::Permitted(policy) => {
            expected.denied.is_empty()
                && !expected.is_path_denied
                && expected.refused.is_none()
                && expected.external.is_empty()
                && policy.is_none_or(|policy| expected.allowed.contains(&name(policy)))
                && policy.is_some() != expected.allowed.is_empty()
        }
    };
    if !agrees {
        return Err(format!("{found:?} instead of {expected:?}"));
    }
    if audited != expected.audited {
        return Err(format!("audited by {audited:?} instead of {:?}", expected.audited));
    }
    Ok(())
}

#[test]
fn the_table_decides_as_the_policies_read() {
    let cases = std::env::var("LENO_AUTHORIZATION_CASES").map(|text| text.parse().unwrap());
    let sets = cases.unwrap_or(CASES).div_ceil(PER_SET);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut permitted, mut denied, mut by_path) = (0, 0, 0);
    for set in 0..sets {
        let authorization = authorization(&mut dice);
        let table = AuthorizationTable::new(&authorization, NAMESPACE);
        for _ in 0..PER_SET {
            let identity = identity(&mut dice);
            let address: IpAddr =
                dice.pick(&["10.1.2.3", "10.2.0.1", "fd00::9", "192.0.2.1"]).parse().unwrap();
            let more: [IpAddr; 1] = [dice.pick(&["10.2.0.1", "fd00::9"]).parse().unwrap()];
            let others = match dice.below(3) {
                0 => OtherAddresses::Known(&[]),
                1 => OtherAddresses::Known(&more),
                _ => OtherAddresses::Unknown,
            };
            let (identity, port) = (identity.as_ref(), dice.pick(&PORTS));
            let certificate = certificate(&mut dice).filter(|_| identity.is_some());
            let client = ConnectionView { identity, certificate, address, others, port };
            let rules = table.connection(&client);
            let request = request(&mut dice);
            let mut audited = Vec::new();
            let name = |index| table.source(index).unwrap().name.to_string();
            let found = table.decide(&rules, &request, |policy| audited.push(name(policy)));
            match found {
                AuthorizationDecision::Permitted(_) => permitted += 1,
                AuthorizationDecision::Denied(Denial::Path(_)) => by_path += 1,
                AuthorizationDecision::Denied(_) => denied += 1,
            }
            let expected = naive::request(&authorization, NAMESPACE, &client, &request);
            let examined = examine((&table, &authorization), &client, &request, found);
            let compared = compare(&table, (found, audited), &expected);
            compared.and(examined).unwrap_or_else(|why| {
                panic!(
                    "set {set}: {why}\n{client:?}\n{} {} {:?} {:?}\n{authorization:#?}",
                    request.method, request.path, request.authority, request.headers
                )
            });
            let (server, mut audited) = (server_name(&mut dice), Vec::new());
            let found = table.decide_opaque(&rules, server, |policy| audited.push(name(policy)));
            let expected = naive::opaque(&authorization, NAMESPACE, &client, server);
            compare(&table, (found, audited), &expected).unwrap_or_else(|why| {
                panic!("set {set}: {why}\n{client:?}\n{server:?}\n{authorization:#?}")
            });
        }
    }
    // All outcomes must be frequent, so that the comparison is meaningful.
    let least = sets * PER_SET / 200;
    assert!(
        permitted > least && denied > least && by_path > least,
        "{permitted} {denied} {by_path}"
    );
}
