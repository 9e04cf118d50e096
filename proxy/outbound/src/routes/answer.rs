//! Answers that the mesh itself sends to clients.

use std::net::SocketAddr;

use leno_http::{Answer, HeaderLine};
use leno_policy::Refusal;

use crate::backends::UnreachedEndpoint;

/// An answer that the proxy sends instead of a backend's.
#[derive(Debug)]
pub(crate) struct MeshAnswer {
    pub(crate) status: u16,
    /// The label in metrics and logs, if the answer is an error.
    pub(crate) error: Option<&'static str>,
    /// Whether the client's connection is closed after the answer, so that the client looks the address up again.
    pub(crate) last: bool,
    /// The value of `leno-error`: the cause, and details such as the wrong part of a route or the address that was
    /// dialled.
    shown: Option<String>,
    headers: Vec<HeaderLine>,
}

impl MeshAnswer {
    /// An error that does not come from a rule.
    pub(crate) fn error(status: u16, cause: &'static str) -> Self {
        Self {
            status,
            error: Some(cause),
            shown: Some(cause.to_owned()),
            last: false,
            headers: Vec::new(),
        }
    }

    /// The same answer, after which the client's connection is closed.
    pub(crate) fn last(self) -> Self {
        Self { last: true, ..self }
    }

    /// The answer to a CONNECT if no rule relays it.
    pub(crate) fn no_tunnel() -> Self {
        Self::error(501, "connect")
    }

    /// The answer to a request to an address outside of the mesh if policy denies egress.
    pub(crate) fn egress_denied(cause: &'static str, destination: SocketAddr) -> Self {
        let shown = Some(format!("{cause}; destination=\"{destination}\""));
        Self { status: 403, error: Some(cause), shown, last: false, headers: Vec::new() }
    }

    /// The answer to a request if there is no endpoint left to try. It names the last endpoint that was not reached.
    pub(crate) fn unreached(cause: &'static str, last: &UnreachedEndpoint) -> Self {
        Self { shown: Some(format!("{cause}; {last}")), ..Self::error(503, cause) }
    }

    /// The answer to a request that routes refuse.
    pub(super) fn refused(refusal: &Refusal<'_>) -> Self {
        Self {
            status: refusal.status,
            error: Some(refusal.cause),
            shown: Some(refusal.to_string()),
            last: false,
            headers: Vec::new(),
        }
    }

    /// An answer with a status and headers that a route sets. A header that cannot be sent is left out: the headers of
    /// routes were checked, but parts of requests may contain bytes that no header may have.
    pub(super) fn with(status: u16, headers: Vec<(&'static str, Vec<u8>)>) -> Self {
        let line = |(name, value): (&str, Vec<u8>)| HeaderLine::new(name, &value).ok();
        let headers = headers.into_iter().filter_map(line).collect();
        Self { status, error: None, shown: None, last: false, headers }
    }

    /// The answer in the form that the HTTP engine sends.
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
