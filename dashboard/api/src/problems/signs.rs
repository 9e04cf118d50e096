//! Finds signs that are not evidence of a broken edge.

use super::culprit::{command, logs, with_name};
use super::edges::BrokenEdge;
use super::text;
use crate::api::{MeshState, Problem, ProblemSubject, Severity, Sign, SignKind};

/// Finds workloads with signs that are not part of a broken edge's evidence. An instance that is throttled by its
/// CPU limit is not reported unless its clients are affected, because the operator has chosen the limit.
pub(super) fn find(
    state: Option<&MeshState>,
    (from_ms, to_ms): (u64, u64),
    broken: &[BrokenEdge],
    all: &mut Vec<Problem>,
) {
    // If a pair of workloads loses segments in both directions, the edge shows only one of the two signs.
    let is_of_edge = |sign: &Sign, one: &BrokenEdge| {
        let own = format!("{}/{}", sign.namespace, sign.workload);
        let ends = [text(&one.client), text(&one.server)];
        sign.kind == SignKind::Lossy && ends.contains(&own) && ends.contains(&sign.subject)
    };
    let is_told = |sign: &Sign| {
        broken.iter().any(|one| one.evidence.contains(&sign.line) || is_of_edge(sign, one))
    };
    let signs = state.map_or(&[][..], |state| &state.signs).iter().filter(|sign| {
        from_ms < sign.at_ms
            && sign.at_ms <= to_ms
            && sign.kind != SignKind::Throttled
            && !is_told(sign)
    });
    for sign in signs {
        let name = (sign.namespace.clone(), sign.workload.clone());
        let own = text(&name);
        let (title, culprit, more) = match sign.kind {
            SignKind::Expired => (
                format!("the certificate of {} has expired", sign.subject),
                format!("the certificate of {}", sign.subject),
                "leno identity".to_owned(),
            ),
            SignKind::UnknownName => (
                format!("{own} looks up {}, without success", sign.subject),
                format!("the name {} that {own} looks up", sign.subject),
                logs(&name),
            ),
            SignKind::Lossy => (
                format!("TCP segments from {own} to {} are retransmitted", sign.subject),
                format!("the network between {own} and {}", sign.subject),
                with_name("flows", &name),
            ),
            SignKind::Outlier | SignKind::Throttled => (
                format!("{} differs from the other instances of {own}", sign.subject),
                format!("the instance {}", sign.subject),
                command("ps", &name),
            ),
        };
        let is_bad = sign.kind == SignKind::Expired;
        let severity = if is_bad { Severity::Bad } else { Severity::Warning };
        let already = all.iter().any(|one| one.title == title);
        if already {
            continue;
        }
        all.push(Problem {
            severity,
            about: ProblemSubject::Workload { namespace: name.0, name: name.1 },
            title,
            evidence: vec![sign.line.clone()],
            since_ms: None,
            changes: Vec::new(),
            culprit,
            more,
        });
    }
}
