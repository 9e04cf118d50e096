//! The admin server: `/metrics`, `/ready`, `/live`.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use leno_program::{Answer, answer_pages};
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
        answer_pages(request, || self.not_ready(), || self.metrics())
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        self.state.render_metrics(&mut text);
        self.reloads.render(&mut text);
        self.more.iter().for_each(|render| render(&mut text));
        text
    }
}
