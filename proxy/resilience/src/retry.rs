//! Whether a request is sent again.

use std::time::{Duration, Instant};

use leno_balance::Rng;
use leno_types::traffic::Retries;

use crate::backoff::delay;
use crate::budget::Budget;

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A response began.
    Status(u16),
    /// A response that is gRPC's, with this `grpc-status` in its head.
    Grpc(u8),
    /// There was no connection.
    ConnectFailed,
    /// The connection or stream ended before a response.
    Reset,
    /// The server refused the stream.
    RefusedStream,
    /// The try took longer than it may.
    TimedOut,
}

/// What else is to be known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The method promises that sending it twice is like sending it once.
    pub is_idempotent: bool,
    /// No application has seen it, whatever the method.
    pub is_unprocessed: bool,
    /// The whole request is still here.
    pub is_replayable: bool,
    /// What the server asks for.
    pub retry_after: Option<Duration>,
    /// What is left of the time for the request.
    pub time_left: Option<Duration>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it again after this wait.
    Again(Duration),
    /// The client gets what there is.
    Final(Why),
}

/// Why a request is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Policy does not take this for a failure.
    NoFailure,
    /// It was tried as often as policy says.
    Attempts,
    /// Sending it twice might do it twice.
    Method,
    /// More of the body was sent than is kept.
    Body,
    /// The wait is longer than the time that is left, or than policy waits.
    Time,
    /// Too many requests are retries already.
    Budget,
}

impl Why {
    /// For metrics; none where nothing was to be retried.
    #[must_use]
    pub const fn label(self) -> Option<&'static str> {
        match self {
            Self::NoFailure => None,
            Self::Attempts => Some("attempts"),
            Self::Method => Some("method"),
            Self::Body => Some("body"),
            Self::Time => Some("time"),
            Self::Budget => Some("budget"),
        }
    }
}

/// The retries of one request. It pays for them, or another's, with [`Budget::request`].
#[derive(Clone, Debug, Default)]
pub struct Retry {
    made: u32,
}

impl Retry {
    /// How many retries were decided on.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Decides after a try has ended so. A token of the budget is taken last, when nothing else
    /// speaks against a retry.
    pub fn decide(
        &mut self,
        policy: &Retries,
        (ending, facts): (Ending, Facts),
        (budget, rng): (&mut Budget, &mut Rng),
        now: Instant,
    ) -> Decision {
        if !is_failure(policy, ending) {
            return Decision::Final(Why::NoFailure);
        }
        if self.made >= policy.attempts {
            return Decision::Final(Why::Attempts);
        }
        let unseen =
            facts.is_unprocessed || matches!(ending, Ending::ConnectFailed | Ending::RefusedStream);
        if !unseen && !facts.is_idempotent && !policy.non_idempotent {
            return Decision::Final(Why::Method);
        }
        if !facts.is_replayable {
            return Decision::Final(Why::Body);
        }
        let wait = delay(policy.backoff, self.made, rng);
        let wait = match facts.retry_after {
            Some(asked) if asked > policy.max_retry_after => return Decision::Final(Why::Time),
            Some(asked) => wait.max(asked),
            None => wait,
        };
        if facts.time_left.is_some_and(|left| wait >= left) {
            return Decision::Final(Why::Time);
        }
        if !budget.take(now) {
            return Decision::Final(Why::Budget);
        }
        self.made += 1;
        Decision::Again(wait)
    }
}

/// Whether policy takes this for a failure.
#[must_use]
pub fn is_failure(policy: &Retries, ending: Ending) -> bool {
    match ending {
        Ending::Status(status) => policy.statuses.iter().any(|range| range.contains(status)),
        Ending::Grpc(status) => policy.grpc_statuses.contains(&status),
        Ending::ConnectFailed => policy.on.connect_failure,
        Ending::Reset => policy.on.reset,
        Ending::RefusedStream => policy.on.refused_stream,
        Ending::TimedOut => policy.on.timeout,
    }
}

#[cfg(test)]
mod tests;
