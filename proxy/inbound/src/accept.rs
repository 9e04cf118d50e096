//! Determines who the client of a connection is, and what the connection carries.
//!
//! A proxy always sends first: its ClientHello names a protocol of the mesh. HTTP clients send first, too. A client
//! that is silent may be waiting for the server to send first. So `race` connects to the application, if policies
//! permit the client, and the side that sends first decides. No byte of the client reaches the application before its
//! protocol is known. With strict mTLS there is no race, because only proxies are served.
//!
//! ```text
//!  first bytes ──────────────┬─ mesh TLS ─► handshake
//!                            ├─ TLS on the port of HBONE ─► handshake ─► tunnels
//!  none: race ─┬─ client ────┴─ anything else ─► HTTP, or bytes (strict: reset, unless a kubelet probes)
//!              ├─ application ─► bytes
//!              ├─ the application cannot be reached, or policies deny the client ─► reset
//!              └─ neither in time ─► closed
//! ```
//!
//! [`Waits`] contains the time limits of the steps. HBONE is described in `hbone`.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use leno_telemetry::{Counter, Direction};
use leno_tls::{Alpn, ClientIdentity, TlsStream, offers_hbone, offers_mesh};
use leno_transport::{ConnectError, Counted, Io, OwnTls, Peeked, Verdict, Waits};
use leno_types::mesh::{Resolution, WireForm};
use leno_types::{Identity, MtlsMode, Protocol};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Worker;
use crate::application::Application;
use crate::authorize::{Access, Silence};
use crate::own_tls::own_tls;
use crate::probe::{ProbeAnswers, ProbeMatch};
use crate::race::{FirstSpeaker, race};

/// How long to wait for the look-up of a client's address. After that the client counts as unmeshed.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for the rest of a probe's head, which a kubelet sends at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection whose client and protocol are known, so that it can be authorized and served.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// From another proxy, or from a client that uses the protocol of proxies without an identity.
    Mesh { stream: TlsStream, identity: Option<Identity>, protocol: Protocol },
    /// From a client of HBONE.
    Hbone { stream: TlsStream, identity: Identity },
    /// From a client that uses no TLS of the mesh, so that it has no identity.
    Plain(Plain<TcpStream>),
}

/// What a client sends to the application: on a connection without TLS of the mesh, or inside a tunnel.
#[derive(Debug)]
pub(crate) enum Plain<S> {
    /// Requests, of either version.
    Http { client: Peeked<S>, protocol: Protocol },
    /// The client is silent, and the application cannot be connected to.
    Unreachable { client: Peeked<S>, error: ConnectError },
    /// The client's protocol is not HTTP, or the application has sent first. `server` is the connection to the
    /// application, if there is one already. `tls` is `None` if no policy needed the server name in the client's TLS.
    Opaque { client: Peeked<S>, server: Option<Peeked<TcpStream>>, tls: Option<OwnTls> },
}

impl Accepted {
    /// Resets the client's connection.
    pub(crate) fn reset(self) {
        match self {
            Self::Mesh { mut stream, .. } | Self::Hbone { mut stream, .. } => {
                stream.reset_on_drop();
            }
            Self::Plain(
                Plain::Http { client, .. }
                | Plain::Unreachable { client, .. }
                | Plain::Opaque { client, .. },
            ) => client.reset(),
        }
    }
}

/// What policies and the port's declaration say about one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortRules {
    pub(crate) mtls: MtlsMode,
    /// The protocol that the port is declared to carry.
    pub(crate) declared: Protocol,
    /// Whether the port is that of HBONE, and not one of the application.
    pub(crate) hbone: bool,
}

/// What is known about a connection once one side has sent, or once it is clear that neither may.
enum Spoken<S> {
    /// The client has sent first. The second value is the connection to the application, if one was opened meanwhile.
    Client(Peeked<S>, Option<TcpStream>),
    /// The protocol need not be detected.
    Settled(Plain<S>),
}

