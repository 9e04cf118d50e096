//! Tests with the `h2` crate as the peer.

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use tokio::io::DuplexStream;
use tokio::task::spawn_local;

use crate::support::{client, echo, limits, relay, request, run, server};

/// Bytes that do not repeat after a short distance, so that misplaced parts are noticed.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>().into()
}

async fn send_all(stream: &mut SendStream<Bytes>, mut body: Bytes, end: bool) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        let part = body.split_to(room.min(body.len()));
        let last = body.is_empty() && end;
        stream.send_data(part, last).unwrap();
    }
}

async fn read_all(stream: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = vec![];
    while let Some(part) = stream.data().await {
        let part = part?;
        stream.flow_control().release_capacity(part.len())?;
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// A server of the `h2` crate that sends every body back, with the body's length in a trailer.
async fn their_echo(io: DuplexStream) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        spawn_local(async move {
            let reset = request.uri().path() == "/reset";
            let mut body = request.into_body();
            if reset {
                return respond.send_reset(h2::Reason::REFUSED_STREAM);
            }
            let mut out = respond.send_response(Response::new(()), false).unwrap();
            let Ok(bytes) = read_all(&mut body).await else { return };
            let count = bytes.len();
            send_all(&mut out, bytes.into(), false).await;
            let mut trailers = HeaderMap::new();
            trailers.insert("x-count", count.into());
            out.send_trailers(trailers).unwrap();
        });
    }
}

async fn their_client(io: DuplexStream) -> h2::client::SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(io).await.unwrap();
    spawn_local(async move { drop(connection.await) });
    send.ready().await.unwrap()
}

/// One exchange by a client of the `h2` crate. Returns the response's body and trailers.
async fn exchange(
    send: &mut h2::client::SendRequest<Bytes>,
    path: &str,
    body: Bytes,
) -> Result<(Response<Vec<u8>>, Option<HeaderMap>), h2::Error> {
    let uri = format!("http://a{path}");
    let request = Request::builder().method(Method::POST).uri(uri).body(()).unwrap();
    let mut send = send.clone().ready().await?;
    let (response, mut out) = send.send_request(request, body.is_empty())?;
    let sending = async { send_all(&mut out, body, true).await };
    let receiving = async {
        let (parts, mut body) = response.await?.into_parts();
        let bytes = read_all(&mut body).await?;
        let trailers = body.trailers().await?;
        Ok((Response::from_parts(parts, bytes), trailers))
    };
    tokio::join!(sending, receiving).1
}

#[test]
fn their_client_and_our_server() {
    run(async {
        let (io, accept, _) = server(&limits());
        spawn_local(echo(accept));
        let mut send = their_client(io).await;
        for len in [0, 1, 1000, 16_384, 16_385, 100_000, 3_000_000] {
            let (response, _) = exchange(&mut send, "/", pattern(len)).await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.into_body(), pattern(len), "{len}");
        }
        let reset = exchange(&mut send, "/reset", Bytes::new()).await.unwrap_err();
        assert_eq!(reset.reason(), Some(h2::Reason::CONNECT_ERROR));
    });
}

#[test]
fn our_client_and_their_server() {
    run(async {
        let (io, client, _) = client(&limits());
        spawn_local(their_echo(io));
        for len in [0, 1, 100_000, 1_000_000] {
            let body = pattern(len);
            let mut stream = client.open(&request("POST", "/"), false).unwrap();
            let mut sent = 0;
            let mut got = vec![];
            while sent < len {
                stream.capacity().await.unwrap();
                let next = (sent + 30_000).min(len);
                stream.send_data(&body[sent..next], false);
                sent = next;
            }
            stream.send_data(Vec::new(), true);
            assert_eq!(stream.head().await.unwrap().status(), Some(200));
            while let Some(piece) = stream.data().await.unwrap() {
                got.extend_from_slice(&piece);
                stream.release(piece.len());
            }
            assert_eq!(got, body);
            let trailers = stream.trailers().unwrap();
            assert_eq!(trailers.get(b"x-count"), Some(len.to_string().as_bytes()));
        }
        let mut stream = client.open(&request("GET", "/reset"), true).unwrap();
        let reset = stream.head().await.unwrap_err();
        assert!(reset.unprocessed);
    });
}

#[test]
fn their_client_our_relay_their_server() {
    run(async {
        let limits = limits();
        let (io, accept, _) = server(&limits);
        let (far, client, _) = client(&limits);
        spawn_local(their_echo(far));
        spawn_local(relay(accept, client));
        let mut send = their_client(io).await;
        for len in [0, 1, 1000, 2049, 16_384, 70_000, 3_000_000] {
            let (response, trailers) = exchange(&mut send, "/", pattern(len)).await.unwrap();
            assert_eq!(response.into_body(), pattern(len), "{len}");
            assert_eq!(trailers.unwrap()["x-count"], len.to_string());
        }
        let reset = exchange(&mut send, "/reset", Bytes::new()).await.unwrap_err();
        assert!(reset.reason().is_some());
    });
}

#[test]
fn a_hundred_streams_at_once_through_the_relay() {
    run(async {
        let limits = limits();
        let (io, accept, _) = server(&limits);
        let (far, client, _) = client(&limits);
        spawn_local(their_echo(far));
        spawn_local(relay(accept, client));
        let send = their_client(io).await;
        let tasks: Vec<_> = (0..100)
            .map(|i| {
                let mut send = send.clone();
                spawn_local(async move {
                    let len = i * 997;
                    let (response, _) = exchange(&mut send, "/", pattern(len)).await.unwrap();
                    assert_eq!(response.into_body(), pattern(len));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}
