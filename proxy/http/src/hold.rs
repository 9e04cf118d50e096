//! Holds requests before they are relayed: the whole request so that it can be copied, or its body for authorization
//! and other decisions.
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

/// How many bytes of an HTTP/1 request, including head and framing, are read in advance for its body. This is less than
/// the largest buffer.
const MAX_AHEAD: usize = 128 * 1024;

/// The interim response for a client that waits for it before it sends a body (RFC 9110 section 10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The content of a request's body, without framing and trailers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBody {
    /// The bytes that were read.
    pub content: Vec<u8>,
    /// Whether these bytes are the whole content.
    pub is_whole: bool,
}

impl<S: Io> Conn<S> {
    /// Waits until all of `request` has been received. Returns its bytes, including framing; `None` if it is longer
    /// than `limit`, if it does not end, or if the client waits for a 100 (Continue) before it sends the body. Nothing
    /// is removed: the relay still finds all bytes that were read.
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

    /// Waits until the body of `request` has been received, or more than `limit` bytes of it, or 128 KiB of
    /// the request. Sends a 100 (Continue) if the client waits for one. Nothing is removed: the relay still finds all
    /// bytes that were read. The wait has no time limit.
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
    /// Waits until all of the call has been received. Returns it in the form of HTTP/1; `None` if its body is longer
    /// than `limit` or does not end, or if it has trailers. Nothing is removed: the relay still finds all parts that
    /// were read.
    pub async fn hold(&mut self, limit: usize) -> Option<Vec<u8>> {
        let whole = poll_fn(|cx| self.poll_hold(limit, cx)).await;
        (whole && self.trailers().is_none()).then(|| self.text())
    }

    /// Waits until all of the call has been received, so that it can be copied. Returns `false` if its body is longer
    /// than `limit` or does not end, or if it asks for another protocol. Nothing is removed: the relay still finds all
    /// parts that were read.
    pub async fn hold_whole(&mut self, limit: usize) -> bool {
        !self.is_extended_connect() && poll_fn(|cx| self.poll_hold(limit, cx)).await
    }

    /// Waits until the body has been received, or more than `limit` bytes of it. Nothing is removed: the relay still
    /// finds all parts that were read. The wait has no time limit.
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

    /// The call in the form of an HTTP/1 request.
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
                // In HTTP/1, `te` is for one connection only.
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
