//! Conditions that a relay checks periodically, because no event reports them.
#![expect(clippy::arithmetic_side_effects, reason = "bounded waits after the present time")]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::time::{Instant, Sleep};

use super::{Ended, Side};
use crate::Io;
use crate::liveness::{SILENCE, is_unanswered};

/// How often a side that is neither read nor written is checked for errors, and a side to which bytes were sent is
/// checked for acknowledgements. A relay also counts as long-lived after this time. Most relays end earlier and are
/// never checked.
const LOOK: Duration = SILENCE;

/// The progress of a relay.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayProgress {
    /// Bytes moved, both ways.
    pub(super) moved: u64,
    /// Whether a side is not being read.
    pub(super) deaf: bool,
}

pin_project_lite::pin_project! {
    /// Fires for a check or at the idle limit, and then compares the progress. A relay that moves bytes need not set it
    /// again.
    pub(super) struct Watch {
        idle: Duration,
        idle_until: Instant,
        // How many bytes had moved when `idle_until` was set.
        moved: u64,
        // Whether a side was not being read at the last poll.
        deaf: bool,
        // Whether the relay has existed for `LOOK`, so that its sockets have keep-alive probes.
        lasting: bool,
        // How many bytes had moved at the last check.
        looked: u64,
        // Whether the timer is set for the next check, and not for the idle limit.
        looking: bool,
        #[pin]
        timer: Sleep,
    }
}

impl Watch {
    pub(super) fn new(idle: Duration) -> Self {
        let now = Instant::now();
        Self {
            idle,
            idle_until: now + idle,
            moved: 0,
            deaf: false,
            lasting: false,
            looked: 0,
            looking: true,
            timer: tokio::time::sleep_until(now + idle.min(LOOK)),
        }
    }

    /// Ready if the relay must end because it was idle for too long or a side has failed.
    pub(super) fn poll<A: Io, B: Io>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        seen: RelayProgress,
        a: &A,
        b: &B,
    ) -> Poll<Ended> {
        let mut this = self.project();
        let changed = seen.deaf && !*this.deaf || seen.moved != *this.looked;
        if changed && !*this.looking {
            *this.looking = true;
            this.timer.as_mut().reset((*this.idle_until).min(Instant::now() + LOOK));
        }
        *this.deaf = seen.deaf;
        while this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= *this.idle_until {
                if *this.moved == seen.moved {
                    return Poll::Ready(Ended::Idle);
                }
                *this.moved = seen.moved;
                *this.idle_until = now + *this.idle;
            }
            if !*this.lasting {
                *this.lasting = true;
                keep_alive(a);
                keep_alive(b);
            }
            if let Some((side, error)) = failed(a, b, seen.deaf) {
                return Poll::Ready(Ended::Failed { side, error });
            }
            // Bytes that were moved since the last check may still be unacknowledged, so the next check comes soon.
            *this.looking = seen.deaf || *this.looked != seen.moved;
            *this.looked = seen.moved;
            let next = if *this.looking { now + LOOK } else { *this.idle_until };
            this.timer.as_mut().reset(next.min(*this.idle_until));
        }
        Poll::Pending
    }
}

fn failed<A: Io, B: Io>(a: &A, b: &B, deaf: bool) -> Option<(Side, io::Error)> {
    let of_a = error_of(a, deaf).map(|error| (Side::A, error));
    of_a.or_else(|| error_of(b, deaf).map(|error| (Side::B, error)))
}

/// The error of a connection, if it is broken. Pending errors of the socket are taken only if a side is not being read
/// (`deaf`); a socket that is read and written reports them itself.
fn error_of(stream: &impl Io, deaf: bool) -> Option<io::Error> {
    let socket = stream.socket()?;
    let error = if deaf { socket.take_error().unwrap_or_else(Some) } else { None };
    error.or_else(|| is_unanswered(socket).then(|| io::ErrorKind::TimedOut.into()))
}

fn keep_alive(stream: &impl Io) {
    if let Some(socket) = stream.socket() {
        // This only fails if the connection is closed, which the relay notices by itself.
        let _gone = SockRef::from(socket).set_tcp_keepalive(&leno_sockets::PROBING);
    }
}
