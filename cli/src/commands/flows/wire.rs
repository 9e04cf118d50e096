//! Implements the command `leno flows --requests --socket wire`.

use anyhow::Result;
use leno_flows::WireRow;

use super::super::{OutputForm, print, print_json, table};
use super::requests::ms;
use super::{Flows, peer};

/// Prints the requests of the requested workloads.
pub(super) fn show(flows: &Flows, mut all: Vec<WireRow>) -> Result<()> {
    all.retain(|one| {
        flows.wants_ends((&one.namespace, &one.workload), &one.peer)
            && flows.role.is_none_or(|role| role.name() == one.role)
    });
    if flows.output == OutputForm::Json { print_json(&all) } else { print(&text(&all)) }
}

fn text(all: &[WireRow]) -> String {
    let rows: Vec<[String; 2]> = all
        .iter()
        .map(|one| [format!("{}/{}", one.namespace, one.workload), peer(&one.peer)])
        .collect();
    let whose = table::width("WORKLOAD", rows.iter().map(|row| &*row[0]));
    let with = table::width("PEER", rows.iter().map(|row| &*row[1]));
    let mut text = format!(
        "{:<8}{:<whose$}{:<with$}{:<12}{:<16}{:<16}{:>12}{:>10}{:>10}\n",
        "ROLE", "WORKLOAD", "PEER", "PROTOCOL", "KIND", "RESULT", "REQUESTS", "P50 MS", "P99 MS"
    );
    for (one, [workload, peer]) in all.iter().zip(&rows) {
        // These requests have no duration, because their responses were not seen.
        let is_timed = !["unanswered", "unseen"].contains(&&*one.result);
        let shown = |bound| if is_timed { ms(bound) } else { "-".to_owned() };
        text += &format!(
            "{:<8}{workload:<whose$}{peer:<with$}{:<12}{:<16}{:<16}{:>12}{:>10}{:>10}\n",
            one.role,
            one.protocol,
            one.kind,
            one.result,
            one.requests,
            shown(one.p50_ms),
            shown(one.p99_ms),
        );
    }
    text
}
