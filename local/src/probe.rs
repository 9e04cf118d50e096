//! Probes an application by HTTP, gRPC, TCP or a command.
//!
//! A probe bypasses the proxy, like connections to `published` ports: it tests the application itself, even if the
//! proxy requires mTLS.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use leno_supervise::describe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::error::Result;
use crate::forward::{self, ForwardTarget};
use crate::listening;
use crate::plan::{InstanceProbe, ProbeQuestion};
use crate::process::ProcessCommand;

/// Most bytes of a response that are read.
const MAX_ANSWER: usize = 16 * 1024;
/// `SERVING` in `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;

/// What is needed to probe an instance.
pub struct Prober<'a, F> {
    /// The probe.
    pub probe: &'a InstanceProbe,
    /// Where the application is reached. The probe sets the port.
    pub target: ForwardTarget,
    /// The application's process.
    pub pid: i32,
    /// Creates a command that runs like the application.
    pub task: F,
}

impl<F: Fn(&[String]) -> Result<ProcessCommand>> Prober<'_, F> {
    /// Probes once.
    ///
    /// # Errors
    /// Why the probe failed, as text: "GET /ready on port 8080 answers 503".
    pub async fn ask(&self) -> Result<(), String> {
        let InstanceProbe { question, timeout, .. } = self.probe;
        let asked = async {
            match question {
                ProbeQuestion::Http { port, path, headers } => {
                    self.http(*port, path, headers).await
                }
                ProbeQuestion::Grpc { port, service } => self.grpc(*port, service).await,
                ProbeQuestion::Tcp(port) => self.connect(*port).await.map(drop),
                ProbeQuestion::Exec(command) => self.exec(command).await,
            }
        };
        let answer = tokio::time::timeout(*timeout, asked).await;
        answer.unwrap_or_else(|_| Err(late(*timeout))).map_err(|why| format!("{question} {why}"))
    }

    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        // Connecting would not show this: the proxy accepts connections to the instance's address even if no
        // application listens.
        if !listening::closed(self.pid, &[port]).is_empty() {
            return Err("fails: no process listens on the port".to_owned());
        }
        let target = ForwardTarget { port, ..self.target.clone() };
        forward::connect(&target).await.map_err(|error| match std::error::Error::source(&error) {
            Some(reason) => format!("fails: {reason}"),
            None => format!("fails: {error}"),
        })
    }

    async fn http(
        &self,
        port: u16,
        path: &str,
        headers: &[(String, String)],
    ) -> Result<(), String> {
        let mut stream = self.connect(port).await?;
        let asked = http_status(&mut stream, path, headers, port).await;
        match asked.map_err(|error| format!("fails: {error}"))? {
            200..400 => Ok(()),
            status => Err(format!("answers {status}")),
        }
    }

    async fn grpc(&self, port: u16, service: &str) -> Result<(), String> {
        let stream = self.connect(port).await?;
        grpc_health(stream, service).await
    }

    async fn exec(&self, command: &[String]) -> Result<(), String> {
        let task =
            (self.task)(command).map_err(|error| format!("cannot run: {}", error.chain()))?;
        let ended = task.finish().await;
        let (status, line) = ended.map_err(|error| format!("cannot run: {}", error.chain()))?;
        match (status.success(), line.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(describe(status)),
            (false, false) => Err(format!("{}: {line}", describe(status))),
        }
    }
}

impl std::fmt::Display for ProbeQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http { port, path, .. } => write!(f, "GET {path} on port {port}"),
            Self::Grpc { port, service } if service.is_empty() => {
                write!(f, "the health check of gRPC on port {port}")
            }
            Self::Grpc { port, service } => {
                write!(f, "the health check of gRPC for {service} on port {port}")
            }
            Self::Tcp(port) => write!(f, "a connection to port {port}"),
            Self::Exec(command) => f.write_str(&command.join(" ")),
        }
    }
}

fn late(timeout: Duration) -> String {
    format!("gets no answer within {} s", timeout.as_secs())
}

/// Sends an HTTP/1.1 request and reads the response, up to [`MAX_ANSWER`] bytes of it.
async fn http_status(
    stream: &mut TcpStream,
    path: &str,
    headers: &[(String, String)],
    port: u16,
) -> io::Result<u16> {
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    let mut head = format!("GET {path} HTTP/1.1\r\n");
    for (name, value) in [
        ("Host", format!("localhost:{port}")),
        ("User-Agent", "leno-probe".to_owned()),
        ("Accept", "*/*".to_owned()),
        ("Connection", "close".to_owned()),
    ] {
        if !given(name) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    let status = loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed in the middle of the response",
            ));
        }
        if let Some(line) = answer.split_inclusive(|byte| *byte == b'\n').next()
            && line.ends_with(b"\n")
        {
            break status_of(line)?;
        }
        if answer.len() > MAX_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP"));
        }
    };
    // Reads the rest of the response, because a server may log an error if its response is cut off. The probe's
    // result no longer depends on it.
    let rest = async {
        while answer.len() < MAX_ANSWER && stream.read_buf(&mut answer).await.is_ok_and(|n| n > 0) {
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(50), rest).await;
    Ok(status)
}

fn status_of(line: &[u8]) -> io::Result<u16> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let version = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().filter(|_| version).and_then(|word| word.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP"))
}

