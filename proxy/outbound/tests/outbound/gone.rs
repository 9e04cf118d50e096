//! Tests destinations that disappear: a service whose clients are still connected, and a service to which a route sends
//! requests. Also tests clients that leave while they wait.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_outbound::Outbound;
use leno_telemetry::{Registry, render};
use leno_tls::Keyring;
use leno_types::mesh::{Endpoint, Resolution, Service, Topology};
use leno_types::routes::{Route, RouteBackend, RouteKind, RouteRule, RouteTarget};
use leno_types::{Protocol, ServiceName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::support::{self, serve};

const PORT: u16 = 9000;
/// The longest wait for an expected event.
const LIMIT: Duration = Duration::from_secs(20);

fn service(protocol: Protocol, routes: Vec<Arc<Route>>) -> Resolution {
    let service = support::service("db", PORT, protocol, Vec::new());
    Resolution::Service(Arc::new(Service { routes: routes.into(), ..service }))
}

/// A route to a service that discovery does not know.
fn away(kind: RouteKind) -> Arc<Route> {
    let target =
        RouteTarget::Service { name: ServiceName::new("shop", "cache").unwrap(), port: PORT };
    let backends = vec![RouteBackend { target, weight: 1, filters: Vec::new() }];
    Arc::new(Route {
        kind,
        namespace: "shop".into(),
        name: "away".into(),
        created: 0,
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules: vec![RouteRule { backends, ..RouteRule::default() }],
    })
}

/// An outbound side that has only the destination that `resolution` sends, and its metrics.
fn outbound(resolution: &watch::Sender<Resolution>) -> (Rc<Outbound>, Rc<Registry>) {
    let registry = Rc::new(Registry::new());
    let tls = Keyring::new().connector();
    let outbound = support::outbound(tls, &registry, resolution.subscribe(), PORT);
    (Rc::new(outbound), registry)
}

async fn connect(outbound: &Rc<Outbound>) -> TcpStream {
    serve(outbound).await.0
}

/// Sends a request on a connection that stays open, and returns the head of the response.
async fn ask(client: &mut TcpStream) -> String {
    client.write_all(b"GET /it HTTP/1.1\r\nHost: db\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    while !said.windows(4).any(|end| end == b"\r\n\r\n") {
        said.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(said).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap()];
    client.read_exact(&mut body).await.unwrap();
    head
}

fn assert_names(registry: &Registry, cause: &str) {
    let page = render(&registry.snapshot(), &[], true);
    assert!(page.contains(&format!("\"{cause}\"")), "no metric of {cause}:\n{page}");
}

#[tokio::test]
async fn a_service_that_is_taken_away_is_named_to_clients_that_stay() {
    let talk = async {
        let resolution = watch::Sender::new(service(Protocol::Http1, Vec::new()));
        let (outbound, registry) = outbound(&resolution);
        let mut client = connect(&outbound).await;
        let head = ask(&mut client).await;
        assert!(head.contains("leno-error: no-endpoints"), "{head}");
        resolution.send_replace(Resolution::Unknown);
        let head = ask(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(head.contains("leno-error: destination-gone"), "{head}");
        assert_names(&registry, "destination-gone");
        // The service may return with another address, so the client must look the address up again.
        assert!(head.contains("Connection: close"), "{head}");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        resolution.send_replace(service(Protocol::Http1, Vec::new()));
        let head = ask(&mut connect(&outbound).await).await;
        assert!(head.contains("leno-error: no-endpoints"), "{head}");
    };
    LocalSet::new().run_until(talk).await;
}

/// If the client were not told to leave, it would send all later requests to the old address.
#[tokio::test]
async fn a_client_of_http2_whose_service_is_taken_away_is_told_to_leave() {
    let talk = async {
        let resolution = watch::Sender::new(service(Protocol::Http2, Vec::new()));
        let (outbound, _) = outbound(&resolution);
        let (mut client, served) = serve(&outbound).await;
        // The preface, and an empty SETTINGS frame.
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        assert_eq!(head[3], 4, "{head:?}");
        resolution.send_replace(Resolution::Unknown);
        let mut frames = head.to_vec();
        let read = client.read_to_end(&mut frames);
        tokio::time::timeout(LIMIT, read).await.expect("the connection ends").unwrap();
        let mut kinds = Vec::new();
        let mut rest = &frames[..];
        while let [a, b, c, kind, ..] = rest {
            kinds.push(*kind);
            rest = &rest[9 + u32::from_be_bytes([0, *a, *b, *c]) as usize..];
        }
        assert!(kinds.contains(&7), "no GOAWAY in frames {kinds:?}");
        served.await.unwrap();
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_backend_that_is_taken_away_is_named() {
    let talk = async {
        let routes = vec![away(RouteKind::Http)];
        let resolution = watch::Sender::new(service(Protocol::Http1, routes));
        let (outbound, registry) = outbound(&resolution);
        let head = ask(&mut connect(&outbound).await).await;
        assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
        assert!(head.contains("leno-error: backend-gone"), "{head}");
        assert_names(&registry, "backend-gone");
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_stream_to_a_backend_that_is_taken_away_is_reset() {
    let talk = async {
        let resolution = watch::Sender::new(service(Protocol::Opaque, vec![away(RouteKind::Tcp)]));
        let (outbound, registry) = outbound(&resolution);
        let mut client = connect(&outbound).await;
        client.write_all(b"anything").await.unwrap();
        client.read_u8().await.unwrap_err();
        assert_names(&registry, "backend-gone");
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_discovery_answers_ends_its_wait() {
    let talk = async {
        let resolution = watch::Sender::new(Resolution::Pending);
        let (outbound, registry) = outbound(&resolution);
        let (client, served) = serve(&outbound).await;
        drop(client);
        served.await.unwrap();
        assert_names(&registry, "closed");
        // A client that has only ended its sending direction still waits.
        let (mut client, served) = serve(&outbound).await;
        client.write_all(b"GET /it HTTP/1.1\r\nHost: db\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        tokio::task::yield_now().await;
        resolution.send_replace(service(Protocol::Http1, Vec::new()));
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert!(said.contains("leno-error: no-endpoints"), "{said}");
        served.await.unwrap();
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_connection_that_outlives_its_request_is_counted() {
    let talk = async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let endpoint = Endpoint {
            workload: None,
            addresses: vec![address.ip()],
            port: address.port(),
            identity: None,
            place: Topology::default(),
            wire: Default::default(),
        };
        let Resolution::Service(known) = service(Protocol::Http1, Vec::new()) else { panic!() };
        let mut known = Service::clone(&known);
        known.ports[0].endpoints = [endpoint].into();
        let resolution = watch::Sender::new(Resolution::Service(Arc::new(known)));
        let (outbound, registry) = outbound(&resolution);
        let outlived = || {
            let page = render(&registry.snapshot(), &[], true);
            let line =
                page.lines().find(|line| line.starts_with("leno_connections_outlived_total"));
            line.unwrap().to_owned()
        };
        let mut client = connect(&outbound).await;
        client.write_all(b"GET /it HTTP/1.1\r\nHost: db\r\n\r\n").await.unwrap();
        // The proxy opens one connection to the server, for the request, and no other one.
        let (mut accepted, _) = server.accept().await.unwrap();
        accepted.read_u8().await.unwrap();
        assert_eq!(outlived(), "leno_connections_outlived_total 0");
        drop((client, accepted));
        // This client has left before the connection for it is opened.
        let mut client = connect(&outbound).await;
        client.write_all(b"GET /it HTTP/1.1\r\nHost: db\r\n\r\n").await.unwrap();
        drop(client);
        let _accepted = server.accept().await.unwrap();
        let counted = async {
            while outlived() != "leno_connections_outlived_total 1" {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, counted).await.expect("it is counted");
    };
    LocalSet::new().run_until(talk).await;
}
