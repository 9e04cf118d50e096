//! Names the culprit of a broken edge, from its evidence and a fixed table. The first row that applies counts.
//!
//! | evidence | culprit |
//! |---|---|
//! | a certificate of either end has expired | that certificate |
//! | an authorization policy denies the requests or connections | that policy |
//! | the application of the server ended in the window, and requests or connections fail | that application |
//! | proxies report a cause for at least half of the failures | what `CauseSubject` says for this cause |
//! | another sign: the server looks up names that do not exist, is throttled by its CPU limit, loses segments, or one of its instances differs from the others | the name, the limit, the network or the instance |
//! | a proxy of the server does not answer the observer | that proxy |
//! | requests are slow, and the server's proxies count few slow ones | the network or a proxy between the two |
//! | none of these | the application of the server, or the server itself if it is not a workload |

use std::collections::BTreeSet;

use leno_observe::stat::NamespacedName;

use super::edges::{BrokenEdge, EdgeFault, NO_REQUESTS};
use super::{restarted, text};
use crate::api::{MeshState, Sign, SignKind, Topology};
use crate::visible_namespaces::HIDDEN;

/// The culprit of an edge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Culprit {
    /// The culprit in words, such as `the application of shop/cart`.
    pub(super) text: String,
    /// The command that shows more; empty if there is none.
    pub(super) more: String,
}

/// What a failure that the mesh itself caused points to, judging by the cause that proxies report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CauseSubject {
    Certificate,
    Listener,
    Limit,
    Fault,
    Routes,
    Egress,
    Plaintext,
    Timeout,
    Denial,
    Authorizer,
    Outside,
    Message,
}

/// Names the culprit of each edge, and adds the signs to its evidence.
pub(super) fn name(all: &mut [BrokenEdge], topology: &Topology, state: Option<&MeshState>) {
    let span = (topology.from_ms, topology.to_ms);
    let workloads: BTreeSet<(&str, &str)> =
        topology.workloads.iter().map(|one| (&*one.namespace, &*one.name)).collect();
    for at in 0..all.len() {
        let server = &all[at].server;
        all[at].is_workload = workloads.contains(&(&*server.0, &*server.1));
        let one = &all[at];
        let signs = state.map(|state| signs_of(state, one, span)).unwrap_or_default();
        let ended = state.map(|state| restarted::ended(state, &one.server, span));
        let ended = ended.filter(|_| one.fault.is_failure()).unwrap_or_default();
        let silent = state.and_then(|state| silent(state, &one.server));
        let silent = silent.filter(|_| one.fault.is_failure());
        let mut culprit = culprit(all, at, &signs, (!ended.is_empty(), silent));
        let server = (&*one.server.0, &*one.server.1);
        // The documents explain why a service has no endpoints although its instances take traffic.
        let is_unready = |state: &MeshState| {
            state.unready.iter().any(|one| (&*one.namespace, &*one.workload) == server)
        };
        if one.cause.as_deref() == Some("no-endpoints")
            && culprit.more == command("ps", &one.server)
            && state.is_some_and(|state| !is_unready(state))
        {
            "leno analyze".clone_into(&mut culprit.more);
        }
        let mut lines: Vec<String> = signs.iter().map(|sign| sign.line.clone()).collect();
        lines.extend(ended);
        lines.extend(silent.map(str::to_owned));
        all[at].evidence.splice(0..0, lines);
        all[at].culprit = culprit;
    }
}

/// The signs about the server, and those about the edge itself.
fn signs_of<'a>(
    state: &'a MeshState,
    one: &BrokenEdge,
    (from_ms, to_ms): (u64, u64),
) -> Vec<&'a Sign> {
    let of = |sign: &Sign, (namespace, name): &NamespacedName| {
        sign.namespace == *namespace && sign.workload == *name
    };
    let is_of_edge = |sign: &&Sign| {
        let ends = [(&one.client, &one.server), (&one.server, &one.client)];
        from_ms < sign.at_ms
            && sign.at_ms <= to_ms
            && match sign.kind {
                SignKind::Lossy => {
                    ends.iter().any(|(own, peer)| of(sign, own) && sign.subject == text(peer))
                }
                SignKind::Expired => of(sign, &one.server) || of(sign, &one.client),
                SignKind::Throttled | SignKind::Outlier | SignKind::UnknownName => {
                    of(sign, &one.server)
                }
            }
    };
    let mut signs: Vec<&Sign> = state.signs.iter().filter(is_of_edge).collect();
    signs.sort_by_key(|sign| sign.kind);
    // Both ends of a connection may report the same lost segments.
    signs.dedup_by(|a, b| a.kind == SignKind::Lossy && b.kind == SignKind::Lossy);
    signs
}

/// What is known about a proxy of a workload that does not answer, such as `shop/web-0: timed out`.
fn silent<'a>(state: &'a MeshState, (namespace, name): &NamespacedName) -> Option<&'a str> {
    let is_of = |line: &str| {
        let (instance, _) = line.split_once(": ")?;
        let number = instance.strip_prefix(&format!("{namespace}/{name}-"))?;
        number.bytes().all(|digit| digit.is_ascii_digit()).then_some(())
    };
    state.silent.iter().map(String::as_str).find(|line| is_of(line).is_some())
}

