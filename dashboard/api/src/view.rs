//! Shows a history as one reader may see it.
//!
//! ```text
//!  frames, names, changes ──► HistoryView ──► queries and rules
//! ```
//! All ends of edges that the reader may not see have one name; the rest that is hidden is omitted. The counts of
//! several hidden ends are summed frame by frame.

use std::collections::BTreeMap;

use crate::frame::Frame;
use crate::history::{History, Mark, Window};
use crate::series::SeriesNumbers;
use crate::tally::{Tally, float};
use crate::visible_namespaces::VisibleNamespaces;

/// What a reader sees of a history.
pub(crate) struct HistoryView<'a> {
    history: &'a History,
    masked: Option<MaskedNames>,
}

/// The names and changes without those that the reader may not see.
struct MaskedNames {
    names: SeriesNumbers,
    /// For each series of the history, the series of `names` to which its counts are added; `None` if the reader
    /// may not see it.
    seen: Vec<Option<VisibleSeries>>,
    marks: Vec<Mark>,
}

/// A series that a reader may see.
#[derive(Clone, Copy)]
struct VisibleSeries {
    /// The number of the series in the view.
    number: u32,
    /// Frames that begin before this time are hidden.
    since_ms: u64,
}

/// A frame of a view.
#[derive(Clone, Copy)]
pub(crate) struct ViewFrame<'a> {
    frame: &'a Frame,
    seen: Option<&'a [Option<VisibleSeries>]>,
}

impl<'a> HistoryView<'a> {
    pub(crate) fn new(history: &'a History, sight: &VisibleNamespaces) -> Self {
        let masked = match sight {
            VisibleNamespaces::All => None,
            VisibleNamespaces::Namespaces(_) => Some(MaskedNames::new(history, sight)),
        };
        Self { history, masked }
    }

    pub(crate) fn names(&self) -> &SeriesNumbers {
        self.masked.as_ref().map_or(self.history.names(), |masked| &masked.names)
    }

    /// The changes after `from_ms`, up to `to_ms`.
    pub(crate) fn marks(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Mark> {
        let seen = self.masked.iter().flat_map(|masked| &masked.marks);
        let seen = seen.filter(move |mark| from_ms < mark.at_ms && mark.at_ms <= to_ms);
        let all = self.masked.is_none().then(|| self.history.marks(from_ms, to_ms));
        seen.chain(all.into_iter().flatten())
    }

    /// The frames that end after `from_ms`, up to `to_ms`.
    pub(crate) fn between(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = ViewFrame<'_>> {
        let seen = self.masked.as_ref().map(|masked| &*masked.seen);
        self.history.between(from_ms, to_ms).map(move |frame| ViewFrame { frame, seen })
    }

    /// The counts after `from_ms`, up to `to_ms`.
    pub(crate) fn window(&self, from_ms: u64, to_ms: u64) -> Window {
        let mut window = Window::default();
        let mut millis = 0;
        for frame in self.between(from_ms, to_ms) {
            millis += frame.millis();
            window.end_ms = frame.end_ms();
            window.left_out = window.left_out.max(frame.left_out());
            let first = window.tallies.is_empty();
            frame.each(|series, tally| {
                if first {
                    window.tallies.insert(series, tally);
                } else {
                    window.tallies.entry(series).or_default().add(&tally);
                }
            });
        }
        window.seconds = float(millis) / 1000.0;
        window
    }
}

impl MaskedNames {
    fn new(history: &History, sight: &VisibleNamespaces) -> Self {
        let all = history.names();
        let mut names = all.with_causes();
        let seen = all.subjects().map(|subject| {
            let subject = subject?;
            let number = names.number(sight.of(subject)?)?;
            Some(VisibleSeries { number, since_ms: sight.since_ms(subject) })
        });
        let seen = seen.collect();
        let marks = history.marks(0, u64::MAX).filter_map(|mark| sight.mark(mark)).collect();
        Self { names, seen, marks }
    }
}

impl ViewFrame<'_> {
    pub(crate) fn end_ms(self) -> u64 {
        self.frame.end_ms
    }

    pub(crate) fn millis(self) -> u64 {
        self.frame.millis
    }

    /// How many series the frame leaves out. The number covers all namespaces together, so it is 0 for a reader
    /// who may see only some.
    pub(crate) fn left_out(self) -> u64 {
        self.seen.map_or(self.frame.left_out, |_| 0)
    }

    /// Calls `visit` with every tally; each series occurs once.
    pub(crate) fn each(self, mut visit: impl FnMut(u32, Tally)) {
        // The frame was checked when it was made or read from the file, so only a bug can have damaged it.
        let Some(seen) = self.seen else {
            let _ = self.frame.each(visit);
            return;
        };
        let begin_ms = self.frame.end_ms.saturating_sub(self.frame.millis);
        let mut sums: BTreeMap<u32, Tally> = BTreeMap::new();
        let _ = self.frame.each(|series, tally| {
            let seen = seen.get(series as usize).copied().flatten();
            if let Some(seen) = seen.filter(|seen| seen.since_ms <= begin_ms) {
                sums.entry(seen.number).or_default().join(&tally);
            }
        });
        sums.into_iter().for_each(|(number, tally)| visit(number, tally));
    }
}
