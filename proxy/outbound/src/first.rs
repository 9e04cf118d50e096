//! Serves connections whose protocol is detected from the first bytes: HTTP/1, HTTP/2, or anything else.
//!
//! The proxy waits for the client only for a short time ([`Waits::OUTBOUND`]). Then it also opens a connection to an
//! endpoint, and the side that sends first decides. So a server that sends first is delayed by at most this wait, and
//! only once: for later connections to its service, the proxy connects at once. An HTTP/2 server that sends its
//! settings at once does not count as a server that sends first.

use std::io;
use std::rc::Rc;

use leno_telemetry::{Counter, Direction};
use leno_transport::{
    ClientHello, Opening, OwnTls, Peeked, RELAY_IDLE, Speaker, Verdict, Waits, first_to_speak,
    judge,
};
use leno_types::Protocol;
use tokio::net::TcpStream;

use crate::Worker;
use crate::backends::Backends;
use crate::destination::Destination;
use crate::http;
use crate::opaque::{self, Attempts, Opened};
use crate::streams::{self, CLIENT_SILENT};

pub(crate) async fn serve(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: Peeked<TcpStream>,
) {
    let by_route = backends.streams().is_some();
    let waits = match (backends.server_speaks_first(), backends.originates_tls()) {
        _ if by_route => Waits::BY_ROUTE,
        (true, _) => Waits::SERVER_FIRST,
        (false, true) => Waits::ORIGINATED,
        (false, false) => Waits::OUTBOUND,
    };
    match client.detect(Protocol::Detect, &waits).await {
        Ok(Verdict::Silent) if by_route => {
            let tls = OwnTls::default();
            opaque::refused(shared, backends, (destination.original(), &tls, 0), CLIENT_SILENT);
            client.reset();
        }
        Ok(Verdict::Silent) => Box::pin(race(shared, destination, backends, client)).await,
        Ok(version @ (Verdict::Http1 | Verdict::Http2)) => {
            count_version(shared, &version);
            serve_version(shared, destination, &version, client).await;
        }
        detected => {
            let detected = (client, detected);
            Box::pin(follow(shared, (destination, backends), detected, None)).await;
        }
    }
}

/// Relays opaque bytes to a service outside of the mesh for which policy demands TLS. The proxy uses TLS to the
/// service, unless the client itself begins TLS.
pub(crate) async fn serve_outside(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: Peeked<TcpStream>,
) {
    match own_tls(shared, &mut client, &Waits::ORIGINATED).await {
        Ok(tls) => {
            let attempts = Attempts::new(shared, backends, destination.original());
            attempts.relay(None, client, tls.unwrap_or_default()).await;
        }
        Err(error) => broke_off(client, &error),
    }
}

/// The TLS that a client itself has begun, if it has. `None` if the client is silent, perhaps because the server
/// sends first inside TLS.
pub(crate) async fn own_tls(
    shared: &Worker,
    client: &mut Peeked<TcpStream>,
    waits: &Waits,
) -> io::Result<Option<OwnTls>> {
    Ok(match client.detect(Protocol::Opaque, waits).await? {
        Verdict::Silent => None,
        Verdict::Tls(hello) => Some(note_tls(shared, hello)),
        _ => Some(OwnTls::default()),
    })
}

/// Serves a port that declares HTTP, on which clients send first. Both versions are served, because a server may accept
/// both on one port.
pub(crate) async fn serve_http(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    declared: Protocol,
    mut client: Peeked<TcpStream>,
) {
    let waits = Waits::declared_http(shared.limits.idle, shared.limits.head);
    match client.detect(declared, &waits).await {
        Ok(version @ (Verdict::Http1 | Verdict::Http2)) => {
            serve_version(shared, destination, &version, client).await;
        }
        // The client left, or was silent.
        Ok(_) => {}
        Err(error) => broke_off(client, &error),
    }
}

/// Serves the requests of a client whose version of HTTP was detected.
async fn serve_version(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    version: &Verdict,
    client: Peeked<TcpStream>,
) {
    match version {
        // This is boxed, so that idle HTTP/1 connections need no memory for it.
        Verdict::Http2 => Box::pin(http::serve_http2(shared, destination, client)).await,
        _ => http::serve_http1(shared, destination, client).await,
    }
}

