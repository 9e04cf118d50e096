//! Connections to addresses that the mesh does not know, where policy refuses them.
//!
//! ```text
//! client ─► first bytes ─┬─ HTTP ─► every request is answered 403
//!                        └─ else, or silent ─► reset
//! ```
//! The server is never dialled.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_telemetry::{Outcome, Relay};
use leno_transport::{Detected, Stream, detect_first, read_first};
use leno_types::Egress;
use leno_types::mesh::ServerPolicy;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Shared;
use crate::destination::Destination;
use crate::first::tls_of;
use crate::forward::grpc_status;
use crate::http;
use crate::opaque::Tls;
use crate::request::Request;
use crate::routes::MeshAnswer;

/// For `leno-error`, metrics and the access log.
pub(crate) const DENIED: &str = "egress-denied";

/// DNS over TCP always passes: a long answer must not break what a short one, over UDP and so unseen,
/// would not. It is the one destination that every workload needs before it can name another.
const DNS: u16 = 53;

/// How long a client may take to show that it speaks HTTP, so that it is told why. One that speaks
/// first does with or right after the handshake; any other waits for a server that is never dialled.
const SPEAK_TIMEOUT: Duration = Duration::from_secs(1);

/// What the control plane says of the workload's egress.
#[derive(Debug)]
pub(crate) struct EgressPolicy(watch::Receiver<Option<Arc<ServerPolicy>>>);

impl EgressPolicy {
    pub(crate) fn new(policy: watch::Receiver<Option<Arc<ServerPolicy>>>) -> Self {
        Self(policy)
    }

    /// Whether an address that the mesh does not know may be dialled.
    pub(crate) fn allows(&self, to: SocketAddr) -> bool {
        let denies = self.0.borrow().as_ref().is_some_and(|policy| policy.egress == Egress::Deny);
        !denies || to.port() == DNS
    }
}

/// Refuses a connection; requests of HTTP are told why.
pub(crate) async fn refuse(
    shared: &Rc<Shared>,
    destination: &Rc<Destination>,
    mut client: TcpStream,
) {
    let began = Instant::now();
    let (mut first, mut tls) = (Vec::new(), Tls::default());
    let said = async {
        read_first(&mut client, &mut first).await?;
        let detected = detect_first(&mut client, &mut first).await?;
        if matches!(detected, Detected::TlsClientHello) {
            tls = tls_of(shared, &mut client, &mut first).await?;
        }
        Ok::<_, std::io::Error>(detected)
    };
    match timeout(SPEAK_TIMEOUT, said).await {
        Ok(Ok(Detected::Http1)) => {
            return http::serve_http1(shared, destination, client, &first).await;
        }
        Ok(Ok(Detected::Http2Preface)) => {
            return http::serve_http2(shared, destination, client, &first).await;
        }
        _ => {}
    }
    let edge = shared.registry.edge(&shared.outside());
    edge.error(DENIED);
    let relay = Relay {
        target: destination.original(),
        tls: tls.is_tls,
        server_name: tls.server_name.as_deref(),
        bytes: (first.len() as u64, 0),
        duration: began.elapsed(),
        error: Some(DENIED),
    };
    shared.registry.relayed(edge.labels(), &relay);
    tracing::debug!(destination = %destination.original(), "refused: not in the mesh, and egress is denied");
    client.abort();
}

/// The answer to a request of a connection that is refused; counts it.
pub(crate) fn denied<R: Request>(
    shared: &Shared,
    destination: SocketAddr,
    request: &R,
) -> MeshAnswer {
    let head = request.view();
    let version = head.version().as_str();
    // The path alone would not say whom the workload wanted.
    let target = match head.target().starts_with(b"/") {
        true => [b"http://", head.authority().as_bytes(), head.target()].concat(),
        false => head.target().to_vec(),
    };
    let begun = shared.registry.begin(version, head.method(), &target);
    let answer = MeshAnswer::egress_denied(DENIED, destination);
    let grpc_status = request.is_grpc().then(|| grpc_status(answer.status, Some(DENIED)));
    let edge = shared.registry.edge(&shared.outside());
    edge.error(DENIED);
    let outcome =
        Outcome { status: answer.status, grpc_status, bytes: (0, 0), error: Some(DENIED) };
    shared.registry.end(&edge, &begun, &outcome);
    answer
}

#[cfg(test)]
mod tests {
    use leno_discovery::Directory;
    use leno_types::mesh::{Place, Resolution};
    use leno_types::{InstanceName, MtlsMode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What a workload whose egress is denied hears at an address that nobody knows, to what it says.
    async fn hears(said: &[u8]) -> (std::io::Result<String>, String) {
        let workload = InstanceName::new("shop", "web-0").unwrap();
        let (mtls, egress) = (MtlsMode::Strict, Egress::Deny);
        let (ports, limits, place) = (Vec::new(), [].into(), Place::default());
        let policy = ServerPolicy { workload, mtls, ports, limits, egress, place };
        let directory = Directory::fixed(|_| Resolution::Unknown).with_server_policy(policy);
        let outbound = crate::tests::outbound(directory);
        let destination = outbound.destinations.get("192.0.2.1:80".parse().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let asks = async {
            client.write_all(said).await?;
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await?;
            Ok(String::from_utf8_lossy(&heard).into_owned())
        };
        let (heard, ()) = tokio::join!(asks, refuse(&outbound.shared, &destination, server));
        let metrics = leno_telemetry::render(&outbound.shared.registry.snapshot(), &[], false);
        (heard, metrics)
    }

    #[tokio::test]
    async fn requests_are_told_why_and_anything_else_is_reset() {
        let request = b"GET /x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
        let (heard, metrics) = hears(request).await;
        let heard = heard.unwrap();
        assert!(heard.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{heard}");
        let cause = "leno-error: egress-denied; destination=\"192.0.2.1:80\"\r\n";
        assert!(heard.contains(cause), "{heard}");
        assert!(metrics.contains("cause=\"egress-denied\"} 1"), "{metrics}");
        assert!(metrics.contains("status=\"403\""), "{metrics}");
        let (heard, metrics) = hears(b"\0\x01opaque").await;
        assert_eq!(heard.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        assert!(metrics.contains("cause=\"egress-denied\"} 1"), "{metrics}");
    }

    #[test]
    fn dns_passes_and_a_change_holds_at_once() {
        let workload = InstanceName::new("shop", "web-0").unwrap();
        let policy = |egress| {
            let (ports, place) = (Vec::new(), Place::default());
            let (mtls, limits) = (MtlsMode::Strict, [].into());
            let workload = workload.clone();
            Some(Arc::new(ServerPolicy { workload, mtls, ports, limits, egress, place }))
        };
        let (sender, receiver) = watch::channel(None);
        let egress = EgressPolicy::new(receiver);
        let allows = |address: &str| egress.allows(address.parse().unwrap());
        assert!(allows("192.0.2.1:443"));
        sender.send_replace(policy(Egress::Deny));
        assert!(!allows("192.0.2.1:443"));
        assert!(!allows("[2001:db8::1]:80"));
        assert!(allows("192.0.2.1:53"));
        sender.send_replace(policy(Egress::Allow));
        assert!(allows("192.0.2.1:443"));
    }
}
