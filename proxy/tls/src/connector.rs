//! Makes handshakes as a client and as a server.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use leno_transport::{Peeked, is_served_here};
use leno_types::Identity;
use rustls::CommonState;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::clients::ClientConfigs;
use crate::live::Dialled;
use crate::renewal::{Renewal, Renewals};
use crate::session::Session;
use crate::stream::{Alpn, TlsStream};
use crate::tls::Tls;
use crate::verify::Svid;
use crate::{HandshakeError, Refusal, TlsConfigs};

/// How long a handshake may take, on either side. This is enough for two round trips, a lost segment and a busy peer.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type Current = watch::Receiver<Option<Arc<TlsConfigs>>>;

/// Opens mTLS connections to other proxies. Each worker has its own clone.
#[derive(Clone, Debug)]
pub struct Connector {
    current: Current,
    clients: RefCell<ClientConfigs>,
    /// Whether every server is treated as one in this process.
    #[cfg(test)]
    pub(crate) offers_all: bool,
}

/// Accepts mTLS connections from other proxies. Each worker has its own clone.
#[derive(Clone, Debug)]
pub struct Acceptor {
    current: Current,
    renewals: Renewals,
}

/// Whether a client must prove its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    /// A client without a valid certificate is refused.
    Required,
    /// A client without a certificate, or with one that does not verify, is accepted without an
    /// identity.
    Optional,
}

impl Connector {
    /// Uses the credentials that `current` has at the time of each handshake.
    #[must_use]
    pub fn new(current: watch::Receiver<Option<Arc<TlsConfigs>>>) -> Self {
        Self {
            current,
            clients: RefCell::default(),
            #[cfg(test)]
            offers_all: false,
        }
    }

    /// Makes `tcp` an mTLS connection to `expected` and to no other identity. It carries the
    /// protocol that the server prefers among `offered`.
    ///
    /// # Errors
    /// [`HandshakeError`]. If the server refuses this side's certificate, that error comes later, with the first
    /// read: [`crate::refused_by_server`].
    pub async fn connect(
        &self,
        tcp: TcpStream,
        expected: &Identity,
        offered: &[Alpn],
    ) -> Result<TlsStream, HandshakeError> {
        let current = in_use(&self.current)?;
        let client = self.clients.borrow_mut().get(&current, expected);
        // rustls looks up sessions by the server's address.
        let address = tcp.peer_addr()?;
        let server = ServerName::IpAddress(address.ip().into());
        let alpns = offered.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
        let session = UnbufferedClientConnection::new_with_alpn(client, server, alpns)?;
        let mut tls = Tls::new(tcp, Session::Client(session));
        tls.passage.offers = is_served_here(address.ip());
        #[cfg(test)]
        {
            tls.passage.offers |= self.offers_all;
        }
        let tls = in_time(tls).await?;
        let session = tls.common();
        let alpn = agreed(session, offered).ok_or(HandshakeError::NoProtocol)?;
        let svid = proven(session, &self.current)?;
        svid.check_identity(expected)?;
        let dialled =
            Dialled { server: address, shown_until_s: current.own_until_s(), not_before_s: 0 };
        // Servers of HBONE accept no renewals.
        let dialled = (alpn != Alpn::Hbone).then_some(dialled);
        Ok(TlsStream::new(tls, Ok(expected.clone()), alpn).bounded(&svid, dialled))
    }

    pub(crate) fn latest(&self) -> &Current {
        &self.current
    }

    /// When this workload's own certificate expires.
    pub(crate) fn own_until_s(&self) -> Result<i64, HandshakeError> {
        Ok(in_use(&self.current)?.own_until_s())
    }
}

impl Acceptor {
    /// Uses the credentials that `current` has at the time of each handshake.
    #[must_use]
    pub fn new(current: watch::Receiver<Option<Arc<TlsConfigs>>>) -> Self {
        Self { current, renewals: Renewals::default() }
    }

    /// The same acceptor, for workers that share `renewals`.
    pub(crate) fn sharing(self, renewals: &Renewals) -> Self {
        Self { renewals: renewals.clone(), ..self }
    }

    /// Receives the renewals that clients have sent to any of the workers.
    #[must_use]
    pub fn renewed(&self) -> mpsc::Receiver<Arc<Renewal>> {
        self.renewals.subscribe()
    }

