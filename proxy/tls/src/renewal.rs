//! Extends connections beyond the expiry of the certificates with which they began, if the peers present their next
//! certificates.
//!
//! TLS 1.3 has no second handshake within a connection, and a connection of an application cannot be replaced by
//! another one without the application noticing. So the client opens a second connection, on which both ends present
//! their current certificates. On it the client names the connections to extend by their bindings, which only the two
//! ends of each connection can derive.
//!
//! ```text
//!  client ── Alpn::Renewal, own certificate ──► server      handshake: both certificates
//!         ── bindings, end ──────────────────►         ──► Renewals ──► each worker: its connections of that
//!         ◄─────────────────────────── taken ──                         identity and binding are extended
//! ```

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leno_types::Identity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::binding::{BINDING_BYTES, Binding};
use crate::connector::proven;
use crate::live;
use crate::verify::Svid;
use crate::{
    Acceptor, Alpn, Connector, HANDSHAKE_TIMEOUT, HandshakeError, Refusal, TlsConfigs, TlsStream,
};

/// The largest number of connections that one renewal names (16 KiB of bindings). The next renewal names further ones.
pub(crate) const MAX_BINDINGS: usize = 1024;
/// The largest number of renewals that wait for a worker. Each costs its client a handshake, so workers keep up. If a
/// renewal is dropped, its connections end with their certificates.
const MAX_WAITING: usize = 256;
/// The server's answer if it accepts the renewal.
const TAKEN: u8 = 1;

/// Passes renewals from the worker that has accepted them on to all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renewals(Arc<Mutex<Vec<mpsc::Sender<Arc<Renewal>>>>>);

impl Renewals {
    pub(crate) fn subscribe(&self) -> mpsc::Receiver<Arc<Renewal>> {
        let (worker, renewals) = mpsc::channel(MAX_WAITING);
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes workers that have ended.
        workers.retain(|worker| !worker.is_closed());
        workers.push(worker);
        renewals
    }

    fn pass_on(&self, renewal: Renewal) {
        let renewal = Arc::new(renewal);
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| {
            let passed = worker.try_send(Arc::clone(&renewal));
            !matches!(passed, Err(mpsc::error::TrySendError::Closed(_)))
        });
    }
}

/// The renewal of a client, which has presented its next certificate.
#[derive(Debug)]
pub struct Renewal {
    svid: Svid,
    bindings: HashSet<Binding>,
}

impl Renewal {
    /// Extends the connections of this thread that the renewal names. Returns how many there are.
    #[must_use]
    pub fn apply(&self) -> u64 {
        live::renewed_at_server(&self.bindings, &self.svid)
    }
}

/// Which process receives the renewals that this workload's clients send. It changes when another process takes over
/// the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalsArrive {
    /// This process: its listeners are open.
    Here,
    /// The process that now accepts connections. Clients can no longer present certificates to this process.
    Elsewhere,
}

/// Connections to one server that must be renewed.
#[derive(Debug)]
pub struct RenewalDue {
    /// The server's address.
    pub server: SocketAddr,
    /// The server's identity.
    pub identity: Identity,
    pub(crate) bindings: Vec<Binding>,
}

impl TlsConfigs {
    /// Ends the connections of this thread whose peers' certificates have expired. Returns how many ended.
    #[must_use]
    pub fn end_expired(&self, renewals: RenewalsArrive) -> u64 {
        self.now_s().map_or(0, |now_s| live::end_expired(now_s, renewals))
    }

    /// The connections of this thread that must be renewed now, as their client, because this workload has another
    /// certificate than it has shown to the server, or the server should have a new one. The next attempt for each is
    /// due after half of its remaining time.
    #[must_use]
    pub fn renewals_due(&self) -> Vec<RenewalDue> {
        let own_until_s = self.own_until_s();
        self.now_s().map_or_else(Vec::new, |now_s| live::due(own_until_s, now_s))
    }

    pub(crate) fn own_until_s(&self) -> i64 {
        self.credentials().not_after_s
    }

    fn now_s(&self) -> Option<i64> {
        i64::try_from(self.now().ok()?.as_secs()).ok()
    }
}

impl Connector {
    /// Renews connections to a server over `tcp`, a new connection to that server. Returns how many were renewed.
    ///
    /// # Errors
    /// [`HandshakeError`]; for example because a server of an older release does not know the protocol.
    pub async fn renew(&self, tcp: TcpStream, due: &RenewalDue) -> Result<u64, HandshakeError> {
        let own_until_s = self.own_until_s()?;
        let mut stream = self.connect(tcp, &due.identity, &[Alpn::Renewal]).await?;
        let svid = proven(stream.tls.common(), self.latest())?;
        timeout(HANDSHAKE_TIMEOUT, name(&mut stream, &due.bindings))
            .await
            .map_err(|_| HandshakeError::Timeout)??;
        let bindings = due.bindings.iter().copied().collect();
        Ok(live::renewed_by_client(&bindings, &svid, own_until_s))
    }
}

async fn name(stream: &mut TlsStream, bindings: &[Binding]) -> io::Result<()> {
    stream.write_all(bindings.as_flattened()).await?;
    stream.shutdown().await?;
    match stream.read_u8().await? {
        TAKEN => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Acceptor {
    /// Reads the renewal that a client sends on a connection with [`Alpn::Renewal`], and passes it to all workers.
    ///
    /// # Errors
    /// [`HandshakeError`]: the client has no proven identity, or its renewal is invalid.
    pub async fn take_renewal(&self, mut stream: TlsStream) -> Result<(), HandshakeError> {
        if stream.identity().is_none() {
            return Err(Refusal::NoIdentity.into());
        }
        let svid = proven(stream.tls.common(), self.latest())?;
        timeout(HANDSHAKE_TIMEOUT, async {
            let renewal = read(&mut stream, svid).await?;
            self.renewals().pass_on(renewal);
            stream.write_u8(TAKEN).await?;
            stream.shutdown().await
        })
        .await
        .map_err(|_| HandshakeError::Timeout)??;
        Ok(())
    }
}

async fn read(stream: &mut TlsStream, svid: Svid) -> io::Result<Renewal> {
    let most = MAX_BINDINGS.saturating_mul(BINDING_BYTES);
    let mut bytes = Vec::new();
    stream.take(most.saturating_add(1) as u64).read_to_end(&mut bytes).await?;
    let (bindings, rest) = bytes.as_chunks();
    if bindings.is_empty() || !rest.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Renewal { svid, bindings: bindings.iter().copied().collect() })
}
