//! The results of the neighbour's flood.

use std::time::Duration;

use crate::record::{Mark, MarkKind, Record};

/// How long the neighbour floods before the measurement starts.
pub(crate) const FLOOD_LEAD: Duration = Duration::from_millis(300);

/// How long the flood continues after the measured time if it is not stopped. Normally the bench
/// stops it as soon as the generator has reported; in a cluster it first contacts pods through the
/// API server several times, which may take a minute each.
pub(crate) const FLOOD_MOST: Duration = Duration::from_secs(600);

/// The results of the neighbour's flood, or why they are unknown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FloodResult {
    /// The rate of answered requests.
    pub(crate) requests_per_s: Result<f64, String>,
    /// Whether the flood was still running when the measurement ended.
    pub(crate) lasted: Result<bool, String>,
}

impl FloodResult {
    /// Adds the results to a record.
    pub(crate) fn keep(&self, record: &mut Record) {
        record.neighbour_requests_per_s = self.requests_per_s();
        record.marks.extend(self.marks());
    }

    /// The rate of answered requests; `None` if it is unknown.
    fn requests_per_s(&self) -> Option<f64> {
        self.requests_per_s.as_ref().ok().copied()
    }

    /// The marks for a flood that ended before the measurement, may have ended, or has no figures.
    fn marks(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut mark = |kind, why| marks.push(Mark { kind, why });
        match &self.lasted {
            Ok(true) => {}
            Ok(false) => {
                let why = "the neighbour's flood had ended when the measurement did";
                mark(MarkKind::FloodEnded, why.to_owned());
            }
            Err(why) => mark(
                MarkKind::FloodEnded,
                format!("whether the neighbour's flood lasted is not known: {why}"),
            ),
        }
        if let Err(why) = &self.requests_per_s {
            mark(MarkKind::FloodUnreported, format!("what the neighbour was answered: {why}"));
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_that_ended_before_the_measurement_says_so() {
        let flooded = FloodResult { requests_per_s: Ok(1.0), lasted: Ok(true) };
        assert_eq!((flooded.marks(), flooded.requests_per_s()), (vec![], Some(1.0)));
        let marks = FloodResult { lasted: Ok(false), ..flooded.clone() }.marks();
        assert!(marks[0].kind == MarkKind::FloodEnded && marks[0].kind.invalidates(), "{marks:?}");
        let unknown = FloodResult { lasted: Err("it is away".into()), ..flooded.clone() }.marks();
        assert!(unknown[0].kind == MarkKind::FloodEnded, "{unknown:?}");
        assert!(unknown[0].why.ends_with("not known: it is away"), "{unknown:?}");
        let unreported = FloodResult { requests_per_s: Err("it is away".into()), ..flooded };
        let marks = unreported.marks();
        assert_eq!((unreported.requests_per_s(), marks.len()), (None, 1));
        assert!(!marks[0].kind.invalidates(), "what is measured was flooded: {marks:?}");
    }
}
