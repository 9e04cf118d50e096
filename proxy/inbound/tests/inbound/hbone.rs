//! HBONE through a whole inbound side over loopback, from an independent client: the `h2` crate over `tokio-rustls`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, StatusCode};
use leno_discovery::Directory;
use leno_http::Limits;
use leno_inbound::{Inbound, Parts};
use leno_telemetry::{Registry, render};
use leno_tls::{Credentials, Keyring};
use leno_transport::{Activity, Admission, Directions};
use leno_types::authorization::Authorization;
use leno_types::mesh::{PortProtocol, Resolution, ServerPolicy, Topology};
use leno_types::traffic::{LimitKey, PolicySource, RateLimit};
use leno_types::{InstanceName, MtlsMode, Protocol, ports};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

use crate::support::AnyServer;

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";
/// The bound on tunnels. One client may hold half of them: one more than the other tests open.
const MAX_TUNNELS: usize = 18;

/// A certificate with its key, both in DER.
type Certified = (CertificateDer<'static>, Vec<u8>);

struct Authority {
    root: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = parameters.self_signed(&key).unwrap().der().clone();
        Self { root, issuer: Issuer::new(parameters, key) }
    }

    fn certify(&self, id: &str) -> Certified {
        self.certified(id, CertificateParams::default())
    }

    /// A certificate that was issued an hour ago and is valid for `left` more.
    fn certify_until(&self, id: &str, left: Duration) -> Certified {
        let (mut leaf, now) = (CertificateParams::default(), SystemTime::now());
        leaf.not_before = (now - Duration::from_secs(3600)).into();
        leaf.not_after = (now + left).into();
        self.certified(id, leaf)
    }

    fn certified(&self, id: &str, mut leaf: CertificateParams) -> Certified {
        let key = KeyPair::generate().unwrap();
        leaf.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        (leaf.signed_by(&key, &self.issuer).unwrap().der().clone(), key.serialize_der())
    }
}

/// An inbound side on the port of HBONE, and the application behind it.
struct Workload {
    authority: Authority,
    proxy: SocketAddr,
    application: TcpListener,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    policy: watch::Sender<Option<Arc<ServerPolicy>>>,
    inbound: Rc<Inbound>,
}

impl Workload {
    async fn new(mtls: MtlsMode, declared: Protocol, limits: Vec<RateLimit>) -> Self {
        let authority = Authority::new();
        let listener = listener().await;
        let proxy = listener.local_addr().unwrap();
        let application = TcpListener::bind((proxy.ip(), 0)).await.unwrap();
        let port = application.local_addr().unwrap().port();
        let workload = InstanceName::new("shop", "web-0").unwrap();
        let policy = ServerPolicy {
            workload: workload.clone(),
            mtls,
            ports: vec![PortProtocol { port, protocol: declared }],
            limits: limits.into(),
            egress: leno_types::Egress::Allow,
            place: Topology::default(),
            ending: false,
            removal: leno_types::Removal::None,
            authorization: Default::default(),
        };
        let directory = Directory::fixed(|_| Resolution::Unknown);
        let (policy, told) = watch::channel(Some(Arc::new(policy)));
        let (registry, activity) = (Rc::new(Registry::new()), Rc::<Activity>::default());
        let keyring = Keyring::new();
        let (certificate, key) = authority.certify(WEB);
        let key = PrivatePkcs8KeyDer::from(key).into();
        let roots = vec![authority.root.clone()];
        keyring.rotate(Credentials::from_der(vec![certificate], key, roots).unwrap()).unwrap();
        let inbound = Rc::new(Inbound::new(Parts {
            workload,
            policy: told,
            directory,
            services: Rc::new(leno_inbound::NoServices),
            tls: keyring.acceptor(),
            registry: Rc::clone(&registry),
            activity: Rc::clone(&activity),
            limits: Limits::default(),
            application: None,
            limit_table: leno_inbound::LimitTable::default(),
            max_tunnels: MAX_TUNNELS,
            own_ports: Vec::new(),
        }));
        let serving = Rc::clone(&inbound);
        spawn_local(async move {
            // In a captured workload, the client dials another port than that of the proxy's listener.
            let captured_by = SocketAddr::new(proxy.ip(), ports::INBOUND);
            let admission = Admission::new(64, Directions::Inbound);
            loop {
                let (accepted, from) = listener.accept().await.unwrap();
                let (admitted, _) = admission.inbound(from.ip());
                let inbound = Rc::clone(&serving);
                spawn_local(async move {
                    inbound.serve(accepted, (from, captured_by), admitted).await;
                });
            }
        });
        Self { authority, proxy, application, registry, activity, policy, inbound }
    }

