//! HBONE: an mTLS connection whose HTTP/2 streams are connections to this workload, as the proxies of Istio's ambient
//! mode open them.
//!
//! ```text
//!  client's proxy ══ mTLS, HTTP/2, port 15008 ══╦═ CONNECT own address:8080 ─► 200 ─► as a connection to 8080
//!                                               ╠═ CONNECT a service of this waypoint:80 ─► 200 ─► to the service (`waypoint`)
//!                                               ╠═ CONNECT another address  ─► 403
//!                                               ╠═ CONNECT no IP address    ─► 400
//!                                               ╠═ too many tunnels, or discovery does not answer ─► 503
//!                                               ╚═ another method           ─► 405
//! ```
//!
//! A tunnelled connection is detected, counted and authorized like a connection of a client that has proven its
//! identity. Headers of a CONNECT are not trusted, and neither are mesh headers in requests inside the tunnel: the
//! proxy at the other end relays bytes that the client's application chooses.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use leno_h2::{Code, Head, Request, Tunnel};
use leno_http::{Answer, Call, serve_streams};
use leno_program::Shares;
use leno_telemetry::Counter;
use leno_tls::TlsStream;
use leno_transport::spawn_contained;
use leno_types::{Identity, Protocol, canonical, ports};
use tokio::time::timeout;

use crate::accept::{Plain, tunnelled};
use crate::authorize::Access;
use crate::waypoint::{Front, NoFront};
use crate::{Applications, Caller, Client, http, opaque};

/// How many bytes of an authority are logged.
const LOGGED_BYTES: usize = 256;

/// The answer if the CONNECT is for another address, or for a port of this proxy.
const NOT_HERE: (u16, &str) = (403, "hbone-not-this-workload");
/// The answer if the request has another method.
const NOT_CONNECT: (u16, &str) = (405, "hbone-connect-only");
/// The answer of a waypoint if the CONNECT is for an address that is not one of its services'.
const NOT_OF_SERVICE: (u16, &str) = (403, "waypoint-not-of-this-service");
/// The answer of a waypoint if discovery does not say in time what the address is.
const UNRESOLVED: (u16, &str) = (503, "waypoint-not-resolved");
/// The answer if the authority of the CONNECT is not an IP address with a port.
const NO_ADDRESS: (u16, &str) = (400, "hbone-no-address");
/// The answer if as many tunnels or services are in use as there may be.
const TOO_MANY: (u16, &str) = (503, "hbone-tunnels-in-use");

/// The default ports of the proxy itself, to which no tunnel may lead.
const OWN_PORTS: [u16; 4] = [ports::OUTBOUND, ports::INBOUND, ports::HBONE, ports::ADMIN];

/// Bounds the open tunnels to `most`, half of them for one identity. If `most` tunnels are open, a new one replaces
/// the newest tunnel of the identity that has the most, provided that this identity has at least two more than the
/// new tunnel's identity. Otherwise the new tunnel is refused.
pub(crate) fn tunnels(most: usize) -> Shares<Identity> {
    Shares::keeping(most, most.div_ceil(2))
}

/// The limits of a connection. PINGs are sent, because each proxy at the other end answers them. A stalled stream is
/// reset with a code that no client takes for a proper end.
pub(crate) fn limits() -> Rc<leno_h2::Limits> {
    let stall_code = Code::CONNECT_ERROR;
    Rc::new(leno_h2::Limits {
        connect_protocol: false,
        ping: true,
        stall_code,
        ..Default::default()
    })
}

/// Serves the streams of one HBONE connection. Each stream is a CONNECT, which asks for a tunnel.
pub(crate) struct Tunnels {
    applications: Applications,
    client: Client,
    identity: Identity,
    /// The address of this workload that the client's proxy dialled.
    own: IpAddr,
}

