//! Accepts the connections of the Workload API, identifies the instance of each, and bounds their number.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use leno_types::InstanceName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use super::attest::CgroupAttestor;
use crate::metrics::{GaugeGuard, Metrics};

/// Most connections of one instance, and of all processes together that belong to no instance. An application has
/// one or two.
const MAX_OF_INSTANCE: usize = 16;
/// Most connections in total.
const MAX_CONNECTIONS: usize = 4_096;
/// Connections that wait for the server to take them.
const HANDED_ON: usize = 16;

/// The instance whose process has opened the connection; `None` if the process belongs to no instance. Requests
/// carry it as an extension.
#[derive(Clone, Debug)]
pub(super) struct CallingInstance(pub(super) Option<InstanceName>);

/// How many connections each instance has.
#[derive(Clone, Debug, Default)]
struct InstanceConnections(Arc<Mutex<HashMap<Option<InstanceName>, usize>>>);

/// The permission for one connection, which counts until this is dropped.
#[derive(Debug)]
struct ConnectionPermit {
    places: InstanceConnections,
    of: Option<InstanceName>,
}

/// A connection whose process was identified.
pub(super) struct AttestedConnection {
    stream: UnixStream,
    place: ConnectionPermit,
    _counted: GaugeGuard,
}

/// Accepts connections until the receiver is dropped.
pub(super) fn accept(
    listener: UnixListener,
    attestor: CgroupAttestor,
    metrics: Arc<Metrics>,
) -> mpsc::Receiver<io::Result<AttestedConnection>> {
    let (sender, receiver) = mpsc::channel(HANDED_ON);
    tokio::spawn(async move {
        let places = InstanceConnections::default();
        loop {
            let next = leno_program::accept("connection of the Workload API", async || {
                listener.accept().await
            });
            let (stream, _) = tokio::select! {
                accepted = next => accepted,
                () = sender.closed() => return,
            };
            let of = match attestor.instance(&stream) {
                Ok(instance) => Some(instance),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::info!(error, "a caller of the Workload API is not a workload");
                    None
                }
            };
            let Some(place) = places.take(of) else {
                metrics.workload_api_refused.increment();
                continue;
            };
            let counted = GaugeGuard::new(&metrics, |metrics| &metrics.workload_api_connections);
            let connection = AttestedConnection { stream, place, _counted: counted };
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    receiver
}

impl InstanceConnections {
    fn take(&self, of: Option<InstanceName>) -> Option<ConnectionPermit> {
        // Poisoning is ignored, because no panic can interrupt a change of a count.
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&of).copied().unwrap_or_default();
        if own >= MAX_OF_INSTANCE || taken.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        taken.insert(of.clone(), own + 1);
        Some(ConnectionPermit { places: self.clone(), of })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.of);
            }
        }
    }
}

impl Connected for AttestedConnection {
    type ConnectInfo = CallingInstance;

    fn connect_info(&self) -> CallingInstance {
        CallingInstance(self.place.of.clone())
    }
}

impl AsyncRead for AttestedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for AttestedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_takes_no_places_of_others() {
        let places = InstanceConnections::default();
        let name = |name: &str| Some(InstanceName::new("shop", name).expect("a name"));
        let mut held: Vec<ConnectionPermit> =
            (0..MAX_OF_INSTANCE).filter_map(|_| places.take(name("web-0"))).collect();
        assert_eq!(held.len(), MAX_OF_INSTANCE);
        assert!(places.take(name("web-0")).is_none());
        assert!(places.take(name("web-1")).is_some() && places.take(None).is_some());
        held.pop();
        assert!(places.take(name("web-0")).is_some());
        drop(held);
        assert!(places.0.lock().expect("the table").is_empty());
    }
}
