//! The QUIC endpoints: one socket of each family, for connections to and from other proxies.

use std::any::Any;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use leno_tls::TlsConfigs;
use leno_transport::spawn_contained;
use leno_types::Identity;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AsyncTimer, AsyncUdpSocket, ClientConfig, Connecting, Endpoint, EndpointConfig, IdleTimeout,
    Runtime, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls_pki_types::CertificateDer;
use tokio::time::timeout;

use crate::bounds::{
    CLOSING, CONNECTION_IDLE, FLOWS_OF_CONNECTION, HANDSHAKES, KEEP_ALIVE, QUEUED_BYTES,
};
use crate::ids::{MarkedIds, ProcessMark};

/// The flow-control window of a stream. It is more than enough, because a stream carries the ports of a flow, and one
/// byte back.
const STREAM_WINDOW: u32 = 64;
/// How many bytes of packets are kept for a connection that is not accepted yet: more than a handshake sends.
const INCOMING_BYTES: u64 = 16 * 1024;
/// The server name of all handshakes. No certificate is checked for it, because servers are verified by their identity.
const NO_NAME: &str = "leno.invalid";

/// The endpoints of one worker.
#[derive(Debug)]
pub(crate) struct Endpoints {
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
}

impl Endpoints {
    pub(crate) fn new(
        sockets: Vec<UdpSocket>,
        mark: ProcessMark,
        configs: Option<&TlsConfigs>,
    ) -> io::Result<Self> {
        let server = configs.map(server_config).transpose()?;
        let (mut v4, mut v6) = (None, None);
        for socket in sockets {
            let is_ipv4 = socket.local_addr()?.is_ipv4();
            let mut config = EndpointConfig::default();
            config.cid_generator(move || Box::new(MarkedIds::new(mark)));
            let endpoint = Endpoint::new(config, server.clone(), socket, Arc::new(ThisThread))?;
            *(if is_ipv4 { &mut v4 } else { &mut v6 }) = Some(endpoint);
        }
        Ok(Self { v4, v6 })
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Endpoint> {
        self.v4.iter().chain(&self.v6)
    }

    /// Uses these credentials for new handshakes with clients.
    pub(crate) fn renew(&self, configs: &TlsConfigs) -> io::Result<()> {
        let server = server_config(configs)?;
        self.each().for_each(|endpoint| endpoint.set_server_config(Some(server.clone())));
        Ok(())
    }

    /// Starts a handshake with the proxy at an address, which must have this identity.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        identity: Identity,
        configs: &TlsConfigs,
    ) -> io::Result<Connecting> {
        let endpoint = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let endpoint = endpoint.as_ref().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let crypto = QuicClientConfig::try_from(configs.datagram_client(identity));
        let mut client = ClientConfig::new(Arc::new(crypto.map_err(io::Error::other)?));
        let mut transport = transport();
        transport.keep_alive_interval(Some(KEEP_ALIVE));
        transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
        client.transport_config(Arc::new(transport));
        endpoint.connect_with(client, to, NO_NAME).map_err(io::Error::other)
    }

    /// Closes all connections, and accepts no more.
    pub(crate) fn close(&self) {
        for endpoint in self.each() {
            endpoint.set_server_config(None);
            endpoint.close(VarInt::from_u32(0), b"");
        }
    }

    /// Waits until the peers know that their connections have ended. Until then each of their packets is answered with
    /// the close of its connection.
    pub(crate) async fn closed(&self) {
        let all = async {
            for endpoint in self.each() {
                endpoint.wait_idle().await;
            }
        };
        // A peer that does not know by then ends the connection at its idle timeout.
        let _late = timeout(CLOSING, all).await;
    }
}

/// The certificates that the peer has shown.
pub(crate) fn chain(identity: Option<Box<dyn Any>>) -> Vec<CertificateDer<'static>> {
    let chain = identity.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

fn server_config(configs: &TlsConfigs) -> io::Result<ServerConfig> {
    let tls = configs.datagram_server().map_err(io::Error::other)?;
    let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = transport();
    transport.max_concurrent_bidi_streams(VarInt::from_u32(FLOWS_OF_CONNECTION));
    server
        .transport_config(Arc::new(transport))
        // Connections cannot migrate, because policies may depend on a workload's address.
        .migration(false)
        .max_incoming(HANDSHAKES)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES.saturating_mul(HANDSHAKES as u64));
    Ok(server)
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(CONNECTION_IDLE.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(STREAM_WINDOW.saturating_mul(FLOWS_OF_CONNECTION)))
        .datagram_receive_buffer_size(Some(QUEUED_BYTES))
        .datagram_send_buffer_size(QUEUED_BYTES)
        .congestion_controller_factory(Arc::new(CubicConfig::default()))
        .allow_spin(false);
    transport
}

/// Runs the tasks of QUIC on the calling thread. Each is contained: a panic only ends the connection to which it
/// belongs.
#[derive(Debug)]
struct ThisThread;

impl Runtime for ThisThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        spawn_contained(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
