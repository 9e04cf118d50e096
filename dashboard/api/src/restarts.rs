//! Records which processes of instances, proxies or applications, ended within the last day.

use std::collections::{HashMap, VecDeque};

use crate::api::Restart;
use crate::fair::surplus;

/// How long an end is remembered, in milliseconds: as far back as `leno why` looks.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Most ends that are remembered: four for each instance of a large mesh. Beyond this number, the namespace with
/// the most ends loses its oldest one.
const MAX_RESTARTS: usize = 1_000;

/// How many times a process of an instance has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessEnds {
    /// The instance's namespace.
    pub namespace: String,
    /// The instance's workload.
    pub workload: String,
    /// The name of the instance.
    pub instance: String,
    /// The number of ends.
    pub times: u32,
    /// How the process ended the last time, if that is known.
    pub ended: Option<String>,
}

/// The number of ends, and how the last of them happened.
type EndCount = (u32, Option<String>);

/// Finds the processes of one kind that ended between two calls of [`Restarts::look`].
#[derive(Debug, Default)]
pub struct Restarts {
    /// The counts by namespace and instance; `None` before the first call.
    counts: Option<HashMap<(String, String), EndCount>>,
    all: VecDeque<Restart>,
}

impl Restarts {
    /// Compares how many times the processes of all instances have ended so far with the previous call.
    pub fn look(&mut self, processes: impl IntoIterator<Item = ProcessEnds>, now_ms: u64) {
        let processes: Vec<ProcessEnds> = processes.into_iter().collect();
        let key = |one: &ProcessEnds| (one.namespace.clone(), one.instance.clone());
        let counts = processes.iter().map(|one| (key(one), (one.times, one.ended.clone())));
        // Ends from before the first call are ignored, because they may be more than a day old.
        let Some(before) = self.counts.replace(counts.collect()) else { return };
        for one in processes {
            // An instance that was replaced starts with zero ends.
            let known = before.get(&key(&one)).cloned().unwrap_or_default();
            if one.times == 0 || (one.times, &one.ended) == (known.0, &known.1) {
                continue;
            }
            let times = one.times.checked_sub(known.0).filter(|times| *times > 0);
            self.all.push_back(Restart {
                namespace: one.namespace,
                workload: one.workload,
                instance: one.instance,
                at_ms: now_ms,
                times: times.unwrap_or(one.times),
                ended: one.ended.unwrap_or_else(|| "it ended".to_owned()),
            });
        }
        self.all.retain(|one| one.at_ms.saturating_add(DAY_MS) >= now_ms);
        let dropped = surplus(self.all.iter().map(|one| &*one.namespace), MAX_RESTARTS);
        for index in dropped.into_iter().rev() {
            self.all.remove(index);
        }
    }

    /// The ends of processes, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Restart> {
        self.all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(times: u32, ended: Option<&str>) -> ProcessEnds {
        ProcessEnds {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            instance: "web-0".to_owned(),
            times,
            ended: ended.map(str::to_owned),
        }
    }

    #[test]
    fn what_was_started_again_is_remembered_for_a_day() {
        let mut proxies = Restarts::default();
        let mut look = |times, now_ms| {
            proxies.look([ends(times, Some("was ended by SIGKILL"))], now_ms);
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
    fn a_namespace_of_many_ends_pushes_out_its_own() {
        let of = |namespace: &str, nth: u32, times| ProcessEnds {
            namespace: namespace.to_owned(),
            instance: format!("web-{nth}"),
            ..ends(times, None)
        };
        let mut applications = Restarts::default();
        applications.look([of("shop", 0, 0)], 1_000);
        applications.look([of("shop", 0, 1)], 2_000);
        let many = 3 * u32::try_from(MAX_RESTARTS).unwrap();
        applications.look((0..many).map(|nth| of("noisy", nth, 1)), 3_000);
        let all = applications.all();
        assert_eq!((all.len(), &*all[0].namespace), (MAX_RESTARTS, "shop"));
        assert_eq!(all.last().unwrap().instance, format!("web-{}", many - 1));
    }

    #[test]
    fn a_process_that_ends_in_another_way_has_ended_again() {
        let mut applications = Restarts::default();
        let mut look = |ended: Option<&str>, times| {
            applications.look([ends(times, ended)], 1_000);
            applications.all().iter().map(|one| one.times).sum::<u32>()
        };
        assert_eq!(look(None, 0), 0);
        assert_eq!(look(Some("exited with 3"), 1), 1);
        assert_eq!(look(Some("exited with 3"), 1), 1, "it runs again");
        assert_eq!(look(Some("exited with 3"), 3), 3);
        assert_eq!(look(Some("was ended by SIGKILL"), 1), 4);
        assert_eq!(look(None, 0), 4, "it has done its work");
    }
}
