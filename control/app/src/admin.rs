//! The admin server: `/metrics`, `/ready`, `/live`.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use leno_program::content::{PROMETHEUS, TEXT};
use leno_program::{Answer, refuse_method, respond};
use leno_serve::State;

use crate::reload::Reloads;

/// What is shown.
pub(crate) struct Admin {
    pub(crate) state: Arc<State>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) more: Vec<Render>,
}

/// Appends metrics of one part.
pub(crate) type Render = Box<dyn Fn(&mut String) + Send + Sync>;

impl Admin {
    /// Why nobody should be sent here, if so.
    fn not_ready(&self) -> Option<&'static str> {
        if self.reloads.ending() {
            Some("this replica ends")
        } else if self.reloads.loaded() {
            None
        } else {
            Some("the documents have not been read yet")
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
                let mut text = String::new();
                self.state.render_metrics(&mut text);
                self.reloads.render(&mut text);
                self.more.iter().for_each(|render| render(&mut text));
                respond(StatusCode::OK, PROMETHEUS, text)
            }
            _ => respond(StatusCode::NOT_FOUND, TEXT, "use /metrics, /ready or /live\n"),
        }
    }
}
