//! Describes the evidence for the fault of an edge, one entry per line.

use leno_observe::stat::{DENIED, NamespacedName, UNMESHED};

use super::MAX_EVIDENCE;
use super::edges::EdgeFault;
use crate::api::Cause;
use crate::query;
use crate::series::SeriesNumbers;
use crate::tally::Tally;

/// The causes that the client's proxy counts when a client leaves. Such requests are shown as abandoned.
const LEFT: [&str; 3] = ["closed", "broken", "cancel"];

pub(super) fn evidence(
    names: &SeriesNumbers,
    client: &NamespacedName,
    tally: &Tally,
    served: Option<&Tally>,
    fault: EdgeFault,
) -> Vec<String> {
    let mut causes = query::signals(names, tally, 0.0).causes;
    let denied = query::count_of(&causes, DENIED);
    causes.retain(|one| one.cause != DENIED);
    causes.retain(|one| one.count > tally.given_up || !LEFT.contains(&&*one.cause));
    let mut at_server = served.map(|served| query::signals(names, served, 0.0).causes);
    if let Some(causes) = &mut at_server
        && fault != EdgeFault::Denied
    {
        causes.retain(|one| one.cause != DENIED);
    }
    let mut lines = requests(tally, &causes, at_server.as_deref(), fault);
    if denied > 0 {
        lines.push(format!("{denied} of {} requests denied", tally.requests()));
    }
    for cause in causes {
        lines.push(format!("{} times {}", cause.count, cause.cause));
    }
    // If the client has no proxy, `causes` already contains what the server's proxy has counted.
    let at_server = at_server.filter(|_| client.1 != UNMESHED);
    for cause in at_server.into_iter().flatten() {
        lines.push(format!("{} times {} at the proxy of the server", cause.count, cause.cause));
    }
    if tally.connect_failures > 0 {
        lines.push(format!("{} connections could not be made", tally.connect_failures));
    }
    if tally.retries > 0 {
        lines.push(format!("{} retries", tally.retries));
    }
    if let EdgeFault::Slow(slow) = fault {
        let (count, now) = (slow.requests, slow.now_ms);
        let line = match slow.one_of {
            2 => format!("half of {count} requests of the last 20 s took {now:.0} ms or more"),
            of => {
                format!("one of {of} of {count} requests of the last 20 s took {now:.0} ms or more")
            }
        };
        lines.push(line);
        if slow.before_server {
            lines.push("the proxies of the server have seen few that took as long".to_owned());
        }
    }
    match tally.ejected {
        0 => {}
        1 => lines.push("1 worker leaves endpoints out".to_owned()),
        count => lines.push(format!("{count} workers leave endpoints out")),
    }
    lines.truncate(MAX_EVIDENCE);
    lines
}

/// How the requests ended, and who failed them. `causes` are the failures at the client's proxy.
fn requests(
    tally: &Tally,
    causes: &[Cause],
    at_server: Option<&[Cause]>,
    fault: EdgeFault,
) -> Vec<String> {
    let requests = tally.requests();
    let mut lines = Vec::new();
    if fault == EdgeFault::Rejected {
        let count = tally.classes[3].saturating_sub(tally.given_up);
        lines.push(format!("{count} of {requests} requests answered 4xx by the application"));
    }
    if tally.classes[4] > 0 {
        lines.push(format!("{} of {requests} requests answered 5xx", tally.classes[4]));
    }
    if tally.grpc_failed > 0 {
        let count = tally.grpc_failed;
        lines.push(format!("{count} of {requests} gRPC calls ended with a status of failure"));
    }
    let errors: u64 = causes.iter().map(|one| one.count).sum();
    let server = tally.failures() - errors.min(tally.failures());
    if server > 0 {
        lines.push(culprit(server, at_server));
    }
    if tally.given_up > 0 {
        let count = tally.given_up;
        lines.push(format!(
            "{count} of {requests} requests given up by the client before a response"
        ));
    }
    lines
}

/// Who failed the requests that the client's proxy did not fail. Failures of the server's proxy may belong to
/// other clients, so their number is only an upper limit.
fn culprit(failures: u64, at_server: Option<&[Cause]>) -> String {
    let Some(causes) = at_server else {
        return format!("{failures} of them by the server or its proxy");
    };
    match causes.iter().map(|cause| cause.count).sum::<u64>() {
        0 => format!("{failures} of them by the application itself"),
        proxy if proxy < failures => {
            format!("at least {} of them by the application itself", failures - proxy)
        }
        _ => format!("{failures} of them by the server or its proxy"),
    }
}
