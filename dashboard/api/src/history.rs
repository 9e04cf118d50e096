//! Stores the last day of a mesh: the last hour in frames of a few seconds, and the time before in frames of ten
//! minutes.
//!
//! ```text
//!  MeshGrowth ─► push ─► fine: 5 s each ──(older than an hour)──► coarse: 10 min each ──(a day)──► dropped
//! ```
//! Memory is bounded by [`MAX_BYTES`]: above it, fine frames are merged into coarse ones early.

use std::collections::{BTreeMap, VecDeque};

use leno_observe::stat::MeshGrowth;
use serde::{Deserialize, Serialize};

use crate::fair::surplus;
use crate::frame::Frame;
use crate::series::{SeriesKey, SeriesNumbers};
use crate::tally::{Instances, Tally};
use crate::visible_namespaces::namespace_in;

/// How long frames stay fine, in milliseconds.
const FINE_MS: u64 = 60 * 60 * 1000;
/// The length of a coarse frame, in milliseconds.
const SLOT_MS: u64 = 10 * 60 * 1000;
/// How long frames are kept, in milliseconds.
const REACH_MS: u64 = 24 * 60 * 60 * 1000;
/// Most memory of all frames, in bytes. Together with the names of 20,480 series and the memory that is needed to
/// build one coarse frame, this is less than 64 MiB.
pub const MAX_BYTES: usize = 52 * 1024 * 1024;
/// Most marks that are kept: about one a minute for a day. Beyond this number, the namespace with the most marks
/// loses its oldest one.
pub const MAX_MARKS: usize = 1_500;
/// Most lines of a mark, and the length of the longest line in bytes.
const MAX_LINES: usize = 20;
const MAX_LINE: usize = 400;

/// A change in the mesh at some moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The time of the change, in milliseconds since 1970.
    pub at_ms: u64,
    /// The kind of the change.
    pub kind: MarkKind,
    /// What changed, one entry per line.
    pub lines: Vec<String>,
}

/// The kinds of a [`Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// Documents were added, changed or removed.
    Documents,
    /// An edit of documents was refused.
    Refused,
    /// An instance was started again.
    Instance,
    /// The control plane stopped or came back.
    ControlPlane,
}

impl Mark {
    /// The namespace of the object at the beginning of the mark's first line; empty if there is none.
    pub(crate) fn namespace(&self) -> &str {
        self.lines.first().and_then(|line| namespace_in(line)).unwrap_or_default()
    }
}

/// The counts between two moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// How much of the time was observed, in seconds.
    pub(crate) seconds: f64,
    /// The end of the last frame.
    pub(crate) end_ms: u64,
    /// How many workloads, edges and route rules did not fit; the largest number at any time in the window.
    pub(crate) left_out: u64,
    pub(crate) tallies: BTreeMap<u32, Tally>,
}

/// The last day of a mesh.
#[derive(Debug, Default)]
pub struct History {
    series: SeriesNumbers,
    coarse: VecDeque<Frame>,
    fine: VecDeque<Frame>,
    marks: VecDeque<Mark>,
    /// The total size of all frames, in bytes.
    bytes: usize,
    lost: u64,
    /// Whether a frame was dropped since names were last freed. Only then can there be unused names.
    has_dropped: bool,
    changes: UnsavedChanges,
}

/// The changes that the file does not contain yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsavedChanges {
    /// The number of frames at the end that are not in the file.
    pub(crate) frames: usize,
    /// The number of marks at the end that are not in the file.
    pub(crate) marks: usize,
    /// Whether numbers were assigned to other names, so that the file must be rewritten as a whole.
    pub(crate) all: bool,
}

