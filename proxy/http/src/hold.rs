//! Requests held whole before they are relayed, for copies of them.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use crate::Io;
use crate::call::Call;
use crate::conn::Conn;
use crate::head::{RequestHead, Version};

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

    fn poll_hold(&mut self, limit: usize, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let held = self.held_pieces().iter().map(|piece| piece.len()).sum::<usize>();
            if self.is_empty() || self.has_ended() {
                return Poll::Ready(!self.has_ended() || self.is_replayable() && held <= limit);
            }
            if held > limit || !self.is_replayable() {
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
