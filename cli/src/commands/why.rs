//! Implements the command `leno why`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use leno_dashboard::api::{Problem, ProblemSubject, Severity, Topology};
use leno_dashboard::history::Mark;

use super::figures::since;
use super::history::MeshHistory;
use super::{AnyMesh, OutputForm, block_on, print, print_json};

/// Shows what is broken in a mesh, since when, and the evidence for it
///
/// Applies fixed rules to what proxies and the kernel count: edges that fail or are slow, instances without traffic,
/// a control plane that does not answer, and changes shortly before. Each problem has its culprit, the evidence, and
/// the command that shows more. The likeliest root cause comes first. Exits 1 if something is broken. Needs root for
/// a mesh of `leno up`; for a cluster it shows the namespaces in which you may create a port-forward.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno why\n  sudo leno why -n shop --since 5m -o json\n  leno why --context prod -n shop"
)]
pub(crate) struct Why {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Shows only problems that concern this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// How much time up to now is examined, from 5s to 24h
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = since)]
    since: Duration,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(crate) fn run(why: &Why) -> Result<bool> {
    let target = format!("/api/v1/topology?window={}", why.since.as_millis());
    let topology: Topology = block_on(async {
        let history = MeshHistory::of(&why.mesh).await?;
        let topology: Topology = history.ask(&target).await?;
        if let Some(namespace) = &why.namespace {
            // A namespace that has workloads in the history need not exist any more. Only a namespace without any is
            // checked.
            let of = |one: &leno_dashboard::api::Workload| one.namespace == *namespace;
            if !topology.workloads.iter().any(of) {
                history.has_namespace(namespace).await?;
            }
        }
        Ok(topology)
    })?;
    let mut problems = topology.problems;
    if let Some(namespace) = &why.namespace {
        problems.retain(|problem| concerns(&problem.about, namespace));
    }
    if why.output == OutputForm::Json {
        print_json(&problems)?;
    } else {
        print(&text(&problems, topology.to_ms, topology.observed_s > 0.0))?;
    }
    Ok(problems.iter().all(|problem| problem.severity != Severity::Bad))
}

/// Whether a problem concerns a namespace. Problems of the whole mesh concern all namespaces.
fn concerns(about: &ProblemSubject, wanted: &str) -> bool {
    match about {
        ProblemSubject::Workload { namespace, .. } => namespace == wanted,
        ProblemSubject::Edge { client_namespace, server_namespace, .. } => {
            client_namespace == wanted || server_namespace == wanted
        }
        ProblemSubject::ControlPlane | ProblemSubject::Documents | ProblemSubject::Proxies => true,
    }
}

fn text(problems: &[Problem], now_ms: u64, is_observed: bool) -> String {
    if problems.is_empty() {
        let nothing = if is_observed {
            "nothing is broken\n"
        } else {
            "no data yet: run the command again in a few seconds\n"
        };
        return nothing.to_owned();
    }
    let mut text = String::new();
    for problem in problems {
        let kind = if problem.severity == Severity::Bad { "broken" } else { "warning" };
        let since = problem.since_ms.map_or_else(String::new, |since| {
            format!(", for {} s", now_ms.saturating_sub(since) / 1000)
        });
        text += &format!("{kind:<9}{}{since}\n", problem.title);
        text += &format!("{:<9}culprit: {}\n", "", problem.culprit);
        for line in &problem.evidence {
            text += &format!("{:<9}{line}\n", "");
        }
        for Mark { at_ms, lines, .. } in &problem.changes {
            let ago = now_ms.saturating_sub(*at_ms) / 1000;
            text += &format!("{:<9}changed {ago} s ago: {}\n", "", lines.join("; "));
        }
        if !problem.more.is_empty() {
            text += &format!("{:<9}more: {}\n", "", problem.more);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_dashboard::history::MarkKind;

    #[test]
    fn a_problem_has_its_evidence_below_it() {
        let problem = Problem {
            severity: Severity::Bad,
            about: ProblemSubject::Workload {
                namespace: "shop".to_owned(),
                name: "cart".to_owned(),
            },
            title: "0 of 1 instances of shop/cart take traffic".to_owned(),
            evidence: vec!["cart-0: waiting, exited with 3".to_owned()],
            since_ms: Some(10_000),
            culprit: "the application of shop/cart, which takes no traffic".to_owned(),
            more: "leno logs -n shop cart".to_owned(),
            changes: vec![Mark {
                at_ms: 8_000,
                kind: MarkKind::Documents,
                lines: vec!["Workload shop/cart changed".to_owned()],
            }],
        };
        assert_eq!(
            text(std::slice::from_ref(&problem), 30_000, true),
            "broken   0 of 1 instances of shop/cart take traffic, for 20 s\n         \
             culprit: the application of shop/cart, which takes no traffic\n         \
             cart-0: waiting, exited with 3\n         \
             changed 22 s ago: Workload shop/cart changed\n         \
             more: leno logs -n shop cart\n"
        );
        assert_eq!(text(&[], 30_000, true), "nothing is broken\n");
        assert_eq!(
            text(&[], 30_000, false),
            "no data yet: run the command again in a few seconds\n"
        );
        assert!(concerns(&problem.about, "shop") && !concerns(&problem.about, "bank"));
    }
}
