//! Prints explanations as text for people.

use leno_analysis::{
    AuthorizationAnswer, BackendAnswer, Explanation, HeaderEdits, OutcomeAnswer, PolicyAnswer,
};

use crate::commands::lines::LabelledLines;

/// Most endpoints that are printed for one backend.
const MAX_ENDPOINTS: usize = 8;

/// The explanation: one line for each step of the request, followed by the matches.
pub(super) fn text(explanation: &Explanation) -> String {
    let mut lines = LabelledLines::default();
    let client = &explanation.client;
    let meshed = if client.meshed { "" } else { " (no proxy)" };
    lines.add("client", &format!("{}/{}{meshed}", client.namespace, client.workload));
    let (method, target) = (&explanation.method, &explanation.target);
    lines.add("request", &format!("{method} {target} to {}", explanation.authority));
    lines.add("destination", &destination(explanation));
    if let Some(rule) = &explanation.rule {
        let of = format!("{} {}/{}", rule.kind, rule.namespace, rule.route);
        let name = match &rule.name {
            Some(name) => format!("{of} rule {} ({name})", rule.index),
            None => format!("{of} rule {}", rule.index),
        };
        lines.add("rule", &name);
    }
    lines.add("outcome", &outcome(&explanation.outcome));
    for (name, value) in &explanation.outcome.headers {
        lines.add("", &format!("{name}: {value}"));
    }
    let timeouts = &explanation.timeouts;
    for (what, ms) in [("in all", timeouts.request_ms), ("each try", timeouts.backend_request_ms)] {
        if let Some(ms) = ms {
            lines.add("timeout", &format!("{ms} ms {what}, then 504 with leno-error: deadline"));
        }
    }
    for one in &explanation.backends {
        backend(&mut lines, one);
    }
    for one in &explanation.policies {
        policy(&mut lines, one);
    }
    authorization(&mut lines, &explanation.authorization);
    for one in &explanation.considered {
        let mark = match (one.holds, one.reached) {
            (true, true) => "=>",
            (_, true) => "no",
            (_, false) => "--",
        };
        lines.add("match", &format!("{mark} {} match {}: {}", one.rule, one.index, one.reason));
    }
    for one in &explanation.ignored {
        lines.add("ignored", one);
    }
    for one in &explanation.notes {
        lines.add("note", one);
    }
    lines.text
}

fn destination(explanation: &Explanation) -> String {
    let destination = &explanation.destination;
    if destination.name.is_empty() {
        return format!("port {}, not of the mesh", destination.port);
    }
    let protocol = match destination.protocol {
        "detect" => "protocol detected from the first bytes",
        protocol => protocol,
    };
    let addresses = destination.addresses.join(", ");
    let (kind, name, port) = (destination.kind, &destination.name, destination.port);
    format!("{kind} {name} port {port} ({protocol}) {addresses}").trim_end().to_owned()
}

fn outcome(outcome: &OutcomeAnswer) -> String {
    let status = outcome.status.map(|status| format!("{status}: ")).unwrap_or_default();
    let error = outcome.leno_error.as_deref();
    let error = error.map(|error| format!("\nleno-error: {error}")).unwrap_or_default();
    format!("{status}{}{error}", outcome.text)
}

fn backend(lines: &mut LabelledLines, one: &BackendAnswer) {
    let share = format!("{:.1} %", one.share * 100.0);
    if let Some(error) = &one.leno_error {
        return lines.add("backend", &format!("{share} fail: leno-error: {error}"));
    }
    lines.add("backend", &format!("{share} {} port {}", one.service, one.port));
    if let Some(host) = &one.host {
        lines.add("", &format!("  called as {host}"));
    }
    if let Some(target) = &one.target {
        lines.add("", &format!("  for {target}"));
    }
    edits(lines, "request", &one.request_headers);
    edits(lines, "response", &one.response_headers);
    for mirror in &one.mirrors {
        let (to, of) = (&mirror.to, format!("{} of {}", mirror.numerator, mirror.denominator));
        lines.add("", &format!("  {of} copied to {to}"));
    }
    if one.endpoints.is_empty() {
        lines.add("", "  no endpoint takes traffic");
    }
    for endpoint in one.endpoints.iter().take(MAX_ENDPOINTS) {
        let who = endpoint.workload.as_deref().unwrap_or("outside of the mesh");
        let how = match (&endpoint.identity, &endpoint.tls) {
            (Some(identity), _) => format!("mTLS, {identity}"),
            (None, Some(tls)) => format!("TLS with {tls}"),
            (None, None) => "plaintext".to_owned(),
        };
        let ejected = endpoint.ejected.as_ref().map(|reason| format!(", ejected: {reason}"));
        let ejected = ejected.unwrap_or_default();
        lines.add("", &format!("  {who} {} ({how}{ejected})", endpoint.address));
    }
    if one.endpoints.len() > MAX_ENDPOINTS {
        lines.add("", &format!("  and {} more", one.endpoints.len() - MAX_ENDPOINTS));
    }
}

/// A line about a policy. It begins with `=>` if the policy is in effect, and with `no` if not.
fn policy(lines: &mut LabelledLines, one: &PolicyAnswer) {
    let place = one.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
    let mark = if one.holds { "=>" } else { "no" };
    let (part, kind) = (one.part, one.kind);
    let (namespace, name, reason) = (&one.namespace, &one.name, &one.reason);
    let of = format!("{mark} {part}: {kind} {namespace}/{name}{place}");
    match one.holds {
        true => lines.add("policy", &format!("{of} of {}: {}", one.service, one.says)),
        false => lines.add("policy", &format!("{of}: {reason}")),
    }
}

/// The decisions of the servers, each with every policy of the server.
pub(in crate::commands) fn authorization(
    lines: &mut LabelledLines,
    answers: &[AuthorizationAnswer],
) {
    for answer in answers {
        let verb = if answer.permitted { "yes" } else { "no" };
        let at = match answer.servers.as_slice() {
            [] => String::new(),
            [one] => format!(" ({one})"),
            [one, more @ ..] => format!(" ({one} and {} more)", more.len()),
        };
        lines.add("permitted", &format!("{verb}: {}{at}", answer.reason));
        for later in &answer.later {
            lines.add("later", &later.to_string());
        }
        for policy in &answer.policies {
            let mark = if policy.matches { "=>" } else { "no" };
            let place = policy.place.as_ref().map(|place| format!(" ({place})"));
            let (action, name, reason) = (policy.action, &policy.name, policy.reason);
            let place = place.unwrap_or_default();
            lines.add("", &format!("{mark} {action} {name}{place}: {reason}"));
        }
    }
}

fn edits(lines: &mut LabelledLines, of: &str, edits: &HeaderEdits) {
    for (verb, list) in [("set", &edits.set), ("add", &edits.add)] {
        for (name, value) in list {
            lines.add("", &format!("  {of} header {verb} {name}: {value}"));
        }
    }
    for name in &edits.remove {
        lines.add("", &format!("  {of} header remove {name}"));
    }
}
