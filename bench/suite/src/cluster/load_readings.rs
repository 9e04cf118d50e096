//! The readings of a measurement during the load and after it, and the marks for figures that are
//! missing.
//!
//! ```text
//! before ── one reading a second ── end of load ── reading ── list containers ── reading of new ones
//!                                                  late: a mark
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::watcher_client::{Answers, CounterQuery};
use crate::interrupt::Interrupted;
use crate::measurement::usage::{Component, Sample};
use crate::record::{Mark, MarkKind};

/// How much later than the load's end a report may be: resources used until then count as well.
const LATE: Duration = Duration::from_secs(5);

/// The readings during the load.
#[derive(Debug, Default)]
pub(super) struct LoadReadings {
    /// The containers to read: all that were running at any of the listings.
    pub(super) watched: Vec<Component>,
    /// The nodes whose whole kernels are read before the load and after it.
    whole: BTreeSet<String>,
    pub(super) samples: Vec<Sample>,
    /// The nodes whose watchers did not answer: how often, and the last reason.
    silent: BTreeMap<String, (usize, String)>,
    /// How often the containers could not be listed under load, and the last reason.
    unmet: Option<(usize, String)>,
    /// Why the containers could not be listed after the load; `None` if they were.
    unlisted: Option<String>,
}

/// The reading after the load.
#[derive(Debug)]
pub(super) struct AfterLoad {
    pub(super) sample: Sample,
    /// The time at which the load ended.
    ended: Instant,
    /// The nodes whose watchers did not answer, and why.
    silent: BTreeMap<String, String>,
    /// When each answer arrived.
    came: BTreeMap<String, Instant>,
}

impl LoadReadings {
    pub(super) fn of(watched: Vec<Component>, whole: BTreeSet<String>) -> Self {
        Self { watched, whole, ..Self::default() }
    }

    pub(super) fn add(&mut self, elapsed: Duration, Answers { reading, silent, .. }: Answers) {
        self.samples.push(Sample { elapsed, reading, is_complete: silent.is_empty() });
        for (node, why) in silent {
            let (times, last) = self.silent.entry(node).or_default();
            *times += 1;
            *last = why;
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
        let (times, last) = self.unmet.get_or_insert_default();
        *times += 1;
        *last = why;
    }

    /// Reads the counters after the load. The known containers are first, because everything they
    /// use before the reading counts as well. Containers that have started since the last listing
    /// follow.
    pub(super) async fn end(
        &mut self,
        listed: impl Future<Output = Result<Vec<Component>>>,
        look: impl AsyncFn(CounterQuery<'_>) -> Result<Answers>,
    ) -> Result<Answers> {
        let mut answers = look(CounterQuery { watched: &self.watched, whole: &self.whole }).await?;
        let new = match listed.await {
            Ok(now) => self.meet(now),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                self.unlisted = Some(format!("{error:#}"));
                &[]
            }
        };
        if !new.is_empty() {
            answers.extend(look(CounterQuery { watched: new, whole: &BTreeSet::new() }).await?);
        }
        Ok(answers)
    }

    /// The marks for figures that are missing.
    pub(super) fn marks(&self, after: &AfterLoad) -> Vec<Mark> {
        let of = self.samples.len();
        let said = self
            .silent
            .iter()
            .map(|(node, (times, why))| format!("{times} of {of} times of node {node}: {why}"));
        let unmet = self.unmet.iter().map(|(times, why)| {
            format!(
                "{times} of {of} times the pods that had started meanwhile were not known: {why}"
            )
        });
        let said: Vec<String> = said.chain(unmet).collect();
        let silent = (!said.is_empty())
            .then(|| Mark { kind: MarkKind::WatcherSilent, why: said.join("; ") });
        let missing = after.silent.iter().map(|(node, why)| {
            format!("the resources used on node {node} until the end are not known: {why}")
        });
        let late = after.late().map(|(node, late)| {
            let late = late.as_secs();
            format!("what was used on node {node} is that of {late} s after the load as well")
        });
        let unlisted = self.unlisted.iter().map(|why| format!("who ran at the end: {why}"));
        let unseen = !self.samples.iter().any(|one| one.is_complete);
        let unseen = unseen.then(|| "memory under load, and connections".to_owned());
        let missing: Vec<String> = missing.chain(late).chain(unlisted).chain(unseen).collect();
        let missing = (!missing.is_empty())
            .then(|| Mark { kind: MarkKind::FiguresMissing, why: missing.join("; ") });
        silent.into_iter().chain(missing).collect()
    }
}

impl AfterLoad {
    pub(super) fn of(elapsed: Duration, ended: Instant, answers: Answers) -> Self {
        let Answers { reading, silent, came } = answers;
        let sample = Sample { elapsed, reading, is_complete: silent.is_empty() };
        Self { sample, ended, silent, came }
    }

