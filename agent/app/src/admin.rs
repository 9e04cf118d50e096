//! The admin server: `/metrics`, `/ready`, `/live`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use leno_program::content::{PROMETHEUS, TEXT};
use leno_program::{Answer, refuse_method, respond};

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
        } else {
            None
        }
    }

    pub(crate) fn answer(&self, request: &Request<Incoming>) -> Answer {
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return refused;
        }
        match request.uri().path() {
            "/live" => respond(StatusCode::OK, TEXT, "live\n"),
            "/ready" => match self.not_ready() {
                None => respond(StatusCode::OK, TEXT, "ready\n"),
                Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
            },
            "/metrics" => {
                let text = self.keeper.metrics.render(&self.keeper.captured());
                respond(StatusCode::OK, PROMETHEUS, text)
            }
            _ => respond(StatusCode::NOT_FOUND, TEXT, "use /metrics, /ready or /live\n"),
        }
    }
}
