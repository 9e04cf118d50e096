//! All timeouts of a connection, on one timer that is seldom reset.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "moments of one process, and bounds of minutes"
)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::code::Code;
use crate::error::{Abuse, ConnError};
use crate::frame;
use crate::inner::{Inner, Phase};
use crate::limits::Limits;

/// The payload of the PING that checks whether the peer is still alive.
const ALIVE_PING: [u8; 8] = *b"leno/yet";

/// The timeouts of a connection. Long timeouts are checked at fixed intervals ("turns"): a timeout
/// has passed if nothing has moved since the previous turn. So a request neither reads the clock
/// nor resets the timer.
pub(crate) struct Clock {
    sleep: Option<Pin<Box<Sleep>>>,
    /// The waker that `sleep` wakes.
    waker: Option<Waker>,
    /// The time between two turns.
    turn: Duration,
    /// When to make the next turn. `None` before the first poll.
    turn_at: Option<Instant>,
    /// Consecutive turns without a stream.
    idle_turns: u32,
    /// The deadline for completing a frame or section that was read in part, and the number of frames read before it.
    urgent: Option<(Instant, u64)>,
    /// Until when the peer must acknowledge our SETTINGS. `None` once it has.
    settings_at: Option<Instant>,
    /// When a drain continues without the reply to its PING ([`Phase::Announced`]).
    drain_at: Option<Instant>,
    /// Until when to wait for the peer to close after we have closed.
    linger_at: Option<Instant>,
    /// When to check next for streams whose readers stall. `None` while no bytes of DATA are held.
    stall_at: Option<Instant>,
    silence: Silence,
}

/// Detects that the peer sends nothing while streams are open.
#[derive(Default)]
struct Silence {
    /// When to check next. `None` while no stream is open.
    at: Option<Instant>,
    /// [`Inner::heard`] at the last check.
    heard: u64,
    /// Whether a PING was sent at the last check.
    pinged: bool,
}