    /// The nodes whose reports came late, and by how much.
    fn late(&self) -> impl Iterator<Item = (&str, Duration)> {
        let late = self.came.iter().map(|(node, at)| (&**node, *at - self.ended));
        late.filter(|(_, late)| *late > LATE)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::measurement::usage::Role;

    #[test]
    fn failed_listings_under_load_are_a_mark() {
        let mut seen = LoadReadings::default();
        seen.add(Duration::from_secs(1), Answers::default());
        seen.unmet("it is away".into());
        let marks = seen.marks(&after(Answers::default()));
        let why = "1 of 1 times the pods that had started meanwhile were not known: it is away";
        assert_eq!(marks, [Mark { kind: MarkKind::WatcherSilent, why: why.to_owned() }]);
    }

    fn complete(seen: &LoadReadings) -> usize {
        seen.samples.iter().filter(|one| one.is_complete).count()
    }

    fn after(answers: Answers) -> AfterLoad {
        AfterLoad::of(Duration::from_secs(3), Instant::now(), answers)
    }

    #[test]
    fn a_silent_watcher_under_load_is_a_mark() {
        let mut seen = LoadReadings::default();
        let good = after(Answers::default());
        seen.add(Duration::from_secs(1), Answers::default());
        assert_eq!((seen.marks(&good), complete(&seen)), (vec![], 1));
        let silent = BTreeMap::from([("n2".to_owned(), "no answer".to_owned())]);
        seen.add(Duration::from_secs(2), Answers { silent: silent.clone(), ..Answers::default() });
        let marks = seen.marks(&good);
        let why = "1 of 2 times of node n2: no answer";
        assert_eq!(marks, [Mark { kind: MarkKind::WatcherSilent, why: why.to_owned() }]);
        assert!(!marks[0].kind.invalidates());
        assert_eq!(complete(&seen), 1, "a sum of a part would be a dip");
        // The reading after the load cannot be replaced by another one.
        let marks = seen.marks(&after(Answers { silent, ..Answers::default() }));
        assert_eq!((marks.len(), marks[1].kind), (2, MarkKind::FiguresMissing));
        assert!(marks[1].kind.invalidates() && marks[1].why.contains("on node n2"), "{marks:?}");
    }

    #[test]
    fn a_late_reading_after_the_load_is_a_mark() {
        let mut seen = LoadReadings::default();
        seen.add(Duration::from_secs(1), Answers::default());
        let mut after = after(Answers::default());
        let came = |node: &str, ms| (node.to_owned(), after.ended + Duration::from_millis(ms));
        let all = [came("n1", 200), came("n2", 41_500), came("n3", 5000)];
        after.came = all.into();
        let why = "what was used on node n2 is that of 41 s after the load as well".to_owned();
        assert_eq!(seen.marks(&after), [Mark { kind: MarkKind::FiguresMissing, why }]);
    }

    #[tokio::test]
    async fn known_containers_are_read_before_new_ones_are_listed() {
        let container = |id: &str| Component {
            role: Role::Control,
            name: format!("leno-system/{id}/controller"),
            node: "n1".into(),
            id: id.into(),
        };
        let (old, new) = (container("old"), container("new"));
        let done = std::cell::RefCell::new(Vec::new());
        let look = async |what: CounterQuery<'_>| {
            let ids: Vec<&str> = what.watched.iter().map(|one| &*one.id).collect();
            done.borrow_mut().push(format!("look {} {}", ids.join(" "), what.whole.len()));
            Ok(Answers::default())
        };
        let whole = BTreeSet::from(["n1".to_owned()]);
        let mut seen = LoadReadings::of(vec![old.clone()], whole);
        let list = async || {
            done.borrow_mut().push("list".to_owned());
            Ok(vec![old.clone(), new.clone()])
        };
        seen.end(list(), look).await.unwrap();
        assert_eq!(done.take(), ["look old 1", "list", "look new 0"]);
        seen.end(list(), look).await.unwrap();
        assert_eq!(done.take(), ["look old new 1", "list"], "no container is new");
        seen.end(async { bail!("it is away") }, look).await.unwrap();
        assert_eq!((done.take().len(), seen.unlisted.as_deref()), (1, Some("it is away")));
        let interrupted = seen.end(async { Err(Interrupted.into()) }, look).await.unwrap_err();
        assert!(interrupted.is::<Interrupted>(), "{interrupted}");
    }

    #[test]
    fn a_measurement_without_complete_samples_has_missing_figures() {
        let seen = LoadReadings { unlisted: Some("it is away".into()), ..LoadReadings::default() };
        let marks = seen.marks(&after(Answers::default()));
        let why = "who ran at the end: it is away; memory under load, and connections";
        assert_eq!(marks, [Mark { kind: MarkKind::FiguresMissing, why: why.to_owned() }]);
    }
}
