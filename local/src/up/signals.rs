//! The signals that end a mesh.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Attempt, Result};

/// SIGINT, SIGTERM and SIGHUP.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Catches these signals, so that they no longer end the process at once.
    pub(super) fn new() -> Result<Self> {
        let on = |kind| signal(kind).attempt(|| "cannot wait for signals".to_owned());
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Returns when a signal arrives. Cancel safe: no signal is lost if the future is dropped.
    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