fn culprit(
    all: &[BrokenEdge],
    at: usize,
    signs: &[&Sign],
    (has_ended, silent): (bool, Option<&str>),
) -> Culprit {
    let one = &all[at];
    let cause = one.cause.as_deref().and_then(|cause| Some((subject(cause)?, cause)));
    // Partial loss only delays answers, because segments are retransmitted. It does not explain a server that does not
    // answer.
    let explains =
        |sign: &&&Sign| one.fault != EdgeFault::Unanswered || sign.kind != SignKind::Lossy;
    let first = signs.iter().find(explains).copied();
    match (first, cause) {
        (Some(sign), _) if sign.kind == SignKind::Expired => by_sign(one, sign),
        (_, Some((CauseSubject::Denial, _))) => by_cause(all, one, CauseSubject::Denial, DENIAL),
        _ if one.fault == EdgeFault::Denied => by_cause(all, one, CauseSubject::Denial, DENIAL),
        _ if has_ended => Culprit {
            text: format!("the application of {}, which ends", text(&one.server)),
            more: logs(&one.server),
        },
        (_, Some((subject, cause))) => by_cause(all, one, subject, cause),
        (Some(sign), None) => by_sign(one, sign),
        (None, None) => match silent.and_then(|line| line.split_once(": ")) {
            Some((instance, _)) => Culprit {
                text: format!("the proxy of {instance}, which does not answer"),
                more: with_name("logs --proxy", &one.server),
            },
            None => by_fault(one),
        },
    }
}

/// The cause if a name outside the mesh has no address.
const UNRESOLVED: &str = "external-unresolved";

/// The cause of requests that a policy denies.
const DENIAL: &str = leno_observe::stat::DENIED;

fn subject(cause: &str) -> Option<CauseSubject> {
    Some(match cause {
        "tls-handshake-failed" | "refused-by-server" => CauseSubject::Certificate,
        "no-endpoints"
        | "application-unreachable"
        | "connect-refused"
        | "connect-timeout"
        | "connect-unreachable"
        | "connect-failed"
        | "endpoints-tried"
        | "failfast"
        | "destination-gone" => CauseSubject::Listener,
        "rate-limited" | "overloaded" | "endpoints-full" | "connections-in-use"
        | "memory-budget" | "streams-in-use" => CauseSubject::Limit,
        "fault-abort" => CauseSubject::Fault,
        "no-route-matches" | "no-backend" | "backend-invalid" | "backend-gone" | "loop" => {
            CauseSubject::Routes
        }
        "egress-denied" => CauseSubject::Egress,
        "plaintext-refused" => CauseSubject::Plaintext,
        "response-timeout" | "deadline" | "stalled" | "stream-timeout" | "stream-idle" => {
            CauseSubject::Timeout
        }
        "authorization-denied" => CauseSubject::Denial,
        "authorizer-failed" => CauseSubject::Authorizer,
        _ if cause.starts_with("external-") => CauseSubject::Outside,
        _ if NO_REQUESTS.contains(&cause) => CauseSubject::Message,
        _ => return None,
    })
}

fn by_cause(all: &[BrokenEdge], one: &BrokenEdge, subject: CauseSubject, cause: &str) -> Culprit {
    let (client, server) = (text(&one.client), text(&one.server));
    let (culprit, more) = match subject {
        CauseSubject::Certificate => {
            let whose = text(holder(all, one, cause));
            (format!("the certificate of {whose} ({cause})"), "leno identity".to_owned())
        }
        CauseSubject::Listener => {
            let culprit = format!("{server}, which cannot be reached ({cause})");
            (culprit, command("ps", &one.server))
        }
        CauseSubject::Limit => (format!("a limit of {server} ({cause})"), tap(one)),
        CauseSubject::Fault => (format!("a policy of {server} that makes requests fail"), tap(one)),
        CauseSubject::Routes => {
            (format!("the routes of {server} ({cause})"), "leno analyze".to_owned())
        }
        CauseSubject::Egress => {
            let culprit = format!("egress, which is denied to {client}");
            (culprit, "leno analyze".to_owned())
        }
        CauseSubject::Plaintext => {
            let culprit = format!("the client, which does not use mTLS, as {server} requires");
            (culprit, command("ps", &one.server))
        }
        CauseSubject::Timeout => {
            let culprit =
                format!("the application of {server}, which is slower than its timeout ({cause})");
            (culprit, tap(one))
        }
        CauseSubject::Denial => {
            let culprit = format!("an authorization policy of {server}, which denies {client}");
            (culprit, with_name("authz", &one.server))
        }
        CauseSubject::Authorizer => {
            let culprit = format!("the external authorizer of {server}, which does not decide");
            (culprit, with_name("logs --proxy", &one.server))
        }
        CauseSubject::Outside if cause == UNRESOLVED => {
            (format!("the name outside of the mesh that {server} stands for ({cause})"), tap(one))
        }
        CauseSubject::Outside => {
            (format!("the TLS of {server} outside of the mesh ({cause})"), tap(one))
        }
        CauseSubject::Message if one.fault == EdgeFault::Limited => {
            let culprit =
                format!("the application of {client}, whose requests are not HTTP ({cause})");
            (culprit, logs(&one.client))
        }
        CauseSubject::Message => {
            let culprit =
                format!("the application of {server}, whose responses are not HTTP ({cause})");
            (culprit, logs(&one.server))
        }
    };
    Culprit { text: culprit, more }
}

