//! The configuration of the planes: limits, routes with every filter, and the policies of a
//! service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_http::Limits;
use leno_types::mesh::{Distribution, Endpoint, Service, ServicePort, Topology};
use leno_types::routes::{
    Cors, Filter, HeaderChanges, Mirror, PathChange, PathMatch, Redirect, Rewrite, Route,
    RouteBackend, RouteKind, RouteMatch, RouteRetry, RouteRule, RouteTarget, RouteTimeouts,
    SessionAffinity, TextMatch, ValueMatch,
};
use leno_types::traffic::{
    Abort, Algorithm, Balancing, Delay, Ejection, Faults, HashOn, Hedging, LimitKey, PolicyScope,
    PolicySource, RateLimit, RequestShare, Retries, RetryBackoff, RetryBudget, RetryConditions,
    StatusRange, Traffic,
};
use leno_types::{Protocol, ServiceName, traffic};

use super::identity::identity;
use super::input::Input;

/// The port of every service.
pub(crate) const PORT: u16 = 80;
/// The services: the one that clients call, two backends of routes, and the target of mirrored requests.
pub(crate) const SERVICES: [&str; 4] = ["cart", "blue", "green", "mirror"];
/// The index of the target of mirrored requests.
const MIRROR: usize = 3;
/// Most endpoints of one service.
pub(crate) const ENDPOINTS: usize = 3;

/// The planes that requests pass through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planes {
    /// From the client through the outbound plane to the application.
    #[default]
    Outbound,
    /// From the client through the inbound plane to the application.
    Inbound,
    /// From the client through the outbound plane and, in plaintext, the inbound plane to the application.
    Both,
    /// Like `Both`, with mTLS between the planes.
    Mesh,
    /// Like `Mesh`, but both planes are in one process. After the handshake, bytes go through the memory of the
    /// process. The inbound plane is a guest: it runs on the thread of the outbound plane.
    Guest,
}

impl Planes {
    fn decode(input: &mut Input<'_>) -> Self {
        let byte = input.byte();
        match byte % 3 {
            0 => Self::Outbound,
            1 => Self::Inbound,
            _ if byte < 128 => Self::Both,
            _ if byte < 192 => Self::Mesh,
            _ => Self::Guest,
        }
    }

    /// Whether requests pass through both planes.
    pub(crate) fn are_both(self) -> bool {
        matches!(self, Self::Both | Self::Mesh | Self::Guest)
    }

    /// Whether there is mTLS between the planes.
    pub(crate) fn are_meshed(self) -> bool {
        matches!(self, Self::Mesh | Self::Guest)
    }
}

/// The configuration of the planes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The planes that requests pass through.
    pub planes: Planes,
    /// The declared protocol of the service's port.
    pub protocol: Protocol,
    /// The number of endpoints of each service.
    pub endpoints: usize,
    /// How the first endpoint of the service fails; `None` if it works.
    pub dead: Option<DeadEndpoint>,
    /// The limits of the HTTP engine.
    pub limits: Limits,
    /// The rules of a route; if there are none, there is no route.
    pub rules: Vec<RouteRule>,
    /// The traffic policy of the service.
    pub traffic: Option<Traffic>,
    /// The rate limits of the workload.
    pub rate_limits: Vec<RateLimit>,
}

/// Why an endpoint cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadEndpoint {
    /// The endpoint refuses connections.
    Refuses,
    /// The endpoint never answers.
    Silent,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            planes: Planes::default(),
            protocol: Protocol::Http1,
            endpoints: 1,
            dead: None,
            limits: Limits::default(),
            rules: Vec::new(),
            traffic: None,
            rate_limits: Vec::new(),
        }
    }
}

impl Config {
    pub(super) fn decode(input: &mut Input<'_>) -> Self {
        Self {
            planes: Planes::decode(input),
            protocol: input.of(&[Protocol::Http1, Protocol::Detect, Protocol::Http2]),
            endpoints: input.of(&[1, 1, 2, ENDPOINTS]),
            dead: input.maybe(&[DeadEndpoint::Refuses, DeadEndpoint::Silent]),
            limits: limits(input),
            rules: if input.one_in(2) { input.list(3, rule) } else { Vec::new() },
            traffic: input.one_in(2).then(|| traffic(input)),
            rate_limits: if input.one_in(6) { vec![rate_limit(input)] } else { Vec::new() },
        }
    }