/// Calls `grpc.health.v1.Health/Check` (github.com/grpc/grpc/blob/master/doc/health-checking.md).
async fn grpc_health(stream: TcpStream, service: &str) -> Result<(), String> {
    let failed = |error: h2::Error| format!("fails: {error}");
    let (mut client, connection) = h2::client::handshake(stream).await.map_err(failed)?;
    // The task is aborted when this call returns. The call itself reports errors of the connection.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    poll_fn(|context| client.poll_ready(context)).await.map_err(failed)?;
    let request = http::Request::post("http://localhost/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "leno-probe")
        .body(())
        .expect("every part is valid");
    let (response, mut body) = client.send_request(request, false).map_err(failed)?;
    body.send_data(health_request(service), true).map_err(failed)?;
    let response = response.await.map_err(failed)?;
    let status = |headers: &http::HeaderMap| {
        let status = headers.get("grpc-status").and_then(|value| value.to_str().ok());
        status.filter(|status| *status != "0").map(|status| {
            let meaning = match status {
                "5" => " (the server does not know the service)",
                "12" => " (the server has no health service)",
                _ => "",
            };
            format!("answers with the gRPC status {status}{meaning}")
        })
    };
    if let Some(wrong) = status(response.headers()) {
        return Err(wrong);
    }
    if response.status() != 200 {
        return Err(format!("answers {}", response.status().as_u16()));
    }
    let mut body = response.into_body();
    let mut message = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(failed)?;
        let _ = body.flow_control().release_capacity(chunk.len());
        if message.len() + chunk.len() > MAX_ANSWER {
            return Err("answers with too large a response".to_owned());
        }
        message.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await.map_err(failed)?.unwrap_or_default();
    if let Some(wrong) = status(&trailers) {
        return Err(wrong);
    }
    match serving_status(&message) {
        Some(SERVING) => Ok(()),
        Some(0) => Err("answers UNKNOWN".to_owned()),
        Some(2) => Err("answers NOT_SERVING".to_owned()),
        Some(3) => Err("answers SERVICE_UNKNOWN".to_owned()),
        _ => Err("does not answer as a gRPC health service".to_owned()),
    }
}

/// Encodes a `HealthCheckRequest` with gRPC's prefix (no compression, four bytes of length). The message has field
/// 1, a string.
fn health_request(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8(length.to_le_bytes()[0] | 0x80);
            length >>= 7;
        }
        message.put_u8(length.to_le_bytes()[0]);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(&message);
    framed.freeze()
}

/// The status in a `HealthCheckResponse` with gRPC's prefix. The status is field 1, a number; it is 0 if the field
/// is missing.
fn serving_status(framed: &[u8]) -> Option<u64> {
    let (head, message) = framed.split_at_checked(5)?;
    let length = u32::from_be_bytes(head[1..].try_into().ok()?);
    if head[0] != 0 || usize::try_from(length).ok()? != message.len() {
        return None;
    }
    match message {
        [] => Some(0),
        [0x08, status @ 0..0x80] => Some((*status).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_checks_are_read_and_written_as_protobuf_has_them() {
        assert_eq!(&health_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&health_request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = health_request(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
        assert_eq!(serving_status(&[0, 0, 0, 0, 2, 8, 1]), Some(SERVING));
        assert_eq!(serving_status(&[0, 0, 0, 0, 0]), Some(0));
        for wrong in [&[][..], &[0, 0, 0, 0], &[0, 0, 0, 0, 9, 8, 1], &[1, 0, 0, 0, 2, 8, 1]] {
            assert_eq!(serving_status(wrong), None);
        }
    }

    #[test]
    fn a_status_line_is_read() {
        assert_eq!(status_of(b"HTTP/1.1 503 Service Unavailable\r\n").unwrap(), 503);
        assert!(status_of(b"+OK redis\r\n").is_err());
        assert!(status_of(b"HTTP/1.1\r\n").is_err());
    }

    async fn serve(answer: &'static str) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Keeps the connection open, because a probe must not wait until the server closes it.
            std::future::pending::<()>().await;
        });
        port
    }

    #[tokio::test]
    async fn an_answer_counts_before_the_connection_ends() {
        for (answer, expected) in
            [("HTTP/1.1 204 No Content\r\n\r\n", 204), ("HTTP/1.0 500 x\r\n\r\nbroken", 500)]
        {
            let port = serve(answer).await;
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let status = http_status(&mut stream, "/", &[], port).await.unwrap();
            assert_eq!(status, expected);
        }
    }

    /// Answers one call with this message, which may be empty, and with this status in the trailers.
    async fn health(message: &'static [u8], status: &'static str) -> TcpStream {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let head = http::Response::builder().header("content-type", "application/grpc");
                let trailers = [("grpc-status", status)].into_iter().map(|(name, value)| {
                    (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
                });
                let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
                body.send_data(Bytes::from_static(message), false).unwrap();
                body.send_trailers(trailers.collect()).unwrap();
            }
        });
        TcpStream::connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn a_server_of_grpc_is_asked_for_its_health() {
        let serving = health(&[0, 0, 0, 0, 2, 8, 1], "0").await;
        assert_eq!(grpc_health(serving, "shop.Cart").await, Ok(()));
        for (message, status, reason) in [
            (&[0, 0, 0, 0, 2, 8, 2][..], "0", "answers NOT_SERVING"),
            (&[], "0", "does not answer as a gRPC health service"),
            (&[], "5", "answers with the gRPC status 5 (the server does not know the service)"),
        ] {
            let answer = grpc_health(health(message, status).await, "").await;
            assert_eq!(answer, Err(reason.to_owned()));
        }
    }
}
