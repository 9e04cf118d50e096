//! Decides whether to send a request again.
#![expect(clippy::arithmetic_side_effects, reason = "a count of tries")]

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
    /// A gRPC response began, with this `grpc-status` in its head.
    Grpc(u8),
    /// No connection could be established.
    ConnectFailed,
    /// The connection or stream ended before a response.
    Reset,
    /// The server refused the stream.
    RefusedStream,
    /// The try exceeded its time limit.
    TimedOut,
}

/// Facts about the request and the try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The method is idempotent: sending the request twice has the same effect as sending it once.
    pub is_idempotent: bool,
    /// No application has seen the request, whatever its method is.
    pub is_unprocessed: bool,
    /// The whole request is still available.
    pub is_replayable: bool,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Time that is left for the request.
    pub time_left: Option<Duration>,
}

/// Whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send the request again after this wait.
    Again(Duration),
    /// The client gets the result of this try.
    Final(Why),
}

/// Why a request is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Policy does not count this as a failure.
    NoFailure,
    /// The number of attempts in the policy is used up.
    Attempts,
    /// The method is not idempotent, so a retry might repeat an effect.
    Method,
    /// More of the body was sent than was kept.
    Body,
    /// The wait is longer than the time left, or than the policy allows.
    Time,
    /// The retry budget is used up.
    Budget,
}

impl Why {
    /// For metrics. `None` if there was nothing to retry.
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

/// The retries of one request. Its tokens come from [`Budget::request`], of this request or others.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    made: u32,
}

impl Retry {
    /// Number of retries so far.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Decides after a try has ended. Takes a token of the budget last, once nothing else prevents
    /// a retry.
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

/// Whether policy counts this as a failure.
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
