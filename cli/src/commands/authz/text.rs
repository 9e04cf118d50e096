//! Prints authorization reports as text for people.

use std::fmt::Write as _;

use leno_analysis::{
    AccessChange, AuthorizationCheck, ClientAccess, ExplainQuestion, WorkloadAccess,
};

use crate::commands::explain::text::authorization;
use crate::commands::lines::LabelledLines;
use crate::commands::table::width;

/// Every workload with its policies and clients.
pub(super) fn access(all: &[WorkloadAccess]) -> String {
    if all.is_empty() {
        return "no workload has a proxy, so no policy is enforced\n".to_owned();
    }
    let blocks: Vec<String> = all.iter().map(workload).collect();
    blocks.join("\n")
}

fn workload(one: &WorkloadAccess) -> String {
    let mut lines = LabelledLines::default();
    if !one.enforced {
        let text = format!("{} (no proxy, so every client can reach it)", one.workload);
        lines.add("workload", &text);
        return lines.text;
    }
    let (mtls, default) = (one.mtls, one.default);
    lines.add("workload", &format!("{} (mTLS {mtls}, default {default})", one.workload));
    for policy in &one.policies {
        let ports: Vec<String> = policy.ports.iter().map(ToString::to_string).collect();
        let ports = match ports.is_empty() {
            true => String::new(),
            false => format!(" on {}", ports.join(", ")),
        };
        let place = policy.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        lines.add("policy", &format!("{} {}{ports}{place}", policy.action, policy.name));
    }
    let clients = width("CLIENT", one.clients.iter().map(|line| line.client.as_str()));
    let mut text = lines.text;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:<clients$}{:<7}{:<11}WHY", "CLIENT", "PORT", "ACCESS");
    for line in &one.clients {
        let (client, access, reason) = (&line.client, line.access, &line.reason);
        let _ = writeln!(text, "{client:<clients$}{:<7}{access:<11}{reason}", port(line));
        for later in &line.later {
            let _ = writeln!(text, "{:<clients$}{:<7}{:<11}later: {later}", "", "", "");
        }
    }
    text
}

fn port(line: &ClientAccess) -> String {
    if line.port == 0 { "any".to_owned() } else { line.port.to_string() }
}

/// The changes of access, with two further lines for each client and port.
pub(super) fn changes(all: &[AccessChange]) -> String {
    if all.is_empty() {
        return "no change for any client\n".to_owned();
    }
    let mut text = String::new();
    for change in all {
        let Some(line) = change.after.as_ref().or(change.before.as_ref()) else { continue };
        let state = |line: Option<&ClientAccess>| match line {
            Some(line) => {
                let later = line.later.iter().map(|later| format!("; {later}"));
                format!("{}: {}{}", line.access, line.reason, later.collect::<String>())
            }
            None => "not there".to_owned(),
        };
        let (before, after) = (state(change.before.as_ref()), state(change.after.as_ref()));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} -> {} port {}", line.client, change.workload, port(line));
        let _ = writeln!(text, "  now   {before}\n  then  {after}");
    }
    text
}

/// The decision on one request.
pub(super) fn check(check: &AuthorizationCheck, from: &str, question: &ExplainQuestion) -> String {
    let mut lines = LabelledLines::default();
    let name = match &check.client {
        Some(client) => format!("{}/{}", client.namespace, client.workload),
        None => from.to_owned(),
    };
    let identity = check.identity.as_deref().unwrap_or("no identity");
    lines.add("client", &format!("{name} ({identity})"));
    lines.add("workload", &format!("{} port {}", check.workload, check.port));
    let (method, target) = (&question.method, &question.target);
    lines.add("request", &format!("{method} {target} to {}", question.authority()));
    authorization(&mut lines, std::slice::from_ref(&check.answer));
    lines.text
}
