//! Connections to an endpoint whose proxy accepts HBONE, through a whole outbound side in a network namespace of its
//! own (as root). The endpoint's proxy does not use Leno's code: it is made of the `h2` crate over `tokio-rustls`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use leno_outbound::Outbound;
use leno_telemetry::{Registry, render};
use leno_types::mesh::{Endpoint, Resolution, Topology, WireForm};
use leno_types::{Protocol, ports};
use nix::sched::{CloneFlags, unshare};
use rcgen::CertificateParams;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use crate::support::{self, Authority, CART, Certified, WEB};

/// An address that is local only by a route; no interface has it. So the proxy does not take it for its own workload.
const CART_IP: [u8; 4] = [198, 18, 0, 7];
/// The port of the endpoint's application. No client connects to it directly.
const APPLICATION: u16 = 8080;
const PORT: u16 = 80;

/// The CONNECTs that the server has received: for each, the number of its connection and its target.
type Seen = Rc<RefCell<Vec<(usize, String)>>>;

thread_local! {
    /// For each tunnel that has ended at the server, whether it ended with END_STREAM and not with a reset.
    static ENDED_IN_ORDER: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
}

/// A proxy that answers CONNECT with `status`. In a tunnel it answers requests, and sends back all other bytes. If a
/// tunnel sends `LAST`, the connection accepts only one more tunnel.
async fn server(authority: &Authority, id: &str, status: StatusCode) -> Seen {
    serve(authority, authority.certify(id), status).await
}

async fn serve(authority: &Authority, (chain, key): Certified, status: StatusCode) -> Seen {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.root.clone()).unwrap();
    let provider = Arc::new(default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(SocketAddr::from((CART_IP, ports::HBONE))).await.unwrap();
    let seen = Seen::default();
    let all = Rc::clone(&seen);
    spawn_local(async move {
        let mut nth = 0;
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            nth += 1;
            let (acceptor, seen) = (acceptor.clone(), Rc::clone(&all));
            spawn_local(connection(acceptor, tcp, (nth, status, seen)));
        }
    });
    seen
}

async fn connection(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    (nth, status, seen): (usize, StatusCode, Seen),
) {
    // A client that expects another identity ends the handshake.
    let Ok(tls) = acceptor.accept(tcp).await else { return };
    let Ok(mut connection) = h2::server::handshake(tls).await else { return };
    let last = Rc::new(RefCell::new(false));
    while let Some(request) = connection.accept().await {
        let Ok((request, mut respond)) = request else { return };
        assert_eq!(request.method(), Method::CONNECT);
        seen.borrow_mut().push((nth, request.uri().to_string()));
        let response = Response::builder().status(status).body(()).unwrap();
        let mut sender = respond.send_response(response, status != StatusCode::OK).unwrap();
        if status != StatusCode::OK {
            continue;
        }
        let (mut body, noted) = (request.into_body(), Rc::clone(&last));
        spawn_local(async move {
            let in_order = loop {
                let chunk = match body.data().await {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(_reset)) => break false,
                    None => break true,
                };
                body.flow_control().release_capacity(chunk.len()).unwrap();
                let is_request = chunk.starts_with(b"GET ");
                let answer = Bytes::from_static(if chunk.starts_with(b"GET /once ") {
                    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=2\r\nContent-Length: 2\r\n\r\nhi"
                } else {
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
                });
                *noted.borrow_mut() |= chunk.windows(4).any(|part| part == b"LAST");
                sender.send_data(if is_request { answer } else { chunk }, false).unwrap();
            };
            ENDED_IN_ORDER.with_borrow_mut(|all| all.push(in_order));
            // The client may have reset the stream.
            let _ended = sender.send_data(Bytes::new(), true);
        });
        if std::mem::take(&mut *last.borrow_mut()) {
            connection.graceful_shutdown();
        }
    }
}

