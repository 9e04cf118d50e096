//! Refuses connections to addresses outside of the mesh, if policy denies egress.
//!
//! ```text
//! client ─► first bytes ─┬─ HTTP ─► every request is answered 403
//!                        └─ else, or silent ─► reset
//! ```
//! The proxy never connects to the server.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_telemetry::{Arrival, Outcome, Relay};
use leno_transport::{OwnTls, Peeked, Verdict, Waits};
use leno_types::mesh::ServerPolicy;
use leno_types::{Egress, Protocol};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Worker;
use crate::destination::Destination;
use crate::first::note_tls;
use crate::forward::grpc_status;
use crate::http;
use crate::opaque::unserved;
use crate::request::Request;
use crate::routes::MeshAnswer;

/// The cause for `leno-error`, metrics and the access log.
pub(crate) const DENIED: &str = "egress-denied";

/// The port of DNS. DNS over TCP always passes, because a long answer must not fail where a short answer over UDP
/// succeeds, and because every workload needs DNS before it can name another destination.
const DNS: u16 = 53;

/// The workload's egress policy from the control plane.
#[derive(Debug)]
pub(crate) struct EgressPolicy(watch::Receiver<Option<Arc<ServerPolicy>>>);

impl EgressPolicy {
    pub(crate) fn new(policy: watch::Receiver<Option<Arc<ServerPolicy>>>) -> Self {
        Self(policy)
    }

    /// Whether an address outside of the mesh may be dialled.
    pub(crate) fn allows(&self, to: SocketAddr) -> bool {
        let denies = self.0.borrow().as_ref().is_some_and(|policy| policy.egress == Egress::Deny);
        !denies || to.port() == DNS
    }
}

/// Refuses a connection. HTTP requests are answered with the cause.
pub(crate) async fn refuse(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    mut client: Peeked<TcpStream>,
) {
    let began = Instant::now();
    let tls = match client.detect(Protocol::Detect, &Waits::DENIED).await {
        Ok(Verdict::Http1) => return http::serve_http1(shared, destination, client).await,
        Ok(Verdict::Http2) => return http::serve_http2(shared, destination, client).await,
        Ok(Verdict::Tls(hello)) => note_tls(shared, hello),
        _ => OwnTls::default(),
    };
    let edge = shared.registry.edge(&shared.outside());
    edge.error(DENIED);
    let refused = unserved(destination.original(), &tls, client.bytes().len(), DENIED);
    let relay = Relay { duration: began.elapsed(), ..refused };
    shared.registry.relayed(edge.labels(), &relay);
    tracing::debug!(destination = %destination.original(), "refused: not in the mesh, and egress is denied");
    client.reset();
}

/// Counts a request that is refused because egress is denied, and returns its answer.
pub(crate) fn denied<R: Request>(
    shared: &Worker,
    destination: SocketAddr,
    request: &R,
) -> MeshAnswer {
    let answer = MeshAnswer::egress_denied(DENIED, destination);
    unrouted(shared, request, answer, DENIED)
}

