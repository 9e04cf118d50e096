//! The admin server. It serves `/metrics`, `/ready` and `/live`, and `/identity` to clients on loopback.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use leno_crypto::TlsProfile;
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse, Family, SocketPair, answer_pages, respond};
use leno_serve::PlaneState;

use crate::refused;
use crate::reload::Reloads;
use crate::rotation::RotationReport;

/// Answers requests for the pages of the admin server.
pub(crate) struct Admin {
    pub(crate) state: Arc<PlaneState>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) identity: Arc<RotationReport>,
    /// Append the metrics of further parts to `/metrics`.
    pub(crate) more: Vec<Render>,
    /// Append the lines that `/ready?verbose` adds to `/ready`.
    pub(crate) details: Vec<Render>,
}

/// Appends the metrics, or details, of one part of the control plane.
pub(crate) type Render = Box<dyn Fn(&mut String) + Send + Sync>;

impl Admin {
    /// Why proxies should not connect to this replica; `None` if they may.
    fn not_ready(&self) -> Option<&'static str> {
        if self.reloads.ending() {
            Some("this replica is ending")
        } else if self.reloads.loaded() {
            None
        } else {
            Some("the documents have not been read yet")
        }
    }

    pub(crate) fn answer(&self, request: &Request<Incoming>, ends: SocketPair) -> AdminResponse {
        if request.uri().path() == "/identity" && request.method() == Method::GET {
            return self.identity(ends);
        }
        let verbose = request.uri().query() == Some("verbose");
        if verbose && request.uri().path() == "/ready" && request.method() == Method::GET {
            return self.verbose();
        }
        answer_pages(request, || self.not_ready(), || self.metrics())
    }

    /// The state of signing and trust. It names workloads, so it is shown only to clients on this machine.
    fn identity(&self, ends: SocketPair) -> AdminResponse {
        if !ends.client.ip().to_canonical().is_loopback() {
            return respond(StatusCode::FORBIDDEN, TEXT, "this page is served only on loopback\n");
        }
        let report = serde_json::to_vec(&self.identity.report());
        respond(StatusCode::OK, JSON, report.expect("texts and numbers are always JSON"))
    }

    /// The page `/ready?verbose`. In a cluster, it adds a line for each watched kind of object.
    fn verbose(&self) -> AdminResponse {
        let (status, first) = match self.not_ready() {
            None => (StatusCode::OK, "ready"),
            Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        };
        let mut text = format!("{first}\n");
        self.details.iter().for_each(|render| render(&mut text));
        respond(status, TEXT, text)
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        self.state.render_metrics(&mut text);
        refused::render(&self.state, &mut text);
        self.reloads.render(&mut text);
        let help = "Whether TLS is of the FIPS module (--tls-profile fips).";
        let fips = leno_crypto::profile() == TlsProfile::Fips;
        Family::gauge(&mut text, "leno_control_tls_fips", help).sample(&[], u8::from(fips));
        self.more.iter().for_each(|render| render(&mut text));
        text
    }
}
