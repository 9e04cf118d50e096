//! Connections whose protocol is decided on the first bytes: HTTP/1, HTTP/2, or anything else.
//!
//! A client that speaks first is waited for only for [`GRACE`]; then a connection to an endpoint
//! is opened as well, and whoever speaks first decides. A server that speaks first therefore
//! waits at most that long, once: the next connections to its service open at once. Servers of
//! HTTP/2 that send their settings at once decide nothing.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use leno_http::Version;
use leno_telemetry::{Counter, Direction};
use leno_transport::{
    Detected, RELAY_IDLE, Stream, detect_first, hello_first, is_server_preface, read_first,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;
use crate::backends::Backends;
use crate::destination::Destination;
use crate::http;
use crate::opaque::{self, Attempts, Opened, Tls};
use crate::streams::{self, CLIENT_SILENT};

/// How long a client may stay silent before the endpoint is asked too. A client that speaks first
/// mostly sends with or right after the handshake.
const GRACE: Duration = Duration::from_millis(5);
/// How long it may where TLS is begun for clients that do not do so themselves: one that does speaks with
/// or right after the handshake.
const OWN_TLS_WAIT: Duration = Duration::from_secs(1);
/// How long it may where routes of requests and of connections meet on one port, so that nothing can
/// be opened before it speaks: as long as a handshake may take.
const SPEAK_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn serve(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let grace = match (backends.server_speaks_first(), backends.originates_tls()) {
        (true, _) => Duration::ZERO,
        (false, true) => OWN_TLS_WAIT,
        (false, false) => GRACE,
    };
    let mut first = Vec::new();
    match timeout(grace, read_first(&mut client, &mut first)).await {
        Ok(Ok(_)) => by_first_bytes(shared, destination, backends, (first, client), None).await,
        Ok(Err(_)) => client.abort(),
        // Where a connection goes depends on whether it is of HTTP: only the client can tell.
        Err(_silent) if backends.streams().is_some() => {
            match timeout(SPEAK_TIMEOUT, read_first(&mut client, &mut first)).await {
                Ok(Ok(_)) => {
                    by_first_bytes(shared, destination, backends, (first, client), None).await;
                }
                Ok(Err(_)) => client.abort(),
                Err(_silent) => {
                    let said = (destination.original(), &Tls::default(), first.len());
                    opaque::refused(shared, backends, said, CLIENT_SILENT);
                    client.abort();
                }
            }
        }
        Err(_silent) => race(shared, destination, backends, client).await,
    }
}

/// A service whose bytes are relayed, and with which TLS is begun unless the client does so itself.
pub(crate) async fn serve_outside(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let mut first = Vec::new();
    match own_tls(shared, &mut client, &mut first).await {
        Ok(tls) => {
            let attempts = Attempts::new(shared, backends, destination.original());
            attempts.relay(None, (first, client), tls).await;
        }
        Err(error) => {
            tracing::debug!(%error, "a client broke off");
            client.abort();
        }
    }
}

/// Whether a client that has said nothing yet begins TLS itself. One that stays silent waits for the
/// server to speak, inside TLS.
pub(crate) async fn own_tls(
    shared: &Shared,
    client: &mut TcpStream,
    first: &mut Vec<u8>,
) -> io::Result<Tls> {
    let mut tls = Tls::default();
    let said = async {
        read_first(client, first).await?;
        if detect_first(client, first).await? == Detected::TlsClientHello {
            tls = tls_of(shared, client, first).await?;
        }
        Ok::<_, io::Error>(())
    };
    timeout(OWN_TLS_WAIT, said).await.unwrap_or(Ok(()))?;
    Ok(tls)
}

/// A service that declares HTTP, whose clients speak first. Either version is served, as servers do
/// that take both on one port.
pub(crate) async fn serve_http(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    declared: Version,
    mut client: TcpStream,
) {
    let mut first = Vec::new();
    match leno_http::opening(&mut client, &mut first, declared, &shared.limits).await {
        Ok(Some(Version::Http2)) => {
            http::serve_http2(shared, destination, client, &first).await;
        }
        Ok(Some(_)) => http::serve_http1(shared, destination, client, &first).await,
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(%error, "a client broke off");
            client.abort();
        }
    }
}

