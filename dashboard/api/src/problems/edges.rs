//! Finds the edges that have a fault, for example because requests fail, are denied or take longer than usual.

use std::collections::BTreeMap;

use leno_observe::stat::{DENIED, NamespacedName};

use super::comparison::{ComparedWindow, RejectedRequests, SlowRequests};
use super::culprit::Culprit;
use super::evidence::evidence;
use crate::api::MeshState;
use crate::history::Window;
use crate::query::edges;
use crate::series::{SeriesKey, SeriesNumbers};
use crate::tally::{Tally, float};
use crate::view::HistoryView;

/// The smallest number of failing requests in a window that makes an edge broken, because a single failure may be
/// chance.
const MIN_FAILURES: u64 = 2;
/// The smallest share of failing requests that makes an edge broken.
const MIN_SHARE: f64 = 0.01;
/// The smallest share of abandoned requests that is reported. A few are usual, for example when people press stop.
const MIN_GIVEN_UP: f64 = 0.1;
/// The smallest share of requests rejected by a limit or a route that is reported. A limit that is reached from
/// time to time does what it is for.
const MIN_LIMITED: f64 = 0.1;
/// The smallest number of retries of an edge that is reported, and their smallest share of its requests.
const MIN_RETRIES: u64 = 10;
const MIN_RETRIED: f64 = 0.2;
/// The causes for which the mesh rejects requests as its documents demand, with a status below 500.
pub(super) const LIMITS: [&str; 4] =
    ["rate-limited", "egress-denied", "no-route-matches", "plaintext-refused"];
/// The causes for which the client's proxy answers 4xx because the request is not HTTP or is too large.
pub(super) const NO_REQUESTS: [&str; 22] = [
    "request-line",
    "request-line-too-long",
    "head-too-large",
    "too-many-headers",
    "bare-lf",
    "bare-cr",
    "folded-header",
    "header-name",
    "space-before-colon",
    "header-value",
    "target",
    "host-missing",
    "host-repeated",
    "host-malformed",
    "host-conflict",
    "content-length",
    "content-length-conflict",
    "content-length-and-transfer-encoding",
    "transfer-encoding",
    "transfer-encoding-in-http-1.0",
    "connection-option",
    "head-timeout",
];
/// The causes that the client's proxy counts when the server's proxy denies an opaque connection. The server's
/// proxy closes such a connection without sending anything, because the client would take its bytes for the
/// server's.
const CLOSED: [&str; 2] = ["server-silent", "connect-failed"];
/// Causes that the client's proxy counts in addition to another cause, of which they are a consequence.
const CONSEQUENCES: [&str; 3] = ["endpoints-tried", "failfast", "no-endpoints"];

/// The kinds of faults of an edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum EdgeFault {
    /// Requests fail.
    Failing,
    /// Clients abandon requests before a response begins.
    GivenUp,
    /// Connections fail.
    Refused,
    /// The server of an edge with opaque connections has stopped answering.
    Unanswered,
    /// Requests take longer than usual.
    Slow(SlowRequests),
    /// A policy denies requests or connections.
    Denied,
    /// A limit, a route or an egress policy rejects requests, or the client's proxy rejects them because they are
    /// not HTTP.
    Limited,
    /// The server answers 4xx, and usually does not.
    Rejected,
    /// Requests succeed only because many of them are retried.
    Retried,
    /// Endpoints are ejected.
    Ejected,
}

