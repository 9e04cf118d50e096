//! The readings of a measurement during the load and after it, and the marks for figures that are missing.
//!
//! ```text
//! before ── one reading a second ── end of load ── reading ── list containers ── reading of new ones
//!                                                  late: a mark
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::watchers::{Answers, CounterQuery};
use crate::measurement::usage::{Component, Sample};
use crate::record::{Mark, MarkKind};

/// How much later than the end of the load a reading may be. Resources that are used until then are counted, too.
const LATE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct LoadReadings {
    /// The containers to read: all that were running when containers were listed, each of the times.
    pub(super) watched: Vec<Component>,
    /// The nodes whose whole kernels are read before the load and after it.
    whole: BTreeSet<String>,
    pub(super) samples: Vec<Sample>,
    /// Readings under load that failed: what they should have read, how often, and the last reason.
    failed: BTreeMap<String, (usize, String)>,
    missing: Vec<String>,
}

impl LoadReadings {
    pub(super) fn of(watched: Vec<Component>, whole: BTreeSet<String>) -> Self {
        Self { watched, whole, ..Self::default() }
    }

    pub(super) fn add(&mut self, elapsed: Duration, Answers { reading, silent }: Answers) {
        self.samples.push(Sample { elapsed, reading, is_complete: silent.is_empty() });
        for (node, why) in silent {
            self.failed(format!("of node {node}"), why);
        }
    }

    /// Adds the containers in this list that are new, and returns them.
    pub(super) fn meet(&mut self, now: Vec<Component>) -> &[Component] {
        let known = self.watched.len();
        let new: Vec<Component> =
            now.into_iter().filter(|one| !self.watched.contains(one)).collect();
        self.watched.extend(new);
        &self.watched[known..]
    }

    /// Records that the containers could not be listed under load.
    pub(super) fn unmet(&mut self, why: String) {
        self.failed("the pods that had started meanwhile were not known".to_owned(), why);
    }

    fn failed(&mut self, what: String, why: String) {
        let (times, last) = self.failed.entry(what).or_default();
        *times += 1;
        *last = why;
    }

    /// Reads the counters after the load. The known containers are read first, because everything that they use before
    /// the reading is counted, too. Containers that have started since the last listing follow.
    pub(super) async fn end(
        &mut self,
        listed: impl Future<Output = Result<Vec<Component>>>,
        read: impl AsyncFn(CounterQuery<'_>) -> Answers,
    ) -> Answers {
        let begun = Instant::now();
        let mut answers = read(CounterQuery { watched: &self.watched, whole: &self.whole }).await;
        let new = match listed.await {
            Ok(now) => self.meet(now),
            Err(error) => {
                self.missing.push(format!("the containers that ran at the end: {error:#}"));
                &[]
            }
        };
        if !new.is_empty() {
            let more = read(CounterQuery { watched: new, whole: &BTreeSet::new() }).await;
            answers.reading.extend(more.reading);
            answers.silent.extend(more.silent);
            if begun.elapsed() > LATE {
                let late = begun.elapsed().as_secs();
                self.missing.push(format!("new containers were read {late} s after the load"));
            }
        }
        for (node, why) in &answers.silent {
            let what = format!("the resources used on node {node} until the end are not known");
            self.missing.push(format!("{what}: {why}"));
        }
        answers
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        let of = self.samples.len();
        let failed = self.failed.iter();
        let failed =
            failed.map(|(what, (times, why))| format!("{times} of {of} times {what}: {why}"));
        let mut missing = self.missing.clone();
        if !self.samples.iter().any(|one| one.is_complete) {
            missing.push("memory under load, and connections".to_owned());
        }
        let silent = Mark::of_all(MarkKind::WatcherSilent, &failed.collect::<Vec<_>>());
        silent.into_iter().chain(Mark::of_all(MarkKind::FiguresMissing, &missing)).collect()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::measurement::usage::Role;

    fn silent() -> Answers {
        let silent = BTreeMap::from([("n2".to_owned(), "no answer".to_owned())]);
        Answers { silent, ..Answers::default() }
    }

    #[test]
    fn readings_under_load_that_fail_are_a_mark() {
        let mut seen = LoadReadings::default();
        seen.add(Duration::from_secs(1), Answers::default());
        assert_eq!(seen.marks(), []);
        seen.add(Duration::from_secs(2), silent());
        seen.unmet("it is away".into());
        let marks = seen.marks();
        let why = "1 of 2 times of node n2: no answer; \
                   1 of 2 times the pods that had started meanwhile were not known: it is away";
        assert_eq!(marks, [Mark::new(MarkKind::WatcherSilent, why)]);
        assert!(!marks[0].kind.invalidates());
        let complete = seen.samples.iter().filter(|one| one.is_complete);
        assert_eq!(complete.count(), 1, "a sum of a part would be a dip");
    }

    #[tokio::test(start_paused = true)]
    async fn known_containers_are_read_before_new_ones_are_listed() {
        let container = |id: &str| Component {
            role: Role::Control,
            name: format!("leno-system/{id}/controller"),
            node: "n1".into(),
            id: id.into(),
        };
        let (old, new) = (container("old"), container("new"));
        let done = std::cell::RefCell::new(Vec::new());
        let read = async |what: CounterQuery<'_>| {
            let ids: Vec<&str> = what.watched.iter().map(|one| &*one.id).collect();
            done.borrow_mut().push(format!("read {} {}", ids.join(" "), what.whole.len()));
            Answers::default()
        };
        let mut seen = LoadReadings::of(vec![old.clone()], BTreeSet::from(["n1".to_owned()]));
        seen.add(Duration::from_secs(1), Answers::default());
        let list = async || {
            done.borrow_mut().push("list".to_owned());
            Ok(vec![old.clone(), new.clone()])
        };
        seen.end(list(), read).await;
        assert_eq!(done.take(), ["read old 1", "list", "read new 0"]);
        seen.end(list(), read).await;
        assert_eq!(done.take(), ["read old new 1", "list"], "no container is new");
        assert_eq!(seen.marks(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn figures_that_are_missing_after_the_load_are_a_mark() {
        let why = |seen: &LoadReadings| match &seen.marks()[..] {
            [mark] if mark.kind == MarkKind::FiguresMissing => mark.why.clone(),
            marks => panic!("{marks:?}"),
        };
        let read = async |_: CounterQuery<'_>| silent();
        let mut seen = LoadReadings::default();
        seen.end(async { bail!("it is away") }, read).await;
        assert_eq!(
            why(&seen),
            "the containers that ran at the end: it is away; the resources used on node n2 until the end are not \
             known: no answer; memory under load, and connections"
        );
        let late = async {
            tokio::time::sleep(LATE * 2).await;
            let (name, node) = ("leno-system/new/controller".into(), "n1".into());
            Ok(vec![Component { role: Role::Control, name, node, id: "new".into() }])
        };
        let mut seen = LoadReadings::default();
        seen.add(Duration::from_secs(1), Answers::default());
        seen.end(late, async |_: CounterQuery<'_>| Answers::default()).await;
        assert_eq!(why(&seen), "new containers were read 10 s after the load");
    }
}
