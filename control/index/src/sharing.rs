//! Keeps equal parts of rows and values in memory only once.
//!
//! Replicas of a workload have the same labels, identity and policies, and their names are next to each other in
//! the order of names. So a new row takes over equal parts from the rows before and after it. This finds most
//! equal parts, and needs no table of all parts, from which unused parts would have to be removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_types::InstanceName;
use leno_types::mesh::{ServerPolicy, Topology};

use crate::rows::{EndpointRow, InstanceRow};

/// A value that can share equal parts with another value.
pub(crate) trait ShareParts {
    /// Replaces parts of this value by equal parts of `other`.
    fn share(&mut self, other: &Self);
}

/// Makes a value share parts with the entries before and after `key` in a table.
pub(crate) fn share_with_neighbours<'a, V, S: ShareParts + 'a>(
    table: &'a BTreeMap<InstanceName, V>,
    (key, value): (&mut InstanceName, &mut S),
    of: impl Fn(&'a V) -> Option<&'a S>,
) {
    let before = table.range::<InstanceName, _>(..&*key).next_back();
    let after = table.range::<InstanceName, _>(&*key..).next();
    for (name, other) in before.into_iter().chain(after) {
        key.share(name);
        if let Some(other) = of(other) {
            value.share(other);
        }
    }
}

/// Replaces `own` by `other` if both are equal.
fn share_equal<T: Clone + PartialEq>(own: &mut T, other: &T) {
    if own == other {
        own.clone_from(other);
    }
}

impl<T: ?Sized + Eq> ShareParts for Arc<T> {
    fn share(&mut self, other: &Self) {
        share_equal(self, other);
    }
}

impl ShareParts for InstanceName {
    fn share(&mut self, other: &Self) {
        self.namespace.share(&other.namespace);
        self.name.share(&other.name);
    }
}

impl ShareParts for Topology {
    fn share(&mut self, other: &Self) {
        self.zone.share(&other.zone);
        self.node.share(&other.node);
    }
}

impl ShareParts for InstanceRow {
    fn share(&mut self, other: &Self) {
        self.labels.share(&other.labels);
        self.place.share(&other.place);
        share_equal(&mut self.identity, &other.identity);
        share_equal(&mut self.ports, &other.ports);
    }
}

impl ShareParts for EndpointRow {
    fn share(&mut self, other: &Self) {
        self.place.share(&other.place);
        if let (Some(own), Some(other)) = (&mut self.instance, &other.instance) {
            own.namespace.share(&other.namespace);
        }
    }
}

impl ShareParts for ServerPolicy {
    fn share(&mut self, other: &Self) {
        self.place.share(&other.place);
        share_equal(&mut self.limits, &other.limits);
        share_equal(&mut self.authorization, &other.authorization);
    }
}
