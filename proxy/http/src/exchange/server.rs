//! The server's end of an exchange: an HTTP/1 connection or an HTTP/2 stream.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leno_h2::{Client, Code, Head, Reset, Stream};
use leno_hpack::Block;
use smallvec::SmallVec;

use super::Exchange;
use super::passage::{OnConn, OnStream};
use crate::Io;
use crate::alarm::Alarm;
use crate::call::BodyPart;
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Party, Report};
use crate::grpc;
use crate::head::{Framing, ResponseHead};

/// The server's end, as the relay uses it.
pub(super) trait ServerEnd {
    /// Whether the server's machine seems to be lost. For a stream, its connection checks this.
    fn is_unanswered(&self) -> bool {
        false
    }

    /// Why the proxy at the server's end has truncated the response, if it has reported that in its last TLS record.
    /// For a stream, the code of the reset contains it.
    fn report(&self) -> Option<Report> {
        None
    }

    /// The timer of the connection, unless other streams share the connection.
    fn alarm(&mut self) -> Option<&mut Alarm> {
        None
    }

    /// Ends the request's direction. For a stream, the end has been sent already.
    fn poll_end(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Called when the exchange has failed. `unused` says that nothing was sent to the server, and that the server is
    /// not to blame.
    fn fail(&mut self, unused: bool, exchange: &mut Exchange);

    /// Called when the exchange is over. `in_order` says that the server has received the whole request, that its
    /// direction was not ended, and that no other protocol has taken over.
    fn conclude(&mut self, in_order: bool, exchange: &mut Exchange);
}

/// A server that speaks HTTP/1.
pub(super) struct ToConn<'r, S> {
    pub(super) conn: &'r mut Conn<S>,
    /// The part of the response's head that was parsed so far.
    pub(super) head: ResponseHead,
    /// Whether the server intends to keep its connection open.
    pub(super) keep: bool,
}

impl<'r, S: Io> ToConn<'r, S> {
    pub(super) fn new(conn: &'r mut Conn<S>) -> Self {
        Self { conn, head: ResponseHead::default(), keep: false }
    }

    /// Fails if the head is a 408 that the server sent before it saw the request, because it has closed an idle
    /// connection (RFC 9110 section 15.5.9). `retryable` says that the request is held completely and was sent
    /// completely.
    pub(super) fn check_stale(&self, retryable: bool) -> Result<(), Failure> {
        let head = &self.head;
        if head.status() == 408 && self.conn.exchanges > 0 && !head.keep_alive() {
            let failure = Failure::new(Party::Server, Cause::Stale);
            return Err(Failure { retryable, unprocessed: true, ..failure });
        }
        Ok(())
    }

    /// Called when a final response with this framing begins.
    pub(super) fn begin_response(&mut self, framing: Framing, exchange: &mut Exchange) {
        exchange.status = Some(self.head.status());
        let timeout = self.head.meaning.keep_alive_timeout;
        exchange.server_idle = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        self.keep = self.head.keep_alive() && framing != Framing::UntilClose;
    }
}

impl<S: Io> OnConn for ToConn<'_, S> {
    type Io = S;

    fn conn(&mut self) -> &mut Conn<S> {
        self.conn
    }
}

impl<S: Io> ServerEnd for ToConn<'_, S> {
    fn is_unanswered(&self) -> bool {
        self.conn.io.is_unanswered()
    }

    fn report(&self) -> Option<Report> {
        self.conn.io.cut_report().and_then(Report::of_number)
    }

    fn alarm(&mut self) -> Option<&mut Alarm> {
        Some(&mut self.conn.alarm)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // If the shutdown fails, the next read from the server returns the error.
        Pin::new(&mut self.conn.io).poll_shutdown(cx).map(|_| ())
    }

    fn fail(&mut self, unused: bool, exchange: &mut Exchange) {
        exchange.server_reusable = unused && self.conn.is_quiet();
        self.conn.lost |= !exchange.server_reusable;
        if exchange.upgraded {
            // Without a reset, the server would see a proper end in the other protocol.
            self.conn.io.reset_on_drop();
        }
    }

    fn conclude(&mut self, in_order: bool, exchange: &mut Exchange) {
        self.conn.received.settle();
        self.conn.exchanges += 1;
        exchange.server_reusable = self.keep && in_order && self.conn.received.is_empty();
        self.conn.lost |= !exchange.server_reusable;
    }
}

/// A server that speaks HTTP/2.
pub(super) struct ToStream<'r> {
    pub(super) client: &'r Client,
    /// The stream of this exchange. `None` before it is open.
    pub(super) stream: Option<Stream>,
    /// The protocol that an extended CONNECT asks for, until a final response has granted or refused it.
    pub(super) protocol: Option<SmallVec<[u8; 16]>>,
    trailers: Option<Head>,
}

impl<'r> ToStream<'r> {
    pub(super) fn new(client: &'r Client) -> Self {
        Self { client, stream: None, protocol: None, trailers: None }
    }

    /// Records whether further streams can be opened, and the `grpc-status` of the trailers.
    fn note(&self, exchange: &mut Exchange) {
        exchange.server_reusable = self.client.is_open();
        let status = self.trailers.as_deref().and_then(grpc::status_in);
        exchange.grpc_status = exchange.grpc_status.or(status);
    }
}

impl OnStream for ToStream<'_> {
    fn stream(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, Reset>> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        let Some(piece) = std::task::ready!(stream.poll_data(cx))? else {
            self.trailers = stream.trailers();
            return Poll::Ready(Ok(BodyPart::End));
        };
        Poll::Ready(Ok(BodyPart::Data(piece)))
    }

    fn trailers(&self) -> Option<&Block> {
        self.trailers.as_deref()
    }

    fn release(&mut self, content: usize) {
        if let Some(stream) = &mut self.stream {
            stream.release(content);
        }
    }

    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Reset> {
        self.stream.as_mut().map_or(Poll::Pending, |stream| stream.poll_stalled(cx))
    }
}

impl ServerEnd for ToStream<'_> {
    fn fail(&mut self, _unused: bool, exchange: &mut Exchange) {
        if let Some(stream) = self.stream.take() {
            stream.reset(Code::CANCEL);
        }
        self.note(exchange);
    }

    fn conclude(&mut self, _in_order: bool, exchange: &mut Exchange) {
        self.note(exchange);
    }
}
