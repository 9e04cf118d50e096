//! Tests HTTP towards a proxy that accepts only `leno-h1`, through a whole outbound side in a network namespace of its
//! own (as root), because an endpoint on loopback would not count as meshed.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_outbound::Outbound;
use leno_telemetry::Registry;
use leno_tls::Keyring;
use leno_types::Protocol;
use leno_types::mesh::{Endpoint, Resolution, Service, Topology};
use leno_types::traffic::{Traffic, TrafficTimeouts};
use nix::sched::{CloneFlags, unshare};
use rustls::crypto::aws_lc_rs::default_provider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::support::{self, Authority, CART, Certified, WEB};

/// An address that is local only by a route; no interface has it. So the proxy does not take it for its own workload.
const CART_ADDRESS: &str = "198.18.0.7:0";
const PORT: u16 = 80;
/// The number of clients that send a request at the same moment, before the proxy knows which versions the server
/// accepts.
const AT_ONCE: usize = 8;

/// The requests that the server has received, in a list for each connection.
type Seen = Rc<RefCell<Vec<Vec<String>>>>;

/// The server's proxy: it accepts only `leno-h1`, delays each handshake by `handshake`, and answers each request with
/// its request line. On the first request for `/ends` it closes the connection properly, as if it had closed the
/// connection before the request arrived. On the first request for `/breaks` it cuts the connection.
async fn server(certified: Certified, handshake: Duration) -> (SocketAddr, Seen) {
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certified.0, certified.1)
        .unwrap();
    config.alpn_protocols = vec![b"leno-h1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(CART_ADDRESS).await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Seen::default());
    let all = Rc::clone(&seen);
    spawn_local(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, seen) = (acceptor.clone(), Rc::clone(&all));
            spawn_local(async move {
                sleep(handshake).await;
                let mut stream = acceptor.accept(tcp).await.unwrap();
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"leno-h1"[..]));
                let nth = seen.borrow().len();
                seen.borrow_mut().push(Vec::new());
                while let Some(head) = head(&mut stream).await {
                    let line = head.lines().next().unwrap().to_owned();
                    let is_new = !seen.borrow().iter().flatten().any(|seen| *seen == line);
                    if is_new && line.contains("/ends") {
                        seen.borrow_mut()[nth].push(line);
                        stream.shutdown().await.unwrap();
                        break;
                    }
                    if is_new && line.contains("/breaks") {
                        seen.borrow_mut()[nth].push(line);
                        break;
                    }
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len());
                    seen.borrow_mut()[nth].push(line);
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

/// Reads to the end of a message's head; `None` if the connection ends.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

fn outbound(keyring: &Keyring, server: SocketAddr, request: Option<Duration>) -> Rc<Outbound> {
    let endpoint = Endpoint {
        workload: None,
        addresses: vec![server.ip()],
        port: server.port(),
        identity: Some(CART.parse().unwrap()),
        place: Topology::default(),
        wire: Default::default(),
    };
    let timeouts = TrafficTimeouts { request, ..TrafficTimeouts::default() };
    let service = Service {
        traffic: [Arc::new(Traffic { timeouts, ..Traffic::default() })].into(),
        ..support::service("cart", PORT, Protocol::Http1, vec![endpoint])
    };
    let resolution = watch::Sender::new(Resolution::Service(Arc::new(service))).subscribe();
    Rc::new(support::outbound(keyring.connector(), &Rc::new(Registry::new()), resolution, PORT))
}

/// A connection of the application.
async fn client(outbound: &Rc<Outbound>) -> TcpStream {
    support::serve(outbound).await.0
}

/// Sends a request for `path`, and checks that the response belongs to this request.
async fn ask(client: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: cart\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = head(client).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let expected = format!("GET {path} HTTP/1.1");
    let mut body = vec![0; expected.len()];
    client.read_exact(&mut body).await.unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), expected);
}

/// Runs a test in a new network namespace, with a route that makes [`CART_ADDRESS`] reachable.
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

#[test]
fn requests_travel_one_at_a_time_over_connections_that_are_kept() {
    apart(|| async {
        let authority = Authority::new();
        let (address, seen) = server(authority.certify(CART), Duration::ZERO).await;
        let outbound = outbound(&authority.keyring(WEB), address, None);
        let mut one = client(&outbound).await;
        ask(&mut one, "/1").await;
        ask(&mut one, "/2").await;
        let mut other = client(&outbound).await;
        ask(&mut other, "/3").await;
        let lines = ["/1", "/2", "/3"].map(|path| format!("GET {path} HTTP/1.1"));
        assert_eq!(*seen.borrow(), [lines]);
    });
}

/// A proxy that has read a request never closes its connection properly before it has answered the request. So if the
/// connection is closed properly, the request was not read and can be sent again.
#[test]
fn a_request_that_crosses_the_end_of_its_connection_is_sent_again_whatever_its_method() {
    apart(|| async {
        let authority = Authority::new();
        let (address, seen) = server(authority.certify(CART), Duration::ZERO).await;
        let outbound = outbound(&authority.keyring(WEB), address, None);
        let mut client = client(&outbound).await;
        ask(&mut client, "/1").await;
        let post =
            |path: &str| format!("POST {path} HTTP/1.1\r\nHost: cart\r\nContent-Length: 0\r\n\r\n");
        client.write_all(post("/ends").as_bytes()).await.unwrap();
        let answer = head(&mut client).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let mut body = [0; "POST /ends HTTP/1.1".len()];
        client.read_exact(&mut body).await.unwrap();
        // A request that the server may have read is not sent again.
        client.write_all(post("/breaks").as_bytes()).await.unwrap();
        let answer = head(&mut client).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        let lines = ["GET /1", "POST /ends", "POST /ends", "POST /breaks"];
        let seen: Vec<_> = seen.borrow().iter().flatten().cloned().collect();
        assert_eq!(seen, lines.map(|line| format!("{line} HTTP/1.1")));
    });
}

#[test]
fn clients_that_ask_at_once_before_anything_is_known_are_all_answered() {
    apart(|| async {
        let authority = Authority::new();
        let (address, seen) = server(authority.certify(CART), Duration::ZERO).await;
        let outbound = outbound(&authority.keyring(WEB), address, None);
        let start = Rc::new(Barrier::new(AT_ONCE));
        let mut clients = Vec::new();
        for nth in 0..AT_ONCE {
            let (outbound, start) = (Rc::clone(&outbound), Rc::clone(&start));
            clients.push(spawn_local(async move {
                let mut client = client(&outbound).await;
                start.wait().await;
                ask(&mut client, &format!("/{nth}")).await;
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        assert_eq!(seen.borrow().iter().map(Vec::len).sum::<usize>(), AT_ONCE);
    });
}

/// The first request fails at its deadline; the handshake that was begun for it continues, and serves the second
/// request.
#[test]
fn a_deadline_shorter_than_the_handshake_fails_one_request_only() {
    apart(|| async {
        let authority = Authority::new();
        let handshake = Duration::from_millis(400);
        let (address, seen) = server(authority.certify(CART), handshake).await;
        let deadline = Some(Duration::from_millis(150));
        let outbound = outbound(&authority.keyring(WEB), address, deadline);
        let mut one = client(&outbound).await;
        one.write_all(b"GET /1 HTTP/1.1\r\nHost: cart\r\n\r\n").await.unwrap();
        let answer = head(&mut one).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
        let finished = async {
            while seen.borrow().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(10 * handshake, finished).await.unwrap();
        ask(&mut client(&outbound).await, "/2").await;
        assert_eq!(*seen.borrow(), [["GET /2 HTTP/1.1"]]);
    });
}
