//! Edges on which something fails, is given up or is denied.

use std::collections::BTreeMap;

use leno_observe::stat::{DENIED, Name};

use super::evidence::evidence;
use crate::api::State;
use crate::history::{History, Window};
use crate::query::edges;
use crate::series::{Series, Subject};
use crate::tally::{Tally, float};

/// Fewest requests of an edge that fail in a window for it to be broken: one may be chance.
const MIN_FAILURES: u64 = 2;
/// Least share of them.
const MIN_SHARE: f64 = 0.01;
/// Least share of requests that clients give up: a few are usual where people press stop.
const MIN_GIVEN_UP: f64 = 0.1;
/// What a client's proxy counts of opaque connections that the server's proxy denies: it closes them without
/// a word, since bytes of its own would be taken for the server's.
const CLOSED: [&str; 2] = ["server-silent", "connect-failed"];
/// What follows from such a connection at the client's proxy.
const CONSEQUENCES: [&str; 3] = ["endpoints-tried", "failfast", "no-endpoints"];

/// What is wrong with an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Requests fail.
    Failing,
    /// Clients give up before there is a response.
    GivenUp,
    /// Connections fail.
    Refused,
    /// A policy denies requests or connections.
    Denied,
    /// Endpoints are left out.
    Ejected,
}

/// An edge with a fault.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) client: Name,
    pub(super) server: Name,
    pub(super) fault: Fault,
    /// In one sentence, with `{}` for the edge.
    pub(super) title: String,
    pub(super) evidence: Vec<String>,
    /// Its distance from the edge where a chain of failures begins.
    pub(super) rank: usize,
    /// Since when, once it was searched.
    pub(super) since_ms: Option<u64>,
    /// Whether traffic passed before that.
    pub(super) worked: bool,
}

impl Fault {
    /// Whether requests or connections fail by it.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, Self::Failing | Self::GivenUp | Self::Refused)
    }

    /// Whether a moment of an edge has it.
    pub(super) fn is_in(self, names: &Series, tally: &Tally) -> bool {
        match self {
            Self::Failing => tally.failures() > 0,
            Self::GivenUp => tally.given_up > 0,
            Self::Refused => refuses(tally),
            Self::Denied => refuses(tally) || count(names, tally, &[DENIED]) > 0,
            Self::Ejected => tally.ejected > 0,
        }
    }
}

/// The edges of a window that have a fault, without rank and begin.
pub(super) fn broken(history: &History, window: &Window, state: Option<&State>) -> Vec<Broken> {
    let names = history.names();
    let edges = edges(names, window);
    let mut denied =
        connections_denied(names, window, edges.iter().map(|(ends, both)| (&ends.1, &both.sum)));
    let mut found = Vec::new();
    for ((client, server), both) in edges {
        let tally = &both.sum;
        let denials = denied.get_mut(&server);
        let Some((fault, title)) = fault(names, tally, denials) else { continue };
        let of_server =
            |one: &&crate::api::Unready| (&one.namespace, &one.workload) == (&server.0, &server.1);
        let deaf = state.map_or(&[][..], |state| &state.deaf).iter().filter(of_server);
        let mut evidence = evidence(names, tally, served(names, window, &server), fault);
        if fault.is_failure() {
            evidence.splice(0..0, deaf.map(|one| format!("{}: {}", one.instance, one.reason)));
        }
        let (rank, since_ms, worked) = (0, None, false);
        found.push(Broken { client, server, fault, title, evidence, rank, since_ms, worked });
    }
    found
}

/// What is wrong with an edge, with `{}` for the edge. `denials`: connections that the server's proxies have
/// denied, of which those of this edge are subtracted.
fn fault(names: &Series, tally: &Tally, denials: Option<&mut u64>) -> Option<(Fault, String)> {
    let requests = tally.requests();
    let percent = |count: u64| 100.0 * float(count) / float(requests);
    if is_share(tally.failures(), MIN_SHARE, tally) {
        let title = format!("{:.1} % of the requests {{}} fail", percent(tally.failures()));
        return Some((Fault::Failing, title));
    }
    if is_share(tally.given_up, MIN_GIVEN_UP, tally) {
        let share = percent(tally.given_up);
        let title = format!("{share:.1} % of the requests {{}} are given up before a response");
        return Some((Fault::GivenUp, title));
    }
    if refuses(tally) {
        if let Some(count) = denials.and_then(|left| connections_of(names, tally, left)) {
            let title = format!("{count} connections {{}} denied by an authorization policy");
            return Some((Fault::Denied, title));
        }
        let count = tally.errors().max(tally.connect_failures);
        return Some((Fault::Refused, format!("{count} connections {{}} failed")));
    }
    let denied = count(names, tally, &[DENIED]);
    if denied >= MIN_FAILURES {
        let title = format!("{denied} requests {{}} denied by an authorization policy");
        return Some((Fault::Denied, title));
    }
    let title = || "endpoints are left out {}: they failed".to_owned();
    (tally.ejected > 0).then(|| (Fault::Ejected, title()))
}

/// How many of an edge's connections were denied, if that is why they failed. One that the server counts in
/// the next window may be missing there.
fn connections_of(names: &Series, tally: &Tally, left: &mut u64) -> Option<u64> {
    let closed = count(names, tally, &CLOSED);
    let others = tally.errors() - closed - count(names, tally, &CONSEQUENCES);
    let is_explained = closed > 0 && others == 0 && *left > 0 && *left + 1 + closed / 10 >= closed;
    is_explained.then(|| {
        *left = left.saturating_sub(closed);
        closed
    })
}

/// The connections that the proxies of each server have denied: its denials without those of requests, which
/// the edges have themselves.
fn connections_denied<'a>(
    names: &Series,
    window: &Window,
    edges: impl Iterator<Item = (&'a Name, &'a Tally)>,
) -> BTreeMap<Name, u64> {
    let mut denied = BTreeMap::new();
    for (series, tally) in &window.tallies {
        if let Some(Subject::Workload(name)) = names.subject(*series) {
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

/// Whether an edge that carries bytes is refused.
fn refuses(tally: &Tally) -> bool {
    tally.requests() == 0 && (tally.errors() > 0 || tally.connect_failures > 0)
}

/// How often these causes were.
pub(super) fn count(names: &Series, tally: &Tally, wanted: &[&str]) -> u64 {
    let of = |cause: u32| wanted.contains(&names.cause_name(cause));
    tally.causes.iter().filter(|(cause, _)| of(*cause)).map(|(_, count)| count).sum()
}

/// What the proxies of a server have counted as such.
fn served<'a>(names: &Series, window: &'a Window, server: &Name) -> Option<&'a Tally> {
    window.tallies.get(&names.find(&Subject::Workload(server.clone()))?)
}
