//! The waits of an exchange, all on the client's one timer.

use leno_transport::SILENCE;
use tokio::time::Instant;

use crate::limits::Limits;

/// `moves` in the methods is a number that grows with every byte moved; comparing it spares
/// reading the clock whenever one does.
#[derive(Debug)]
pub(super) struct Bounds {
    stall_until: Instant,
    stall_moves: u64,
    blocked: Option<(Instant, u64)>,
    linger: Option<(Instant, u64)>,
    deadline: Option<Instant>,
    /// When to examine the connections, and how much had moved when that was last done.
    silence: (Instant, u64),
}

/// Which bound an alarm stands for.
pub(super) enum Reached {
    /// None: something moved since the alarm was set.
    Nothing,
    Stall,
    Linger,
    Deadline,
    /// Nothing moved for a while: the machines at the other ends may be lost.
    Silence,
}

impl Bounds {
    pub(super) fn new(started: Instant, limits: &Limits) -> Self {
        Self {
            stall_until: started + limits.stall,
            stall_moves: 0,
            blocked: None,
            linger: None,
            deadline: None,
            silence: (started + SILENCE, 0),
        }
    }

    /// The response is over, the request is not.
    pub(super) fn begin_linger(&mut self, moves: u64, limits: &Limits) {
        self.linger.get_or_insert_with(|| (Instant::now() + limits.linger, moves));
    }

    /// When to look again. `blocked`: bytes wait for a side to take them.
    pub(super) fn next(
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
        [blocked, linger, deadline].into_iter().flatten().fold(first, Instant::min)
    }

    /// What it means that `until` has come. `sending`: the rest of a request still goes out, so
    /// that lingering goes on as long as it moves.
    pub(super) fn reached(
        &mut self,
        until: Instant,
        moves: u64,
        sending: bool,
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
        if self.silence.0 == until && self.stall_until != until {
            let silent = self.silence.1 == moves;
            self.silence = (Instant::now() + SILENCE, moves);
            return if silent { Reached::Silence } else { Reached::Nothing };
        }
        if self.stall_moves == moves {
            return Reached::Stall;
        }
        self.stall_moves = moves;
        self.stall_until = Instant::now() + limits.stall;
        Reached::Nothing
    }
}