impl History {
    /// Adds the counts of the time up to `now_ms`.
    pub fn push(&mut self, now_ms: u64, growth: &MeshGrowth) {
        // Even if the clock was set back, no two frames may end at the same moment.
        let end_ms = self.end_ms().map_or(now_ms, |end| now_ms.max(end + 1));
        let (mut tallies, mut left_out) = (BTreeMap::<u32, Tally>::new(), 0);
        let mut take = |subject: Option<u32>, tally: Tally| match subject {
            Some(series) => tallies.entry(series).or_default().join(&tally),
            None => left_out += 1,
        };
        for one in &growth.workloads {
            let mut tally = Tally::of(&one.counts, |cause| self.series.cause(cause));
            let (all, ready, meshed) = (one.instances, one.ready, one.meshed);
            tally.instances = Some(Instances { all, ready, meshed });
            take(self.series.number(SeriesKey::Workload(one.name.clone())), tally);
        }
        for one in &growth.edges {
            let tally = Tally::of(&one.counts, |cause| self.series.cause(cause));
            let (client, server) = (one.client.clone(), one.server.clone());
            let subject = SeriesKey::Edge { client, server, encrypted: one.encrypted };
            take(self.series.number(subject), tally);
        }
        for one in &growth.routes {
            let tally = Tally::of(&one.counts, |cause| self.series.cause(cause));
            take(self.series.number(SeriesKey::Route(one.name.clone())), tally);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let millis = (growth.seconds * 1000.0) as u64;
        let of = tallies.iter().map(|(series, tally)| (*series, tally));
        self.append(Frame::pack(end_ms, millis, of).leaving_out(left_out));
        self.lost += left_out;
        self.age(end_ms);
        if self.has_dropped && self.series.is_full() {
            self.forget_names();
        }
    }

    /// Adds a change, unless the history already contains it.
    pub fn mark(&mut self, mut mark: Mark) {
        let beyond = mark.lines.len().saturating_sub(MAX_LINES);
        if beyond > 0 {
            mark.lines.truncate(MAX_LINES);
            // The first line is kept, because the object at its beginning decides who may see the mark.
            if let Some(last) = mark.lines.last_mut() {
                last.truncate(last.floor_char_boundary(MAX_LINE / 2));
                last.push_str(&format!(", and {beyond} more changes"));
            }
        }
        for line in &mut mark.lines {
            line.truncate(line.floor_char_boundary(MAX_LINE));
        }
        if self.marks.iter().rev().any(|known| *known == mark) {
            return;
        }
        self.marks.push_back(mark);
        self.changes.marks += 1;
        let namespaces = self.marks.iter().map(Mark::namespace);
        for index in surplus(namespaces, MAX_MARKS).into_iter().rev() {
            let is_new = index >= self.marks.len() - self.changes.marks;
            self.changes.marks -= usize::from(is_new);
            self.marks.remove(index);
        }
    }

    /// The changes after `from_ms`, up to `to_ms`.
    pub fn marks(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| from_ms < mark.at_ms && mark.at_ms <= to_ms)
    }

    /// The beginning of the first frame, in milliseconds since 1970.
    #[must_use]
    pub fn begin_ms(&self) -> Option<u64> {
        self.frames().next().map(|frame| frame.end_ms.saturating_sub(frame.millis))
    }

    /// The end of the last frame.
    #[must_use]
    pub fn end_ms(&self) -> Option<u64> {
        self.fine.back().or(self.coarse.back()).map(|frame| frame.end_ms)
    }

