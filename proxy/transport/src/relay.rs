//! Copies bytes between two connections in both directions, and passes on how each side ends: an end as an end, a reset
//! as a reset.
//!
//! ```text
//!   a ──read──► buffer or pipe ──write──► b      one Direction
//!   a ◄─write── buffer or pipe ◄──read─── b      the other
//!
//!   end read on one side     -> what is held is written, then the other side's write half is shut
//!   error on either side     -> both sides are reset
//!   nothing moved for long   -> both sides are reset
//! ```
//!
//! A side that is being read or written reports its errors at once. A side that is neither read nor written, because
//! its direction has ended or is blocked by the other side, is checked for errors every few seconds.

mod direction;
mod pipe;
mod watch;

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use crate::{Io, Peeked};
use direction::Direction;
pub(crate) use pipe::trim_pipes;
use watch::{RelayProgress, Watch};

/// After this long without a byte in either direction, a relay is closed. Database connection pools keep idle
/// connections for about an hour.
pub const RELAY_IDLE: Duration = Duration::from_secs(3600);

/// Names one of the two connections of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first connection.
    A,
    /// The second connection.
    B,
}

impl Side {
    /// The other connection.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Is notified of bytes that were moved.
pub trait Observer {
    /// Called when `n` bytes that came from `side` were written to the other side.
    fn moved(&mut self, side: Side, n: usize);
}

impl Observer for () {
    fn moved(&mut self, _side: Side, _n: usize) {}
}

impl<F: FnMut(Side, usize)> Observer for F {
    fn moved(&mut self, side: Side, n: usize) {
        self(side, n);
    }
}

/// The result of a relay.
#[derive(Debug)]
pub struct Relayed {
    /// How many bytes moved from the first to the second connection.
    pub a_to_b: u64,
    /// How many bytes moved from the second to the first connection.
    pub b_to_a: u64,
    /// How the relay ended.
    pub ended: Ended,
}

/// How a relay ended.
#[derive(Debug)]
pub enum Ended {
    /// Both directions have ended.
    Closed,
    /// A connection failed, and both were reset.
    Failed {
        /// The connection that failed.
        side: Side,
        /// The error of that connection: `ConnectionReset`, `BrokenPipe`, `UnexpectedEof` for truncated TLS, and so on.
        error: io::Error,
    },
    /// Nothing moved for the given time, and both were reset.
    Idle,
    /// The caller stopped the relay, and both were reset.
    Stopped,
}

impl Ended {
    /// The label for metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Idle => "stream-idle",
            Self::Stopped => "stopped",
            Self::Failed { error, .. } => match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "reset",
                io::ErrorKind::UnexpectedEof => "truncated",
                io::ErrorKind::TimedOut => "timeout",
                _ => "error",
            },
        }
    }
}

/// Moves bytes between `a` and `b`, beginning with those that were already read, until both directions have ended, one
/// has failed, or nothing has moved for `idle` (noticed within twice that time).
///
/// An idle relay holds no buffer. Between two plain sockets, a direction that has moved more than 256 KiB continues in
/// the kernel (`splice`). Dropping the future closes both connections.
pub async fn relay<A, B, O>(a: Peeked<A>, b: Peeked<B>, idle: Duration, observer: O) -> Relayed
where
    A: Io,
    B: Io,
    O: Observer,
{
    relay_until((a, b), idle, observer, std::future::pending()).await
}

/// Like [`relay`], but also ends once `stop` is ready.
#[expect(clippy::arithmetic_side_effects, reason = "counts of bytes moved, which only grow")]
pub async fn relay_until<A, B, O>(
    (a, b): (Peeked<A>, Peeked<B>),
    idle: Duration,
    mut observer: O,
    stop: impl Future<Output = ()>,
) -> Relayed
where
    A: Io,
    B: Io,
    O: Observer,
{
    let ((from_a, mut a), (from_b, mut b)) = (a.into_parts(), b.into_parts());
    let (mut forth, mut back) = (Direction::holding(from_a), Direction::holding(from_b));
    let (mut watch, mut stop) = (std::pin::pin!(Watch::new(idle)), std::pin::pin!(stop));
    let ended = poll_fn(|cx| {
        let before = (forth.moved(), back.moved());
        let there = forth.poll(cx, &mut a, &mut b);
        observe(&mut observer, Side::A, forth.moved() - before.0);
        let here = back.poll(cx, &mut b, &mut a);
        observe(&mut observer, Side::B, back.moved() - before.1);
        match (there, here) {
            (Poll::Ready(Err(failed)), _) => Poll::Ready(failed.seen_from(Side::A)),
            (_, Poll::Ready(Err(failed))) => Poll::Ready(failed.seen_from(Side::B)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ended::Closed),
            _ => {
                if stop.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ended::Stopped);
                }
                let moved = forth.moved() + back.moved();
                let seen = RelayProgress { moved, deaf: forth.is_deaf() || back.is_deaf() };
                watch.as_mut().poll(cx, seen, &a, &b)
            }
        }
    })
    .await;
    if !matches!(ended, Ended::Closed) {
        a.reset_on_drop();
        b.reset_on_drop();
    }
    Relayed { a_to_b: forth.moved(), b_to_a: back.moved(), ended }
}

fn observe(observer: &mut impl Observer, side: Side, n: u64) {
    if n > 0 {
        observer.moved(side, usize::try_from(n).unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests;