struct Client {
    outbound: Rc<Outbound>,
    registry: Rc<Registry>,
}

impl Client {
    fn new(authority: &Authority, protocol: Protocol) -> Self {
        let endpoint = Endpoint {
            workload: None,
            addresses: vec![CART_IP.into()],
            port: APPLICATION,
            identity: Some(CART.parse().unwrap()),
            place: Topology::default(),
            wire: WireForm::Hbone,
        };
        let service = support::service("cart", PORT, protocol, vec![endpoint]);
        let resolution = watch::Sender::new(Resolution::Service(Arc::new(service))).subscribe();
        let registry = Rc::new(Registry::new());
        let tls = authority.keyring(WEB).connector();
        let outbound = Rc::new(support::outbound(tls, &registry, resolution, PORT));
        Self { outbound, registry }
    }

    /// A connection of the application to the proxy.
    async fn connect(&self) -> TcpStream {
        support::serve(&self.outbound).await.0
    }

    fn counted(&self, direction_and_result: &str) -> u64 {
        let metrics = render(&self.registry.snapshot(), &[], false);
        let name = format!("leno_hbone_tunnels_total{{{direction_and_result}}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse().unwrap()
    }
}

async fn ask(client: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: cart\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    if head.starts_with("HTTP/1.1 200 ") {
        assert_eq!(client.read_u16().await.unwrap(), u16::from_be_bytes(*b"hi"));
    }
    head
}

/// Runs a test in a new network namespace, with a route that makes [`CART_IP`] reachable.
fn apart<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|it| it == "root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for command in ["link set lo up", "route add local 198.18.0.0/24 dev lo"] {
            assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test());
    });
    thread.join().unwrap();
}

fn target() -> String {
    SocketAddr::from((CART_IP, APPLICATION)).to_string()
}

#[test]
fn connections_are_tunnels_of_one_connection_to_the_proxy() {
    apart(|| async {
        let authority = Authority::new();
        let seen = server(&authority, CART, StatusCode::OK).await;
        let http = Client::new(&authority, Protocol::Http1);
        let (mut one, mut other) = (http.connect().await, http.connect().await);
        for path in ["/1", "/2", "/3"] {
            assert!(ask(&mut one, path).await.starts_with("HTTP/1.1 200 "));
        }
        assert!(ask(&mut other, "/4").await.starts_with("HTTP/1.1 200 "));
        // An idle tunnel is reused, as an idle connection to the server would be.
        assert_eq!(*seen.borrow(), [(1, target())]);
        assert_eq!(http.counted("direction=\"outbound\",result=\"opened\""), 1);

        let bytes = Client::new(&authority, Protocol::Opaque);
        let mut connections = Vec::new();
        for nth in 0..4_u8 {
            let mut connection = bytes.connect().await;
            connection.write_all(&[b'0' + nth; 100]).await.unwrap();
            let mut heard = [0; 100];
            connection.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, [b'0' + nth; 100]);
            connections.push(connection);
        }
        for mut connection in connections {
            connection.shutdown().await.unwrap();
            assert_eq!(connection.read(&mut [0; 8]).await.unwrap(), 0, "its end comes back");
        }
        assert_eq!(
            seen.borrow()[1..],
            [(2, target()), (2, target()), (2, target()), (2, target())]
        );
    });
}

/// If the tunnel were reset, the application behind it would believe that its client has failed.
#[test]
fn an_idle_tunnel_ends_in_order() {
    apart(|| async {
        let authority = Authority::new();
        let seen = server(&authority, CART, StatusCode::OK).await;
        let http = Client::new(&authority, Protocol::Http1);
        let mut client = http.connect().await;
        assert!(ask(&mut client, "/once").await.starts_with("HTTP/1.1 200 "));
        while ENDED_IN_ORDER.with_borrow(Vec::is_empty) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            http.outbound.sweep();
        }
        assert_eq!(ENDED_IN_ORDER.take(), [true]);
        assert!(ask(&mut client, "/").await.starts_with("HTTP/1.1 200 "));
        assert_eq!(*seen.borrow(), [(1, target()), (1, target())], "the shared connection stays");
    });
}