/// An edge with a fault.
#[derive(Debug)]
pub(super) struct BrokenEdge {
    pub(super) client: NamespacedName,
    pub(super) server: NamespacedName,
    /// Whether the server is a workload. Otherwise it is a Service whose name no workload has, or a server outside
    /// the mesh.
    pub(super) is_workload: bool,
    pub(super) fault: EdgeFault,
    /// A sentence in which `{}` stands for the edge.
    pub(super) title: String,
    pub(super) evidence: Vec<String>,
    /// The most frequent cause of the failures that the mesh itself caused.
    pub(super) cause: Option<String>,
    /// The culprit, and the command that shows more.
    pub(super) culprit: Culprit,
    /// The number of affected requests or connections.
    pub(super) weight: u64,
    /// The distance from the edge where the chain of failures begins.
    pub(super) rank: usize,
    /// Whether failures of other edges are a consequence of it.
    pub(super) is_blamed: bool,
    /// When the fault began; `None` before the search for it, and if the search does not find it.
    pub(super) since_ms: Option<u64>,
    /// Whether traffic passed before the fault began.
    pub(super) worked: bool,
}

impl EdgeFault {
    /// Whether the fault makes requests or connections fail.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, Self::Failing | Self::GivenUp | Self::Refused | Self::Unanswered)
    }

    /// Whether the fault may make requests to the client of the edge fail or slow.
    pub(super) fn may_lead_to_others(self) -> bool {
        self.may_follow() || matches!(self, Self::Denied | Self::Limited)
    }

    /// Whether the fault may be a consequence of a failing call of the server.
    pub(super) fn may_follow(self) -> bool {
        self.is_failure() || matches!(self, Self::Slow(_) | Self::Rejected)
    }

    /// Whether the counts of an edge in one frame show this fault.
    pub(super) fn is_in(self, names: &SeriesNumbers, tally: &Tally) -> bool {
        match self {
            Self::Failing => tally.failures() > 0,
            Self::GivenUp => tally.given_up > 0,
            Self::Refused => refuses(tally),
            Self::Unanswered => tally.read_bytes > 0 && tally.written_bytes == 0,
            Self::Slow(slow) => is_slow(slow, tally),
            Self::Limited | Self::Rejected => tally.classes[3] > tally.given_up,
            Self::Retried => tally.retries > 0,
            Self::Denied => refuses(tally) || count(names, tally, &[DENIED]) > 0,
            Self::Ejected => tally.ejected > 0,
        }
    }
}

/// The edges of a window that have a fault. Their rank and beginning are set later.
pub(super) fn broken(
    view: &HistoryView<'_>,
    window: &Window,
    state: Option<&MeshState>,
) -> Vec<BrokenEdge> {
    let names = view.names();
    let compared = ComparedWindow::new(view, window);
    let edges = edges(names, window);
    let mut denied =
        connections_denied(names, window, edges.iter().map(|(ends, both)| (&ends.1, &both.sum)));
    let mut found = Vec::new();
    for (ends, both) in edges {
        let tally = &both.sum;
        let denials = denied.get_mut(&ends.1);
        let server = served(names, window, &ends.1);
        let Some((fault, title, weight)) = fault(names, tally, denials)
            .or_else(|| unlike_usual(&compared, &ends))
            .or_else(|| costly(names, tally, server))
            .or_else(|| rejected(&compared, &ends))
        else {
            continue;
        };
        let mut evidence = evidence(names, &ends.0, tally, server, fault);
        let (client, server) = ends;
        let of_server =
            |one: &&crate::api::Unready| (&one.namespace, &one.workload) == (&server.0, &server.1);
        let deaf = state.map_or(&[][..], |state| &state.deaf).iter().filter(of_server);
        if fault.is_failure() {
            evidence.splice(0..0, deaf.map(|one| format!("{}: {}", one.instance, one.reason)));
        }
        let cause = main_cause(names, [Some(tally), served(names, window, &server)], weight);
        found.push(BrokenEdge {
            cause,
            client,
            server,
            is_workload: true,
            fault,
            title,
            evidence,
            culprit: Culprit::default(),
            weight,
            rank: 0,
            is_blamed: false,
            since_ms: None,
            worked: false,
        });
    }
    found
}

