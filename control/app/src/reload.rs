//! The results of reading the documents, for `/ready` and `/metrics`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use leno_program::Family;

/// Counts reloads. After a rejected edit, the last valid documents stay in use.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    good: AtomicU64,
    refused: AtomicU64,
    last_was_good: AtomicBool,
    last_good_unix_s: AtomicU64,
    ending: AtomicBool,
}

impl Reloads {
    /// Counts a reload whose documents were applied.
    pub(crate) fn took(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.good.fetch_add(1, Ordering::Relaxed);
        self.last_good_unix_s.store(now.as_ref().map_or(0, Duration::as_secs), Ordering::Relaxed);
        self.last_was_good.store(true, Ordering::Relaxed);
    }

    /// Counts a reload whose documents were rejected.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.last_was_good.store(false, Ordering::Relaxed);
    }

    /// Whether any documents were applied so far.
    pub(crate) fn loaded(&self) -> bool {
        self.good.load(Ordering::Relaxed) > 0
    }

    /// Records that this replica is ending.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether this replica is ending.
    pub(crate) fn ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Appends the counts as Prometheus text.
    pub(crate) fn render(&self, text: &mut String) {
        let help = "Times that the documents were reloaded.";
        let mut reloads = Family::counter(text, "leno_control_reloads_total", help);
        for (result, count) in [("good", &self.good), ("refused", &self.refused)] {
            reloads.sample(&[("result", result)], count.load(Ordering::Relaxed));
        }
        let last = u8::from(self.last_was_good.load(Ordering::Relaxed));
        let help = "Whether the last reload was applied.";
        Family::gauge(text, "leno_control_last_reload_good", help).sample(&[], last);
        let last_good = self.last_good_unix_s.load(Ordering::Relaxed);
        let help = "When documents were last applied.";
        Family::gauge(text, "leno_control_last_good_reload_seconds", help).sample(&[], last_good);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_edit_shows_and_leaves_it_ready() {
        let reloads = Reloads::default();
        assert!(!reloads.loaded());
        reloads.took();
        reloads.refused();
        assert!(reloads.loaded());
        let mut text = String::new();
        reloads.render(&mut text);
        assert!(text.contains("reloads_total{result=\"refused\"} 1\n"));
        assert!(text.contains("leno_control_last_reload_good 0\n"));
    }
}