/// Determines the client and its protocol. `None` if the client has left, or was refused and reset.
pub(crate) async fn accept(
    shared: &Worker,
    application: &Application,
    stream: TcpStream,
    from: &Access,
    rules: PortRules,
) -> Option<Accepted> {
    let registry = &shared.parts.registry;
    let mut client = Peeked::from(stream);
    let speaker = match rules.mtls {
        // Only proxies are served, and they send first. A client that is silent for too long is refused, because it
        // cannot be a proxy.
        MtlsMode::Strict => {
            client.speaks(Waits::MESHED.first_byte).await.map(|_| FirstSpeaker::Client(None))
        }
        _ => first_speaker(shared, application, &mut client, from, rules).await,
    };
    let (mut client, server) = match spoken(shared, client, speaker)? {
        Spoken::Client(client, server) => (client, server),
        Spoken::Settled(settled) => return Some(Accepted::Plain(settled)),
    };
    // The client has begun to send, so a drain waits for it.
    let _busy = shared.parts.activity.enter();
    let detected = match rules.mtls {
        MtlsMode::Disabled => Ok(Verdict::Opaque),
        _ => client.detect(Protocol::Opaque, &Waits::MESHED).await,
    };
    match detected {
        Ok(Verdict::Tls(Some(hello))) if offers_mesh(&hello) => {
            registry.count(Counter::InboundDetectedMesh);
            return handshake(shared, client, rules.mtls).await;
        }
        Ok(Verdict::Tls(Some(hello))) if rules.hbone && offers_hbone(&hello) => {
            registry.count(Counter::InboundDetectedHbone);
            return hbone(shared, client).await;
        }
        Ok(_) => {}
        Err(error) => return broke_off(client, &error),
    }
    match kubelet_probe(shared, application, from, &mut client).await {
        Ok(Some((answers, probe))) => {
            answers.answer(probe, application.dialled(), client).await;
            None
        }
        Ok(None) if rules.mtls != MtlsMode::Strict => {
            plaintext(shared, client, server, application, rules).await.map(Accepted::Plain)
        }
        Ok(None) => {
            registry.count(Counter::InboundPlaintextRefused);
            tracing::info!(client = %from.address().ip(), "refused: no mesh identity, and mTLS is strict");
            client.reset();
            None
        }
        Err(error) => broke_off(client, &error),
    }
}

/// Like [`accept`], but for a connection inside a tunnel. The client of the tunnel has proven its identity.
pub(crate) async fn tunnelled<S: Io>(
    shared: &Worker,
    application: &Application,
    mut client: Peeked<S>,
    access: &Access,
    declared: Protocol,
) -> Option<Plain<S>> {
    // Inside the tunnel there is no further TLS between proxies.
    let rules = PortRules { mtls: MtlsMode::Disabled, declared, hbone: false };
    let speaker = first_speaker(shared, application, &mut client, access, rules).await;
    match spoken(shared, client, speaker)? {
        Spoken::Client(client, server) => {
            let _busy = shared.parts.activity.enter();
            plaintext(shared, client, server, application, rules).await
        }
        Spoken::Settled(settled) => Some(settled),
    }
}

/// Converts the result of waiting for the first speaker, and counts it. `None` if the connection has ended or broken.
fn spoken<S: Io>(
    shared: &Worker,
    client: Peeked<S>,
    speaker: io::Result<FirstSpeaker>,
) -> Option<Spoken<S>> {
    let tls = Some(OwnTls::default());
    Some(match speaker {
        Ok(FirstSpeaker::Client(server)) => Spoken::Client(client, server),
        Ok(FirstSpeaker::Server(server)) => {
            shared.parts.registry.count(Counter::InboundDetectedServerFirst);
            Spoken::Settled(Plain::Opaque { client, server: Some(server), tls })
        }
        Ok(FirstSpeaker::Denied) => Spoken::Settled(Plain::Opaque { client, server: None, tls }),
        Ok(FirstSpeaker::Unreachable(error)) => {
            Spoken::Settled(Plain::Unreachable { client, error })
        }
        Ok(FirstSpeaker::Neither) => return None,
        // The client's connection is reset, whichever side has failed.
        Err(error) => return broke_off(client, &error),
    })
}

