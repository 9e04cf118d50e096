//! The failures of an exchange: on which side, for what cause, and whether a retry is possible.

mod report;

use std::io;

use leno_h2::{Code, OpenError, Reset, ResetBy};

use crate::body::BodyError;
use crate::head::HeadError;

pub use report::Report;

/// On which side a failure arose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The client broke the protocol, or its connection ended.
    Client,
    /// The server broke the protocol, or its connection ended.
    Server,
    /// The proxy has ended the exchange: a limit was reached, or the request is no longer permitted.
    Us,
}

impl Party {
    /// A name for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Us => "us",
        }
    }
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A head was refused.
    #[error("refused the head: {0}")]
    Head(HeadError),
    /// The framing of a body was refused.
    #[error("refused the body: {0}")]
    Body(BodyError),
    /// The connection ended before the message did.
    #[error("the connection ended before the message did")]
    Closed,
    /// Reading or writing failed, mostly because the connection was reset.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// A head took longer than [`Limits::head`](crate::Limits::head).
    #[error("the head took too long")]
    HeadTimeout,
    /// The exchange's deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// No response began in time; see [`Order::response_by`](crate::Order::response_by).
    #[error("no response began in time")]
    Late,
    /// An upgraded connection lasted too long; see [`Order::upgraded_for`](crate::Order::upgraded_for).
    #[error("the upgraded connection has lasted as long as it may")]
    Outlasted,
    /// No byte moved for [`Limits::stall`](crate::Limits::stall).
    #[error("nothing moved for too long")]
    Stalled,
    /// The server closed a reused connection with a 408 before it saw the request.
    #[error("the server had given up the idle connection")]
    Stale,
    /// The server sent `101 Switching Protocols` for a protocol that the request does not ask for.
    #[error("the server switched to a protocol that the request does not ask for")]
    UnaskedUpgrade,
    /// The memory budget of the proxy's thread is used up. Nothing of the request was forwarded.
    #[error("no memory is left for another request")]
    MemoryBudget,
    /// The request asked for another protocol over HTTP/2, where the server's answer cannot be expressed (RFC 8441):
    /// the server has continued with HTTP/1, or its handshake was wrong.
    #[error("the server did not take the upgrade")]
    UpgradeIgnored,
    /// A stream was reset, or its connection ended.
    #[error("a stream ended early: {0}")]
    Reset(Reset),
    /// The server's proxy truncated the response, and reports the reason.
    #[error("the server's proxy reports: {}", .0.label())]
    Reported(Report),
    /// No stream could be opened to the server.
    #[error("no stream could be opened: {0}")]
    Open(OpenError),
    /// The request has returned to a proxy that a route had already sent it to.
    #[error("the request has come back: its route is a loop")]
    Loop,
    /// The caller's [`Judge`](crate::Judge) refused the response.
    #[error("the response was refused")]
    Refused,
    /// The request was permitted when it arrived and no longer is.
    #[error("the request is no longer permitted")]
    Revoked,
}

impl Cause {
    /// A name for metrics and the `leno-error` header.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Head(error) => error.label(),
            Self::Body(error) => error.label(),
            Self::Closed => "closed",
            Self::Broken(_) => "broken",
            Self::HeadTimeout => "head-timeout",
            Self::Deadline => "deadline",
            Self::Late => "response-timeout",
            Self::Outlasted => "stream-timeout",
            Self::Stalled => "stalled",
            Self::Stale => "stale",
            Self::UnaskedUpgrade => "unasked-upgrade",
            Self::MemoryBudget => "memory-budget",
            Self::UpgradeIgnored => "upgrade-ignored",
            Self::Reset(reset) if reset.by == ResetBy::Connection => "closed",
            Self::Reset(reset) if reset.code == Code::NO_ERROR => "cut-off",
            Self::Reset(reset) => reset.code.label(),
            Self::Reported(report) => report.label(),
            Self::Open(OpenError::Full) => "streams-in-use",
            Self::Open(OpenError::Closed) => "draining",
            Self::Open(OpenError::TooLarge) => "head-too-large",
            Self::Loop => "loop",
            Self::Refused => "refused",
            Self::Revoked => "authorization-denied",
        }
    }
}

/// A failed exchange. The caller adds which policy was involved.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", place.label())]
pub struct Failure {
    /// On which side the failure arose.
    pub place: Party,
    /// What failed.
    #[source]
    pub cause: Cause,
    /// All of the request that was received is still held, and no part of a final response was forwarded. So the
    /// request can be sent again on another connection if the method is idempotent, or if the server has certainly not
    /// acted on it.
    pub retryable: bool,
    /// The server has certainly not acted on the request. If the failure is also `retryable`, the request may be sent
    /// again whatever its method is.
    pub unprocessed: bool,
}

impl Failure {
    pub(crate) fn new(place: Party, cause: Cause) -> Self {
        Self { place, cause, retryable: false, unprocessed: false }
    }

