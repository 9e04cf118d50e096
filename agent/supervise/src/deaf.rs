//! Detects that the broker of a member hangs, because it does not receive the messages that were sent to it.
//!
//! ```text
//!  supervisor ── orders ──────────► broker
//!  node proxy ── wants sockets ───►   │    the supervisor has a handle of both channels, and sees what waits in them
//! ```
//! A broker sends no heartbeat: it has no timer, and a heartbeat would wake it up in every namespace of a machine.
//! A broker that hangs is not replaced until a message waits for it. It carries no traffic, so its workload's open
//! connections continue without it, but a replacement would close them.

use leno_handover::Channel;

/// A broker counts as hung after this many checks in a row that each find a waiting message. There is one check
/// per second. A broker handles a message within microseconds, but on a busy machine it may have to wait for a
/// CPU.
const LOOKS: u32 = 5;

/// Counts checks of the channels to a broker.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedMessages {
    /// The number of checks in a row that found a waiting message.
    looks: u32,
}

impl UnreceivedMessages {
    /// Checks the channels. Returns true once the broker counts as hung, and again at the same intervals until it
    /// is replaced.
    pub(crate) fn look<'c>(&mut self, mut channels: impl Iterator<Item = &'c Channel>) -> bool {
        // A channel that cannot be checked has ended, which is noticed elsewhere.
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
