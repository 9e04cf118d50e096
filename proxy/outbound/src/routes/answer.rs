//! Answers that the mesh makes itself, for routes.

use std::net::SocketAddr;

use leno_http::{Answer, HeaderLine};
use leno_policy::Refusal;

use crate::backends::UnreachedEndpoint;

/// An answer in place of a backend's.
#[derive(Debug)]
pub(crate) struct MeshAnswer {
    pub(crate) status: u16,
    /// For metrics and logs, where it is an error.
    pub(crate) error: Option<&'static str>,
    /// Whether the client's connection ends with it, so that the client asks for the address again.
    pub(crate) last: bool,
    /// The `leno-error` header: the cause, and what of which route was at fault.
    shown: Option<String>,
    headers: Vec<HeaderLine>,
}

impl MeshAnswer {
    /// An error that no rule makes.
    pub(crate) fn error(status: u16, cause: &'static str) -> Self {
        Self {
            status,
            error: Some(cause),
            shown: Some(cause.to_owned()),
            last: false,
            headers: Vec::new(),
        }
    }

    /// The same, after which the client's connection ends.
    pub(crate) fn last(self) -> Self {
        Self { last: true, ..self }
    }

    /// The answer to a CONNECT that no rule relays.
    pub(crate) fn no_tunnel() -> Self {
        Self::error(501, "connect")
    }

    /// A request to an address that the mesh does not know, where policy refuses that.
    pub(crate) fn egress_denied(cause: &'static str, destination: SocketAddr) -> Self {
        let shown = Some(format!("{cause}; destination=\"{destination}\""));
        Self { status: 403, error: Some(cause), shown, last: false, headers: Vec::new() }
    }

    /// A request that no endpoint was left for, with the one that was not reached last.
    pub(crate) fn unreached(cause: &'static str, last: &UnreachedEndpoint) -> Self {
        Self { shown: Some(format!("{cause}; {last}")), ..Self::error(503, cause) }
    }

    /// An error that routes make.
    pub(super) fn refused(refusal: &Refusal<'_>) -> Self {
        Self {
            status: refusal.status,
            error: Some(refusal.cause),
            shown: Some(refusal.to_string()),
            last: false,
            headers: Vec::new(),
        }
    }

    /// What a route wants to be answered. A header that cannot be sent is left out: routes were
    /// checked for it, requests may hold bytes that no header may.
    pub(super) fn with(status: u16, headers: Vec<(&'static str, Vec<u8>)>) -> Self {
        let line = |(name, value): (&str, Vec<u8>)| HeaderLine::new(name, &value).ok();
        let headers = headers.into_iter().filter_map(line).collect();
        Self { status, error: None, shown: None, last: false, headers }
    }

    /// As it is sent.
    pub(crate) fn answer(&self) -> Answer<'_> {
        Answer {
            status: self.status,
            cause: self.shown.as_deref(),
            headers: &self.headers,
            content_type: "text/plain; charset=utf-8",
            body: b"",
        }
    }
}