/// The fault of an edge, its title with `{}` for the edge, and its weight. `denials` is the number of connections
/// that the server's proxies have denied; those of this edge are subtracted from it.
fn fault(
    names: &SeriesNumbers,
    tally: &Tally,
    denials: Option<&mut u64>,
) -> Option<(EdgeFault, String, u64)> {
    let requests = tally.requests();
    let percent = |count: u64| 100.0 * float(count) / float(requests);
    if is_share(tally.failures(), MIN_SHARE, tally) {
        let title = format!("{:.1} % of the requests {{}} fail", percent(tally.failures()));
        return Some((EdgeFault::Failing, title, tally.failures()));
    }
    if is_share(tally.given_up, MIN_GIVEN_UP, tally) {
        let share = percent(tally.given_up);
        let title = format!("{share:.1} % of the requests {{}} are given up before a response");
        return Some((EdgeFault::GivenUp, title, tally.given_up));
    }
    if refuses(tally) {
        if let Some(count) = denials.and_then(|left| connections_of(names, tally, left)) {
            let title = format!("{count} connections {{}} denied by an authorization policy");
            return Some((EdgeFault::Denied, title, count));
        }
        let count = tally.errors().max(tally.connect_failures);
        return Some((EdgeFault::Refused, format!("{count} connections {{}} failed"), count));
    }
    let denied = count(names, tally, &[DENIED]);
    (denied >= MIN_FAILURES).then(|| {
        let title = format!("{denied} requests {{}} denied by an authorization policy");
        (EdgeFault::Denied, title, denied)
    })
}

/// The fault that an edge shows when it is compared with the time before.
fn unlike_usual(
    compared: &ComparedWindow,
    ends: &(NamespacedName, NamespacedName),
) -> Option<(EdgeFault, String, u64)> {
    if compared.is_unanswered(ends) {
        let title = "the bytes {} are no longer answered".to_owned();
        return Some((EdgeFault::Unanswered, title, 1));
    }
    let slow = compared.slow(ends)?;
    let (now, usual) = (slow.now_ms, slow.usual_ms);
    let title = match slow.one_of {
        2 => format!("requests {{}} take {now:.0} ms, usually {usual:.0} ms"),
        one_of => format!("one of {one_of} requests {{}} takes {now:.0} ms, usually {usual:.0} ms"),
    };
    Some((EdgeFault::Slow(slow), title, slow.requests / slow.one_of))
}

/// A fault for an increased share of 4xx answers. Whether the client or the server has changed is not known.
fn rejected(
    compared: &ComparedWindow,
    ends: &(NamespacedName, NamespacedName),
) -> Option<(EdgeFault, String, u64)> {
    let RejectedRequests { rejected, requests } = compared.rejected(ends)?;
    let percent = 100.0 * float(rejected) / float(requests);
    let title =
        format!("{percent:.0} % of the requests {{}} are answered 4xx, usually next to none");
    Some((EdgeFault::Rejected, title, rejected))
}

/// Faults that do not make requests fail, and rejections that the documents demand.
fn costly(
    names: &SeriesNumbers,
    tally: &Tally,
    server: Option<&Tally>,
) -> Option<(EdgeFault, String, u64)> {
    // A rejection by the server's proxy is counted like a status of the server, and some rejections may concern
    // other clients.
    let at_server = server.map_or(0, |server| count(names, server, &LIMITS));
    let refused = tally.classes[3].saturating_sub(tally.given_up);
    let limited = count(names, tally, &LIMITS).max(at_server.min(refused));
    let limited = limited.max(count(names, tally, &NO_REQUESTS).min(refused));
    if is_share(limited, MIN_LIMITED, tally) {
        let title = format!("{limited} requests {{}} refused");
        return Some((EdgeFault::Limited, title, limited));
    }
    let retries = tally.retries;
    if retries >= MIN_RETRIES && is_share(retries, MIN_RETRIED, tally) {
        let share = 100.0 * float(retries) / float(tally.requests().max(1));
        let title = format!("retries add {share:.0} % to the requests {{}}");
        return Some((EdgeFault::Retried, title, retries));
    }
    let title = || "endpoints are left out {}: they failed".to_owned();
    (tally.ejected > 0).then(|| (EdgeFault::Ejected, title(), tally.ejected))
}