    /// The service with this number. The one that clients call has the routes and policies.
    pub(crate) fn service(&self, number: usize) -> Service {
        let route = Route {
            kind: RouteKind::Http,
            namespace: "shop".into(),
            name: "route".into(),
            created: 0,
            ports: Vec::new(),
            hostnames: Vec::new(),
            rules: self.rules.clone(),
        };
        let is_called = number == 0;
        let routed = is_called && !self.rules.is_empty();
        Service {
            name: name(number),
            vips: Vec::new(),
            distribution: Distribution::Any,
            waypoint: None,
            ports: vec![ServicePort {
                port: PORT,
                name: "".into(),
                protocol: self.protocol,
                endpoints: (0..self.endpoints)
                    .map(|nth| Endpoint {
                        identity: (is_called && self.planes.are_meshed()).then(identity),
                        ..endpoint(number, nth)
                    })
                    .collect(),
                external: None,
            }],
            routes: if routed { [Arc::new(route)].into() } else { [].into() },
            traffic: self.traffic.iter().filter(|_| is_called).cloned().map(Arc::new).collect(),
        }
    }

    /// How many times a request may reach the service: once, and for each retry and hedge that policy allows.
    pub(crate) fn most_sent(&self, is_idempotent: bool) -> usize {
        let traffic = self.traffic.as_ref();
        let retries = traffic.and_then(|traffic| traffic.retries.as_ref());
        let hedging = traffic.and_then(|traffic| traffic.hedging.as_ref());
        let of_rule = self.rules.iter().filter_map(|rule| rule.retry.as_ref());
        let of_rule = of_rule.map(|retry| retry.attempts.unwrap_or(1)).max();
        let retried = match (of_rule, retries) {
            (Some(attempts), policy) if is_idempotent => {
                attempts.max(policy.map_or(0, |retries| retries.attempts))
            }
            (_, Some(retries)) if is_idempotent || retries.non_idempotent => retries.attempts,
            (Some(attempts), _) if retries.is_some_and(|r| r.non_idempotent) => attempts,
            _ => 0,
        };
        let copied = hedging
            .filter(|hedging| is_idempotent || hedging.non_idempotent)
            .map_or(0, |hedging| hedging.copies);
        // Each try may be hedged.
        (1 + retried as usize) * (1 + copied as usize)
    }
}

pub(crate) fn name(number: usize) -> ServiceName {
    ServiceName::new("shop", SERVICES[number]).expect("a valid name")
}

/// The address of an endpoint. It is a documentation address, which no machine has (RFC 5737).
pub(crate) fn address(service: usize, nth: usize) -> SocketAddr {
    let last = u8::try_from(service * 10 + nth + 1).expect("few services and endpoints");
    SocketAddr::from(([198, 51, 100, last], 8000))
}

fn endpoint(service: usize, nth: usize) -> Endpoint {
    let address = address(service, nth);
    Endpoint {
        workload: None,
        addresses: vec![address.ip()],
        port: address.port(),
        identity: None,
        place: Topology::default(),
        wire: Default::default(),
    }
}

fn limits(input: &mut Input<'_>) -> Limits {
    if !input.one_in(2) {
        return Limits::default();
    }
    let seconds = |input: &mut Input<'_>| Duration::from_secs(input.of(&[60, 1, 10]));
    Limits {
        head_bytes: input.of(&[usize::from(u16::MAX), 300, 8192]),
        request_line_bytes: input.of(&[32 * 1024, 100, 4096]),
        headers: input.of(&[256, 6, 20]),
        idle: seconds(input),
        head: seconds(input),
        stall: seconds(input),
        response_wait: Limits::default().response_wait,
        stall_streams: input.one_in(2),
        write_stall: seconds(input),
        linger: Duration::from_secs(2),
        linger_bytes: input.of(&[1 << 20, 0, 100]),
    }
}

