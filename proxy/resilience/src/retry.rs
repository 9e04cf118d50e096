//! Decides whether to send a request again.
#![expect(clippy::arithmetic_side_effects, reason = "a count of tries")]

use std::time::{Duration, Instant};

use leno_balance::Rng;
use leno_types::traffic::Retries;

use crate::backoff::delay;
use crate::budget::Budget;

/// How an attempt to send a request ended.
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
    /// The attempt exceeded its time limit.
    TimedOut,
}

/// Facts about the request and the attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the method is idempotent: sending the request twice has the same effect as sending it once.
    pub is_idempotent: bool,
    /// Whether it is certain that no application has seen the request. It may then be sent again whatever its method
    /// is.
    pub is_unprocessed: bool,
    /// Whether the whole request is still available.
    pub is_replayable: bool,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// The time that is left for the request.
    pub time_left: Option<Duration>,
}

/// Whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send the request again after this wait.
    Again(Duration),
    /// The client gets the result of this attempt.
    Final(Why),
}

/// Why a request is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Policy does not count the result as a failure.
    NoFailure,
    /// As many retries were made as the policy allows.
    Attempts,
    /// The method is not idempotent, so a retry might repeat an effect.
    Method,
    /// The body, as far as it was sent, was not kept completely.
    Body,
    /// The wait is longer than the time that is left, or than the policy allows.
    Time,
    /// The retry budget is used up.
    Budget,
}

impl Why {
    /// The label for metrics. `None` if there was nothing to retry.
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

/// The retries of one request. Requests add tokens to the budget ([`Budget::request`]), and each retry takes one.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    made: u32,
}

impl Retry {
    /// The number of retries so far.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Decides after an attempt has ended. Takes a token of the budget last, once nothing else prevents a retry.
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

/// Whether policy counts this ending as a failure.
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
