//! Who is on a connection: another proxy, or somebody without a mesh identity.
//!
//! A proxy always speaks first (its ClientHello names a protocol of the mesh), so that a silent
//! client is one of an application whose server speaks first, or a proxy whose bytes are late.
//! The two are told apart by the client's address: a meshed workload is waited for.

use std::net::IpAddr;
use std::time::Duration;

use leno_telemetry::Counter;
use leno_tls::{Alpn, ClientIdentity, MeshStream, Sniffed, sniff};
use leno_transport::{DETECT_TIMEOUT, Detected, Prefixed, Stream, detect_first, read_first};
use leno_types::mesh::Resolution;
use leno_types::{Identity, MtlsMode, Protocol};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;

/// How long any client may stay silent before its address is looked up.
const GRACE: Duration = Duration::from_millis(10);
/// Longest wait for a ClientHello where nothing else is served: a proxy may be busy.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the look-up; after it the client is taken for unmeshed.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that may go on to the application.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// From another proxy, or from somebody who speaks its protocol without an identity.
    Mesh { stream: MeshStream, identity: Option<Identity>, protocol: Protocol },
    /// From a client without an identity; `first` was read already.
    Plain { stream: TcpStream, first: Vec<u8>, protocol: Protocol },
    /// From a client that waits for the application to speak.
    ServerFirst { stream: TcpStream },
}

/// `None`: the connection was refused, and reset.
pub(crate) async fn accept(
    shared: &Shared,
    mut stream: TcpStream,
    client: IpAddr,
    (mtls, declared): (MtlsMode, Protocol),
) -> Option<Accepted> {
    let registry = &shared.parts.registry;
    let mut first = Vec::new();
    if mtls == MtlsMode::Disabled {
        return plaintext(shared, stream, first, declared).await;
    }
    let sniffed = match timeout(GRACE, sniff_first(&mut stream, &mut first)).await {
        Ok(sniffed) => sniffed,
        Err(_silent) if mtls != MtlsMode::Strict && first.is_empty() => {
            if is_meshed(shared, client).await {
                sniff_bounded(&mut stream, &mut first, mtls).await
            } else {
                return silent(shared, stream, declared).await;
            }
        }
        Err(_slow) => sniff_bounded(&mut stream, &mut first, mtls).await,
    };
    match sniffed {
        Sniffed::Mesh => {
            registry.count(Counter::InboundDetectedMesh);
            handshake(shared, Prefixed::new(first, stream), mtls).await
        }
        Sniffed::Other if mtls == MtlsMode::Permissive => {
            plaintext(shared, stream, first, declared).await
        }
        Sniffed::Other | Sniffed::NeedMore => {
            registry.count(Counter::InboundPlaintextRefused);
            tracing::info!(%client, "refused: no mesh identity, and mTLS is strict");
            stream.abort();
            None
        }
    }
}

async fn sniff_bounded(stream: &mut TcpStream, first: &mut Vec<u8>, mtls: MtlsMode) -> Sniffed {
    let limit = if mtls == MtlsMode::Strict { HELLO_TIMEOUT } else { DETECT_TIMEOUT };
    timeout(limit, sniff_first(stream, first)).await.unwrap_or(Sniffed::Other)
}

/// Reads until it is clear whether this is mesh TLS. Can be dropped and called again.
async fn sniff_first(stream: &mut TcpStream, first: &mut Vec<u8>) -> Sniffed {
    loop {
        match sniff(first) {
            Sniffed::NeedMore => match read_first(stream, first).await {
                Ok(0) | Err(_) => return Sniffed::Other,
                Ok(_) => {}
            },
            decided => return decided,
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

/// Nothing has come from a client that is unmeshed.
async fn silent(shared: &Shared, mut stream: TcpStream, declared: Protocol) -> Option<Accepted> {
    if matches!(declared, Protocol::Http1 | Protocol::Http2) {
        let mut first = Vec::new();
        let idle = shared.parts.limits.idle;
        return match timeout(idle, read_first(&mut stream, &mut first)).await {
            Ok(Ok(n)) if n > 0 => plaintext(shared, stream, first, declared).await,
            _ => None,
        };
    }
    shared.parts.registry.count(Counter::InboundDetectedServerFirst);
    Some(Accepted::ServerFirst { stream })
}

/// A client without an identity that has sent `first`: HTTP or bytes?
async fn plaintext(
    shared: &Shared,
    mut stream: TcpStream,
    mut first: Vec<u8>,
    declared: Protocol,
) -> Option<Accepted> {
    let detected = match declared {
        Protocol::Http1 => Detected::Http1,
        Protocol::Opaque => Detected::Opaque,
        // Its clients speak first. Servers that take both versions on one port declare one.
        Protocol::Http2 => detect_first(&mut stream, &mut first).await,
        Protocol::Detect => {
            // Silence decides for bytes: the application may be the one to speak.
            let wait = if first.is_empty() { GRACE } else { DETECT_TIMEOUT };
            let detected = timeout(wait, detect_first(&mut stream, &mut first)).await;
            detected.unwrap_or(Detected::Opaque)
        }
    };
    let (protocol, counter) = match detected {
        Detected::Http1 => (Protocol::Http1, Counter::InboundDetectedHttp1),
        Detected::Http2Preface => (Protocol::Http2, Counter::InboundDetectedHttp2),
        _ => (Protocol::Opaque, Counter::InboundDetectedOpaque),
    };
    shared.parts.registry.count(counter);
    Some(Accepted::Plain { stream, first, protocol })
}