fn text(input: &mut Input<'_>) -> Arc<str> {
    input.of(&["/", "/0", "/00/1", "", "/0?1=2", "//", "/%00", "/*", "0"]).into()
}

fn rule(input: &mut Input<'_>) -> RouteRule {
    RouteRule {
        name: None,
        matches: input.list(2, matches),
        filters: input.list(3, filter),
        backends: input.list(3, |input| RouteBackend {
            target: RouteTarget::Service { name: name(input.below(3)), port: PORT },
            weight: input.of(&[1, 0, 9, 1_000_000]),
            filters: if input.one_in(6) { input.list(2, filter) } else { Vec::new() },
        }),
        timeouts: RouteTimeouts {
            request: input.maybe(&DURATIONS),
            backend_request: input.maybe(&DURATIONS),
        },
        retry: input.one_in(4).then(|| RouteRetry {
            codes: vec![input.of(&[503, 500, 404])],
            attempts: input.maybe(&[1, 2, 5]),
            backoff: input.maybe(&DURATIONS),
        }),
        session: input.one_in(6).then(|| SessionAffinity {
            name: "session".into(),
            is_header: input.one_in(2),
            absolute: input.maybe(&DURATIONS),
            idle: input.maybe(&DURATIONS),
            is_permanent: input.one_in(2),
        }),
    }
}

const DURATIONS: [Duration; 4] = [
    Duration::from_millis(150),
    Duration::from_millis(1),
    Duration::from_secs(5),
    Duration::from_secs(60),
];

fn matches(input: &mut Input<'_>) -> RouteMatch {
    let header =
        |name: &str| ValueMatch { name: name.into(), value: TextMatch::Regex(".*".into()) };
    RouteMatch {
        path: match input.below(4) {
            0 => PathMatch::Prefix("/".into()),
            1 => PathMatch::Prefix(text(input)),
            2 => PathMatch::Exact(text(input)),
            _ => PathMatch::Regex(input.of(&["/.*", "/(a|b)+", ".*[0-9]", "/a{1,20}"]).into()),
        },
        method: input.maybe(&["GET", "POST"]).map(Into::into),
        headers: if input.one_in(4) { vec![header("x-marked")] } else { Vec::new() },
        query: if input.one_in(4) { vec![header("q")] } else { Vec::new() },
    }
}

fn filter(input: &mut Input<'_>) -> Filter {
    let path = |input: &mut Input<'_>| match input.below(3) {
        0 => None,
        1 => Some(PathChange::Full(text(input))),
        _ => Some(PathChange::Prefix(text(input))),
    };
    match input.below(6) {
        0 => Filter::Redirect(Redirect {
            scheme: input.maybe(&["http", "https"]).map(Into::into),
            hostname: input.maybe(&["0.example", "1"]).map(Into::into),
            path: path(input),
            port: input.maybe(&[80, 443, 8080]),
            status: input.of(&[302, 301, 303, 307, 308]),
        }),
        1 => Filter::Rewrite(Rewrite {
            hostname: input.maybe(&["0.example", "1"]).map(Into::into),
            path: path(input),
        }),
        2 => Filter::RequestHeaders(changes(input)),
        3 => Filter::ResponseHeaders(changes(input)),
        4 => Filter::Mirror(Mirror {
            target: RouteTarget::Service { name: name(MIRROR), port: PORT },
            numerator: input.of(&[1, 0, 50]),
            denominator: input.of(&[1, 100]),
        }),
        _ => Filter::Cors(Cors {
            origins: vec![input.of(&["*", "https://0.example", "https://*.example"]).into()],
            credentials: input.one_in(2),
            methods: vec![input.of(&["*", "GET"]).into()],
            headers: vec![input.of(&["*", "x-marked"]).into()],
            exposed: vec![input.of(&["*", "x-marked"]).into()],
            max_age_s: input.of(&[0, 5, u32::MAX]),
        }),
    }
}

