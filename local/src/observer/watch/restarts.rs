//! Which processes of instances, proxies or applications, ended within the last day.

use std::collections::{HashMap, VecDeque};

use leno_dashboard::api::Restart;

use super::ObservedInstance;

/// How long an end is remembered, as far as `leno why` looks back.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Most that are remembered, the newest: four of each instance of a large mesh.
const MAX_RESTARTS: usize = 1_000;

/// How often a process has ended, and how the last time.
pub(super) type Ends = (u32, Option<String>);

#[derive(Default)]
pub(super) struct Restarts {
    /// By namespace and instance; `None` before the first look.
    counts: Option<HashMap<(String, String), Ends>>,
    all: VecDeque<Restart>,
}

impl Restarts {
    /// Takes in how often the processes of all instances have ended until now, as `ends` has it.
    pub(super) fn look(
        &mut self,
        instances: &[ObservedInstance],
        now_ms: u64,
        ends: fn(&ObservedInstance) -> Ends,
    ) {
        let key = |one: &ObservedInstance| (one.namespace.clone(), one.name.clone());
        let counts = instances.iter().map(|one| (key(one), ends(one))).collect();
        // What was before the first look is not known to be of the last day.
        let Some(before) = self.counts.replace(counts) else { return };
        for one in instances {
            let now = ends(one);
            // An instance that was replaced begins with zero.
            let known = before.get(&key(one)).cloned().unwrap_or_default();
            if now == known || now.0 == 0 {
                continue;
            }
            self.all.push_back(Restart {
                namespace: one.namespace.clone(),
                workload: one.workload.clone(),
                instance: one.name.clone(),
                at_ms: now_ms,
                times: now.0.checked_sub(known.0).filter(|times| *times > 0).unwrap_or(now.0),
                ended: now.1.unwrap_or_else(|| "it ended".to_owned()),
            });
        }
        let is_old = |one: &Restart| one.at_ms.saturating_add(DAY_MS) < now_ms;
        while self.all.len() > MAX_RESTARTS || self.all.front().is_some_and(is_old) {
            self.all.pop_front();
        }
    }

    /// The oldest first.
    pub(super) fn all(&self) -> Vec<Restart> {
        self.all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::instance;
    use super::*;

    #[test]
    fn what_was_started_again_is_remembered_for_a_day() {
        let mut proxies = Restarts::default();
        let mut look = |restarts, now_ms| {
            let proxy_ended = Some("was ended by SIGKILL".to_owned());
            let now = ObservedInstance { proxy_restarts: restarts, proxy_ended, ..instance(0) };
            proxies.look(&[now], now_ms, ObservedInstance::proxy_ends);
            proxies.all().iter().map(|one| (one.at_ms, one.times)).collect::<Vec<_>>()
        };
        assert_eq!(look(2, 1_000), [], "of before the first look");
        assert_eq!(look(2, 2_000), []);
        assert_eq!(look(5, 3_000), [(3_000, 3)]);
        assert_eq!(look(0, 4_000), [(3_000, 3)], "replaced");
        assert_eq!(look(1, 5_000), [(3_000, 3), (5_000, 1)]);
        assert_eq!(look(1, DAY_MS + 3_001), [(5_000, 1)]);
    }

    #[test]
    fn an_application_that_ends_in_another_way_has_ended_again() {
        let mut applications = Restarts::default();
        let mut look = |phase, ended: Option<&str>, times| {
            let mut now = instance(0);
            (now.phase, now.trouble.ended, now.trouble.times) =
                (phase, ended.map(str::to_owned), times);
            applications.look(&[now], 1_000, ObservedInstance::application_ends);
            applications.all().iter().map(|one| one.times).sum::<u32>()
        };
        use crate::status::Phase::{Completed, Running, Waiting};
        assert_eq!(look(Running, None, 0), 0);
        assert_eq!(look(Waiting, Some("exited with 3"), 1), 1);
        assert_eq!(look(Running, Some("exited with 3"), 1), 1, "it runs again");
        assert_eq!(look(Waiting, Some("exited with 3"), 3), 3);
        assert_eq!(look(Waiting, Some("was ended by SIGKILL"), 1), 4);
        assert_eq!(look(Completed, Some("exited with 0"), 1), 4, "it has done its work");
    }
}
