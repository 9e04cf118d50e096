//! What the watches tell, gathered into updates.

use std::collections::BTreeSet;
use std::mem;

use leno_index::Change;
use leno_resources::ObjectKey;

use super::watch::Event;
use super::{WATCHED, Watched};
use crate::Misread;

/// What is known of the objects of every kind, and what was not told of yet.
#[derive(Debug, Default)]
pub(super) struct Collector {
    kinds: [State; WATCHED.len()],
    pending: Vec<Change>,
    misread: Vec<Misread>,
    /// Whether all kinds have been listed, and told of.
    begun: bool,
}

#[derive(Debug, Default)]
struct State {
    complete: bool,
    known: BTreeSet<ObjectKey>,
    /// Those that are there and not understood, with a last good state or without.
    kept: BTreeSet<ObjectKey>,
    /// While all objects are listed anew: those of the list so far.
    listed: Option<BTreeSet<ObjectKey>>,
}

impl Collector {
    pub(super) fn take(&mut self, nth: usize, event: Event) {
        let (state, pending) = (&mut self.kinds[nth], &mut self.pending);
        match event {
            Event::Begin => state.listed = Some(BTreeSet::new()),
            Event::Put(object) => {
                let key = object.key();
                if let Some(listed) = &mut state.listed {
                    listed.insert(key.clone());
                }
                state.kept.remove(&key);
                state.known.insert(key);
                pending.push(Change::Upsert(object));
            }
            Event::Kept(key, misread) => {
                self.misread.extend(misread);
                if let Some(listed) = &mut state.listed {
                    listed.insert(key.clone());
                }
                state.kept.insert(key);
            }
            Event::Gone(key) => {
                if let Some(listed) = &mut state.listed {
                    listed.remove(&key);
                }
                // Whoever was told of it in any way is told of its end.
                if state.known.remove(&key) | state.kept.remove(&key) {
                    pending.push(Change::Delete(key));
                }
            }
            Event::Complete => {
                if let Some(listed) = state.listed.take() {
                    state.keep_only(&listed, pending);
                }
                state.complete = true;
            }
            Event::NoKind => {
                state.listed = None;
                state.keep_only(&BTreeSet::new(), pending);
                state.complete = true;
            }
        }
    }

    /// How many objects of a kind are known.
    pub(super) fn count(&self, nth: usize) -> usize {
        self.kinds[nth].known.len()
    }

    /// The kinds that have not been listed yet.
    pub(super) fn missing(&self) -> Vec<Watched> {
        let all = WATCHED.into_iter().zip(&self.kinds);
        all.filter(|(_, state)| !state.complete).map(|(watched, _)| watched).collect()
    }

    /// The routes that were not understood and not told of yet: nothing before the first changes.
    pub(super) fn misread(&mut self) -> Vec<Misread> {
        if self.begun { mem::take(&mut self.misread) } else { Vec::new() }
    }

    /// What is to be told now: nothing before all kinds have been listed, then everything, if it is
    /// nothing at all, and then what is different.
    pub(super) fn changes(&mut self) -> Option<Vec<Change>> {
        if !self.begun {
            if !self.missing().is_empty() {
                return None;
            }
            self.begun = true;
            return Some(mem::take(&mut self.pending));
        }
        Some(mem::take(&mut self.pending)).filter(|changes| !changes.is_empty())
    }
}

impl State {
    /// Forgets what is not listed.
    fn keep_only(&mut self, listed: &BTreeSet<ObjectKey>, pending: &mut Vec<Change>) {
        let gone: BTreeSet<_> = self.known.union(&self.kept).collect();
        let gone = gone.into_iter().filter(|key| !listed.contains(key));
        pending.extend(gone.cloned().map(Change::Delete));
        self.known.retain(|key| listed.contains(key));
        self.kept.retain(|key| listed.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_resources::{Kind, Object};

    fn namespace(name: &str) -> Object {
        let mut namespace = leno_resources::Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        Object::Namespace(Box::new(namespace))
    }

    fn all_empty_but_the_first(collector: &mut Collector) {
        for nth in 1..WATCHED.len() {
            collector.take(nth, Event::NoKind);
        }
    }

    #[test]
    fn nothing_is_told_before_every_kind_was_listed() {
        let mut collector = Collector::default();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Put(namespace("a")));
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.changes(), None);
        assert_eq!(collector.missing(), [Watched::Core(Kind::Namespace)]);
        collector.take(0, Event::Complete);
        assert_eq!(collector.changes(), Some(vec![Change::Upsert(namespace("a"))]));
        assert_eq!(collector.changes(), None);
    }

    #[test]
    fn an_empty_cluster_is_told_of_once() {
        let mut collector = Collector::default();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Complete);
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.changes(), Some(vec![]));
        assert_eq!(collector.changes(), None);
    }

    #[test]
    fn what_a_new_list_lacks_is_gone_and_what_was_never_there_is_not() {
        let mut collector = Collector::default();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Put(namespace("a")));
        collector.take(0, Event::Put(namespace("b")));
        collector.take(0, Event::Complete);
        all_empty_but_the_first(&mut collector);
        collector.changes();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Put(namespace("b")));
        collector.take(0, Event::Complete);
        collector.take(0, Event::Gone(namespace("c").key()));
        let expected = [Change::Upsert(namespace("b")), Change::Delete(namespace("a").key())];
        assert_eq!(collector.changes(), Some(expected.to_vec()));
        collector.take(0, Event::NoKind);
        assert_eq!(collector.changes(), Some(vec![Change::Delete(namespace("b").key())]));
    }

    #[test]
    fn what_is_misread_is_told_of_once_and_not_before_the_rest() {
        let mut collector = Collector::default();
        let misread = Misread { route: namespace("a"), reason: "why".to_owned() };
        collector.take(0, Event::Begin);
        collector.take(0, Event::Kept(namespace("a").key(), Some(misread.clone())));
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.misread(), []);
        collector.take(0, Event::Complete);
        collector.changes();
        assert_eq!(collector.misread(), [misread]);
        assert_eq!(collector.misread(), []);
        collector.take(0, Event::Gone(namespace("a").key()));
        assert_eq!(collector.changes(), Some(vec![Change::Delete(namespace("a").key())]));
    }

    #[test]
    fn what_is_not_understood_any_more_stays_as_it_was_also_when_all_is_listed_anew() {
        let mut collector = Collector::default();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Put(namespace("a")));
        collector.take(0, Event::Complete);
        all_empty_but_the_first(&mut collector);
        collector.changes();
        collector.take(0, Event::Begin);
        collector.take(0, Event::Kept(namespace("a").key(), None));
        collector.take(0, Event::Complete);
        assert_eq!(collector.changes(), None);
        assert_eq!(collector.count(0), 1);
    }
}
