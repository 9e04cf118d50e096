//! The numbers of open connections and streams on this thread, for gauges.
#![expect(clippy::indexing_slicing, reason = "there is a counter for each role")]

use std::cell::Cell;

/// Connections and streams of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Connections that have not ended.
    pub connections: u64,
    /// Streams on them that have not ended.
    pub streams: u64,
}

thread_local! {
    /// Index 0: connections from clients. Index 1: connections to servers.
    static OPEN: [Cell<Open>; 2] = const {
        [const { Cell::new(Open { connections: 0, streams: 0 }) }; 2]
    };
}

/// Counts of the calling thread: connections from clients, then connections to servers.
#[must_use]
pub fn open_counts() -> [Open; 2] {
    OPEN.with(|open| [open[0].get(), open[1].get()])
}

/// Changes the counts of one role. Does nothing while the thread ends, because the counts are no longer read then.
pub(crate) fn change(client: bool, by: impl FnOnce(&mut Open)) {
    let _ended = OPEN.try_with(|open| {
        let cell = &open[usize::from(client)];
        let mut now = cell.get();
        by(&mut now);
        cell.set(now);
    });
}
