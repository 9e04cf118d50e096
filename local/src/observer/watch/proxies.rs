//! Which proxies were started again within the last day.

use std::collections::{HashMap, VecDeque};

use leno_dashboard::api::RestartedProxy;

use super::ObservedInstance;

/// How long a start is remembered, as far as `leno why` looks back.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Most that are remembered, the newest: four of each instance of a large mesh.
const MAX_RESTARTED: usize = 1_000;

#[derive(Default)]
pub(super) struct Proxies {
    /// How often each was started again, by namespace and instance; `None` before the first look.
    counts: Option<HashMap<(String, String), u32>>,
    restarted: VecDeque<RestartedProxy>,
}

impl Proxies {
    /// Takes in how often the proxies of all instances were started again until now.
    pub(super) fn look(&mut self, instances: &[ObservedInstance], now_ms: u64) {
        let key = |one: &ObservedInstance| (one.namespace.clone(), one.name.clone());
        let counts = instances.iter().map(|one| (key(one), one.proxy_restarts)).collect();
        // What was before the first look is not known to be of the last day.
        let Some(before) = self.counts.replace(counts) else { return };
        for one in instances {
            // An instance that was replaced begins with zero.
            let known = before.get(&key(one)).copied().unwrap_or_default();
            let times = match one.proxy_restarts.checked_sub(known) {
                Some(0) => continue,
                Some(times) => times,
                None if one.proxy_restarts == 0 => continue,
                None => one.proxy_restarts,
            };
            self.restarted.push_back(RestartedProxy {
                namespace: one.namespace.clone(),
                workload: one.workload.clone(),
                instance: one.name.clone(),
                at_ms: now_ms,
                times,
                ended: one.proxy_ended.clone().unwrap_or_else(|| "it ended".to_owned()),
            });
        }
        let is_old = |one: &RestartedProxy| one.at_ms.saturating_add(DAY_MS) < now_ms;
        while self.restarted.len() > MAX_RESTARTED || self.restarted.front().is_some_and(is_old) {
            self.restarted.pop_front();
        }
    }

    /// The oldest first.
    pub(super) fn restarted(&self) -> Vec<RestartedProxy> {
        self.restarted.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::instance;
    use super::*;

    #[test]
    fn what_was_started_again_is_remembered_for_a_day() {
        let mut proxies = Proxies::default();
        let mut look = |restarts, now_ms| {
            let proxy_ended = Some("was ended by SIGKILL".to_owned());
            let now = ObservedInstance { proxy_restarts: restarts, proxy_ended, ..instance(0) };
            proxies.look(&[now], now_ms);
            proxies.restarted().iter().map(|one| (one.at_ms, one.times)).collect::<Vec<_>>()
        };
        assert_eq!(look(2, 1_000), [], "of before the first look");
        assert_eq!(look(2, 2_000), []);
        assert_eq!(look(5, 3_000), [(3_000, 3)]);
        assert_eq!(look(0, 4_000), [(3_000, 3)], "replaced");
        assert_eq!(look(1, 5_000), [(3_000, 3), (5_000, 1)]);
        assert_eq!(look(1, DAY_MS + 3_001), [(5_000, 1)]);
    }
}
