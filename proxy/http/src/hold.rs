//! Requests held before they are relayed: whole for copies of them, and bodies for those that decide on them.
#![expect(clippy::arithmetic_side_effects, reason = "positions within received bytes")]

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use leno_hpack::Token;

use crate::Io;
use crate::body::{BodyWalker, Event};
use crate::call::Call;
use crate::conn::Conn;
use crate::failure::{Cause, Failure, Party};
use crate::head::{RequestHead, Version};

/// Most bytes of a request of HTTP/1 that are read ahead, framing included, for its body: less than the largest buffer.
const MAX_AHEAD: usize = 128 * 1024;

/// Sent to a client that waits for it before it sends a body (RFC 9110 section 10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The content of a request's body, without framing and trailers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBody {
    /// As far as it was read.
    pub content: Vec<u8>,
    /// Whether this is all of it.
    pub is_whole: bool,
}

impl<S: Io> Conn<S> {
    /// Waits until all of `request` is here. Returns its bytes, framing included; `None` if it is longer
    /// than `limit`, or does not come to its end. The relay still finds all that was read.
    pub async fn hold(&mut self, request: &RequestHead, limit: usize) -> Option<&[u8]> {
        let length = loop {
            if let Some(length) = self.whole_request(request) {
                break length;
            }
            let waits = request.expect_continue() || self.read_closed || self.lost;
            if waits || self.received.bytes().len() >= limit {
                return None;
            }
            match poll_fn(|cx| self.received.poll_fill(&mut self.io, cx)).await {
                Ok(0) => self.read_closed = true,
                Ok(_) => {}
                Err(_) => return None,
            }
        };
        self.received.bytes().get(..length)
    }

    /// Waits until the body of `request` is here, or more than `limit` bytes of it. The relay still finds all that was
    /// read. There is no bound on the wait.
    ///
    /// # Errors
    /// The client has left, or its body cannot be read.
    pub async fn read_body(
        &mut self,
        request: &RequestHead,
        limit: usize,
    ) -> Result<HeldBody, Failure> {
        let failed = |cause| Failure::new(Party::Client, cause);
        let mut body = HeldBody { content: Vec::new(), is_whole: request.is_connect };
        let mut walker = BodyWalker::of_request(request, self.received.bytes());
        let mut at = request.len();
        let mut is_awaited = request.expect_continue();
        loop {
            let bytes = self.received.bytes();
            while !body.is_whole && body.content.len() <= limit {
                let rest = bytes.get(at..).unwrap_or_default();
                let (count, event) =
                    walker.next(rest).map_err(|error| failed(Cause::Body(error)))?;
                at += count;
                match event {
                    Some(Event::Data(range)) => {
                        body.content.extend_from_slice(rest.get(range).unwrap_or_default());
                    }
                    Some(Event::End) => body.is_whole = true,
                    Some(Event::Trailers(_) | Event::RemovedTrailer(_)) => {}
                    None => break,
                }
            }
            let has_begun = bytes.len() > request.len();
            if body.is_whole || body.content.len() > limit || bytes.len() >= MAX_AHEAD {
                return Ok(body);
            }
            if self.read_closed || self.lost {
                return Err(failed(Cause::Closed));
            }
            if std::mem::take(&mut is_awaited) && !has_begun {
                let written = self.write_answer(CONTINUE, &[]).await;
                written.map_err(|error| failed(Cause::Broken(error)))?;
            }
            match poll_fn(|cx| self.received.poll_fill(&mut self.io, cx)).await {
                Ok(0) => self.read_closed = true,
                Ok(_) => {}
                Err(error) => return Err(failed(Cause::Broken(error))),
            }
        }
    }
}

impl Call {
    /// Waits until all of the call is here. Returns what it would be in HTTP/1; `None` if its body is
    /// longer than `limit`, does not come to its end, or has trailers. The relay still finds all that
    /// was read.
    pub async fn hold(&mut self, limit: usize) -> Option<Vec<u8>> {
        let whole = poll_fn(|cx| self.poll_hold(limit, cx)).await;
        (whole && self.trailers().is_none()).then(|| self.text())
    }

    /// Waits until all of the call is here, to be copied. `false` if its body is longer than `limit`,
    /// does not come to its end, or if it asks for another protocol. The relay still finds all that was
    /// read.
    pub async fn hold_whole(&mut self, limit: usize) -> bool {
        !self.is_extended_connect() && poll_fn(|cx| self.poll_hold(limit, cx)).await
    }

    /// Waits until the body is here, or more than `limit` bytes of it. The relay still finds all that was read. There
    /// is no bound on the wait.
    ///
    /// # Errors
    /// The client has left.
    pub async fn read_body(&mut self, limit: usize) -> Result<HeldBody, Failure> {
        if self.is_connect() || self.is_extended_connect() {
            return Ok(HeldBody { content: Vec::new(), is_whole: true });
        }
        let expect = self.head().find(Token::EXPECT);
        if expect.is_some_and(|to| to.eq_ignore_ascii_case(b"100-continue")) && !self.has_begun() {
            self.send_continue();
        }
        poll_fn(|cx| self.poll_body(limit, cx)).await
    }

    fn poll_body(&mut self, limit: usize, cx: &mut Context<'_>) -> Poll<Result<HeldBody, Failure>> {
        loop {
            let is_whole = self.is_empty() || self.has_ended();
            if is_whole || self.held_bytes() > limit {
                let mut content = Vec::with_capacity(self.held_bytes());
                for piece in self.held_pieces() {
                    content.extend_from_slice(piece);
                }
                return Poll::Ready(Ok(HeldBody { content, is_whole }));
            }
            if let Err(reset) = ready!(self.poll_kept(cx)) {
                return Poll::Ready(Err(Failure::new(Party::Client, Cause::Reset(reset))));
            }
        }
    }

    fn poll_hold(&mut self, limit: usize, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            if self.is_empty() || self.has_ended() {
                let fits = self.is_replayable() && self.held_bytes() <= limit;
                return Poll::Ready(!self.has_ended() || fits);
            }
            if self.held_bytes() > limit || !self.is_replayable() {
                return Poll::Ready(false);
            }
            if !ready!(self.poll_held(cx)) {
                return Poll::Ready(false);
            }
        }
    }

    /// The call as a request of HTTP/1.
    fn text(&self) -> Vec<u8> {
        let view = self.view();
        let mut text = Vec::new();
        for part in [view.method().as_bytes(), b" ", view.target(), b" HTTP/1.1\r\n"] {
            text.extend_from_slice(part);
        }
        let mut header = |name: &str, value: &[u8]| {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                text.extend_from_slice(part);
            }
        };
        header("host", view.authority().as_bytes());
        for (name, value) in view.headers() {
            match name {
                "host" | "content-length" => {}
                // An option of one connection in HTTP/1.
                "te" => {
                    header("connection", b"te");
                    header(name, value);
                }
                _ => header(name, value),
            }
        }
        let length: usize = self.held_pieces().iter().map(|piece| piece.len()).sum();
        if length > 0 {
            header("content-length", length.to_string().as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        for piece in self.held_pieces() {
            text.extend_from_slice(piece);
        }
        debug_assert_eq!(view.version(), Version::Http2);
        text
    }
}
