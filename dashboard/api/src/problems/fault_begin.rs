//! Finds when the faults of edges began.

use super::edges::{BrokenEdge, EdgeFault};
use crate::series::SeriesKey;
use crate::tally::Tally;
use crate::view::HistoryView;

/// Most frames that are searched for the beginning of a problem: an hour of fine frames.
const MAX_FRAMES: usize = 720;
/// If the fault is missing in this many frames in a row, an earlier occurrence counts as another problem.
const QUIET_FRAMES: usize = 6;

/// The search for the beginning of one edge's fault.
struct Search<'a> {
    /// The numbers of the series of the edge, with mTLS and without.
    series: Vec<u32>,
    fault: EdgeFault,
    /// The search goes back in time. This is the number of frames without the fault since the last frame with it.
    quiet: usize,
    worked: &'a mut bool,
    since_ms: &'a mut Option<u64>,
}

/// Finds when the faults of edges began, and whether traffic passed before.
pub(super) fn find(view: &HistoryView<'_>, end_ms: u64, all: &mut [BrokenEdge]) {
    let names = view.names();
    let mut searched = Vec::new();
    for BrokenEdge { client, server, fault, since_ms, worked, .. } in all {
        let of = |encrypted| SeriesKey::Edge {
            client: client.clone(),
            server: server.clone(),
            encrypted,
        };
        let series = [true, false].into_iter().filter_map(|one| names.find(&of(one))).collect();
        searched.push(Search { series, fault: *fault, quiet: 0, worked, since_ms });
    }
    if searched.is_empty() {
        return;
    }
    let frames: Vec<_> = view.between(0, end_ms).collect();
    for frame in frames.iter().rev().take(MAX_FRAMES) {
        if searched.iter().all(|one| one.quiet >= QUIET_FRAMES) {
            break;
        }
        // For each edge: whether it has its fault in this frame, and whether traffic passed.
        let mut found = vec![(false, false); searched.len()];
        frame.each(|series, tally| {
            for (one, (broken, passed)) in searched.iter().zip(&mut found) {
                if one.series.contains(&series) {
                    *broken |= one.fault.is_in(names, &tally);
                    *passed |= passes(&tally);
                }
            }
        });
        for (one, (broken, passed)) in searched.iter_mut().zip(found) {
            match broken {
                _ if one.quiet >= QUIET_FRAMES => {}
                true => {
                    (one.quiet, *one.worked) = (0, false);
                    *one.since_ms = Some(frame.end_ms().saturating_sub(frame.millis()));
                }
                false => {
                    one.quiet += 1;
                    *one.worked |= passed;
                }
            }
        }
    }
}

/// Whether requests succeeded, or bytes from the server arrived.
fn passes(tally: &Tally) -> bool {
    tally.classes[1] + tally.classes[2] > 0 || tally.written_bytes > 0
}
