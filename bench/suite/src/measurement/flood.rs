//! The results of the floods by neighbours.

use std::time::Duration;

use leno_measure::load::Report;

use crate::record::{FloodCounts, Mark, MarkKind, Record};
use crate::scenario::{Flood, NEIGHBOUR};

/// How long before the measurement the neighbour starts to flood.
pub(crate) const FLOOD_LEAD: Duration = Duration::from_millis(300);

/// How long the flood continues after the measured time if it is not stopped. Normally the bench stops it as soon as
/// the generator has reported. In a cluster the bench first contacts pods through the API server several times, each of
/// which may take a minute.
pub(crate) const FLOOD_MOST: Duration = Duration::from_secs(600);

/// The results of a neighbour's flood, or why they are unknown.
#[derive(Clone, Debug)]
pub(crate) struct FloodResult {
    pub(crate) workload: String,
    pub(crate) sends: Flood,
    pub(crate) report: Result<Report, String>,
    /// Whether the flood was still running when the measurement ended.
    pub(crate) lasted: Result<bool, String>,
}

impl FloodResult {
    pub(crate) fn keep(&self, record: &mut Record) {
        if let Ok(report) = &self.report {
            if self.workload == NEIGHBOUR {
                record.neighbour_requests_per_s = Some(report.requests_per_s);
            }
            record.floods.push(FloodCounts {
                workload: self.workload.clone(),
                requests: report.requests,
                errors: report.errors,
                errors_by_kind: report.errors_by_kind.clone(),
            });
        }
        record.marks.extend(self.marks());
    }

    /// Returns marks for a flood that ended before the measurement, that may have ended before it, that failed, or that
    /// reported nothing.
    fn marks(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let of = &self.workload;
        let mut mark = |kind, why| marks.push(Mark { kind, why });
        match &self.lasted {
            Ok(true) => {}
            Ok(false) => {
                mark(MarkKind::FloodEnded, format!("{of}: it had ended when the measurement did"));
            }
            Err(why) => {
                mark(MarkKind::FloodEnded, format!("{of}: whether it lasted is not known: {why}"));
            }
        }
        match &self.report {
            Ok(report) if self.has_failed(report) => {
                let (errors, kinds) = (report.errors, &report.errors_by_kind);
                let why = format!("{of}: {errors} of {} failed: {kinds:?}", report.requests);
                mark(MarkKind::FloodFailed, why);
            }
            Ok(_) => {}
            Err(why) => mark(MarkKind::FloodUnreported, format!("{of}: {why}")),
        }
        marks
    }

    /// Whether the flood was weaker than the scenario wants. Some failures are expected: a proxy may refuse some
    /// requests and connections, and a request whose answer the client does not read ends at its time limit.
    fn has_failed(&self, report: &Report) -> bool {
        match self.sends {
            Flood::Requests | Flood::ConnectionsPerS(_) => report.errors == report.requests,
            Flood::Bodies(_) => report.errors > 0,
            Flood::Unread(_) => report.errors_by_kind.keys().any(|kind| kind != "timeout"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sends: Flood, errors: &[(&str, u64)]) -> FloodResult {
        let report = Report {
            requests: 10,
            requests_per_s: 1.0,
            errors: errors.iter().map(|(_, count)| count).sum(),
            errors_by_kind: errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect(),
            ..Report::default()
        };
        FloodResult { workload: NEIGHBOUR.to_owned(), sends, report: Ok(report), lasted: Ok(true) }
    }

    #[test]
    fn a_flood_that_ended_before_the_measurement_gets_a_mark() {
        let flooded = of(Flood::Requests, &[]);
        let mut record = Record::default();
        flooded.keep(&mut record);
        assert_eq!((&record.marks, record.neighbour_requests_per_s), (&vec![], Some(1.0)));
        let marks = FloodResult { lasted: Ok(false), ..flooded.clone() }.marks();
        assert!(marks[0].kind == MarkKind::FloodEnded && marks[0].kind.invalidates(), "{marks:?}");
        let unknown = FloodResult { lasted: Err("it is away".into()), ..flooded.clone() }.marks();
        assert!(unknown[0].kind == MarkKind::FloodEnded, "{unknown:?}");
        assert!(unknown[0].why.ends_with("not known: it is away"), "{unknown:?}");
        let unreported = FloodResult { report: Err("it is away".into()), ..flooded };
        let mut record = Record::default();
        unreported.keep(&mut record);
        assert_eq!((record.neighbour_requests_per_s, record.marks.len()), (None, 1));
        assert!(!record.marks[0].kind.invalidates(), "what is measured was flooded: {record:?}");
    }

    #[test]
    fn a_flood_with_unexpected_failures_gets_a_mark() {
        let failed = |sends, errors: &[(&str, u64)]| {
            let marks = of(sends, errors).marks();
            marks.iter().any(|mark| mark.kind == MarkKind::FloodFailed)
        };
        let connections = Flood::ConnectionsPerS(1.0);
        assert!(!failed(connections, &[("reset", 9)]) && failed(connections, &[("connect", 10)]));
        assert!(!failed(Flood::Bodies(1), &[]) && failed(Flood::Bodies(1), &[("status_4xx", 1)]));
        let unread = Flood::Unread(1);
        assert!(!failed(unread, &[("timeout", 10)]));
        assert!(failed(unread, &[("timeout", 9), ("connect", 1)]));
    }
}