/// The cause of at least half of the failures, as the client's proxy counts them, or else as the server's proxy
/// does. Abandoned requests, and causes that are consequences of another one, are ignored.
fn main_cause(
    names: &SeriesNumbers,
    tallies: [Option<&Tally>; 2],
    failures: u64,
) -> Option<String> {
    const NO_CAUSES: [&str; 3] = ["closed", "broken", "cancel"];
    tallies.into_iter().flatten().find_map(|tally| {
        let of = |(cause, count): &(u32, u64)| {
            let name = names.cause_name(*cause);
            (!NO_CAUSES.contains(&name)).then(|| (CONSEQUENCES.contains(&name), *count, name))
        };
        let mut causes: Vec<(bool, u64, &str)> = tally.causes.iter().filter_map(of).collect();
        let all: u64 = causes.iter().map(|(_, count, _)| count).sum();
        causes.sort_by_key(|(follows, count, _)| (*follows, std::cmp::Reverse(*count)));
        let (.., name) = causes.first()?;
        (all * 2 >= failures).then(|| (*name).to_owned())
    })
}

/// Whether enough requests in one frame are slow for the fault.
fn is_slow(slow: SlowRequests, tally: &Tally) -> bool {
    let count = slow.count(tally);
    count > 0 && count * slow.one_of >= tally.requests()
}

/// The number of an edge's connections that were denied; `None` unless denials explain all of its failures. `left` is
/// how many denials of the server's proxies are not attributed to an edge yet; those of this edge are subtracted. Fewer
/// denials than failures are sufficient, because the server may count the last ones only in the next window.
fn connections_of(names: &SeriesNumbers, tally: &Tally, left: &mut u64) -> Option<u64> {
    let closed = count(names, tally, &CLOSED);
    let others = tally.errors() - closed - count(names, tally, &CONSEQUENCES);
    let is_explained = closed > 0 && others == 0 && *left > 0 && *left + 1 + closed / 10 >= closed;
    is_explained.then(|| {
        *left = left.saturating_sub(closed);
        closed
    })
}

/// The connections that the proxies of each server have denied: all denials, minus the denials of requests, which
/// are counted for edges.
fn connections_denied<'a>(
    names: &SeriesNumbers,
    window: &Window,
    edges: impl Iterator<Item = (&'a NamespacedName, &'a Tally)>,
) -> BTreeMap<NamespacedName, u64> {
    let mut denied = BTreeMap::new();
    for (series, tally) in &window.tallies {
        if let Some(SeriesKey::Workload(name)) = names.subject(*series) {
            denied.insert(name.clone(), count(names, tally, &[DENIED]));
        }
    }
    for (server, tally) in edges {
        if let Some(left) = denied.get_mut(server) {
            *left = left.saturating_sub(count(names, tally, &[DENIED]));
        }
    }
    denied
}

fn is_share(count: u64, least: f64, tally: &Tally) -> bool {
    count >= MIN_FAILURES && float(count) >= least * float(tally.requests())
}

/// Whether an edge has only opaque connections, and some of them fail.
fn refuses(tally: &Tally) -> bool {
    tally.requests() == 0 && (tally.errors() > 0 || tally.connect_failures > 0)
}

/// The total count of these causes.
pub(super) fn count(names: &SeriesNumbers, tally: &Tally, wanted: &[&str]) -> u64 {
    let of = |cause: u32| wanted.contains(&names.cause_name(cause));
    tally.causes.iter().filter(|(cause, _)| of(*cause)).map(|(_, count)| count).sum()
}

/// The causes that a server's proxies have counted.
fn served<'a>(
    names: &SeriesNumbers,
    window: &'a Window,
    server: &NamespacedName,
) -> Option<&'a Tally> {
    window.tallies.get(&names.find(&SeriesKey::Workload(server.clone()))?)
}