impl Clock {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            sleep: None,
            waker: None,
            turn: limits.write_stall.min(limits.idle),
            turn_at: None,
            idle_turns: 0,
            urgent: None,
            settings_at: None,
            drain_at: None,
            linger_at: None,
            stall_at: None,
            silence: Silence::default(),
        }
    }

    /// Handles every timeout that has passed and registers for the next one. `urgent` says that the peer has begun
    /// something that it must complete soon. Returns whether the peer has sent nothing for [`Limits::silence`]
    /// although streams are open.
    pub(crate) fn poll(
        &mut self,
        inner: &mut Inner,
        urgent: bool,
        cx: &mut Context<'_>,
    ) -> Result<bool, ConnError> {
        let mut silent = false;
        self.note(inner, urgent);
        while self.poll_next(cx).is_ready() {
            let now = Instant::now();
            if self.urgent.is_some_and(|(at, _)| at <= now) {
                let what =
                    "the peer did not complete its preface, a frame or a header section in time";
                return Err(ConnError::abused(Abuse::SlowHead, what));
            }
            if self.settings_at.is_some_and(|at| at <= now) {
                let what = "the peer did not acknowledge our SETTINGS in time";
                return Err(ConnError::abused(Abuse::SettingsTimeout, what));
            }
            if self.drain_at.is_some_and(|at| at <= now) {
                self.drain_at = None;
                inner.drain_for_good();
            }
            if self.stall_at.is_some_and(|at| at <= now) {
                inner.note_stalled();
                self.stall_at = (inner.held > 0).then(|| now + inner.limits.stall);
            }
            if self.silence.at.is_some_and(|at| at <= now) {
                silent = self.silence.look(inner, now)?;
            }
            if self.turn_at.is_some_and(|at| at <= now) {
                self.turn_at = Some(now + self.turn);
                self.look(inner)?;
            }
        }
        inner.end_stalled();
        Ok(silent)
    }

    /// Starts and stops timeouts so that they fit the connection's state after a read. `urgent` is that of
    /// [`Clock::poll`].
    fn note(&mut self, inner: &Inner, urgent: bool) {
        let first = self.turn_at.is_none();
        let frames = inner.reading.frames;
        let same = self.urgent.is_some_and(|(_, before)| before == frames);
        if first
            || (urgent && !same)
            || (inner.phase == Phase::Announced) != self.drain_at.is_some()
        {
            let now = Instant::now();
            if first {
                self.turn_at = Some(now + self.turn);
                self.settings_at = Some(now + inner.limits.head);
            }
            self.urgent = urgent.then_some((now + inner.limits.head, frames));
            self.drain_at = (inner.phase == Phase::Announced).then_some(now + inner.limits.linger);
        }
        if !urgent {
            self.urgent = None;
        }
        if inner.reading.acknowledged {
            self.settings_at = None;
        }
        if inner.held > 0 && self.stall_at.is_none() {
            self.stall_at = Some(Instant::now() + inner.limits.stall);
        }
        if inner.open > 0 && self.silence.at.is_none() {
            self.silence.at = Some(Instant::now() + inner.limits.silence);
            self.silence.heard = inner.heard;
        }
    }

    /// Makes one turn: ends the connection, or single streams, if there was something to send since the last turn and
    /// no progress; frees unused memory; and drains the connection if it has had no stream for [`Limits::idle`].
    fn look(&mut self, inner: &mut Inner) -> Result<(), ConnError> {
        if !std::mem::replace(&mut inner.moved, false) && !inner.out.is_empty() {
            let what = "the peer reads no bytes from its socket";
            return Err(ConnError::abused(Abuse::WriteStall, what));
        }
        for place in 0..inner.streams.places() {
            let Some(key) = inner.streams.at(place) else { continue };
            let Some(slot) = inner.streams.get_mut(key) else { continue };
            let waits = !slot.queue.is_empty() && slot.reset.is_none();
            if !std::mem::replace(&mut slot.moved, !waits) && waits {
                inner.stream_error(key.id, Code::CANCEL, Some(Abuse::ZeroWindow))?;
            }
        }
        inner.streams.shrink();
        self.idle_turns = if inner.open > 0 { 0 } else { self.idle_turns + 1 };
        if inner.open == 0 {
            inner.repeats.clear();
            inner.encoder.forget_repeats();
        }
        if self.turn * self.idle_turns >= inner.limits.idle.saturating_add(self.turn) {
            inner.drain();
            inner.drain_for_good();
        }
        Ok(())
    }

    /// Ready when the next timeout has passed.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let urgent = self.urgent.map(|(at, _)| at);
        let waits =
            [self.turn_at, urgent, self.settings_at, self.drain_at, self.stall_at, self.silence.at];
        let Some(at) = waits.into_iter().flatten().min() else { return Poll::Pending };
        self.poll_at(at, cx)
    }

    fn poll_at(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() > at {
            sleep.as_mut().reset(at);
            self.waker = None;
        }
        loop {
            let known = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if known && !sleep.is_elapsed() {
                return Poll::Pending;
            }
            if sleep.as_mut().poll(cx).is_pending() {
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            self.waker = None;
            if sleep.deadline() >= at {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
    }

    /// From here on only the timeout of [`Clock::poll_linger`] counts.
    pub(crate) fn linger(&mut self, limits: &Limits) {
        self.linger_at = Some(Instant::now() + limits.linger);
    }

    pub(crate) fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.linger_at {
            Some(at) => self.poll_at(at, cx),
            None => Poll::Pending,
        }
    }
}

impl Silence {
    /// Returns whether the peer has sent nothing since the last check although streams are open. If so, sends a PING
    /// if [`Limits::ping`] is set. It is an error if the last check has sent a PING and nothing has arrived since.
    /// Schedules the next check as long as streams are open.
    fn look(&mut self, inner: &mut Inner, now: Instant) -> Result<bool, ConnError> {
        let silent = std::mem::replace(&mut self.heard, inner.heard) == inner.heard;
        if inner.open == 0 {
            *self = Self::default();
            return Ok(false);
        }
        if silent && self.pinged {
            let what = "the peer does not answer a PING";
            return Err(ConnError::abused(Abuse::PingTimeout, what));
        }
        self.pinged = silent && inner.limits.ping;
        if self.pinged {
            inner.put(&frame::ping(false, ALIVE_PING));
        }
        self.at = Some(now + inner.limits.silence);
        Ok(silent)
    }
}