#[test]
fn a_connection_that_the_proxy_ends_is_replaced() {
    apart(|| async {
        let authority = Authority::new();
        let seen = server(&authority, CART, StatusCode::OK).await;
        let bytes = Client::new(&authority, Protocol::Opaque);
        for said in [&b"LAST"[..], b"more", b"more"] {
            let mut connection = bytes.connect().await;
            connection.write_all(said).await.unwrap();
            let mut heard = [0; 4];
            connection.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, said);
        }
        assert_eq!(*seen.borrow(), [(1, target()), (1, target()), (2, target())]);
        assert_eq!(bytes.counted("direction=\"outbound\",result=\"failed\""), 0);
    });
}

#[test]
fn new_tunnels_use_another_connection_before_the_certificate_of_the_proxy_ends() {
    apart(|| async {
        let (authority, now) = (Authority::new(), SystemTime::now());
        let mut params = CertificateParams::default();
        params.not_before = (now - Duration::from_secs(3600)).into();
        params.not_after = (now + Duration::from_secs(40)).into();
        let seen = serve(&authority, authority.certified(CART, params), StatusCode::OK).await;
        let bytes = Client::new(&authority, Protocol::Opaque);
        let mut first = bytes.connect().await;
        let mut heard = [0; 4];
        first.write_all(b"more").await.unwrap();
        first.read_exact(&mut heard).await.unwrap();
        while seen.borrow().last().unwrap().0 == 1 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let mut connection = bytes.connect().await;
            connection.write_all(b"more").await.unwrap();
            connection.read_exact(&mut heard).await.unwrap();
        }
        assert_eq!(seen.borrow().last().unwrap().0, 2);
        first.write_all(b"last").await.unwrap();
        first.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"last", "it has gone on");
        assert_eq!(bytes.counted("direction=\"outbound\",result=\"failed\""), 0);
    });
}

#[test]
fn a_tunnel_that_policies_of_the_server_deny_is_denied_and_nothing_is_said_of_the_endpoint() {
    apart(|| async {
        let authority = Authority::new();
        let seen = server(&authority, CART, StatusCode::UNAUTHORIZED).await;
        let http = Client::new(&authority, Protocol::Http1);
        let mut client = http.connect().await;
        for _ in 0..4 {
            let head = ask(&mut client, "/").await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            assert!(head.contains("leno-error: authorization-denied"), "{head}");
            // The body of the response is one line.
            while client.read_u8().await.unwrap() != b'\n' {}
        }
        let mut bytes = Client::new(&authority, Protocol::Opaque).connect().await;
        bytes.write_all(b"secret").await.unwrap();
        assert!(bytes.read_u8().await.is_err());
        assert_eq!(http.counted("direction=\"outbound\",result=\"refused\""), 4);
        assert!(seen.borrow()[..4].iter().all(|(nth, _)| *nth == 1), "the connection goes on");
    });
}

#[test]
fn a_proxy_of_another_identity_gets_no_byte() {
    apart(|| async {
        let authority = Authority::new();
        let other = "spiffe://cluster.local/ns/shop/sa/other";
        let seen = server(&authority, other, StatusCode::OK).await;
        let http = Client::new(&authority, Protocol::Http1);
        let head = ask(&mut http.connect().await, "/").await;
        assert!(
            head.starts_with("HTTP/1.1 503 ") && head.contains("tls-handshake-failed"),
            "{head}"
        );
        let mut bytes = Client::new(&authority, Protocol::Opaque).connect().await;
        bytes.write_all(b"secret").await.unwrap();
        assert!(bytes.read_u8().await.is_err());
        assert!(seen.borrow().is_empty());
    });
}
