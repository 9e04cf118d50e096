//! Who is on a connection, and what it carries: another proxy, or somebody without a mesh identity.
//!
//! A proxy always speaks first: its ClientHello names a protocol of the mesh. So do the clients of
//! HTTP. A client that is silent may be one whose server speaks first, and then both wait: `race`
//! connects to the application and lets whoever speaks first decide. Nothing that the client says
//! reaches the application before it is known what it is.
//!
//! ```text
//!  first bytes ──────────────┬─ mesh TLS ─► handshake
//!  none: race ─┬─ client ────┴─ anything else ─► HTTP, or bytes (strict: reset)
//!              └─ application ─► bytes
//! ```

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use leno_http::Version;
use leno_telemetry::{Counter, Direction};
use leno_tls::{Alpn, ClientIdentity, MeshStream, Sniffed, sniff};
use leno_transport::{
    ConnectError, Counted, Detected, Prefixed, Stream, detect_first, hello_first, read_first,
};
use leno_types::mesh::Resolution;
use leno_types::{Identity, MtlsMode, Protocol};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;
use crate::application::Application;
use crate::opaque::Tls;
use crate::race::{First, race};

/// How long any client may stay silent before its address is looked up and its application asked. A
/// client that speaks first mostly sends with or right after the handshake.
const GRACE: Duration = Duration::from_millis(10);
/// Longest wait for a ClientHello to become whole, and for the first byte of one where nothing else
/// is expected: a proxy may be busy.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the look-up; after it the client is taken for unmeshed.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that may go on to the application.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// From another proxy, or from somebody who speaks its protocol without an identity.
    Mesh { stream: MeshStream, identity: Option<Identity>, protocol: Protocol },
    /// Requests of a client without an identity; `first` was read already.
    Http { stream: TcpStream, first: Vec<u8>, version: Version },
    /// A client that is silent, of an application that cannot be connected to.
    Unreachable { stream: TcpStream, error: ConnectError },
    /// Bytes of such a client, and of the application where it has been asked already.
    Opaque { stream: Prefixed<TcpStream>, server: Option<Prefixed<TcpStream>>, tls: Tls },
}

impl Accepted {
    /// Resets the client's connection.
    pub(crate) fn abort(self) {
        match self {
            Self::Mesh { mut stream, .. } => stream.abort(),
            Self::Http { mut stream, .. } | Self::Unreachable { mut stream, .. } => stream.abort(),
            Self::Opaque { mut stream, .. } => stream.abort(),
        }
    }
}

/// `None`: the client has left, or was refused and reset.
pub(crate) async fn accept(
    shared: &Shared,
    application: &Application,
    mut stream: TcpStream,
    client: IpAddr,
    (mtls, declared): (MtlsMode, Protocol),
) -> Option<Accepted> {
    let first = match mtls {
        MtlsMode::Strict => only_mesh(&mut stream).await,
        _ => first_bytes(shared, application, &mut stream, client, (mtls, declared)).await,
    };
    let (mut first, server) = match first {
        Ok(First::Client { first, server }) => (first, server),
        Ok(First::Server { server, said }) => {
            shared.parts.registry.count(Counter::InboundDetectedServerFirst);
            let stream = Prefixed::new(Vec::new(), stream);
            let server = Some(Prefixed::new(said, server));
            return Some(Accepted::Opaque { stream, server, tls: Tls::default() });
        }
        Ok(First::Unreachable(error)) => return Some(Accepted::Unreachable { stream, error }),
        Ok(First::Nobody) => return None,
        // Whoever broke off, the client is told in the same way.
        Err(error) => {
            tracing::debug!(%error, "broke off before it was clear what it is");
            stream.abort();
            return None;
        }
    };
    // Somebody has begun something, which a drain waits for.
    let _busy = shared.parts.activity.enter();
    let sniffed = match mtls {
        MtlsMode::Disabled => Ok(Sniffed::Other),
        _ => timeout(HELLO_TIMEOUT, sniff_first(&mut stream, &mut first))
            .await
            .unwrap_or(Ok(Sniffed::Other)),
    };
    match sniffed {
        Ok(Sniffed::Mesh) => {
            shared.parts.registry.count(Counter::InboundDetectedMesh);
            handshake(shared, Prefixed::new(first, stream), mtls).await
        }
        Ok(_) if mtls != MtlsMode::Strict => {
            plaintext(shared, (stream, first, server), application, declared).await
        }
        Ok(_) => {
            shared.parts.registry.count(Counter::InboundPlaintextRefused);
            tracing::info!(%client, "refused: no mesh identity, and mTLS is strict");
            stream.abort();
            None
        }
        Err(error) => {
            tracing::debug!(%error, "a client broke off");
            stream.abort();
            None
        }
    }
}