    /// Connects to the proxy over TLS, with this certificate or without one.
    async fn tls(
        &self,
        certified: Option<Certified>,
        alpn: &[&str],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer));
        let mut config = match certified {
            Some((certificate, key)) => {
                let key = PrivatePkcs8KeyDer::from(key).into();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tcp = TcpStream::connect(self.proxy).await?;
        let name = ServerName::IpAddress(self.proxy.ip().into());
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    }

    async fn connect(&self) -> SendRequest<Bytes> {
        self.connect_with(self.authority.certify(CLIENT)).await
    }

    async fn connect_with(&self, certified: Certified) -> SendRequest<Bytes> {
        let tls = self.tls(Some(certified), &["h2"]).await.unwrap();
        let (client, connection) = h2::client::handshake(tls).await.unwrap();
        spawn_local(async move {
            // The task ends with the test.
            let _ended = connection.await;
        });
        client
    }

    fn address(&self) -> SocketAddr {
        self.application.local_addr().unwrap()
    }

    fn counts(&self, line: &str) -> bool {
        render(&self.registry.snapshot(), &[], false).lines().any(|one| one == line)
    }
}

/// A listener on the port of HBONE, at a loopback address at which this port is free.
async fn listener() -> TcpListener {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(16);
    for _ in 0..256 {
        let nth = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let [_, b, c, d] = nth.to_be_bytes();
        let ip = IpAddr::from([127, b.max(1), c, d.clamp(1, 254)]);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        if socket.bind((ip, ports::HBONE).into()).is_ok() {
            return socket.listen(64).unwrap();
        }
    }
    panic!("the port of HBONE is taken on every address of loopback");
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

type Tunnel = (h2::SendStream<Bytes>, h2::RecvStream);

async fn open(client: &mut SendRequest<Bytes>, authority: &str) -> Result<Tunnel, StatusCode> {
    let request = Request::builder().method(Method::CONNECT).uri(authority);
    let request = request.header("baggage", "k8s.pod.name=forged").body(()).unwrap();
    let mut ready = client.clone().ready().await.unwrap();
    let (response, sender) = ready.send_request(request, false).unwrap();
    let response = response.await.unwrap();
    match response.status() {
        StatusCode::OK => Ok((sender, response.into_body())),
        status => Err(status),
    }
}

/// Everything that is received until the other end has finished sending.
async fn read_all(receiver: &mut h2::RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(chunk) = receiver.data().await {
        let chunk = chunk?;
        receiver.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// An application that sends back the bytes of each connection.
fn echo(application: TcpListener) {
    spawn_local(async move {
        loop {
            let (mut stream, _) = application.accept().await.unwrap();
            spawn_local(async move {
                let (mut reader, mut writer) = stream.split();
                // The client may reset the connection.
                let _ended = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
}

#[test]
fn bytes_of_many_tunnels_reach_the_application_and_come_back() {
    run(async {
        let workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let registry = Rc::clone(&workload.registry);
        echo(workload.application);
        let mut tunnels = Vec::new();
        for nth in 0..8_u8 {
            let (mut sender, mut receiver) = open(&mut client, &to).await.unwrap();
            // More than any flow-control window.
            let sent = Bytes::from(vec![nth; 3_000_000]);
            let expected = sent.clone();
            spawn_local(async move {
                let mut left = sent;
                while !left.is_empty() {
                    sender.reserve_capacity(left.len());
                    let room = std::future::poll_fn(|cx| sender.poll_capacity(cx)).await;
                    let part = left.split_to(room.unwrap().unwrap().min(left.len()));
                    sender.send_data(part, left.is_empty()).unwrap();
                }
            });
            // All tunnels are read at the same time, because they share the connection's window.
            tunnels.push(spawn_local(async move {
                assert!(read_all(&mut receiver).await.unwrap() == expected, "the bytes differ");
            }));
        }
        for tunnel in tunnels {
            tunnel.await.unwrap();
        }
        let metrics = render(&registry.snapshot(), &[], false);
        for line in [
            "leno_hbone_tunnels_total{direction=\"inbound\",result=\"opened\"} 8",
            "leno_detect_total{direction=\"inbound\",result=\"hbone\"} 1",
        ] {
            assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
        }
        let of_client = "client=\"client\",client_namespace=\"shop\"";
        assert!(metrics.lines().any(|one| one.contains(of_client)), "{metrics}");
    });
}

#[test]
fn requests_in_a_tunnel_are_held_to_what_requests_are() {
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
        let workload = Workload::new(MtlsMode::Strict, Protocol::Detect, vec![limit]).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let (mut sender, mut receiver) = open(&mut client, &to).await.unwrap();
        let request = "GET / HTTP/1.1\r\nHost: web\r\nleno-error: forged\r\n\r\n";
        let last = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        sender.send_data([request, last].concat().into(), true).unwrap();
        let (mut stream, _) = workload.application.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET / HTTP/1.1\r\n") && !head.contains("forged"), "{head}");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
        let heard = String::from_utf8(read_all(&mut receiver).await.unwrap()).unwrap();
        assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("HTTP/1.1 429 "), "{heard}");
    });
}

#[test]
fn a_server_that_speaks_first_is_heard_through_a_tunnel() {
    run(async {
        let workload = Workload::new(MtlsMode::Permissive, Protocol::Detect, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let (mut sender, mut receiver) = open(&mut client, &to).await.unwrap();
        let (mut stream, _) = workload.application.accept().await.unwrap();
        stream.write_all(b"220 ready\r\n").await.unwrap();
        let first = receiver.data().await.unwrap().unwrap();
        assert_eq!(&*first, b"220 ready\r\n");
        sender.send_data(Bytes::new(), true).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0, "the client's end is passed on");
        drop(stream);
        assert!(read_all(&mut receiver).await.unwrap().is_empty());
    });
}

#[test]
fn a_reset_passes_a_tunnel_both_ways() {
    run(async {
        let workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let (mut sender, mut receiver) = open(&mut client, &to).await.unwrap();
        sender.send_data(Bytes::from_static(b"x"), false).unwrap();
        let (mut stream, _) = workload.application.accept().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        let reset = read_all(&mut receiver).await.unwrap_err();
        assert_eq!(reset.reason(), Some(h2::Reason::CONNECT_ERROR));

        let (mut sender, _receiver) = open(&mut client, &to).await.unwrap();
        sender.send_data(Bytes::from_static(b"x"), false).unwrap();
        let (mut stream, _) = workload.application.accept().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        sender.send_reset(h2::Reason::CANCEL);
        let reset = stream.read_u8().await.unwrap_err();
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset, "not an end");
    });
}

#[test]
fn a_tunnel_to_anything_else_is_refused() {
    run(async {
        let workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let mut client = workload.connect().await;
        let (own, port) = (workload.proxy.ip(), workload.address().port());
        for (authority, status) in [
            ("192.0.2.1:80".to_owned(), StatusCode::FORBIDDEN),
            (format!("127.0.0.1:{port}"), StatusCode::FORBIDDEN),
            (format!("{own}:{}", ports::ADMIN), StatusCode::FORBIDDEN),
            (format!("{own}:{}", ports::HBONE), StatusCode::FORBIDDEN),
            ("web.shop:80".to_owned(), StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(open(&mut client, &authority).await.err(), Some(status), "{authority}");
        }
        let request = Request::get(format!("http://{own}:{port}/")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
        let refused = "leno_hbone_tunnels_total{direction=\"inbound\",result=\"refused\"} 6";
        assert!(workload.counts(refused));
        // The connection stays usable. If nothing listens on the port, the tunnel is opened and then reset.
        let (_sender, mut receiver) = open(&mut client, &format!("{own}:1")).await.unwrap();
        assert!(read_all(&mut receiver).await.is_err());
    });
}

/// Sends a byte and waits until it comes back, which shows that the tunnel works along its whole length.
async fn comes_back(tunnel: &mut Tunnel) {
    tunnel.0.send_data(Bytes::from_static(b"x"), false).unwrap();
    assert_eq!(&*tunnel.1.data().await.unwrap().unwrap(), b"x");
    tunnel.1.flow_control().release_capacity(1).unwrap();
}

/// Expects that the tunnel is reset with CONNECT_ERROR. A ztunnel would treat CANCEL and NO_ERROR as a proper end.
async fn is_cut(tunnel: &mut Tunnel) {
    let reset = read_all(&mut tunnel.1).await.unwrap_err();
    assert_eq!(reset.reason(), Some(h2::Reason::CONNECT_ERROR));
}

#[test]
fn tunnels_are_bounded_and_a_client_with_fewer_gets_the_place_of_another() {
    run(async {
        let mut workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let to = workload.address().to_string();
        let mut clients = Vec::new();
        for name in ["client", "other", "third"] {
            let id = format!("spiffe://cluster.local/ns/shop/sa/{name}");
            clients.push(workload.connect_with(workload.authority.certify(&id)).await);
        }
        let spare = TcpListener::bind("127.0.0.1:0").await.unwrap();
        echo(std::mem::replace(&mut workload.application, spare));
        let (half, mut first, mut rest) = (MAX_TUNNELS / 2, Vec::new(), Vec::new());
        for _ in 0..half {
            first.push(open(&mut clients[0], &to).await.unwrap());
            comes_back(first.last_mut().unwrap()).await;
        }
        let one_more = open(&mut clients[0], &to).await.err();
        assert_eq!(one_more, Some(StatusCode::SERVICE_UNAVAILABLE), "half is for others");
        // The other clients have fewer tunnels each, so that the first client has the most.
        for nth in 0..half {
            let client = if nth == 0 { 2 } else { 1 };
            rest.push(open(&mut clients[client], &to).await.unwrap());
            comes_back(rest.last_mut().unwrap()).await;
        }
        rest.push(open(&mut clients[2], &to).await.unwrap());
        comes_back(rest.last_mut().unwrap()).await;
        // The newest tunnel of the client with the most tunnels was evicted.
        is_cut(&mut first.pop().unwrap()).await;
        for tunnel in first.iter_mut().chain(&mut rest) {
            comes_back(tunnel).await;
        }
        for (result, count) in [("limit", 1), ("evicted", 1), ("opened", MAX_TUNNELS + 1)] {
            let of = format!("direction=\"inbound\",result=\"{result}\"");
            assert!(workload.counts(&format!("leno_hbone_tunnels_total{{{of}}} {count}")), "{of}");
        }
    });
}

/// Returns once the proxy has announced that it accepts no more tunnels on this connection.
async fn is_told_to_leave(client: &SendRequest<Bytes>) {
    while client.clone().ready().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn new_tunnels_go_to_another_connection_before_the_certificate_ends() {
    run(async {
        let mut workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let to = workload.address().to_string();
        let certified = workload.authority.certify_until(CLIENT, Duration::from_secs(16));
        let mut client = workload.connect_with(certified).await;
        let spare = TcpListener::bind("127.0.0.1:0").await.unwrap();
        echo(std::mem::replace(&mut workload.application, spare));
        let mut before = open(&mut client, &to).await.unwrap();
        comes_back(&mut before).await;
        is_told_to_leave(&client).await;
        let mut client = workload.connect().await;
        let mut after = open(&mut client, &to).await.unwrap();
        comes_back(&mut after).await;
        comes_back(&mut before).await;
    });
}

#[test]
fn a_drain_leaves_open_tunnels_as_they_are() {
    run(async {
        let mut workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let spare = TcpListener::bind("127.0.0.1:0").await.unwrap();
        echo(std::mem::replace(&mut workload.application, spare));
        let mut tunnel = open(&mut client, &to).await.unwrap();
        comes_back(&mut tunnel).await;
        workload.activity.drain(Duration::ZERO);
        is_told_to_leave(&client).await;
        comes_back(&mut tunnel).await;
        tunnel.0.send_data(Bytes::new(), true).unwrap();
        assert!(read_all(&mut tunnel.1).await.unwrap().is_empty(), "an end in order");
    });
}

#[test]
fn a_change_of_policies_ends_open_tunnels_of_bytes_and_not_the_connection() {
    run(async {
        let mut workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let spare = TcpListener::bind("127.0.0.1:0").await.unwrap();
        echo(std::mem::replace(&mut workload.application, spare));
        let mut tunnel = open(&mut client, &to).await.unwrap();
        comes_back(&mut tunnel).await;
        workload.policy.send_modify(|policy| {
            let mut denying = ServerPolicy::clone(policy.as_ref().unwrap());
            denying.authorization = Arc::new(Authorization::unusable("a test"));
            *policy = Some(Arc::new(denying));
        });
        workload.inbound.follow();
        is_cut(&mut tunnel).await;
        let mut denied = open(&mut client, &to).await.unwrap();
        // The proxy denies the tunnel without waiting for a byte, so it may be reset before this one is sent.
        let _cut = denied.0.send_data(Bytes::from_static(b"x"), false);
        is_cut(&mut denied).await;
        let mut silent = open(&mut client, &to).await.unwrap();
        is_cut(&mut silent).await;
    });
}

#[test]
fn a_tunnel_whose_application_reads_nothing_does_not_stop_another() {
    run(async {
        let mut workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let (mut client, to) = (workload.connect().await, workload.address().to_string());
        let (mut stalled, _receiver) = open(&mut client, &to).await.unwrap();
        stalled.send_data(Bytes::from_static(b"x"), false).unwrap();
        let (_unread, _) = workload.application.accept().await.unwrap();
        let spare = TcpListener::bind("127.0.0.1:0").await.unwrap();
        echo(std::mem::replace(&mut workload.application, spare));
        // More than the kernel's buffers hold.
        let flood = spawn_local(async move {
            let mut left = Bytes::from(vec![b'x'; 64 * 1024 * 1024]);
            while !left.is_empty() {
                stalled.reserve_capacity(left.len());
                let room = std::future::poll_fn(|cx| stalled.poll_capacity(cx)).await;
                stalled
                    .send_data(left.split_to(room.unwrap().unwrap().min(left.len())), false)
                    .unwrap();
            }
        });
        for _ in 0..64 {
            let mut fast = open(&mut client, &to).await.unwrap();
            for _ in 0..16 {
                comes_back(&mut fast).await;
            }
            fast.0.send_data(Bytes::new(), true).unwrap();
            assert!(read_all(&mut fast.1).await.unwrap().is_empty());
        }
        assert!(!flood.is_finished(), "it was not stalled");
        flood.abort();
    });
}

#[test]
fn a_client_without_an_identity_gets_no_tunnel() {
    run(async {
        for mtls in [MtlsMode::Strict, MtlsMode::Permissive] {
            let workload = Workload::new(mtls, Protocol::Opaque, Vec::new()).await;
            let stranger = Authority::new().certify(CLIENT);
            for certified in [None, Some(stranger)] {
                // In TLS 1.3 the handshake succeeds for the client before the server checks its certificate.
                if let Ok(mut tls) = workload.tls(certified, &["h2"]).await {
                    assert!(tls.read_u8().await.is_err(), "{mtls:?}");
                }
            }
            let failed = "leno_tls_handshake_failures_total{direction=\"inbound\"} 2";
            assert!(workload.counts(failed), "{mtls:?}");
        }
    });
}

#[test]
fn other_tls_on_the_port_is_no_hbone() {
    run(async {
        let workload = Workload::new(MtlsMode::Strict, Protocol::Opaque, Vec::new()).await;
        let certified = workload.authority.certify(CLIENT);
        assert!(workload.tls(Some(certified), &["http/1.1"]).await.is_err());
        assert!(workload.counts("leno_plaintext_refused_total{direction=\"inbound\"} 1"));
    });
}
