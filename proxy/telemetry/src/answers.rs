//! Counts how requests were answered: by status, by `grpc-status`, and by cause if the mesh itself failed them.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// How many statuses are counted separately. Further statuses count as 0. HTTP defines about 60.
const MAX_STATUSES: usize = 80;
/// How many gRPC statuses are counted separately. Further ones count as 2 (UNKNOWN). gRPC defines 17.
const MAX_GRPC_STATUSES: usize = 17;
/// How many causes are counted separately. Causes are constants of the code, so this number is never reached.
const MAX_CAUSES: usize = 64;

/// The counts of an [`Edge`](crate::Edge), or of a rule of a route ([`RouteCounter`](crate::RouteCounter)), on one
/// worker.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    statuses: RefCell<Vec<(u16, u64)>>,
    grpc: RefCell<Vec<(u8, u64)>>,
    /// gRPC calls whose HTTP status, with which they are counted in `statuses`, is not 200: calls that the mesh has
    /// failed.
    failed_calls: RefCell<Vec<(u16, u64)>>,
    errors: RefCell<Vec<(&'static str, u64)>>,
}

/// A copy of [`Answers`], or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerCounts {
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) grpc: BTreeMap<u8, u64>,
    pub(crate) failed_calls: BTreeMap<u16, u64>,
    pub(crate) errors: BTreeMap<&'static str, u64>,
}

impl Answers {
    pub(crate) fn status(&self, status: u16) {
        count(&mut self.statuses.borrow_mut(), status, 0, MAX_STATUSES);
    }

    /// Counts a gRPC call by its gRPC status. The caller also counts the `http` status with [`Self::status`].
    pub(crate) fn grpc(&self, status: u8, http: u16) {
        count(&mut self.grpc.borrow_mut(), status, 2, MAX_GRPC_STATUSES);
        if http != 200 {
            count(&mut self.failed_calls.borrow_mut(), http, 0, MAX_STATUSES);
        }
    }

    pub(crate) fn error(&self, cause: &'static str) {
        count(&mut self.errors.borrow_mut(), cause, "other", MAX_CAUSES);
    }

    pub(crate) fn counts(&self) -> AnswerCounts {
        AnswerCounts {
            statuses: self.statuses.borrow().iter().copied().collect(),
            grpc: self.grpc.borrow().iter().copied().collect(),
            failed_calls: self.failed_calls.borrow().iter().copied().collect(),
            errors: self.errors.borrow().iter().copied().collect(),
        }
    }
}

impl AnswerCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        add(&mut self.statuses, &other.statuses);
        add(&mut self.grpc, &other.grpc);
        add(&mut self.failed_calls, &other.failed_calls);
        add(&mut self.errors, &other.errors);
    }
}

fn add<K: Copy + Ord>(own: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>) {
    for (key, more) in other {
        let count = own.entry(*key).or_default();
        *count = count.wrapping_add(*more);
    }
}

/// Adds one to the entry of `key`, or to that of `other` if there are already `bound` entries and none is for `key`.
/// The list is searched, because an edge has only a few statuses.
fn count<K: PartialEq>(entries: &mut Vec<(K, u64)>, key: K, other: K, bound: usize) {
    let key = if entries.len() < bound || entries.iter().any(|entry| entry.0 == key) {
        key
    } else {
        other
    };
    match entries.iter_mut().find(|entry| entry.0 == key) {
        Some(entry) => entry.1 = entry.1.wrapping_add(1),
        None => entries.push((key, 1)),
    }
}
