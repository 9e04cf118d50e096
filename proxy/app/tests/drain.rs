//! Tests connections that clients open while the real proxy drains, and while it ends.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use leno_testkit::proxy::{Proxy, inbound};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);
/// The number of clients that connect one after another.
const CLIENTS: usize = 8;

/// A proxy with an application that answers requests to `/held` only when the test releases them.
struct Bed {
    proxy: Proxy,
    release: watch::Sender<bool>,
    directory: tempfile::TempDir,
}

impl Bed {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (release, released) = watch::channel(false);
        let application = application(released).await;
        let socket = directory.path().join("admin.sock");
        let arguments = ["--drain-timeout-s", "6", "--admin-socket", socket.to_str().unwrap()];
        let proxy =
            Proxy::start_given(&arguments, |address, admin| inbound(address, admin, application));
        Self { proxy: proxy.unwrap(), release, directory }
    }

    /// Orders the proxy to drain, and returns once it does.
    async fn drain(&self) {
        let mut admin =
            UnixStream::connect(self.directory.path().join("admin.sock")).await.unwrap();
        let request = b"POST /drain HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n";
        admin.write_all(request).await.unwrap();
        let mut answer = String::new();
        admin.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

async fn application(released: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let released = released.clone();
            tokio::spawn(async move {
                // The proxy also opens a connection for a client that sends nothing; on that one the handshake fails.
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut released = released.clone();
                    tokio::spawn(async move {
                        if request.uri().path() == "/held" {
                            released.wait_for(|now| *now).await.unwrap();
                        }
                        let mut body = respond.send_response(Response::new(()), false).unwrap();
                        body.send_data(Bytes::from_static(b"whole"), true).unwrap();
                    });
                }
            });
        }
    });
    address
}

/// The result of a connection and its request.
#[derive(Debug, PartialEq)]
enum Fate {
    Answered,
    /// The connection was refused.
    Refused,
    /// The connection ended before the response was complete.
    Lost(String),
}

/// Opens a connection, waits for a round trip, so that everything that the proxy sends at once has arrived, and then
/// sends a request.
async fn call(address: SocketAddr, path: &str) -> Fate {
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Fate::Refused,
        Err(error) => return Fate::Lost(format!("connecting: {error}")),
    };
    over_http2(stream, path)
        .await
        .map_or_else(|error| Fate::Lost(error.to_string()), |()| Fate::Answered)
}

async fn over_http2(stream: TcpStream, path: &str) -> Result<(), h2::Error> {
    let (client, mut connection) = h2::client::handshake(stream).await?;
    let mut pings = connection.ping_pong().unwrap();
    tokio::spawn(connection);
    pings.ping(h2::Ping::opaque()).await?;
    let uri = format!("http://web{path}");
    let (answer, _) =
        client.ready().await?.send_request(Request::get(uri).body(()).unwrap(), true)?;
    let mut body = answer.await?.into_body();
    let mut whole = Vec::new();
    while let Some(piece) = body.data().await {
        whole.extend(piece?);
    }
    assert_eq!(whole, b"whole");
    Ok(())
}

/// A client whose new connection is closed by a GOAWAY before it could send a request reports an error (Go: `client
/// conn could not be established`), and does not connect again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_while_the_proxy_drains_is_answered() {
    let bed = Bed::start().await;
    let address = bed.proxy.address();
    let held = tokio::spawn(call(address, "/held"));
    // Connections that are open when the drain begins, and on which nothing was requested yet.
    let mut before = Vec::new();
    for _ in 0..CLIENTS {
        before.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(call(address, "/").await, Fate::Answered);
    bed.drain().await;
    let mut clients = JoinSet::new();
    for stream in before {
        clients.spawn(async move { over_http2(stream, "/").await });
    }
    while let Some(answered) = clients.join_next().await {
        answered.unwrap().unwrap();
    }
    for _ in 0..CLIENTS {
        assert_eq!(call(address, "/").await, Fate::Answered);
    }
    bed.release.send_replace(true);
    assert_eq!(held.await.unwrap(), Fate::Answered);
}

/// A client that connects at any moment is either refused or served. Clients that connect all the time keep the proxy
/// busy, but do not make it cut requests at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_while_the_proxy_ends_is_refused_or_answered() {
    let mut bed = Bed::start().await;
    let address = bed.proxy.address();
    let (ended, has_ended) = watch::channel(false);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let has_ended = has_ended.clone();
        clients.spawn(async move {
            let mut answered = 0;
            while !*has_ended.borrow() {
                match call(address, "/").await {
                    Fate::Answered => answered += 1,
                    Fate::Refused => tokio::task::yield_now().await,
                    Fate::Lost(how) => return Err(how),
                }
            }
            Ok(answered)
        });
    }
    bed.drain().await;
    let ends = tokio::task::spawn_blocking(move || (bed.proxy.ends(LIMIT), bed));
    let (status, _bed) = ends.await.unwrap();
    assert!(status.unwrap().success());
    ended.send_replace(true);
    while let Some(client) = clients.join_next().await {
        assert!(client.unwrap().unwrap() > 0, "it was served while the proxy drained");
    }
}
