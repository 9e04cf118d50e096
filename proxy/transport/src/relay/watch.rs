//! What a relay looks at from time to time, since no event tells of it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::time::{Instant, Sleep};

use super::{Ended, Side};
use crate::Stream;

/// How often a side that is neither read nor written is asked for its errors, and after how long a
/// relay counts as one that lasts. Most relays end before, and never look.
const LOOK: Duration = Duration::from_secs(10);

/// When the kernel begins to ask whether the host of a silent side is still there, how often it asks,
/// and how many unanswered questions are a no: a host that is lost is noticed within two minutes. The
/// applications' own settings end at the proxy, and the kernel's default is two hours.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// How far a relay has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Bytes moved, both ways.
    pub(super) moved: u64,
    /// A side is not read.
    pub(super) deaf: bool,
}

pin_project_lite::pin_project! {
    /// A timer that is looked at only when it fires, so that moving bytes costs it nothing.
    pub(super) struct Watch {
        idle: Duration,
        idle_until: Instant,
        // Moved when `idle_until` was set.
        moved: u64,
        // As of the last poll.
        deaf: bool,
        lasting: bool,
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
            timer: tokio::time::sleep_until(now + idle.min(LOOK)),
        }
    }

    /// Ready when the relay is to end: idle for too long, or a side has failed.
    pub(super) fn poll<A: Stream, B: Stream>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        seen: Seen,
        a: &A,
        b: &B,
    ) -> Poll<Ended> {
        let mut this = self.project();
        if seen.deaf && !*this.deaf && *this.lasting {
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
            let mut next = *this.idle_until;
            if seen.deaf {
                if let Some((side, error)) = failed(a, b) {
                    return Poll::Ready(Ended::Failed { side, error });
                }
                next = next.min(now + LOOK);
            }
            this.timer.as_mut().reset(next);
        }
        Poll::Pending
    }
}

fn failed<A: Stream, B: Stream>(a: &A, b: &B) -> Option<(Side, io::Error)> {
    let of_a = error_of(a).map(|error| (Side::A, error));
    of_a.or_else(|| error_of(b).map(|error| (Side::B, error)))
}

/// Why the connection is broken, if it is.
fn error_of(stream: &impl Stream) -> Option<io::Error> {
    stream.socket().and_then(|socket| socket.take_error().unwrap_or_else(Some))
}

fn keep_alive(stream: &impl Stream) {
    if let Some(socket) = stream.socket() {
        // It fails only for a connection that is gone, which shows by itself.
        let _gone = SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE);
    }
}
