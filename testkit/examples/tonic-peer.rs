//! A gRPC server and client built with tonic; messages are plain bytes.
//!
//! ```text
//! tonic-peer serve PORT [NAME]  serves until it is killed; NAME is sent as x-served-by
//! tonic-peer call HOST PORT     plays every case, prints what it saw of each as one line
//! tonic-peer one HOST PORT /SERVICE/METHOD [NAME=VALUE]...
//!                               makes one call with metadata, prints its status and who served it
//! ```

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt, iter};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::StreamingService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tower_service::Service;

/// How long a case may take.
const LIMIT: Duration = Duration::from_secs(30);
/// A deadline that is shorter than the call.
const SHORT: Duration = Duration::from_millis(300);
/// Most messages of a stream that wait to be read.
const WAITING: usize = 4;
/// The length of a large message. It is below tonic's limit of 4 MiB.
const LARGE: usize = 3_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port, name @ ..] => {
            let address = ([0, 0, 0, 0], port.parse::<u16>()?).into();
            Ok(Server::builder().serve(address, Echo(name.concat())).await?)
        }
        ["call", host, port] => call(format!("http://{host}:{port}")).await,
        ["one", host, port, path, metadata @ ..] => {
            println!("{}", single(format!("http://{host}:{port}"), path, metadata).await?);
            Ok(())
        }
        _ => bail!("use: tonic-peer serve PORT [NAME], call HOST PORT, one HOST PORT PATH ..."),
    }
}

/// A codec that passes messages unchanged.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The server, with its name. The method in the path selects what it does.
#[derive(Clone)]
struct Echo(String);

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let name = self.0.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if path == "/t.Peer/Late" && name == "late" {
                std::future::pending::<()>().await;
            }
            let mut response = tonic::server::Grpc::new(Raw).streaming(Play(path), request).await;
            if let Ok(name) = name.parse() {
                response.headers_mut().insert("x-served-by", name);
            }
            Ok(response)
        })
    }
}

/// Methods that echo the message: `Echo` always; `Unsteady` fails two of three times; `Late` never
/// answers in a server named `late`.
const ECHOED: [&str; 3] = ["/t.Peer/Echo", "/t.Peer/Unsteady", "/t.Peer/Late"];

/// The number of the next call of `Unsteady`. It starts at 1, so that the first call fails.
static CALLS: AtomicU32 = AtomicU32::new(1);

struct Play(String);

impl StreamingService<Bytes> for Play {
    type Response = Bytes;
    type ResponseStream = ReceiverStream<Result<Bytes, Status>>;
    type Future = Boxed<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move {
            if path == "/t.Peer/Refuse" {
                let mut metadata = MetadataMap::new();
                metadata.insert("x-why", MetadataValue::from_static("as asked"));
                let message = "not now: \u{2603} 100 %\n";
                return Err(Status::with_metadata(Code::FailedPrecondition, message, metadata));
            }
            match path.as_str() {
                "/t.Peer/Sleep" => std::future::pending().await,
                "/t.Peer/Unsteady" if !CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) => {
                    return Err(Status::unavailable("two of three"));
                }
                "/t.Peer/Nothing" => return Err(Status::unimplemented("no such method")),
                _ => {}
            }
            let (send, messages) = mpsc::channel(WAITING);
            let mut response = Response::new(ReceiverStream::new(messages));
            for name in ["x-text", "x-more"] {
                let values = request.metadata().get_all(name).iter();
                let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
                if let (false, Ok(joined)) = (values.is_empty(), values.join("|").parse()) {
                    response.metadata_mut().insert(name, joined);
                }
            }
            if let Some(value) = request.metadata().get_bin("x-octets-bin") {
                response.metadata_mut().insert_bin("x-octets-bin", value.clone());
            }
            tokio::spawn(play(path, request.into_inner(), send));
            Ok(response)
        })
    }
}

