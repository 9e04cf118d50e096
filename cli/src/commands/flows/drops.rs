//! Implements the command `leno flows --drops`.

use anyhow::Result;
use leno_flows::DropRow;

use super::super::{OutputForm, print, print_json, table};
use super::{Flows, names};

/// Prints the dropped packets of the requested workloads; the largest counts come first.
pub(super) fn show(flows: &Flows, mut all: Vec<DropRow>) -> Result<()> {
    all.retain(|one| {
        let is = |wanted: &String| names(wanted, &one.namespace, &one.workload);
        flows.workload.as_ref().is_none_or(is)
            && flows.namespace.as_ref().is_none_or(|namespace| *namespace == one.namespace)
    });
    all.sort_by_key(|one| std::cmp::Reverse(one.packets));
    if flows.output == OutputForm::Json { print_json(&all) } else { print(&text(&all)) }
}

fn text(all: &[DropRow]) -> String {
    let namespaces = table::width("NAMESPACE", all.iter().map(|one| &*one.namespace));
    let workloads = table::width("WORKLOAD", all.iter().map(|one| &*one.workload));
    let reasons = table::width("REASON", all.iter().map(|one| &*one.reason));
    let mut text = format!(
        "{:<namespaces$}{:<workloads$}{:<reasons$}{:>12}\n",
        "NAMESPACE", "WORKLOAD", "REASON", "PACKETS"
    );
    for DropRow { namespace, workload, reason, packets } in all {
        text += &format!(
            "{namespace:<namespaces$}{workload:<workloads$}{reason:<reasons$}{packets:>12}\n"
        );
    }
    text
}