fn changes(input: &mut Input<'_>) -> HeaderChanges {
    let field = |input: &mut Input<'_>| -> (Arc<str>, Arc<str>) {
        let name = input.of(&["x-set", "x-marked", "host", "cookie", "te", "x-fill"]);
        (name.into(), input.of(&["0", "", "0123456789"]).into())
    };
    HeaderChanges {
        set: input.list(2, field),
        add: input.list(2, field),
        remove: input.list(2, |input| input.of(&["x-marked", "cookie", "origin", "x-fill"]).into()),
    }
}

fn traffic(input: &mut Input<'_>) -> Traffic {
    Traffic {
        source: PolicySource { created: 0, namespace: "shop".into(), name: "policy".into() },
        scope: PolicyScope::Service,
        retries: input.one_in(2).then(|| retries(input)),
        timeouts: traffic::TrafficTimeouts {
            request: input.maybe(&DURATIONS),
            response: input.maybe(&DURATIONS),
            idle: input.maybe(&DURATIONS),
            stream: input.maybe(&DURATIONS),
        },
        hedging: input.one_in(4).then(|| Hedging {
            delay: input.of(&DURATIONS),
            percentile: input.maybe(&[500, 999]),
            copies: input.of(&[1, 2, 4]),
            non_idempotent: input.one_in(2),
        }),
        limits: input.one_in(3).then(|| traffic::WorkerLimits {
            connections: input.maybe(&[1, 2]),
            requests: input.maybe(&[1, 2]),
            pending: input.maybe(&[0, 1]),
            requests_per_endpoint: input.maybe(&[1, 2]),
            adaptive: input.one_in(2),
        }),
        ejection: input
            .one_in(4)
            .then(|| Ejection { consecutive_failures: Some(1), ..Ejection::default() }),
        balancing: input.one_in(3).then(|| balancing(input)),
        faults: input.one_in(6).then(|| faults(input)),
    }
}

fn retries(input: &mut Input<'_>) -> Retries {
    Retries {
        attempts: input.of(&[1, 2, 4]),
        statuses: vec![StatusRange { from: input.of(&[500, 404]), to: 599 }],
        grpc_statuses: vec![14],
        on: RetryConditions {
            connect_failure: !input.one_in(3),
            reset: !input.one_in(3),
            refused_stream: !input.one_in(3),
            timeout: !input.one_in(3),
        },
        non_idempotent: input.one_in(3),
        per_try_timeout: input.maybe(&DURATIONS),
        backoff: RetryBackoff::default(),
        budget: RetryBudget {
            percent: input.of(&[100, 20, 0]),
            min_per_second: input.of(&[10, 0, 1]),
        },
        max_retry_after: Duration::from_secs(input.of(&[0, 2])),
    }
}

fn balancing(input: &mut Input<'_>) -> Balancing {
    let on = |input: &mut Input<'_>| match input.below(3) {
        0 => HashOn::Source,
        1 => HashOn::Header("x-marked".into()),
        _ => HashOn::Cookie("session".into()),
    };
    Balancing {
        algorithm: match input.below(6) {
            0 => Some(Algorithm::RoundRobin),
            1 => Some(Algorithm::LeastRequest),
            2 => Some(Algorithm::Random),
            3 => Some(Algorithm::RingHash(on(input))),
            4 => Some(Algorithm::Maglev(on(input))),
            _ => None,
        },
        slow_start: input.maybe(&DURATIONS),
        session_cookie: input.maybe(&["session"]).map(Into::into),
        overflow: input.maybe(&[1]),
    }
}

fn faults(input: &mut Input<'_>) -> Faults {
    Faults {
        delay: input.maybe(&DURATIONS).map(|by| Delay { by, share: RequestShare::ALL }),
        abort: input
            .maybe(&[503, 200])
            .map(|status| Abort { status, share: RequestShare(500_000) }),
    }
}

fn rate_limit(input: &mut Input<'_>) -> RateLimit {
    RateLimit {
        source: PolicySource { created: 0, namespace: "shop".into(), name: "limit".into() },
        port: None,
        key: match input.below(3) {
            0 => LimitKey::Workload,
            1 => LimitKey::Client,
            _ => LimitKey::Header("x-marked".into()),
        },
        requests: input.of(&[1, 10]),
        per: Duration::from_secs(1),
        burst: input.of(&[1, 3]),
        is_global: false,
    }
}
