//! Decides what a connection carries, from its first bytes, the time, and the side that sent first.
//!
//! [`judge`] is a pure function; [`Peeked`](crate::Peeked) reads the bytes for it, and [`Waits`] has all time limits.
//!
//! ```text
//! client sends first:
//!   no byte ──► Wait ─┬─ bytes ──► Wait ─┬─ clear ───────────► Http1, Http2, Tls, Opaque
//!                     │                  ├─ too late ────────► Tls, Undecided, Opaque; the declared version of HTTP
//!                     │                  └─ end of stream ───► Tls, Opaque; the declared version of HTTP
//!                     ├─ too late ────────────────────────────► Silent
//!                     └─ end of stream ───────────────────────► Opaque; Silent if HTTP is declared
//! server sends first ─────────────────────────────────────────► Http2 if it sends SETTINGS, otherwise Opaque
//! ```
//!
//! A protocol that is clear from the bytes does not change when more bytes follow.

mod protocol;
mod waits;

use std::time::Duration;

use leno_types::Protocol;

use crate::hello::{ClientHello, Hello};
use protocol::{Detected, client_hello, detect, is_empty_line, is_preface, is_server_preface};
pub use waits::Waits;

/// The side of a connection that sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// The side that opened the connection.
    Client,
    /// The side that accepted it.
    Server,
}

/// The beginning of a connection, so far.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The side that has sent the bytes; the client if there are none.
    pub speaker: Speaker,
    /// The bytes that this side has sent.
    pub bytes: &'a [u8],
    /// Whether this side has ended its stream.
    pub ended: bool,
    /// The time since the first byte. Before the first byte, the time since the wait for it began.
    pub elapsed: Duration,
}

/// The protocol that a connection carries, or why it is not clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not clear yet: judge again when more bytes have arrived, or when this time has passed.
    Wait(Duration),
    /// The client sent nothing within its time, or ended its stream without a byte although in this protocol the client
    /// sends first.
    Silent,
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// TLS. `None` if the ClientHello cannot be read or was not complete in time.
    Tls(Option<ClientHello>),
    /// None of these, or not clear when the client ended its stream.
    Opaque,
    /// The client sent the beginning of a possible HTTP request or of the preface of HTTP/2, and then nothing within
    /// its time.
    Undecided,
}

/// Decides what a connection carries.
///
/// `expected` limits the choice. [`Protocol::Detect`]: any protocol. [`Protocol::Http1`] and [`Protocol::Http2`]:
/// either version of HTTP, because servers serve both on one port; other bytes count as the expected version, whose
/// parser then rejects them. [`Protocol::Opaque`]: TLS or opaque bytes.
#[must_use]
pub fn judge(expected: Protocol, waits: &Waits, opening: Opening<'_>) -> Verdict {
    let Opening { speaker, bytes, ended, .. } = opening;
    if speaker == Speaker::Server {
        // An HTTP/2 server may send its SETTINGS before it has received anything (RFC 9113 section 3.4).
        return if is_server_preface(bytes) { Verdict::Http2 } else { Verdict::Opaque };
    }
    match expected {
        Protocol::Http1 | Protocol::Http2 if bytes.is_empty() && ended => Verdict::Silent,
        _ if bytes.is_empty() && ended => Verdict::Opaque,
        _ if bytes.is_empty() => opening.wait(waits.first_byte, || Verdict::Silent),
        Protocol::Http1 | Protocol::Http2 => http_version(bytes, expected).unwrap_or_else(|| {
            let declared = || declared(expected);
            if ended { declared() } else { opening.wait(waits.protocol, declared) }
        }),
        // UDP has no connections.
        Protocol::Opaque | Protocol::Udp => tls(client_hello(bytes), waits, opening),
        Protocol::Detect => match detect(bytes) {
            Detected::Http1 => Verdict::Http1,
            Detected::Http2Preface => Verdict::Http2,
            Detected::NeedMore if client_hello(bytes) == Detected::Opaque => match ended {
                true => Verdict::Opaque,
                false if is_empty_line(bytes) => opening.wait(waits.protocol, || Verdict::Opaque),
                false => opening.wait(waits.protocol, || Verdict::Undecided),
            },
            detected => tls(detected, waits, opening),
        },
    }
}

impl Opening<'_> {
    /// What remains of a wait of `longest`, or the verdict `over` if the wait is over.
    fn wait(&self, longest: Duration, over: impl FnOnce() -> Verdict) -> Verdict {
        let left = longest.saturating_sub(self.elapsed);
        if left.is_zero() { over() } else { Verdict::Wait(left) }
    }
}

/// Reads the ClientHello from bytes that are TLS, or may become TLS.
fn tls(detected: Detected, waits: &Waits, opening: Opening<'_>) -> Verdict {
    if detected == Detected::Opaque {
        return Verdict::Opaque;
    }
    match Hello::read(opening.bytes) {
        Hello::Read(hello) => Verdict::Tls(Some(hello)),
        Hello::NeedMore if !opening.ended => opening.wait(waits.hello, || Verdict::Tls(None)),
        // The client has ended its stream before it was clear that the bytes are TLS, so they are not.
        Hello::NeedMore if detected == Detected::NeedMore => Verdict::Opaque,
        Hello::NeedMore | Hello::Unreadable => Verdict::Tls(None),
    }
}

/// The version of HTTP with which the bytes begin; `None` while both are possible.
fn http_version(bytes: &[u8], expected: Protocol) -> Option<Verdict> {
    if is_preface(bytes)? {
        return Some(Verdict::Http2);
    }
    match (expected, detect(bytes)) {
        (Protocol::Http2, Detected::NeedMore) => None,
        (Protocol::Http2, Detected::Http1) => Some(Verdict::Http1),
        _ => Some(declared(expected)),
    }
}

fn declared(expected: Protocol) -> Verdict {
    if expected == Protocol::Http2 { Verdict::Http2 } else { Verdict::Http1 }
}

#[cfg(test)]
mod tests;
