//! One rule of a route, and the requests that have followed it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_requests::Histogram;

use crate::answers::{AnswerCounts, Answers};
use crate::native::{NativeCounts, NativeHistogram};
use crate::registry::{Outcome, Registry};

/// The largest number of rules of routes that a worker counts separately, including rules that no longer exist. A rule
/// has about 40 series; a workload calls tens of services with a few rules each.
pub const MAX_ROUTES: usize = 128;

/// A service, and a rule of a route that is attached to the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteLabels {
    /// The service that the client called.
    pub service: Arc<str>,
    /// The service's namespace.
    pub service_namespace: Arc<str>,
    /// The kind, the namespace and the name of the route: `HTTPRoute shop/cart`. Empty for requests that match no rule.
    pub route: Box<str>,
    /// The name of the rule, or its position in the route. Empty for requests that match no rule.
    pub rule: Box<str>,
}

/// A rule of a route that requests may follow. Its counter is created by the first such request, so that rules without
/// requests do not count against the limit.
#[derive(Debug)]
pub struct CountedRule {
    labels: RouteLabels,
    counter: OnceCell<Rc<RouteCounter>>,
}

/// Counts the requests that have followed one rule, on one worker of the client's proxy.
#[derive(Debug, Default)]
pub struct RouteCounter {
    answers: Answers,
    durations: RefCell<Histogram>,
    native: NativeHistogram,
    retries: Cell<u64>,
}

/// The counters of one worker, by service and rule.
pub(crate) type RouteCounters = HashMap<RouteLabels, Rc<RouteCounter>>;

/// A copy of a [`RouteCounter`], or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteCounts {
    pub(crate) answers: AnswerCounts,
    pub(crate) durations: Histogram,
    pub(crate) native: NativeCounts,
    pub(crate) retries: u64,
}

impl RouteLabels {
    /// The labels for rules beyond [`MAX_ROUTES`].
    pub(crate) fn other() -> Self {
        let (service, service_namespace) = ("other".into(), "".into());
        Self { service, service_namespace, route: "other".into(), rule: "".into() }
    }
}

impl CountedRule {
    /// A rule that no request has followed yet.
    #[must_use]
    pub fn new(labels: RouteLabels) -> Self {
        Self { labels, counter: OnceCell::new() }
    }

    /// The counter of the rule. It is looked up for the first request.
    pub fn counter(&self, registry: &Registry) -> &Rc<RouteCounter> {
        self.counter.get_or_init(|| registry.route(&self.labels))
    }
}

impl RouteCounter {
    pub(crate) fn end(&self, outcome: &Outcome, duration: Duration) {
        self.answers.status(outcome.status);
        if let Some(status) = outcome.grpc_status {
            self.answers.grpc(status, outcome.status);
        }
        if let Some(cause) = outcome.error {
            self.answers.error(cause);
        }
        self.durations.borrow_mut().count_one(duration);
        self.native.count(duration);
    }

    pub(crate) fn error(&self, cause: &'static str) {
        self.answers.error(cause);
    }

    pub(crate) fn retried(&self) {
        self.retries.set(self.retries.get().wrapping_add(1));
    }

    pub(crate) fn counts(&self) -> RouteCounts {
        RouteCounts {
            answers: self.answers.counts(),
            durations: self.durations.borrow().clone(),
            native: self.native.counts(),
            retries: self.retries.get(),
        }
    }
}

impl RouteCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answers.add(&other.answers);
        self.durations.add(&other.durations);
        self.native.add(&other.native);
        self.retries = self.retries.wrapping_add(other.retries);
    }
}
