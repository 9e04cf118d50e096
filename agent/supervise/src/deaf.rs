//! Detects that the broker of a member hangs: it does not receive the messages that were sent to it.
//!
//! ```text
//!  supervisor ── orders ──────────► broker
//!  node proxy ── wants sockets ───►   │    the supervisor has a handle of both channels, and sees what waits in them
//! ```
//! A broker is not asked for a beat: it has no clock, and would wake up for it in every namespace of a machine. One that
//! stands still is left alone until a message waits for it. It passes no traffic, so that its workload's open connections go
//! on without it, which a replacement cuts.

use leno_handover::Channel;

/// A broker hangs after this many looks in a row, one each second, that each find a message. It handles one within
/// microseconds; on a busy machine it may wait for a CPU.
const LOOKS: u32 = 5;

/// What was seen of the channels to a broker.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedMessages {
    /// Looks in a row that found one.
    looks: u32,
}

impl UnreceivedMessages {
    /// Looks at the channels. Whether the broker hangs: once, and again for as long as it is not replaced.
    pub(crate) fn look<'c>(&mut self, mut channels: impl Iterator<Item = &'c Channel>) -> bool {
        // What cannot be looked at has ended, which is noticed elsewhere.
        let waits = channels.any(|channel| channel.has_unreceived().unwrap_or(false));
        self.looks = if waits { self.looks.saturating_add(1) } else { 0 };
        waits && self.looks.is_multiple_of(LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_wait_at_every_look_are_a_broker_that_hangs() {
        let (one, other) = (Channel::pair().unwrap(), Channel::pair().unwrap());
        let mut seen = UnreceivedMessages::default();
        let mut look = || seen.look([&one.0, &other.0].into_iter());
        other.0.send(&(), &[]).unwrap();
        for _ in 0..2 {
            assert!((1..LOOKS).all(|_| !look()));
            assert!(look(), "it was not replaced for the first one");
        }
        assert!((1..LOOKS).all(|_| !look()));
        other.1.receive::<()>().unwrap().unwrap();
        assert!(!look());
        other.0.send(&(), &[]).unwrap();
        assert!((1..LOOKS).all(|_| !look()), "it goes on");
        assert!(look());
    }
}