    /// The report for a client that is another proxy, in case the response to it is truncated. `None` if the client is
    /// to blame.
    pub(crate) fn report(&self) -> Option<Report> {
        Report::of_label(self.cause.label()).filter(|_| self.place != Party::Client)
    }

    /// The status of the answer to the client, if the client is still connected.
    pub fn status(&self) -> Option<u16> {
        match (self.place, &self.cause) {
            (Party::Client, Cause::Head(error)) => Some(error.status()),
            (Party::Client, Cause::Body(_)) => Some(400),
            (Party::Client, Cause::HeadTimeout) => Some(408),
            (Party::Client, _) => None,
            (_, Cause::Revoked) => Some(403),
            (_, Cause::Deadline | Cause::Late | Cause::Outlasted) => Some(504),
            (_, Cause::Stalled | Cause::HeadTimeout) => Some(504),
            (_, Cause::Loop) => Some(508),
            (_, Cause::Open(OpenError::TooLarge)) => Some(431),
            (_, Cause::Stale | Cause::MemoryBudget | Cause::Open(_)) => Some(503),
            _ => Some(502),
        }
    }
}

/// The code that resets a client's stream in the middle of a response. `is_mesh` says that the client is a proxy of the
/// mesh. Such a client gets the cause, unless it is to blame.
pub(crate) fn reset_code(failure: &Failure, is_mesh: bool) -> Code {
    match (&failure.cause, failure.report()) {
        (_, Some(report)) if is_mesh => report.code(),
        (Cause::Reported(report), _) => report.code().without_mesh(),
        // RFC 9113 section 8.1.1.
        (Cause::Head(_) | Cause::Body(_), _) => Code::PROTOCOL_ERROR,
        (Cause::Reset(reset), _) if reset.by != ResetBy::Connection => match reset.code {
            Code::PROTOCOL_ERROR => reset.code,
            // The response has begun, so the request was processed.
            Code::NO_ERROR | Code::REFUSED_STREAM => Code::INTERNAL_ERROR,
            code if reset.by == ResetBy::Peer => code,
            _ => Code::INTERNAL_ERROR,
        },
        _ => Code::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the documentation that explains every cause.
    const PAGE: &str = include_str!("../../../docs/guide/metrics.md");

    /// For each kind of cause that has a name of its own, one cause.
    fn all() -> Vec<Cause> {
        let reset = |code, by| Cause::Reset(Reset { code, by, unprocessed: false });
        vec![
            Cause::Closed,
            Cause::Broken(io::ErrorKind::ConnectionReset.into()),
            Cause::HeadTimeout,
            Cause::Deadline,
            Cause::Late,
            Cause::Outlasted,
            Cause::Stalled,
            Cause::Stale,
            Cause::UnaskedUpgrade,
            Cause::MemoryBudget,
            Cause::UpgradeIgnored,
            reset(Code::NO_ERROR, ResetBy::Connection),
            reset(Code::NO_ERROR, ResetBy::Peer),
            reset(Code::REFUSED_STREAM, ResetBy::Peer),
            Cause::Reported(Report::of_label("closed").expect("it has a number")),
            Cause::Open(OpenError::Full),
            Cause::Open(OpenError::Closed),
            Cause::Open(OpenError::TooLarge),
            Cause::Loop,
            Cause::Refused,
            Cause::Revoked,
        ]
    }

    /// Does not compile if a cause is missing here. A new cause must also be added to the list above and to the page.
    fn is_listed(cause: &Cause) -> bool {
        match cause {
            // These have the names of the errors inside them.
            Cause::Head(_) | Cause::Body(_) => true,
            Cause::Closed
            | Cause::Broken(_)
            | Cause::HeadTimeout
            | Cause::Deadline
            | Cause::Late
            | Cause::Outlasted
            | Cause::Stalled
            | Cause::Stale
            | Cause::UnaskedUpgrade
            | Cause::MemoryBudget
            | Cause::UpgradeIgnored
            | Cause::Reset(_)
            | Cause::Reported(_)
            | Cause::Open(_)
            | Cause::Loop
            | Cause::Refused
            | Cause::Revoked => PAGE.contains(&format!("`{}`", cause.label())),
        }
    }

    #[test]
    fn every_cause_is_explained() {
        for cause in all() {
            assert!(is_listed(&cause), "{} is not in docs/guide/metrics.md", cause.label());
        }
    }

    /// If the client is not to blame and still connected, it gets an answer from the mesh.
    #[test]
    fn every_failure_of_another_side_than_the_client_has_a_status() {
        for place in [Party::Server, Party::Us] {
            for cause in all() {
                let label = cause.label();
                let status = Failure::new(place, cause).status();
                assert!(status.is_some_and(|status| (400..600).contains(&status)), "{label}");
            }
        }
    }
}