/// The workload whose certificate is rejected. If several edges have this cause, it is the end that more of them
/// have in common; otherwise the end that the cause suggests.
fn holder<'a>(all: &'a [BrokenEdge], one: &'a BrokenEdge, cause: &str) -> &'a NamespacedName {
    let refused = all.iter().filter(|other| {
        other.cause.as_deref().and_then(subject) == Some(CauseSubject::Certificate)
    });
    // Hidden ends cannot be compared, because one name may stand for several workloads.
    let (mut of_client, mut of_server) = (0, 0);
    for other in refused {
        let is_known = |name: &NamespacedName| name.1 != HIDDEN || std::ptr::eq(other, one);
        let same = |a: &NamespacedName, b: &NamespacedName| u32::from(a == b && is_known(a));
        of_client += same(&other.client, &one.client) + same(&other.server, &one.client);
        of_server += same(&other.server, &one.server) + same(&other.client, &one.server);
    }
    match of_client.cmp(&of_server) {
        std::cmp::Ordering::Greater => &one.client,
        std::cmp::Ordering::Less => &one.server,
        std::cmp::Ordering::Equal if cause == "refused-by-server" => &one.client,
        std::cmp::Ordering::Equal => &one.server,
    }
}

fn by_sign(one: &BrokenEdge, sign: &Sign) -> Culprit {
    let own = (sign.namespace.clone(), sign.workload.clone());
    let server = text(&one.server);
    let (culprit, more) = match sign.kind {
        SignKind::Expired => (
            format!("the certificate of {}, which has expired", sign.subject),
            "leno identity".to_owned(),
        ),
        SignKind::UnknownName => {
            (format!("the name {} that {server} looks up", sign.subject), logs(&own))
        }
        SignKind::Throttled => (format!("the CPU limit of {server}"), command("ps", &own)),
        SignKind::Lossy => {
            let culprit = format!("the network between {} and {server}", text(&one.client));
            (culprit, with_name("flows", &own))
        }
        SignKind::Outlier => (format!("the instance {}", sign.subject), logs(&own)),
    };
    Culprit { text: culprit, more }
}

fn by_fault(one: &BrokenEdge) -> Culprit {
    let (client, server) = (text(&one.client), text(&one.server));
    let how = match one.fault {
        EdgeFault::Slow(slow) if slow.before_server => {
            let text = format!("the network or a proxy between {client} and {server}");
            return Culprit { text, more: tap(one) };
        }
        EdgeFault::Rejected => ", which answers 4xx",
        EdgeFault::GivenUp => ", which does not answer in time",
        EdgeFault::Slow(_) => ", which is slow",
        EdgeFault::Unanswered => ", which does not answer",
        EdgeFault::Refused => ", which cannot be reached",
        EdgeFault::Retried
        | EdgeFault::Ejected
        | EdgeFault::Failing
        | EdgeFault::Denied
        | EdgeFault::Limited => "",
    };
    let more = match one.fault {
        EdgeFault::Slow(_) | EdgeFault::Limited | EdgeFault::Rejected | EdgeFault::Retried => {
            tap(one)
        }
        _ if one.server.0.is_empty() => with_name("flows", &one.client),
        _ if !one.is_workload => tap(one),
        _ => logs(&one.server),
    };
    let whose = if one.is_workload { "the application of " } else { "" };
    Culprit { text: format!("{whose}{server}{how}"), more }
}

pub(super) fn logs(name: &NamespacedName) -> String {
    with_name("logs", name)
}

/// A command about a workload; empty if it is not a workload, or if it is in a namespace that the reader may not
/// see.
pub(super) fn with_name(command: &str, (namespace, name): &NamespacedName) -> String {
    if namespace.is_empty() {
        return String::new();
    }
    format!("leno {command} -n {namespace} {name}")
}

/// A command about the namespace of a workload; empty in the same cases as for [`with_name`].
pub(super) fn command(command: &str, (namespace, _): &NamespacedName) -> String {
    if namespace.is_empty() {
        return String::new();
    }
    format!("leno {command} -n {namespace}")
}

fn tap(one: &BrokenEdge) -> String {
    let (namespace, client) = &one.client;
    if namespace.is_empty() {
        return with_name("tap", &one.server);
    }
    if one.server.0.is_empty() {
        return with_name("tap", &one.client);
    }
    format!("leno tap -n {namespace} {client} --to {}", text(&one.server))
}
