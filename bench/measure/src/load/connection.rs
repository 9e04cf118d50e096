//! A slot of the load, which is a connection or one stream of a connection.

use std::rc::Rc;
use std::time::Duration;

use super::dialler::{Dialler, RequestOutcome};
use super::plan::ClusterTarget;
use super::{h2, stream};

/// A slot, which carries one request at a time.
pub(super) enum Connection {
    Stream(stream::StreamConnection),
    H2(h2::Slot),
}

impl Connection {
    /// All slots of `connections` connections; `first` is the number of the first connection.
    pub(super) fn all(
        target: &Rc<ClusterTarget>,
        (first, connections): (usize, usize),
        streams: usize,
    ) -> Vec<Self> {
        let mut slots = Vec::new();
        for nth in first..first + connections {
            let dialler = Dialler { target: Rc::clone(target), next_address: nth, opened: 0 };
            match target.plan.protocol.is_http2() {
                true => slots.extend(h2::Slot::all(dialler, streams).map(Self::H2)),
                false => slots.push(Self::Stream(stream::StreamConnection::new(dialler))),
            }
        }
        slots
    }

    /// Sends the target's request and reads the whole response.
    pub(super) async fn request(&mut self) -> RequestOutcome {
        match self {
            Self::Stream(connection) => connection.request().await,
            Self::H2(slot) => slot.request().await,
        }
    }

    /// Opens the connection before the first request needs it. A failure is not returned here, because the first
    /// request reports it.
    pub(super) async fn open(&mut self, limit: Duration) {
        // The first request reports the failure.
        let _ = tokio::time::timeout(limit, async {
            match self {
                Self::Stream(connection) => connection.open().await,
                Self::H2(slot) => slot.open().await,
            }
        })
        .await;
    }

    /// Drops the connection together with any unfinished request; of a shared HTTP/2 connection, only this slot's
    /// stream.
    pub(super) fn reset(&mut self) {
        match self {
            Self::Stream(connection) => connection.reset(),
            Self::H2(slot) => slot.reset(),
        }
    }

    /// The number of connections that this slot has opened.
    pub(super) fn opened(&self) -> u64 {
        match self {
            Self::Stream(connection) => connection.dialler.opened,
            Self::H2(slot) => slot.opened(),
        }
    }
}