/// Under strict nobody but a proxy is served, which speaks first.
async fn only_mesh(stream: &mut TcpStream) -> io::Result<First> {
    let mut first = Vec::new();
    // A client that is silent for too long is refused as one that says something else.
    timeout(HELLO_TIMEOUT, read_first(stream, &mut first)).await.unwrap_or(Ok(0))?;
    Ok(First::Client { first, server: None })
}

/// Waits for either side to speak; nothing is held meanwhile.
async fn first_bytes(
    shared: &Shared,
    application: &Application,
    stream: &mut TcpStream,
    client: IpAddr,
    (mtls, declared): (MtlsMode, Protocol),
) -> io::Result<First> {
    let client_first = matches!(declared, Protocol::Http1 | Protocol::Http2);
    let grace = match (mtls, declared) {
        (MtlsMode::Disabled, Protocol::Opaque) => Duration::ZERO,
        _ if client_first => shared.parts.limits.idle,
        _ => GRACE,
    };
    let mut first = Vec::new();
    let mut spoken = timeout(grace, read_first(stream, &mut first)).await;
    if spoken.is_err() && mtls != MtlsMode::Disabled && is_meshed(shared, client).await {
        spoken = timeout(HELLO_TIMEOUT, read_first(stream, &mut first)).await;
    }
    match spoken {
        Ok(read) => read.map(|_| First::Client { first, server: None }),
        Err(_silent) if client_first => Ok(First::Nobody),
        Err(_silent) => race(shared, application, stream).await,
    }
}

/// Reads until it is clear whether this is mesh TLS; the end makes it something else. Can be dropped
/// and called again.
async fn sniff_first(stream: &mut TcpStream, first: &mut Vec<u8>) -> io::Result<Sniffed> {
    loop {
        match sniff(first) {
            Sniffed::NeedMore if read_first(stream, first).await? == 0 => {
                return Ok(Sniffed::Other);
            }
            Sniffed::NeedMore => {}
            decided => return Ok(decided),
        }
    }
}

/// Whether the address is one of a meshed workload, as far as discovery can say.
async fn is_meshed(shared: &Shared, client: IpAddr) -> bool {
    let mut resolution = shared.parts.directory.look_up(client);
    let answered = resolution.wait_for(|now| !matches!(now, Resolution::Pending));
    match timeout(RESOLVE_TIMEOUT, answered).await {
        Ok(Ok(now)) => match &*now {
            Resolution::Workload(workload) => workload.identity.is_some(),
            _ => false,
        },
        _ => false,
    }
}

