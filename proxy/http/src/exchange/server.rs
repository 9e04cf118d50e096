//! What the relays to an HTTP/1 server have in common, whatever the client speaks.

use std::io;
use std::time::Duration;

use super::Exchange;
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Place};
use crate::head::{Framing, HeadError, ResponseHead};

impl<S> Conn<S> {
    /// Fails if `head` is a 408 that crossed with a request: the server has closed an idle connection and
    /// has not seen the request (RFC 9110 section 15.5.9). `retryable`: the request is held whole and was
    /// sent whole.
    pub(super) fn check_stale(&self, head: &ResponseHead, retryable: bool) -> Result<(), Failure> {
        if head.status() == 408 && self.exchanges > 0 && !head.keep_alive() {
            let failure = Failure::new(Place::Server, Cause::Stale);
            return Err(Failure { retryable, unprocessed: true, ..failure });
        }
        Ok(())
    }
}

impl Exchange {
    /// Notes a final response, framed so. Whether the server keeps its connection open after it.
    pub(super) fn begin_response(&mut self, head: &ResponseHead, framing: Framing) -> bool {
        self.status = Some(head.status());
        let timeout = head.meaning.keep_alive_timeout;
        self.server_idle = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        head.keep_alive() && framing != Framing::UntilClose
    }
}

/// The server sent a head that is no HTTP. `retryable`: nothing of a response was forwarded, and the
/// request is still here whole.
pub(super) fn refused_head(error: HeadError, retryable: bool) -> Failure {
    Failure { retryable, ..Failure::new(Place::Server, Cause::Head(error)) }
}

/// The server's connection ended before the response did. If writing failed before, that is the cause.
pub(super) fn server_lost(
    cause: Cause,
    write_error: Option<io::Error>,
    retryable: bool,
) -> Failure {
    let cause = write_error.map_or(cause, Cause::Broken);
    Failure { retryable, ..Failure::new(Place::Server, cause) }
}