impl Tunnels {
    pub(crate) fn new(
        applications: Applications,
        (client, identity): (Client, Identity),
        own: IpAddr,
    ) -> Self {
        Self { applications, client, identity, own }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn serve(self, stream: TlsStream) {
        let shared = Rc::clone(&self.applications.shared);
        let tunnels = Rc::new(self);
        let begin = |request| {
            let tunnels = Rc::clone(&tunnels);
            // This task ends with the stream. The number of streams of a connection is limited.
            spawn_contained(async move { tunnels.serve_stream(request).await });
        };
        let fresh = stream.fresh_for().unwrap_or(Duration::MAX);
        // HBONE has no message with which a client could present its next certificate. So the connection is drained
        // when the certificate must be renewed, and the client's proxy opens another connection.
        let drained = async {
            let _late = timeout(fresh, shared.parts.activity.drained()).await;
        };
        if let Err(error) = serve_streams(stream, &[], &shared.hbone_limits, begin, drained).await {
            tracing::debug!(%error, "a connection of HBONE ended");
        }
    }

    async fn serve_stream(&self, request: Request) {
        let shared = &self.applications.shared;
        let registry = &shared.parts.registry;
        let to = match target(&request.head) {
            Ok(address) => self.end(address).await,
            Err(refusal) => Err(refusal),
        };
        let end = match to {
            Ok(end) => end,
            Err(refusal) => {
                registry.count(match refusal == TOO_MANY {
                    true => Counter::InboundTunnelLimit,
                    false => Counter::InboundTunnelRefused,
                });
                return self.refuse(request, refusal);
            }
        };
        let Some(place) = shared.tunnels.take(self.identity.clone()) else {
            registry.count(Counter::InboundTunnelLimit);
            return self.refuse(request, TOO_MANY);
        };
        let mut stream = request.stream;
        let mut head = Head::new();
        head.push(b":status", b"200");
        if !stream.send_head(&head, false) {
            // The stream was reset meanwhile.
            return;
        }
        drop((head, request.head));
        registry.count(Counter::InboundTunnelOpened);
        let served = place.hold(Box::pin(self.relay(Tunnel::new(stream), end))).await;
        if served.is_none() {
            // The tunnel was reset to make room for one of an identity with fewer tunnels.
            registry.count(Counter::InboundTunnelEvicted);
        }
    }

    fn refuse(&self, request: Request, (status, cause): (u16, &'static str)) {
        if let Some(left_out) = self.applications.shared.log.take() {
            let authority = authority(&request.head);
            let authority = authority.get(..LOGGED_BYTES).unwrap_or(authority);
            let authority = String::from_utf8_lossy(authority);
            tracing::info!(client = %self.identity, ?authority, cause, left_out, "a tunnel of HBONE is refused");
        }
        Call::new(request).respond(&Answer::error(status, cause));
    }

    /// Returns where a tunnel leads whose CONNECT names this address. The error is the status and the cause of the
    /// answer that refuses the tunnel.
    async fn end(&self, address: SocketAddr) -> Result<TunnelTarget, (u16, &'static str)> {
        let shared = &self.applications.shared;
        let Some(waypoint) = shared.waypoint.get() else {
            let port = port(address, self.own, &shared.parts.own_ports)?;
            return Ok(TunnelTarget::Workload(SocketAddr::new(self.own, port)));
        };
        // A waypoint does not forward to its own pod.
        if address.ip() == self.own {
            return Err(NOT_OF_SERVICE);
        }
        match waypoint.front(&shared.parts, address).await {
            Ok(front) => Ok(TunnelTarget::Service(front, address)),
            Err(NoFront::NotOfService) => Err(NOT_OF_SERVICE),
            Err(NoFront::Unresolved) => Err(UNRESOLVED),
            Err(NoFront::Limit) => Err(TOO_MANY),
        }
    }

    /// Serves the tunnel like a connection of the client to this target.
    async fn relay(&self, tunnel: Tunnel, end: TunnelTarget) {
        let (applications, destination) = match &end {
            TunnelTarget::Workload(destination) => (&self.applications, *destination),
            TunnelTarget::Service(front, destination) => (front.applications(), *destination),
        };
        let shared = &applications.shared;
        let port = destination.port();
        let application = applications.at(destination, self.client.address);
        let access = Access::new(&self.client, port);
        let declared = shared.rules_for(port).declared;
        let accepted = tunnelled(shared, &application, tunnel.into(), &access, declared).await;
        let Some(accepted) = accepted else { return };
        let edge = shared.edge(&self.client);
        match accepted {
            Plain::Http { client, protocol } => {
                let counted = (&edge, Rc::new(Caller::new(&self.client, access)));
                if protocol == Protocol::Http2 {
                    http::serve_http2(shared, &application, counted, client, false).await;
                } else {
                    let handlers = (shared, &shared.tunnelled);
                    http::serve_http1(handlers, &application, counted, client, false).await;
                }
            }
            Plain::Opaque { client, server, tls } => {
                let peer = (&*edge, &access);
                opaque::serve(shared, &application, peer, client, (server, tls)).await;
            }
            Plain::Unreachable { client, error } => {
                opaque::unreachable(shared, &edge, &error, destination);
                client.reset();
            }
        }
    }
}

/// The target of a tunnel.
enum TunnelTarget {
    /// A port of this workload.
    Workload(SocketAddr),
    /// A service whose waypoint this proxy is.
    Service(Rc<Front>, SocketAddr),
}

/// The address in the authority of a CONNECT.
fn target(head: &Head) -> Result<SocketAddr, (u16, &'static str)> {
    if head.get(b":method") != Some(b"CONNECT") {
        return Err(NOT_CONNECT);
    }
    let text = std::str::from_utf8(authority(head)).map_err(|_| NO_ADDRESS)?;
    text.parse().map(canonical).map_err(|_| NO_ADDRESS)
}

/// The port of this workload that an address names. Fails if the address is another one, or the port is one of the
/// proxy itself.
fn port(address: SocketAddr, own: IpAddr, own_ports: &[u16]) -> Result<u16, (u16, &'static str)> {
    let port = address.port();
    let is_own = port == 0 || OWN_PORTS.contains(&port) || own_ports.contains(&port);
    if address.ip() == own && !is_own { Ok(port) } else { Err(NOT_HERE) }
}

fn authority(head: &Head) -> &[u8] {
    head.get(b":authority").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, authority: &str, own: &str) -> Result<u16, u16> {
        let mut head = Head::new();
        head.push(b":method", method.as_bytes());
        head.push(b":authority", authority.as_bytes());
        let port = target(&head).and_then(|to| port(to, own.parse().unwrap(), &[4140]));
        port.map_err(|(status, _)| status)
    }

    #[test]
    fn a_tunnel_leads_to_the_dialled_address_alone() {
        assert_eq!(asked("CONNECT", "10.0.0.1:8080", "10.0.0.1"), Ok(8080));
        assert_eq!(asked("CONNECT", "[::ffff:10.0.0.1]:8080", "10.0.0.1"), Ok(8080));
        assert_eq!(asked("CONNECT", "[fd00::1]:53", "fd00::1"), Ok(53));
        for other in ["10.0.0.2:8080", "127.0.0.1:8080", "0.0.0.0:8080", "[::1]:8080"] {
            assert_eq!(asked("CONNECT", other, "10.0.0.1"), Err(403), "{other}");
        }
        for port in OWN_PORTS.into_iter().chain([0, 4140]) {
            let own = format!("10.0.0.1:{port}");
            assert_eq!(asked("CONNECT", &own, "10.0.0.1"), Err(403), "{own}");
        }
        for name in ["web.shop:80", "10.0.0.1", "10.0.0.1:80000", "", "fd00::1:53"] {
            assert_eq!(asked("CONNECT", name, "10.0.0.1"), Err(400), "{name}");
        }
        assert_eq!(asked("GET", "10.0.0.1:8080", "10.0.0.1"), Err(405));
    }
}
