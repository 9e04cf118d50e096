//! Counts the proxies that another one has replaced, and that finish open streams of their instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leno_program::Family;

/// Counts the proxies of a mesh. A node proxy counts once for each instance that has left it.
#[derive(Debug, Default)]
pub struct FinishingProxies {
    now: AtomicU64,
    ended: AtomicU64,
    cut: AtomicU64,
}

/// A proxy that finishes open streams. When it is dropped without [`Self::has_ended`], its streams count as cut.
#[derive(Debug)]
pub struct FinishingProxy {
    counts: Arc<FinishingProxies>,
    streams_ended: bool,
}

impl FinishingProxies {
    /// A proxy begins to finish streams.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> FinishingProxy {
        self.now.fetch_add(1, Ordering::Relaxed);
        FinishingProxy { counts: Arc::clone(self), streams_ended: false }
    }

    /// The text of `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = String::new();
        let help = "Proxies that another one has replaced, and that still finish open streams of an instance.";
        let now = self.now.load(Ordering::Relaxed);
        Family::gauge(&mut page, "leno_proxies_finishing", help).sample(&[], now);
        let help = "Proxies that another one has replaced, by whether their streams ended or were cut: at the limit of time \
                    or of their number, with their process, or with the instance.";
        let mut finished = Family::counter(&mut page, "leno_proxies_finished_total", help);
        for (streams, count) in [("ended", &self.ended), ("cut", &self.cut)] {
            finished.sample(&[("streams", streams)], count.load(Ordering::Relaxed));
        }
        page
    }
}

impl FinishingProxy {
    /// All of its streams have ended.
    pub fn has_ended(mut self) {
        self.streams_ended = true;
    }
}

impl Drop for FinishingProxy {
    fn drop(&mut self) {
        self.counts.now.fetch_sub(1, Ordering::Relaxed);
        let count = if self.streams_ended { &self.counts.ended } else { &self.counts.cut };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_count_as_cut_unless_they_have_ended() {
        let counts = Arc::<FinishingProxies>::default();
        let [ended, cut, _finishing] = [counts.begin(), counts.begin(), counts.begin()];
        ended.has_ended();
        drop(cut);
        let page = counts.metrics();
        for line in [
            "leno_proxies_finishing 1",
            "leno_proxies_finished_total{streams=\"ended\"} 1",
            "leno_proxies_finished_total{streams=\"cut\"} 1",
        ] {
            assert!(page.lines().any(|of| of == line), "{line}: {page}");
        }
    }
}