/// Under permissive a client without an identity is served here as it would be in plaintext.
async fn handshake(
    shared: &Shared,
    stream: Prefixed<TcpStream>,
    mtls: MtlsMode,
) -> Option<Accepted> {
    let registry = &shared.parts.registry;
    let required = match mtls {
        MtlsMode::Permissive => ClientIdentity::Optional,
        MtlsMode::Strict | MtlsMode::Disabled => ClientIdentity::Required,
    };
    match shared.parts.tls.accept(stream, required).await {
        Ok(stream) => {
            registry.count(Counter::InboundHandshake);
            if let Some(reason) = stream.unproven() {
                tracing::info!(reason, "served without an identity, as mTLS is permissive");
            }
            let identity = stream.identity().cloned();
            let protocol = match stream.alpn() {
                Alpn::Http2 => Protocol::Http2,
                Alpn::Http1 => Protocol::Http1,
                Alpn::Opaque => Protocol::Opaque,
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

/// A client without an identity that has sent `first`, or its end: HTTP or bytes?
async fn plaintext(
    shared: &Shared,
    (mut stream, mut first, server): (TcpStream, Vec<u8>, Option<TcpStream>),
    application: &Application,
    declared: Protocol,
) -> Option<Accepted> {
    let read = match what(shared, &mut stream, &mut first, declared).await {
        Ok(carried) => hello(shared, &mut stream, &mut first, carried).await,
        Err(error) => Err(error),
    };
    let (carried, tls) = match read {
        Ok(read) => read,
        Err(error) => {
            tracing::debug!(%error, "a client broke off");
            stream.abort();
            return None;
        }
    };
    let counter = match carried {
        Carried::Http(Version::Http2) => Counter::InboundDetectedHttp2,
        Carried::Http(_) => Counter::InboundDetectedHttp1,
        Carried::Tls => Counter::InboundDetectedTls,
        Carried::Bytes => Counter::InboundDetectedOpaque,
        Carried::Nothing => return None,
    };
    shared.parts.registry.count(counter);
    match carried {
        Carried::Http(version) => {
            if version != Version::Http2
                && let Some(server) = server
            {
                // Nothing was said on it.
                application.server.pool.put(leno_http::Conn::new(Counted::new(server)), None);
            }
            Some(Accepted::Http { stream, first, version })
        }
        _ => {
            let stream = Prefixed::new(first, stream);
            let server = server.map(|server| Prefixed::new(Vec::new(), server));
            Some(Accepted::Opaque { stream, server, tls })
        }
    }
}

/// What a connection carries.
#[derive(Clone, Copy)]
enum Carried {
    Http(Version),
    /// An application's own TLS.
    Tls,
    Bytes,
    /// The client has left without a word, where it should have spoken.
    Nothing,
}

async fn what(
    shared: &Shared,
    stream: &mut TcpStream,
    first: &mut Vec<u8>,
    declared: Protocol,
) -> io::Result<Carried> {
    let version = match declared {
        Protocol::Http1 => Version::Http11,
        Protocol::Http2 => Version::Http2,
        Protocol::Opaque => return Ok(Carried::Bytes),
        Protocol::Detect => {
            return Ok(match detect_first(stream, first).await? {
                Detected::Http2Preface => Carried::Http(Version::Http2),
                Detected::TlsClientHello => Carried::Tls,
                Detected::Opaque => Carried::Bytes,
                Detected::Http1 => Carried::Http(Version::Http11),
                // A request line, a preface or a ClientHello that does not go on. Taken for bytes it
                // could go on past everything that requests are held to.
                Detected::NeedMore if first.first() == Some(&0x16) => Carried::Tls,
                Detected::NeedMore => Carried::Http(Version::Http11),
            });
        }
    };
    let opening = leno_http::opening(stream, first, version, &shared.parts.limits).await?;
    Ok(opening.map_or(Carried::Nothing, Carried::Http))
}

/// Reads whom a client wants to speak TLS with.
async fn hello(
    shared: &Shared,
    stream: &mut TcpStream,
    first: &mut Vec<u8>,
    carried: Carried,
) -> io::Result<(Carried, Tls)> {
    if !matches!(carried, Carried::Tls) {
        return Ok((carried, Tls::default()));
    }
    let hello = hello_first(stream, first).await?;
    let name = hello.as_ref().and_then(|hello| hello.server_name());
    shared.parts.registry.tls_name(Direction::Inbound, name);
    Ok((carried, Tls { is_tls: true, server_name: name.map(Into::into) }))
}