    pub(crate) fn renewals(&self) -> &Renewals {
        &self.renewals
    }

    pub(crate) fn latest(&self) -> &Current {
        &self.current
    }

    /// The identity that this acceptor proves; `None` as long as there is no certificate.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.current.borrow().as_ref().map(|configs| configs.credentials().identity().clone())
    }

    /// Makes `tcp` an mTLS connection of the mesh. Some of its bytes may already have been read. A client's identity is
    /// always of this workload's trust domain or of a federated one; `client` says whether the client must have an
    /// identity.
    ///
    /// # Errors
    /// [`HandshakeError`]. A client that presents a certificate without having its key is always refused.
    pub async fn accept(
        &self,
        tcp: impl Into<Peeked<TcpStream>>,
        client: ClientIdentity,
    ) -> Result<TlsStream, HandshakeError> {
        let current = in_use(&self.current)?;
        let config = match client {
            ClientIdentity::Required => current.server(),
            ClientIdentity::Optional => current.open_server(),
        };
        let session = UnbufferedServerConnection::new(config)?;
        let mut tls = in_time(Tls::new(tcp, Session::Server(session))).await?;
        let session = tls.common();
        let alpn = agreed(session, &Alpn::ALL).ok_or(HandshakeError::NoProtocol)?;
        let svid = match client {
            ClientIdentity::Required => {
                let svid = proven(session, &self.current)?;
                current.check_domain(&svid)?;
                Ok(svid)
            }
            ClientIdentity::Optional => {
                // A resumed session is checked in the same way, because its ticket only proves which certificate the
                // client presented.
                let chain = session.peer_certificates().unwrap_or_default();
                in_use(&self.current)?.identify(chain).map_err(|error| error.reason())
            }
        };
        let identity = svid.as_ref().map(|svid| svid.identity.clone()).map_err(|reason| *reason);
        if identity.is_ok() {
            tls.take_pipe();
        }
        let stream = TlsStream::new(tls, identity, alpn);
        Ok(match svid {
            Ok(svid) => stream.bounded(&svid, None),
            Err(_reason) => stream,
        })
    }
}

impl Acceptor {
    /// Makes `tcp` an HBONE connection, whose client must prove an identity of this workload's trust domain or of a
    /// federated one.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn accept_hbone(
        &self,
        tcp: impl Into<Peeked<TcpStream>>,
    ) -> Result<TlsStream, HandshakeError> {
        let current = in_use(&self.current)?;
        let session = UnbufferedServerConnection::new(current.hbone_server())?;
        let tls = in_time(Tls::new(tcp, Session::Server(session))).await?;
        let session = tls.common();
        let alpn = agreed(session, &[Alpn::Hbone]).ok_or(HandshakeError::NoProtocol)?;
        let svid = proven(session, &self.current)?;
        current.check_domain(&svid)?;
        let identity = svid.identity.clone();
        Ok(TlsStream::new(tls, Ok(identity), alpn).bounded(&svid, None))
    }
}

fn in_use(current: &Current) -> Result<Arc<TlsConfigs>, HandshakeError> {
    current.borrow().clone().ok_or(HandshakeError::NoCredentials)
}

async fn in_time(mut tls: Box<Tls>) -> Result<Box<Tls>, HandshakeError> {
    let handshake = poll_fn(|cx| tls.poll_handshake(cx));
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    done.map_err(|_| HandshakeError::Timeout)??;
    Ok(tls)
}

/// The protocol in `offered` on which both ends agreed.
fn agreed(session: &CommonState, offered: &[Alpn]) -> Option<Alpn> {
    let agreed = session.alpn_protocol()?;
    offered.iter().copied().find(|alpn| alpn.as_bytes() == agreed)
}

/// The identity that the peer proved in this handshake, or in the one that began the resumed session. Checks the
/// latest revocations: a revocation that arrives during the handshake would not end a connection that is not
/// registered yet.
pub(crate) fn proven(session: &CommonState, latest: &Current) -> Result<Svid, HandshakeError> {
    let chain = session.peer_certificates().unwrap_or_default();
    let svid = Svid::read(chain.first().ok_or(Refusal::NoCertificate)?)?;
    let latest = in_use(latest)?;
    svid.check_time(latest.now()?)?;
    latest.check_revoked(&svid)?;
    Ok(svid)
}
