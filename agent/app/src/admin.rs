//! The admin server: `/metrics`, `/ready`, `/live`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::Request;
use hyper::body::Incoming;
use leno_program::{Answer, answer_pages};

use crate::keeper::Keeper;

/// What is shown.
pub(crate) struct Admin {
    pub(crate) keeper: Arc<Keeper>,
    /// Whether the plugin is to be installed.
    pub(crate) installs: bool,
}

impl Admin {
    /// Why the agent cannot do its work, if it cannot.
    fn not_ready(&self) -> Option<&'static str> {
        let metrics = &self.keeper.metrics;
        if self.installs && !metrics.installed.load(Ordering::Relaxed) {
            Some("the CNI plugin is not installed: see the log")
        } else if !metrics.followed.load(Ordering::Relaxed) {
            Some("the node's pods are not known from the API server: see the log")
        } else if !metrics.reconciled.load(Ordering::Relaxed) {
            Some(
                "pods that ran before the agent are still being captured, or tried again: see the log",
            )
        } else {
            None
        }
    }

    pub(crate) fn answer(&self, request: &Request<Incoming>) -> Answer {
        let metrics = || self.keeper.metrics.render(&self.keeper.captured());
        answer_pages(request, || self.not_ready(), metrics)
    }
}