/// If the client is a kubelet that probes the workload itself, returns the probe and the value that can answer it.
/// The kubelet has no certificate, and policies do not apply to its probes.
async fn kubelet_probe<'s>(
    shared: &'s Worker,
    application: &Application,
    from: &Access,
    client: &mut Peeked<TcpStream>,
) -> io::Result<Option<(&'s Rc<dyn ProbeAnswers>, String)>> {
    let Some(answers) = shared.probes.get() else { return Ok(None) };
    let (address, port) = (from.address().ip(), application.dialled().port());
    let whole = async {
        loop {
            match answers.find(address, port, client.bytes()) {
                ProbeMatch::Probe(probe) => return Ok(Some((answers, probe))),
                ProbeMatch::Begun if client.peek().await? > 0 => {}
                ProbeMatch::Begun | ProbeMatch::Other => return Ok(None),
            }
        }
    };
    timeout(PROBE_TIMEOUT, whole).await.unwrap_or(Ok(None))
}

fn broke_off<S: Io, T>(client: Peeked<S>, error: &io::Error) -> Option<T> {
    tracing::debug!(%error, "a connection broke before its protocol was clear");
    client.reset();
    None
}

/// Waits until either side sends: first for the client alone, and for longer if it is a meshed workload or the port
/// is declared as HTTP, and then, if policies permit the client, in a race with the application. The connection holds
/// no buffer meanwhile.
async fn first_speaker<S: Io>(
    shared: &Worker,
    application: &Application,
    client: &mut Peeked<S>,
    access: &Access,
    PortRules { mtls, declared, .. }: PortRules,
) -> io::Result<FirstSpeaker> {
    let client_first = matches!(declared, Protocol::Http1 | Protocol::Http2);
    let longest = match (mtls, declared) {
        (MtlsMode::Disabled, Protocol::Opaque) => Duration::ZERO,
        _ if client_first => shared.parts.limits.idle,
        _ => Waits::INBOUND.first_byte,
    };
    if client.speaks(longest).await?
        || mtls != MtlsMode::Disabled
            && is_meshed(shared, access.address().ip()).await
            && client.speaks(Waits::MESHED.first_byte).await?
    {
        return Ok(FirstSpeaker::Client(None));
    }
    if client_first {
        return Ok(FirstSpeaker::Neither);
    }
    // A server that sends first reveals something to its client, so the client is authorized before.
    match access.silent(shared).await {
        Silence::Permitted => race(shared, application, client).await,
        Silence::Undecided if client.speaks(shared.parts.limits.idle).await? => {
            Ok(FirstSpeaker::Client(None))
        }
        Silence::Undecided => Ok(FirstSpeaker::Neither),
        Silence::Denied => Ok(FirstSpeaker::Denied),
    }
}

/// Whether discovery reports in time that a workload with a proxy of this mesh has this address.
async fn is_meshed(shared: &Worker, client: IpAddr) -> bool {
    let mut resolution = shared.parts.directory.look_up(client);
    let answered = resolution.wait_for(|now| !matches!(now, Resolution::Pending));
    match timeout(RESOLVE_TIMEOUT, answered).await {
        Ok(Ok(now)) => match &*now {
            Resolution::Workload(workload) => {
                workload.identity.is_some() && workload.wire == WireForm::Leno
            }
            _ => false,
        },
        _ => false,
    }
}

/// Accepts TLS from another proxy. If mTLS is permissive, a client without an identity is served as it would be in
/// plaintext.
async fn handshake(shared: &Worker, client: Peeked<TcpStream>, mtls: MtlsMode) -> Option<Accepted> {
    let registry = &shared.parts.registry;
    let required = match mtls {
        MtlsMode::Permissive => ClientIdentity::Optional,
        MtlsMode::Strict | MtlsMode::Disabled => ClientIdentity::Required,
    };
    match shared.parts.tls.accept(client, required).await {
        Ok(stream) => {
            registry.count(Counter::InboundHandshake);
            if stream.is_in_process() {
                registry.count(Counter::InboundInProcess);
            }
            if let Some(reason) = stream.unproven() {
                tracing::info!(reason, "served without an identity, as mTLS is permissive");
            }
            let identity = stream.identity().cloned();
            let protocol = match stream.alpn() {
                Alpn::Renewal => {
                    renewal(shared, stream).await;
                    return None;
                }
                Alpn::Http2 => Protocol::Http2,
                Alpn::Http1 => Protocol::Http1,
                // HBONE has a port of its own, so it is not negotiated here.
                Alpn::Opaque | Alpn::Hbone => Protocol::Opaque,
            };
            Some(Accepted::Mesh { stream, identity, protocol })
        }
        Err(error) => {
            registry.count(Counter::InboundHandshakeFailed);
            tracing::info!(%error, "refused: the TLS handshake failed");
            None
        }
    }
}

