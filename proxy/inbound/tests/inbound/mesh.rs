//! Tests a whole inbound side over loopback. The client is another proxy, and the bytes that it sends over mTLS may not
//! belong to the protocol that it named in ALPN.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use leno_telemetry::{Registry, render};
use leno_tls::{Alpn, Credentials, Keyring, TlsStream};
use leno_transport::{Admission, Directions, Io};
use leno_types::mesh::{PortProtocol, ServerPolicy, Topology};
use leno_types::traffic::{LimitKey, PolicySource, RateLimit};
use leno_types::{InstanceName, MtlsMode, Protocol};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use crate::support;

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// The number with which a proxy tells another proxy that a response was cut with the cause `closed` (decision 058).
const CLOSED: u8 = 0x80;

fn keyring() -> Keyring {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_certificate = root.self_signed(&root_key).unwrap().der().clone();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::URI(WEB.try_into().unwrap())];
    let chain = vec![leaf.signed_by(&key, &issuer).unwrap().der().clone()];
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let keyring = Keyring::new();
    keyring
        .rotate(Credentials::from_der(chain, key.into(), vec![root_certificate]).unwrap())
        .unwrap();
    keyring
}

/// Starts an inbound side and connects to it as another proxy. Returns the connection, the application of the inbound
/// side, and its metrics.
async fn connect(declared: Protocol, says: Alpn) -> (TlsStream, TcpListener, Rc<Registry>) {
    connect_limited(declared, says, &[]).await
}

/// Like [`connect`], with rate limits.
async fn connect_limited(
    declared: Protocol,
    says: Alpn,
    limits: &[RateLimit],
) -> (TlsStream, TcpListener, Rc<Registry>) {
    let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = application.local_addr().unwrap();
    let ports = vec![PortProtocol { port: address.port(), protocol: declared }];
    let policy = ServerPolicy {
        workload: InstanceName::new("shop", "web-0").unwrap(),
        mtls: MtlsMode::Strict,
        ports,
        limits: limits.into(),
        egress: leno_types::Egress::Allow,
        place: Topology::default(),
        ending: false,
        removal: leno_types::Removal::None,
        authorization: Default::default(),
    };
    let keyring = keyring();
    let (inbound, registry) = support::inbound(policy, keyring.acceptor(), address);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    spawn_local(async move {
        let (accepted, from): (TcpStream, SocketAddr) = listener.accept().await.unwrap();
        let (admitted, _) = Admission::new(64, Directions::Inbound).inbound(from.ip());
        inbound.serve(accepted, (from, proxy), admitted).await;
    });
    let tcp = TcpStream::connect(proxy).await.unwrap();
    let stream = keyring.connector().connect(tcp, &WEB.parse().unwrap(), &[says]).await.unwrap();
    assert_eq!(stream.alpn(), says);
    (stream, application, registry)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Answers one request.
async fn answer(application: &TcpListener) {
    let (mut stream, _) = application.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
}

#[test]
fn another_proxy_learns_why_its_response_is_cut() {
    run(async {
        let (mut client, application, _) = connect(Protocol::Http1, Alpn::Http1).await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        let (mut stream, _) = application.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab").await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"ab") {
            received.push(client.read_u8().await.unwrap());
        }
        // Read the whole request. If bytes were left, the kernel would reset the connection when the socket is closed.
        while !received.ends_with(b"\r\n\r\n") {
            received.push(stream.read_u8().await.unwrap());
        }
        drop(stream);
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
        assert_eq!(client.cut_report(), Some(CLOSED));
    });
}

fn counts_requests(registry: &Registry) -> bool {
    render(&registry.snapshot(), &[], false).contains("leno_requests_total{")
}

#[test]
fn requests_that_are_said_to_be_bytes_are_requests_on_a_port_of_http() {
    run(async {
        for (declared, as_requests) in
            [(Protocol::Http1, true), (Protocol::Http2, true), (Protocol::Opaque, false)]
        {
            let (mut client, application, registry) = connect(declared, Alpn::Opaque).await;
            client.write_all(REQUEST).await.unwrap();
            client.flush().await.unwrap();
            answer(&application).await;
            let mut heard = [0; 12];
            client.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"HTTP/1.1 200");
            drop(client);
            while as_requests && !counts_requests(&registry) {
                tokio::task::yield_now().await;
            }
            assert_eq!(counts_requests(&registry), as_requests, "{declared:?}");
        }
    });
}

/// An application can form its requests so that its own proxy relays them as bytes. The server's proxy must still apply
/// the rate limit.
#[test]
fn requests_that_are_said_to_be_bytes_do_not_pass_a_limit() {
    let limit = RateLimit {
        source: PolicySource::default(),
        port: None,
        key: LimitKey::Workload,
        requests: 1,
        per: Duration::from_secs(3600),
        burst: 1,
        is_global: false,
    };
    run(async {
        let (mut client, application, _) =
            connect_limited(Protocol::Detect, Alpn::Opaque, &[limit]).await;
        client.write_all(b"get / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        client.write_all(&[b"get ", &REQUEST[4..]].concat()).await.unwrap();
        client.flush().await.unwrap();
        answer(&application).await;
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("HTTP/1.1 429 "), "{heard}");
    });
}

#[test]
fn bytes_do_not_pass_a_port_of_http() {
    run(async {
        let (mut client, application, _) = connect(Protocol::Http1, Alpn::Opaque).await;
        client.write_all(b"\0binary\r\n\r\n").await.unwrap();
        client.flush().await.unwrap();
        let mut heard = [0; 12];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"HTTP/1.1 400");
        tokio::select! {
            biased;
            _connection = application.accept() => panic!("the application was connected to"),
            () = std::future::ready(()) => {}
        }
    });
}

#[test]
fn a_proxy_that_offers_http1_alone_is_served_in_it() {
    run(async {
        for declared in [Protocol::Http1, Protocol::Detect] {
            let (mut client, application, registry) = connect(declared, Alpn::Http1).await;
            client.write_all(REQUEST).await.unwrap();
            client.flush().await.unwrap();
            answer(&application).await;
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            assert!(heard.starts_with("HTTP/1.1 200 OK\r\n") && heard.ends_with("\r\n\r\nhi"));
            assert!(counts_requests(&registry));
        }
    });
}
