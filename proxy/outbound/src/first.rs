//! Connections whose protocol is decided on the first bytes: HTTP/1, HTTP/2, or anything else.
//!
//! A client that speaks first is waited for only for [`GRACE`]; then a connection to an endpoint
//! is opened as well, and whoever speaks first decides. A server that speaks first therefore
//! waits at most that long, once: the next connections to its service open at once.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use leno_telemetry::Counter;
use leno_transport::{Detected, Stream, detect, detect_first, read_first};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;
use crate::backends::Backends;
use crate::destination::Destination;
use crate::opaque::Attempts;
use crate::{http, opaque};

/// How long a client may stay silent before the endpoint is asked too. A client that speaks first
/// mostly sends with or right after the handshake.
const GRACE: Duration = Duration::from_millis(5);

pub(crate) async fn serve(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let grace = if backends.server_speaks_first() { Duration::ZERO } else { GRACE };
    let mut first = Vec::new();
    match timeout(grace, read_first(&mut client, &mut first)).await {
        Ok(Ok(0)) => opaque::relay(shared, backends, first, client).await,
        Ok(Ok(_)) => by_first_bytes(shared, destination, backends, (first, client)).await,
        Ok(Err(_)) => client.abort(),
        Err(_silent) => race(shared, destination, backends, client).await,
    }
}

/// A service that declares HTTP/2, whose clients speak first. One that speaks HTTP/1 is served too,
/// as servers do that take both on one port.
pub(crate) async fn serve_http(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let mut first = Vec::new();
    match read_first(&mut client, &mut first).await {
        Ok(0) => {}
        Ok(_) => by_first_bytes(shared, destination, backends, (first, client)).await,
        Err(_) => client.abort(),
    }
}

/// The client has said something.
async fn by_first_bytes(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    (mut first, mut client): (Vec<u8>, TcpStream),
) {
    match detect_first(&mut client, &mut first).await {
        Detected::Http1 => {
            shared.registry.count(Counter::OutboundDetectedHttp1);
            http::serve_http1(shared, destination, client, &first).await;
        }
        Detected::Http2Preface => {
            shared.registry.count(Counter::OutboundDetectedHttp2);
            http::serve_http2(shared, destination, client, &first).await;
        }
        _ => {
            shared.registry.count(Counter::OutboundDetectedOpaque);
            opaque::relay(shared, backends, first, client).await;
        }
    }
}

/// Both are silent: opens a connection and lets the one decide who speaks first.
async fn race(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    backends: &Rc<Backends>,
    mut client: TcpStream,
) {
    let mut attempts = Attempts::new(shared, backends);
    loop {
        let Some(mut opened) = attempts.open().await else {
            client.abort();
            return;
        };
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        let first = tokio::select! {
            biased;
            read = read_first(&mut client, &mut from_client) => First::Client(read),
            read = read_first(&mut opened.channel, &mut from_server) => First::Server(read),
        };
        match first {
            First::Client(Ok(_)) if is_http(detect(&from_client)) => {
                backends.learn(false);
                drop(opened);
                return by_first_bytes(shared, destination, backends, (from_client, client)).await;
            }
            First::Client(Ok(_)) => {
                backends.learn(false);
                shared.registry.count(Counter::OutboundDetectedOpaque);
                return attempts.relay(Some(opened), (from_client, client)).await;
            }
            First::Server(Ok(n)) => {
                // One that ends before it has said anything has not shown what it speaks.
                if n > 0 {
                    backends.learn(true);
                } else {
                    opened.penalise();
                }
                shared.registry.count(Counter::OutboundDetectedServerFirst);
                return opened.relay(shared, client, from_server).await;
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

fn is_http(detected: Detected) -> bool {
    matches!(detected, Detected::Http1 | Detected::Http2Preface)
}

/// Who has spoken, or ended, first.
enum First {
    Client(io::Result<usize>),
    Server(io::Result<usize>),
}