/// Accepts TLS from a client of HBONE. It must have an identity, whatever the mTLS mode is.
async fn hbone(shared: &Worker, client: Peeked<TcpStream>) -> Option<Accepted> {
    let registry = &shared.parts.registry;
    match shared.parts.tls.accept_hbone(client).await {
        Ok(stream) => {
            registry.count(Counter::InboundHandshake);
            let identity = stream.identity().cloned()?;
            Some(Accepted::Hbone { stream, identity })
        }
        Err(error) => {
            registry.count(Counter::InboundHandshakeFailed);
            tracing::info!(%error, "refused: the TLS handshake of HBONE failed");
            None
        }
    }
}

/// Receives the next certificate that another proxy presents for its existing connections.
async fn renewal(shared: &Worker, stream: TlsStream) {
    if let Err(error) = shared.parts.tls.take_renewal(stream).await {
        shared.parts.registry.count(Counter::InboundRenewalFailed);
        tracing::info!(%error, "a client did not renew its connections");
    }
}

/// Determines whether a client that uses no TLS of the mesh on this connection or tunnel speaks HTTP or another
/// protocol. `server` is the connection to the application that the race has opened, if any.
async fn plaintext<S: Io>(
    shared: &Worker,
    mut client: Peeked<S>,
    server: Option<TcpStream>,
    application: &Application,
    PortRules { mtls, declared, .. }: PortRules,
) -> Option<Plain<S>> {
    let port = application.dialled().port();
    let reads_names = shared.policies().table.reads_server_names(port);
    let detected = match declared {
        Protocol::Opaque if !reads_names => Ok(Verdict::Opaque),
        declared => client.detect(declared, &waits(shared, mtls, declared)).await,
    };
    let verdict = match detected {
        // The beginning of a request line or of the HTTP/2 preface. If it were relayed as bytes, the rest could bypass
        // the policies for requests.
        Ok(Verdict::Undecided) => Verdict::Http1,
        Ok(verdict) => verdict,
        Err(error) => return broke_off(client, &error),
    };
    let registry = &shared.parts.registry;
    let (counter, protocol) = match &verdict {
        Verdict::Http1 => (Counter::InboundDetectedHttp1, Protocol::Http1),
        Verdict::Http2 => (Counter::InboundDetectedHttp2, Protocol::Http2),
        Verdict::Tls(_) => (Counter::InboundDetectedTls, Protocol::Opaque),
        // The client has left without sending anything, although it had to send first.
        Verdict::Silent => return None,
        _ => (Counter::InboundDetectedOpaque, Protocol::Opaque),
    };
    registry.count(counter);
    let tls = match &verdict {
        Verdict::Tls(hello) => {
            let tls = OwnTls::begun(hello.as_ref());
            registry.tls_name(Direction::Inbound, tls.server_name.as_deref());
            Some(tls)
        }
        // Nothing was detected, so the bytes were not examined.
        _ if declared == Protocol::Opaque && !reads_names => None,
        verdict => Some(own_tls(verdict, client.bytes())),
    };
    match protocol {
        Protocol::Opaque => Some(Plain::Opaque { client, server: server.map(Peeked::from), tls }),
        _ => {
            if let Some(server) = server.filter(|_| protocol == Protocol::Http1) {
                // Nothing was sent on this connection, so a request can use it.
                application.server.pool.put(leno_http::Conn::new(Counted::new(server)), None);
            }
            Some(Plain::Http { client, protocol })
        }
    }
}

fn waits(shared: &Worker, mtls: MtlsMode, declared: Protocol) -> Waits {
    let limits = &shared.parts.limits;
    match (declared, mtls) {
        (Protocol::Http1 | Protocol::Http2, _) => Waits::declared_http(limits.idle, limits.head),
        (_, MtlsMode::Disabled) => Waits::INBOUND_DISABLED,
        _ => Waits::INBOUND,
    }
}
