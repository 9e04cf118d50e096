//! The HTTP/2 server behind the proxies, in a process of its own. It answers plain requests with 1
//! KiB, and gRPC calls with the message that they sent.

use std::net::SocketAddr;

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, server};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};

/// The response to requests that are not gRPC calls.
static PAGE: [u8; 1024] = [b'x'; 1024];
/// Streams of one connection; far more than the load uses.
const MAX_STREAMS: u32 = 1000;
/// Flow-control windows, so large that they are never the bottleneck.
const WINDOW: u32 = 1 << 20;

/// Serves until the process ends.
pub(crate) fn run(listen: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                // The client counts a broken connection itself.
                let _ = connection(stream).await;
            });
        }
    })
}

async fn connection(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(MAX_STREAMS);
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW * 16);
    let mut connection = builder.handshake::<_, Bytes>(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        tokio::spawn(async move {
            let _ = answer(request, respond).await;
        });
    }
    Ok(())
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<()> {
    let content_type = request.headers().get("content-type");
    if content_type.is_none_or(|value| value != "application/grpc") {
        let response = Response::builder()
            .header("content-type", "text/plain")
            .header("content-length", HeaderValue::from(PAGE.len()))
            .body(())?;
        respond.send_response(response, false)?.send_data(Bytes::from_static(&PAGE), true)?;
        return Ok(());
    }
    let message = read(request.into_body()).await?;
    let response = Response::builder().header("content-type", "application/grpc").body(())?;
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Ok(stream.send_trailers(trailers)?)
}

async fn read(mut body: RecvStream) -> Result<Bytes> {
    let mut message = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        message.extend_from_slice(&piece);
    }
    Ok(message.freeze())
}