/// The client has said something, or ended. It is relayed over `opened` where that is there and it
/// speaks no HTTP.
async fn by_first_bytes(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    (mut first, mut client): (Vec<u8>, TcpStream),
    opened: Option<(Attempts<'_>, Opened)>,
) {
    let mut tls = Tls::default();
    let detected = match detect_first(&mut client, &mut first).await {
        Ok(Detected::TlsClientHello) => {
            tls_of(shared, &mut client, &mut first).await.map(|read| tls = read)
        }
        Ok(Detected::Http1) => {
            drop(opened);
            shared.registry.count(Counter::OutboundDetectedHttp1);
            return http::serve_http1(shared, destination, client, &first).await;
        }
        Ok(Detected::Http2Preface) => {
            drop(opened);
            shared.registry.count(Counter::OutboundDetectedHttp2);
            return http::serve_http2(shared, destination, client, &first).await;
        }
        // What is undecided is let through as it is: the server's own proxy enforces what it must.
        Ok(_) => {
            shared.registry.count(Counter::OutboundDetectedOpaque);
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = detected {
        tracing::debug!(%error, "a client broke off");
        if let Some((_, mut opened)) = opened {
            opened.channel.abort();
        }
        return client.abort();
    }
    if let Some(streams) = backends.streams() {
        drop(opened);
        let (original, said) = (destination.original(), (first, client));
        return streams::relay(shared, (&streams, backends), original, said, tls).await;
    }
    let (attempts, opened) = match opened {
        Some((attempts, opened)) => (attempts, Some(opened)),
        None => (Attempts::new(shared, backends, destination.original()), None),
    };
    attempts.relay(opened, (first, client), tls).await;
}

/// Whom a client wants to speak TLS with, of which a ClientHello has begun.
pub(crate) async fn tls_of(
    shared: &Shared,
    client: &mut TcpStream,
    first: &mut Vec<u8>,
) -> io::Result<Tls> {
    let hello = hello_first(client, first).await?;
    let name = hello.as_ref().and_then(|hello| hello.server_name());
    shared.registry.count(Counter::OutboundDetectedTls);
    shared.registry.tls_name(Direction::Outbound, name);
    Ok(Tls { is_tls: true, server_name: name.map(Into::into) })
}

/// Both are silent: opens a connection and lets the one decide who speaks first.
async fn race(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let mut attempts = Attempts::new(shared, backends, destination.original());
    loop {
        let Some(mut opened) = attempts.open().await else {
            client.abort();
            return;
        };
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        let spoken = timeout(RELAY_IDLE, async {
            tokio::select! {
                biased;
                read = read_first(&mut client, &mut from_client) => First::Client(read),
                read = read_first(&mut opened.channel, &mut from_server) => First::Server(read),
            }
        });
        let Ok(first) = spoken.await else {
            // Both are as silent as on an idle relay.
            client.abort();
            opened.channel.abort();
            return;
        };
        match first {
            First::Client(Ok(_)) => {
                backends.learn(false);
                let (said, opened) = ((from_client, client), Some((attempts, opened)));
                return by_first_bytes(shared, destination, backends, said, opened).await;
            }
            First::Server(Ok(_)) if is_server_preface(&from_server) => {
                backends.learn(false);
                opened.channel.abort();
                // Or it would stay open as long as the client does.
                drop(opened);
                return serve_http(shared, destination, Version::Http2, client).await;
            }
            First::Server(Ok(n)) => {
                // One that ends before it has said anything has not shown what it speaks.
                if n > 0 {
                    backends.learn(true);
                } else {
                    opened.penalise();
                }
                shared.registry.count(Counter::OutboundDetectedServerFirst);
                return opened.relay(attempts, client, from_server).await;
            }
            First::Client(Err(_)) => {
                client.abort();
                opened.channel.abort();
                return;
            }
            // Nothing was said to it, so that another one may take its place.
            First::Server(Err(error)) => attempts.give_up(&opened, &error),
        }
    }
}

/// Who has spoken, or ended, first.
enum First {
    Client(io::Result<usize>),
    Server(io::Result<usize>),
}
