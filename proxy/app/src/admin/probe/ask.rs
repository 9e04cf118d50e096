//! Sends one probe to the application.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

use super::{Failed, Handler, Probe, Task, grpc};

/// The `User-Agent` of a probe if the kubelet's own request had none.
const AGENT: HeaderValue = HeaderValue::from_static("kube-probe/leno");

/// Probes the application once. The returned text describes the response, for the kubelet's event.
pub(super) async fn ask(
    probe: &Probe,
    address: IpAddr,
    agent: Option<&HeaderValue>,
) -> Result<String, Failed> {
    let to = SocketAddr::new(address.to_canonical(), probe.port);
    let stream = leno_transport::connect(to, probe.timeout).await.map_err(Failed::Connect)?;
    let agent = agent.cloned().unwrap_or(AGENT);
    match &probe.handler {
        Handler::Tcp => Ok("connected".to_owned()),
        Handler::Grpc { service } => grpc::check(stream, (to, service), agent).await,
        Handler::Http { path, headers, tls } => {
            let request = get(to, path, (headers, agent)).map_err(Failed::Request)?;
            let response = match tls {
                None => exchange(stream, request).await?,
                Some(config) => exchange(begin(stream, to.ip(), config).await?, request).await?,
            };
            let status = response.status().as_u16();
            let answer = format!("the application answered {status}");
            // The kubelet accepts the same range; redirects are not followed.
            let good = (200..400).contains(&status);
            if good { Ok(answer) } else { Err(Failed::Answer(answer)) }
        }
    }
}

/// Starts TLS on a stream. The application's certificate may have any name.
async fn begin(
    stream: TcpStream,
    address: IpAddr,
    config: &Arc<ClientConfig>,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + 'static, Failed> {
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(ServerName::from(address), stream).await.map_err(Failed::Tls)
}

/// The request of an HTTP probe. It has the headers of the probe, and those that the kubelet would add because they are
/// missing.
fn get(
    to: SocketAddr,
    path: &str,
    (headers, agent): (&[(String, String)], HeaderValue),
) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
    let mut request = Request::get(path);
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !given(HOST.as_str()) {
        request = request.header(HOST, to.to_string());
    }
    if !given(USER_AGENT.as_str()) {
        request = request.header(USER_AGENT, agent);
    }
    if !given(ACCEPT.as_str()) {
        request = request.header(ACCEPT, "*/*");
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.header(CONNECTION, "close").body(Empty::new())
}

/// Sends a request and waits for the head of the response. The body is discarded together with the connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, Failed> {
    let stream = TokioIo::new(stream);
    let connected = hyper::client::conn::http1::handshake(stream).await;
    let (mut sender, connection) = connected.map_err(Failed::Exchange)?;
    // An error of the connection is also returned by the request.
    let _driver = Task(spawn_local(async move { drop(connection.await) }));
    sender.send_request(request).await.map_err(Failed::Exchange)
}