fn count_version(shared: &Worker, version: &Verdict) {
    shared.registry.count(match version {
        Verdict::Http2 => Counter::OutboundDetectedHttp2,
        _ => Counter::OutboundDetectedHttp1,
    });
}

/// Serves a client that has sent bytes, or has ended its stream. If the client does not use HTTP, it is relayed over
/// `opened`, or over a new connection if `opened` is `None`.
async fn follow(
    shared: &Rc<Worker>,
    (destination, backends): (&Rc<Destination>, &Rc<Backends>),
    (client, detected): (Peeked<TcpStream>, io::Result<Verdict>),
    opened: Option<(Attempts<'_>, Opened)>,
) {
    let tls = match detected {
        Ok(version @ (Verdict::Http1 | Verdict::Http2)) => {
            drop(opened);
            count_version(shared, &version);
            return serve_version(shared, destination, &version, client).await;
        }
        Ok(Verdict::Tls(hello)) => note_tls(shared, hello),
        // A connection whose protocol is still unknown is relayed as bytes; the server's own proxy enforces its
        // policies.
        Ok(_) => {
            shared.registry.count(Counter::OutboundDetectedOpaque);
            OwnTls::default()
        }
        Err(error) => {
            if let Some((_, opened)) = opened {
                opened.server.reset();
            }
            return broke_off(client, &error);
        }
    };
    let original = destination.original();
    if let Some(streams) = backends.streams() {
        drop(opened);
        return streams::relay(shared, (&streams, backends), original, client, tls).await;
    }
    let (attempts, opened) = match opened {
        Some((attempts, opened)) => (attempts, Some(opened)),
        None => (Attempts::new(shared, backends, original), None),
    };
    attempts.relay(opened, client, tls).await;
}

/// Resets the connection of a client that broke before its protocol was known.
pub(crate) fn broke_off(client: Peeked<TcpStream>, error: &io::Error) {
    tracing::debug!(%error, "a client's connection broke");
    client.reset();
}

/// Counts a TLS connection that a client has begun, by server name.
pub(crate) fn note_tls(shared: &Worker, hello: Option<ClientHello>) -> OwnTls {
    let tls = OwnTls::begun(hello.as_ref());
    shared.registry.count(Counter::OutboundDetectedTls);
    shared.registry.tls_name(Direction::Outbound, tls.server_name.as_deref());
    tls
}

/// Opens a connection to an endpoint while the client is silent, and waits until one side sends. If the endpoint's
/// connection breaks before that, tries another endpoint.
async fn race(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: Peeked<TcpStream>,
) {
    let mut attempts = Attempts::new(shared, backends, destination.original());
    loop {
        let Some(mut opened) = attempts.open(&mut client).await else { return client.reset() };
        let first = first_to_speak(&mut client, &mut opened.server, RELAY_IDLE).await;
        match first {
            Some((Speaker::Client, Ok(_))) => {
                backends.learn(false);
                let detected = client.detect(Protocol::Detect, &Waits::OUTBOUND).await;
                let opened = Some((attempts, opened));
                return follow(shared, (destination, backends), (client, detected), opened).await;
            }
            Some((Speaker::Server, Ok(n))) => {
                let bytes = opened.server.bytes();
                let (speaker, elapsed) = (Speaker::Server, Waits::OUTBOUND.first_byte);
                let opening = Opening { speaker, bytes, ended: n == 0, elapsed };
                if judge(Protocol::Detect, &Waits::OUTBOUND, opening) == Verdict::Http2 {
                    backends.learn(false);
                    // Resets the connection to the endpoint now, so that it no longer counts among the connections of
                    // the service while the client is served.
                    opened.reset();
                    return serve_http(shared, destination, Protocol::Http2, client).await;
                }
                // A server that closes without sending anything has not shown its protocol.
                if n > 0 {
                    backends.learn(true);
                } else {
                    opened.penalise();
                }
                shared.registry.count(Counter::OutboundDetectedServerFirst);
                return opened.relay(attempts, client).await;
            }
            // The endpoint has received nothing, so another endpoint can be used instead.
            Some((Speaker::Server, Err(error))) => attempts.give_up(&opened, &error),
            // The client's connection broke, or both sides were silent for as long as an idle relay may last.
            Some((Speaker::Client, Err(_))) | None => {
                opened.reset();
                return client.reset();
            }
        }
    }
}
