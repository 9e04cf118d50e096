//! What the relays of an HTTP/1 client have in common, whatever the server speaks.

use std::task::{Context, Poll};

use crate::Io;
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Place};

/// The request's direction.
///
/// ```text
/// Sending ──(all sent)───────────────────► Done
///    └─(server takes no more, or the client kept the body back)─► Broken
///                                           └─(response over, client stays)─► Discarding ──► Done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Up {
    Sending,
    /// Sending failed, and the server may still have said why; or a final response came in place of a
    /// 100.
    Broken,
    /// The rest of the body is read and dropped, to find the next request.
    Discarding,
    Done,
}

/// The response's direction.
///
/// ```text
/// ┌──(1xx forwarded)──┐
/// ▼                   │
/// Head ──(1xx)──► Interim
///  └──(final)──► Body ──► Done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    Head,
    Interim,
    Body,
    Done,
}

/// What is left to do after the response.
pub(super) enum After {
    Over,
    /// The request's direction has something to do at once.
    Again,
    Wait,
}

impl Up {
    /// The response is over. `keep`: the client was told that its connection stays open, so that the
    /// next request must be found behind the rest of this one.
    pub(super) fn after_response(&mut self, keep: bool) -> After {
        match self {
            Self::Broken if !keep => After::Over,
            Self::Broken => {
                *self = Self::Discarding;
                After::Again
            }
            Self::Sending | Self::Discarding | Self::Done => After::Wait,
        }
    }
}

impl<C: Io> Conn<C> {
    /// Reads what the client sends behind its request, as far as there is room, and fails if the client
    /// has closed its connection.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while !self.read_closed && self.received.has_room() {
            match self.received.poll_fill(&mut self.io, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.read_closed = true;
                    check_left(&self.io)?;
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    return Err(Failure::new(Place::Client, Cause::Broken(error)));
                }
            }
        }
        Ok(())
    }
}

/// A client that has closed its connection gets no response; one that only sends no more does.
pub(super) fn check_left<C: Io>(client: &C) -> Result<(), Failure> {
    if client.has_left() {
        return Err(Failure::new(Place::Client, Cause::Closed));
    }
    Ok(())
}
