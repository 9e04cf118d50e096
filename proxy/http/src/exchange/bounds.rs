//! All time limits of an exchange, on one timer.

use std::task::{Context, Poll, ready};

use leno_transport::SILENCE;
use tokio::time::Instant;

use super::Order;
use super::outcome::{outlasted, stall_blame, timed_out};
use crate::alarm::Alarm;
use crate::departure::GrowingWait;
use crate::failure::{Cause, Failure, Party};
use crate::limits::Limits;

/// All time limits of an exchange. In the methods, `moves` is [`Progress::moves`]. Comparing it is cheaper than reading
/// the clock for every byte.
#[derive(Debug)]
pub(super) struct Bounds {
    /// When the alarm checks whether nothing has moved for too long, and the `moves` at the last such check.
    stall_until: Instant,
    stall_moves: u64,
    /// While bytes are ready for a side that does not read them: when that has lasted too long, and the `moves` when it
    /// began.
    blocked: Option<(Instant, u64)>,
    /// While only the rest of the request is awaited: when that wait ends, and the `moves` when it began.
    linger: Option<(Instant, u64)>,
    /// The deadline with which [`Self::next`] was last called.
    deadline: Option<Instant>,
    /// When to check next whether a connection is lost, and the `moves` at the last check.
    silence: (Instant, u64),
    /// The checks whether the client has left; `None` unless its upload is stuck.
    unread: Option<UnreadChecks>,
}

/// Checks whether a client has left while it is not being read.
#[derive(Debug)]
struct UnreadChecks {
    next: Instant,
    wait: GrowingWait,
    /// The value of `moves` when the checks began.
    moves: u64,
}

/// The progress of an exchange that has to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Grows with every read and write.
    pub(super) moves: u64,
    /// The side that reads none of the bytes that are ready for it.
    pub(super) blocked: Option<Party>,
    /// Whether the rest of the request is still being sent.
    pub(super) sending: bool,
    /// Whether no final response has begun.
    pub(super) silent: bool,
    /// Whether the request is still held completely.
    pub(super) replayable: bool,
    /// Whether another protocol has taken over.
    pub(super) upgraded: bool,
    /// Whether the client's upload is stuck: the server accepts no bytes, so the proxy reads none, and only a query of
    /// the kernel can show that the client has left.
    pub(super) unread: bool,
    /// When the exchange must end.
    pub(super) deadline: Option<Instant>,
}

/// Which limit was reached when the alarm fired.
enum Reached {
    /// No limit: bytes have moved since the alarm was set.
    Nothing,
    /// Nothing has moved for [`Limits::stall`], or a side has read none of the bytes that are ready for it for
    /// [`Limits::write_stall`].
    Stall,
    /// The wait for the rest of the request is over. This is not a failure.
    Linger,
    /// The exchange's deadline, or the time at which a response must have begun.
    Deadline,
    /// Nothing has moved for a while: the machine at the other end may be lost, or the client may have left.
    Silence,
}

impl Bounds {
    pub(super) fn new(started: Instant, limits: &Limits) -> Self {
        Self {
            stall_until: started + limits.stall_while(true),
            stall_moves: 0,
            blocked: None,
            linger: None,
            deadline: None,
            silence: (started + SILENCE, 0),
            unread: None,
        }
    }

    /// Called when the response is complete but the request is not.
    pub(super) fn begin_linger(&mut self, moves: u64, limits: &Limits) {
        self.linger.get_or_insert_with(|| (Instant::now() + limits.linger, moves));
    }

    /// Ready when the exchange must end: with a failure, or because it has lingered long enough. `None` means that
    /// nothing has moved for a while, so the caller should check whether a connection is lost.
    pub(super) fn poll<J>(
        &mut self,
        (alarm, cx): (&mut Alarm, &mut Context<'_>),
        order: &Order<'_, J>,
        now: Progress,
    ) -> Poll<Option<Result<(), Failure>>> {
        let Progress { moves, blocked, sending, silent, .. } = now;
        let deadline = order.ends_at(now.deadline, silent);
        loop {
            self.follow_unread(now);
            let until = self.next(moves, blocked.is_some(), deadline, order.limits);
            ready!(alarm.poll_at(until, cx));
            let failure = match self.reached(until, moves, (sending, silent), order.limits) {
                Reached::Nothing => continue,
                Reached::Silence => return Poll::Ready(None),
                Reached::Linger => return Poll::Ready(Some(Ok(()))),
                Reached::Deadline if now.upgraded => outlasted(),
                Reached::Deadline => {
                    let late = order.is_late(until, now.deadline, silent);
                    let of_server = silent || blocked == Some(Party::Server);
                    timed_out(late, of_server, now.replayable)
                }
                Reached::Stall => {
                    Failure::new(stall_blame(blocked, silent && !sending), Cause::Stalled)
                }
            };
            return Poll::Ready(Some(Err(failure)));
        }
    }

    /// Keeps the checks of a client whose upload is stuck. They begin again when bytes have moved.
    fn follow_unread(&mut self, now: Progress) {
        match &self.unread {
            _ if !now.unread => self.unread = None,
            Some(checks) if checks.moves == now.moves => {}
            _ => {
                let mut wait = GrowingWait::default();
                self.unread = Some(UnreadChecks { next: wait.next(), wait, moves: now.moves });
            }
        }
    }

    /// When to set the alarm. `blocked` says that bytes are ready for a side that does not read them.
    fn next(
        &mut self,
        moves: u64,
        blocked: bool,
        deadline: Option<Instant>,
        limits: &Limits,
    ) -> Instant {
        self.deadline = deadline;
        match self.blocked {
            _ if !blocked => self.blocked = None,
            Some((_, earlier)) if earlier == moves => {}
            _ => self.blocked = Some((Instant::now() + limits.write_stall, moves)),
        }
        let blocked = self.blocked.map(|(until, _)| until);
        let linger = self.linger.map(|(until, _)| until);
        let first = self.stall_until.min(self.silence.0);
        let unread = self.unread.as_ref().map(|checks| checks.next);
        [blocked, linger, deadline, unread].into_iter().flatten().fold(first, Instant::min)
    }

    /// To which limit the time `until` belongs, which has passed. `sending` says that the rest of a request is still
    /// being sent, so that lingering continues as long as bytes move. `silent` says that no response has begun.
    fn reached(
        &mut self,
        until: Instant,
        moves: u64,
        (sending, silent): (bool, bool),
        limits: &Limits,
    ) -> Reached {
        if self.deadline == Some(until) {
            return Reached::Deadline;
        }
        if let Some((lingering, earlier)) = self.linger
            && lingering == until
        {
            if !sending || earlier == moves {
                return Reached::Linger;
            }
            self.linger = Some((Instant::now() + limits.linger, moves));
            return Reached::Nothing;
        }
        if self.blocked.is_some_and(|(blocked, _)| blocked == until) {
            return Reached::Stall;
        }
        if let Some(checks) = &mut self.unread
            && checks.next == until
        {
            checks.next = checks.wait.next();
            return Reached::Silence;
        }
        if self.silence.0 == until && self.stall_until != until {
            let silent = self.silence.1 == moves;
            self.silence = (Instant::now() + SILENCE, moves);
            return if silent { Reached::Silence } else { Reached::Nothing };
        }
        if self.stall_moves == moves {
            return Reached::Stall;
        }
        self.stall_moves = moves;
        self.stall_until = Instant::now() + limits.stall_while(silent);
        Reached::Nothing
    }
}
