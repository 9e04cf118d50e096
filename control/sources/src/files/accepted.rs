//! Keeps the last valid state, and determines the update that the next state causes. Does no I/O.

use leno_resources::{Object, Problem};

use crate::{SourceUpdate, diff};

#[derive(Debug, Default)]
pub(super) struct AcceptedState {
    /// The last valid state; `None` before the first one.
    good: Option<Vec<Object>>,
    /// Why the newest state was rejected; empty if it was accepted.
    refused: Vec<Problem>,
}

impl AcceptedState {
    /// Accepts or rejects the newest state. Returns the update to send, if anything has changed.
    pub(super) fn take(
        &mut self,
        newest: Result<Vec<Object>, Vec<Problem>>,
    ) -> Option<SourceUpdate> {
        match newest {
            Ok(newest) => {
                let told = self.good.is_some() && self.refused.is_empty();
                self.refused.clear();
                let changes = diff(self.good.as_deref().unwrap_or_default(), &newest);
                self.good = Some(newest);
                (!told || !changes.is_empty()).then_some(SourceUpdate::Changes(changes))
            }
            Err(problems) if problems == self.refused => None,
            Err(problems) => {
                self.refused.clone_from(&problems);
                Some(SourceUpdate::Refused(problems))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(reason: &str) -> Vec<Problem> {
        vec![Problem::of_file("a.yaml", reason)]
    }

    #[test]
    fn the_first_state_is_told_even_if_empty() {
        let mut accepted = AcceptedState::default();
        assert_eq!(accepted.take(Ok(Vec::new())), Some(SourceUpdate::Changes(Vec::new())));
        assert_eq!(accepted.take(Ok(Vec::new())), None);
    }

    #[test]
    fn a_refusal_is_told_once_and_its_end_too() {
        let mut accepted = AcceptedState::default();
        let refused = |reason| Some(SourceUpdate::Refused(problems(reason)));
        assert_eq!(accepted.take(Err(problems("bad"))), refused("bad"));
        assert_eq!(accepted.take(Ok(Vec::new())), Some(SourceUpdate::Changes(Vec::new())));
        assert_eq!(accepted.take(Err(problems("bad"))), refused("bad"));
        assert_eq!(accepted.take(Err(problems("bad"))), None);
        assert_eq!(accepted.take(Err(problems("worse"))), refused("worse"));
        assert_eq!(accepted.take(Ok(Vec::new())), Some(SourceUpdate::Changes(Vec::new())));
    }
}