/// Counts a request that this proxy answers itself because it has no endpoints for it, and returns the answer.
pub(crate) fn unrouted<R: Request>(
    shared: &Worker,
    request: &R,
    answer: MeshAnswer,
    cause: &'static str,
) -> MeshAnswer {
    let head = request.view();
    let version = head.version().as_str();
    // The path alone would not say which server was requested.
    let target = match head.target().starts_with(b"/") {
        true => [b"http://", head.authority().as_bytes(), head.target()].concat(),
        false => head.target().to_vec(),
    };
    let line = (version, head.method(), &*target);
    let of = || (head.authority(), head.headers());
    let begun = shared.registry.begin(Arrival::Outbound, line, of, || head.trace_headers());
    let grpc_status = request.is_grpc().then(|| grpc_status(answer.status, Some(cause)));
    let edge = shared.registry.edge(&shared.outside());
    edge.error(cause);
    let (status, error) = (answer.status, Some(cause));
    let outcome = Outcome { status, grpc_status, error, ..Outcome::default() };
    shared.registry.end(&edge, &begun, &outcome);
    answer
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_discovery::Directory;
    use leno_telemetry::Registry;
    use leno_telemetry::access::{Form, Layout, Log};
    use leno_types::mesh::Resolution;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The bytes that a workload receives from an address outside of the mesh while its egress is denied, and the
    /// resulting counts and log lines.
    struct Heard {
        said: std::io::Result<String>,
        metrics: String,
        log: String,
    }

    fn denying() -> Directory {
        let policy = ServerPolicy { egress: Egress::Deny, ..crate::tests::policy() };
        Directory::fixed(|_| Resolution::Unknown).with_server_policy(policy)
    }

    async fn hears(said: &[u8]) -> Heard {
        let (mut written, writer) = std::io::pipe().unwrap();
        let (log, writing) = Log::to(writer, (Form::Text, Layout::default())).unwrap();
        let registry = Rc::new(Registry::new().with_access_log(Some(log)));
        let outbound = crate::tests::outbound_counted_by(denying(), registry);
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
        let (said, ()) = tokio::join!(asks, refuse(&outbound.shared, &destination, server.into()));
        let metrics = leno_telemetry::render(&outbound.shared.registry.snapshot(), &[], false);
        // This drops the last users of the log, so that its thread ends.
        drop((destination, outbound));
        writing.join().unwrap().unwrap();
        let mut log = String::new();
        std::io::Read::read_to_string(&mut written, &mut log).unwrap();
        Heard { said, metrics, log }
    }

    #[tokio::test]
    async fn requests_are_told_why_and_anything_else_is_reset() {
        let request = b"GET /x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
        let Heard { said, metrics, log } = hears(request).await;
        let said = said.unwrap();
        assert!(said.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{said}");
        let cause = "leno-error: egress-denied; destination=\"192.0.2.1:80\"\r\n";
        assert!(said.contains(cause), "{said}");
        assert!(metrics.contains("cause=\"egress-denied\"} 1"), "{metrics}");
        assert!(metrics.contains("status=\"403\""), "{metrics}");
        // The path alone would not say which server was requested.
        assert!(log.contains(" target=http://example.com/x "), "{log}");
        assert!(log.contains(" status=403 ") && log.contains(" error=egress-denied"), "{log}");
        let Heard { said, metrics, log } = hears(b"\0\x01opaque").await;
        assert_eq!(said.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        assert!(metrics.contains("cause=\"egress-denied\"} 1"), "{metrics}");
        assert!(log.contains(" method=TCP target=192.0.2.1:80 "), "{log}");
        assert!(log.contains(" error=egress-denied") && !log.contains("server_name"), "{log}");
    }

    /// The log has the host that the application's own TLS names.
    #[tokio::test]
    async fn connections_of_tls_are_refused_by_name() {
        let name = b"\0\0\0\x0e\0\x0c\0\0\x09db.sample";
        let body = [&b"\x03\x03"[..], &[7; 32], b"\0\0\x02\x13\x01\x01\0\0\x12", name].concat();
        let length = u8::try_from(body.len()).unwrap();
        let hello = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat();
        let Heard { said, log, .. } = hears(&hello).await;
        assert!(said.is_err());
        assert!(log.contains(" protocol=TLS ") && log.contains(" server_name=db.sample "), "{log}");
    }

    /// A client that waits until the server sends first is refused after a second.
    #[tokio::test(start_paused = true)]
    async fn silent_clients_are_refused_soon() {
        let began = tokio::time::Instant::now();
        let Heard { said, log, .. } = hears(b"").await;
        assert!(said.is_err(), "{said:?}");
        assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(log.contains(" error=egress-denied"), "{log}");
    }

    #[test]
    fn dns_passes_and_a_change_holds_at_once() {
        let policy = |egress| Some(Arc::new(ServerPolicy { egress, ..crate::tests::policy() }));
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