    /// The memory that frames, names and marks occupy, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let lines = self.marks.iter().flat_map(|mark| &mark.lines);
        let marks: usize = lines.map(|line| line.capacity() + size_of::<String>()).sum();
        self.bytes + self.series.size() + marks + self.marks.capacity() * size_of::<Mark>()
    }

    /// How many counts were lost because there were too many workloads and edges.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The number of frames that end after `from_ms`, up to `to_ms`.
    #[must_use]
    pub fn frames_between(&self, from_ms: u64, to_ms: u64) -> usize {
        self.between(from_ms, to_ms).count()
    }

    pub(crate) fn names(&self) -> &SeriesNumbers {
        &self.series
    }

    /// The frames that end after `from_ms`, up to `to_ms`.
    pub(crate) fn between(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Frame> {
        self.frames().filter(move |frame| from_ms < frame.end_ms && frame.end_ms <= to_ms)
    }

    /// The view of a reader who may see everything.
    #[cfg(test)]
    pub(crate) fn view(&self) -> crate::view::HistoryView<'_> {
        crate::view::HistoryView::new(self, &crate::visible_namespaces::VisibleNamespaces::All)
    }

    #[cfg(test)]
    pub(crate) fn window(&self, from_ms: u64, to_ms: u64) -> Window {
        self.view().window(from_ms, to_ms)
    }

    fn frames(&self) -> impl DoubleEndedIterator<Item = &Frame> {
        self.coarse.iter().chain(&self.fine)
    }

    fn append(&mut self, frame: Frame) {
        self.bytes += frame.size();
        self.fine.push_back(frame);
        self.changes.frames += 1;
    }

    /// Merges old frames into coarse ones, and drops those that are too old.
    fn age(&mut self, now_ms: u64) {
        let old = |slot_end: u64| slot_end + FINE_MS <= now_ms;
        while let Some(slot) = self.fine.front().map(slot_end) {
            let newest = self.fine.back().map(slot_end);
            if !old(slot) && (self.bytes <= MAX_BYTES || newest == Some(slot)) {
                break;
            }
            self.coarsen(slot);
        }
        while let Some(frame) = self.coarse.front()
            && (frame.end_ms + REACH_MS <= now_ms || self.bytes > MAX_BYTES)
        {
            self.bytes -= frame.size();
            self.coarse.pop_front();
            self.has_dropped = true;
        }
    }

    /// Merges the frames of the oldest slot into one coarse frame.
    fn coarsen(&mut self, slot: u64) {
        let (mut tallies, mut end_ms, mut millis) = (BTreeMap::<u32, Tally>::new(), 0, 0);
        let mut left_out = 0;
        while let Some(frame) = self.fine.pop_front_if(|frame| slot_end(frame) == slot) {
            self.bytes -= frame.size();
            (end_ms, millis) = (frame.end_ms, millis + frame.millis);
            left_out = frame.left_out.max(left_out);
            let _ = frame.each(|series, tally| tallies.entry(series).or_default().add(&tally));
        }
        let of = tallies.iter().map(|(series, tally)| (*series, tally));
        let frame = Frame::pack(end_ms, millis, of).leaving_out(left_out);
        self.bytes += frame.size();
        self.coarse.push_back(frame);
    }

    /// Frees the numbers of workloads and edges that occur in no frame.
    fn forget_names(&mut self) {
        self.has_dropped = false;
        let mut used = vec![false; crate::series::MAX_SERIES];
        for frame in self.coarse.iter().chain(&self.fine) {
            let _ = frame.each(|series, _| {
                if let Some(used) = used.get_mut(series as usize) {
                    *used = true;
                }
            });
        }
        self.series.keep(|series| used.get(series as usize).copied().unwrap_or(false));
        self.changes.all = true;
    }

    /// The changes and new names since the last call, which the file does not contain yet.
    pub(crate) fn take_changes(&mut self) -> (UnsavedChanges, Vec<crate::series::NewName>) {
        (std::mem::take(&mut self.changes), self.series.take_fresh())
    }

    /// The last frames and marks.
    pub(crate) fn last(
        &self,
        changes: UnsavedChanges,
    ) -> (impl Iterator<Item = &Frame>, impl Iterator<Item = &Mark>) {
        let frames = self.fine.len().saturating_sub(changes.frames);
        let marks = self.marks.len().saturating_sub(changes.marks);
        (self.fine.range(frames..), self.marks.range(marks..))
    }

    /// All frames and marks.
    pub(crate) fn all(&self) -> (impl Iterator<Item = &Frame>, impl Iterator<Item = &Mark>) {
        (self.frames(), self.marks.iter())
    }

    /// Adds a frame from a file to the fine frames. [`restored`](Self::restored) coarsens those that are old.
    pub(crate) fn restore(&mut self, frame: Frame) {
        self.bytes += frame.size();
        self.fine.push_back(frame);
    }

    /// Sets the `left_out` of the frame that was restored last.
    pub(crate) fn restore_left_out(&mut self, left_out: u64) {
        if let Some(frame) = self.fine.back_mut() {
            frame.left_out = left_out;
        }
    }

    pub(crate) fn names_mut(&mut self) -> &mut SeriesNumbers {
        &mut self.series
    }

    /// Coarsens and drops the old frames of a history that was read from a file.
    pub(crate) fn restored(&mut self, now_ms: u64) {
        let now_ms = self.end_ms().unwrap_or(0).max(now_ms);
        self.age(now_ms);
        self.has_dropped = true;
        self.changes = UnsavedChanges { all: true, ..UnsavedChanges::default() };
        let _ = self.series.take_fresh();
    }
}

/// The end of the coarse frame that a fine frame belongs to.
fn slot_end(frame: &Frame) -> u64 {
    frame.end_ms.div_ceil(SLOT_MS) * SLOT_MS
}

#[cfg(test)]
mod tests;
