use super::*;
use crate::testing::{edge, growth};

const TICK: u64 = 5_000;

fn requests(history: &History, from_ms: u64, to_ms: u64) -> u64 {
    history.window(from_ms, to_ms).tallies.values().map(Tally::requests).sum()
}

fn filled(ticks: std::ops::RangeInclusive<u64>) -> History {
    let mut history = History::default();
    for tick in ticks {
        history.push(tick * TICK, &growth(5.0, vec![edge("web", "cart", 1.0)]));
    }
    history
}

#[test]
fn old_frames_become_coarse_without_losing_counts() {
    // These frames cover three hours.
    let history = filled(1..=2_160);
    assert!((720..=840).contains(&history.fine.len()), "{}", history.fine.len());
    assert!((11..=12).contains(&history.coarse.len()), "{}", history.coarse.len());
    let end = history.end_ms().unwrap();
    assert_eq!(requests(&history, 0, end), 2_160);
    assert_eq!(requests(&history, end - 60_000, end), 12);
    assert_eq!(history.window(0, end).seconds, 10_800.0);
    assert_eq!(history.begin_ms(), Some(0));
}

#[test]
fn a_day_is_kept_and_no_more() {
    let mut history = filled(1..=240);
    let later = REACH_MS + 20 * 60_000;
    history.push(later, &growth(5.0, vec![edge("web", "cart", 3.0)]));
    assert_eq!(requests(&history, 0, later), 3);
}

#[test]
fn two_frames_never_end_at_the_same_moment_even_if_the_clock_is_set_back() {
    let mut history = filled(100..=101);
    history.push(7, &growth(5.0, vec![edge("web", "cart", 1.0)]));
    let ends: Vec<u64> = history.frames().map(|frame| frame.end_ms).collect();
    assert_eq!(ends, [500_000, 505_000, 505_001]);
}

#[test]
fn numbers_of_edges_without_frames_are_reused() {
    let mut history = History::default();
    let mut at = 0;
    // A thousand new edges appear every hour and a half. More of them appear within a day than the history can hold.
    for round in 0..40 {
        at += 90 * 60_000;
        let edges = (0..1_000).map(|nth| edge("web", &format!("cart-{round}-{nth}"), 1.0));
        history.push(at, &growth(5.0, edges.collect()));
    }
    assert!(history.lost() > 0, "16 rounds fit, and 17 are within a day");
    at += 2 * REACH_MS;
    for _ in 0..2 {
        at += TICK;
        history.push(at, &growth(5.0, vec![edge("web", "cart", 1.0)]));
    }
    assert_eq!(requests(&history, at - TICK, at), 1, "there is room again");
}

#[test]
fn series_that_did_not_fit_are_reported_only_in_their_window() {
    const EDGES: usize = crate::series::MAX_SERIES + 7;
    let all = || (0..EDGES).map(|nth| edge("web", &format!("cart-{nth}"), 1.0)).collect();
    let mut history = History::default();
    history.push(TICK, &growth(5.0, all()));
    history.push(2 * TICK, &growth(5.0, all()));
    history.push(3 * TICK, &growth(5.0, vec![edge("web", "cart-0", 1.0)]));
    let left_out = |history: &History, from: u64, to: u64| history.window(from, to).left_out;
    assert_eq!((left_out(&history, 0, 3 * TICK), history.lost()), (7, 14));
    assert_eq!(left_out(&history, 2 * TICK, 3 * TICK), 0);
    // No frame was dropped, so there are no names to free, and changes can be appended to the file.
    assert_eq!(history.take_changes().0, UnsavedChanges { frames: 3, ..UnsavedChanges::default() });
    // A reader of some namespaces does not see the count, because it may concern other namespaces.
    let some = crate::visible_namespaces::VisibleNamespaces::Namespaces(BTreeMap::new());
    assert_eq!(crate::view::HistoryView::new(&history, &some).window(0, 3 * TICK).left_out, 0);
    history.push(FINE_MS + SLOT_MS + TICK, &growth(5.0, Vec::new()));
    assert_eq!((history.coarse.len(), left_out(&history, 0, 3 * TICK)), (1, 7));
}

#[test]
fn marks_are_bounded() {
    let mut history = History::default();
    for at_ms in 1..=(MAX_MARKS as u64 + 5) {
        let lines = vec!["ä".repeat(MAX_LINE); MAX_LINES + 1];
        history.mark(Mark { at_ms, kind: MarkKind::Documents, lines });
    }
    assert_eq!(history.marks(0, u64::MAX).count(), MAX_MARKS);
    let last = history.marks(0, u64::MAX).last().unwrap();
    assert_eq!((last.lines.len(), last.lines[0].len()), (MAX_LINES, MAX_LINE));
}