async fn play(
    path: String,
    mut said: Streaming<Bytes>,
    answer: mpsc::Sender<Result<Bytes, Status>>,
) {
    let mut total = 0;
    while let Some(Ok(message)) = said.next().await {
        total += message.len();
        let sent = match path.as_str() {
            path if ECHOED.contains(&path) || !path.starts_with("/t.Peer/") => {
                answer.send(Ok(message)).await
            }
            "/t.Peer/Count" => {
                for number in 0..message.len() {
                    // Fails if the client has cancelled.
                    let _left = answer.send(Ok(number.to_string().into())).await;
                }
                Ok(())
            }
            "/t.Peer/Fail" => {
                let _left = answer.send(Ok(message)).await;
                answer.send(Err(Status::data_loss("half of it"))).await
            }
            _ => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
    if path == "/t.Peer/Join" {
        // Fails if the client has cancelled.
        let _left = answer.send(Ok(total.to_string().into())).await;
    }
}

async fn call(server: String) -> Result<()> {
    let channel = Endpoint::new(server)?.connect_timeout(LIMIT).connect().await?;
    let cases = ["unary", "large", "client", "server", "both", "metadata", "refused", "failed"];
    for case in cases.iter().chain(&["unimplemented", "deadline", "left", "many"]) {
        let said = tokio::time::timeout(LIMIT, one(case, &channel)).await??;
        println!("{case}: {said}");
    }
    Ok(())
}

/// Makes one unary call; returns its status, and the `x-served-by` and `leno-error` of its
/// response.
async fn single(server: String, path: &str, metadata: &[&str]) -> Result<String> {
    let channel = Endpoint::new(server)?.connect_timeout(LIMIT).connect().await?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let mut request = Request::new(message(3));
    for pair in metadata {
        let Some((name, value)) = pair.split_once('=') else { bail!("{pair:?} is no NAME=VALUE") };
        let name: tonic::metadata::AsciiMetadataKey = name.parse()?;
        request.metadata_mut().insert(name, value.parse()?);
    }
    let path = PathAndQuery::try_from(path)?;
    let (code, answered) = match grpc.unary(request, path, Raw).await {
        Ok(response) => (Code::Ok, response.metadata().clone()),
        Err(status) => (status.code(), status.metadata().clone()),
    };
    let value = |name| answered.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
    let mut said = format!("{code:?} {} {}", value("x-served-by"), value("leno-error"));
    for name in ["x-text", "x-more"] {
        if answered.contains_key(name) {
            said += &format!(" {name}={}", value(name));
        }
    }
    Ok(said)
}

fn message(length: usize) -> Bytes {
    (0..length).map(|i| (i % 251) as u8).collect()
}

async fn one(case: &str, channel: &Channel) -> Result<String> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = |name: &str| PathAndQuery::try_from(format!("/t.Peer/{name}"));
    let request = |length: usize| Request::new(message(length));
    let shown = |outcome: Result<Response<Bytes>, Status>| match outcome {
        Ok(response) => format!("{:?} bytes", response.into_inner().len()),
        Err(status) => {
            let why = status.metadata().get("x-why").and_then(|why| why.to_str().ok());
            format!("{:?} {:?} {why:?}", status.code(), status.message())
        }
    };
    Ok(match case {
        "unary" => shown(grpc.unary(request(10), path("Echo")?, Raw).await),
        "large" => shown(grpc.unary(request(LARGE), path("Echo")?, Raw).await),
        "client" => {
            let messages = Request::new(iter((1..100).map(message)));
            let total = grpc.client_streaming(messages, path("Join")?, Raw).await?.into_inner();
            String::from_utf8(total.to_vec())?
        }
        "server" => {
            let mut messages =
                grpc.server_streaming(request(500), path("Count")?, Raw).await?.into_inner();
            let mut last = Bytes::new();
            while let Some(message) = messages.message().await? {
                last = message;
            }
            format!("{last:?} {:?}", messages.trailers().await?.is_some())
        }
        "both" => both(&mut grpc, path("Echo")?).await?,
        "metadata" => {
            let mut request = request(1);
            request.metadata_mut().insert("x-text", MetadataValue::from_static("a, b"));
            request
                .metadata_mut()
                .insert_bin("x-octets-bin", MetadataValue::from_bytes(&[0, 255, 10, 13]));
            let answer = grpc.unary(request, path("Echo")?, Raw).await?;
            let octets = answer.metadata().get_bin("x-octets-bin").map(|value| value.to_bytes());
            format!("{:?} {octets:?}", answer.metadata().get("x-text"))
        }
        "refused" => shown(grpc.unary(request(1), path("Refuse")?, Raw).await),
        "failed" => {
            let mut messages =
                grpc.server_streaming(request(7), path("Fail")?, Raw).await?.into_inner();
            let first = messages.message().await?.map(|message| message.len());
            let end = messages.message().await.map(|_| ()).map_err(|status| status.code());
            format!("{first:?} {end:?}")
        }
        "unimplemented" => shown(grpc.unary(request(1), path("Nothing")?, Raw).await),
        "deadline" => {
            let mut request = request(1);
            request.set_timeout(SHORT);
            let code = grpc.unary(request, path("Sleep")?, Raw).await.map_err(|it| it.code()).err();
            // tonic's server returns Cancelled; other servers return DeadlineExceeded.
            format!("{}", matches!(code, Some(Code::Cancelled | Code::DeadlineExceeded)))
        }
        "left" => left(channel, path("Sleep")?, path("Echo")?).await?,
        _ => {
            let mut total = 0;
            for length in 0..300 {
                grpc.ready().await?;
                total += grpc.unary(request(length), path("Echo")?, Raw).await?.into_inner().len();
            }
            total.to_string()
        }
    })
}

/// Makes a call that the client cancels, and then one that checks that the connection can still be used.
async fn left(channel: &Channel, sleep: PathAndQuery, echo: PathAndQuery) -> Result<String> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let slept = grpc.unary(Request::new(message(1)), sleep, Raw);
    let left = tokio::time::timeout(SHORT, slept).await.is_err();
    grpc.ready().await?;
    let answer = grpc.unary(Request::new(message(3)), echo, Raw).await?;
    Ok(format!("{left} {} bytes", answer.into_inner().len()))
}

/// Sends each message only after the answer to the previous one has arrived.
async fn both(grpc: &mut tonic::client::Grpc<Channel>, path: PathAndQuery) -> Result<String> {
    let (send, messages) = mpsc::channel(WAITING);
    send.send(message(1)).await?;
    let messages = Request::new(ReceiverStream::new(messages));
    let mut answers = grpc.streaming(messages, path, Raw).await?.into_inner();
    let mut total = 0;
    for next in [1000, 70_000, 0, 5] {
        total += answers.message().await?.map_or(0, |answer| answer.len());
        send.send(message(next)).await?;
    }
    drop(send);
    while let Some(answer) = answers.message().await? {
        total += answer.len();
    }
    Ok(total.to_string())
}
