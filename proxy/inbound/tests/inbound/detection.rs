//! Tests how protocols are detected, through a whole inbound side over loopback.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use leno_discovery::Directory;
use leno_http::Limits;
use leno_inbound::{Inbound, Parts};
use leno_telemetry::{Registry, render};
use leno_tls::Keyring;
use leno_transport::{Activity, Admission, Directions};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, DefaultAuthorization, PermissionRule, RequestMatch,
};
use leno_types::mesh::{PortProtocol, Resolution, ServerPolicy, Topology};
use leno_types::traffic::PolicySource;
use leno_types::{InstanceName, MtlsMode, Protocol};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
/// The preface of an HTTP/2 client (RFC 9113 section 3.4), and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// An inbound side in front of an application, and one connection of a client.
struct Lab {
    client: TcpStream,
    application: TcpListener,
    registry: Rc<Registry>,
    activity: Rc<Activity>,
    served: JoinHandle<()>,
}

impl Lab {
    /// Starts the lab with a client whose bytes `first` have arrived before the proxy reads.
    async fn new(mtls: MtlsMode, declared: Protocol, first: &[u8]) -> Self {
        let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = application.local_addr().unwrap();
        let ports = [(address.port(), declared)];
        Self::before(application, Some(address), (mtls, &ports), first).await
    }

    /// Starts the lab. `application` is the configured address of the application; `None` if it is the address that the
    /// client dials.
    async fn before(
        listener: TcpListener,
        application: Option<SocketAddr>,
        rules: (MtlsMode, &[(u16, Protocol)]),
        first: &[u8],
    ) -> Self {
        Self::authorizing(listener, application, rules, first, Authorization::default()).await
    }

    async fn authorizing(
        listener: TcpListener,
        application: Option<SocketAddr>,
        (mtls, ports): (MtlsMode, &[(u16, Protocol)]),
        first: &[u8],
        authorization: Authorization,
    ) -> Self {
        let workload = InstanceName::new("shop", "web-0").unwrap();
        let ports = ports.iter().map(|&(port, protocol)| PortProtocol { port, protocol }).collect();
        let policy = ServerPolicy {
            workload: workload.clone(),
            mtls,
            ports,
            limits: [].into(),
            egress: leno_types::Egress::Allow,
            place: Topology::default(),
            ending: false,
            removal: leno_types::Removal::None,
            authorization: authorization.into(),
        };
        let directory = Directory::fixed(|_| Resolution::Unknown).with_server_policy(policy);
        let registry = Rc::new(Registry::new());
        let activity = Rc::<Activity>::default();
        let inbound = Inbound::new(Parts {
            workload,
            policy: directory.server_policy(),
            directory,
            services: Rc::new(leno_inbound::NoServices),
            tls: Keyring::new().acceptor(),
            registry: Rc::clone(&registry),
            activity: Rc::clone(&activity),
            limits: Limits::default(),
            application,
            limit_table: leno_inbound::LimitTable::default(),
            max_tunnels: 64,
            own_ports: Vec::new(),
        });
        // An address that stands for the workload's own, with the port of the application.
        let own = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));
        let port = listener.local_addr().unwrap().port();
        let dialled = TcpListener::bind((own, port)).await.unwrap();
        let mut client = TcpStream::connect((own, port)).await.unwrap();
        client.write_all(first).await.unwrap();
        let (accepted, from) = dialled.accept().await.unwrap();
        // Now nothing listens at the address that the client dialled.
        drop(dialled);
        let proxy = SocketAddr::from(([127, 0, 0, 1], 15006));
        let (admitted, _) = Admission::new(64, Directions::Inbound).inbound(from.ip());
        let serve = async move { inbound.serve(accepted, (from, proxy), admitted).await };
        let served = spawn_local(serve);
        Self { client, application: listener, registry, activity, served }
    }

    async fn application(&self) -> TcpStream {
        self.application.accept().await.unwrap().0
    }

    /// Everything that the client receives until the connection ends.
    async fn hear(&mut self) -> String {
        let mut all = Vec::new();
        // A reset ends the connection, too.
        let _reset = self.client.read_to_end(&mut all).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    fn metrics(&self) -> String {
        render(&self.registry.snapshot(), &[], false)
    }

    fn assert_detected(&self, result: &str) {
        let line = format!("leno_detect_total{{direction=\"inbound\",result=\"{result}\"}} 1\n");
        assert!(self.metrics().contains(&line), "{line} is not in\n{}", self.metrics());
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Reads the head of a request.
async fn head(application: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(application.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_client_that_is_slow_to_speak_is_served_request_by_request() {
    for mtls in [MtlsMode::Permissive, MtlsMode::Disabled] {
        run(async {
            let mut lab = Lab::new(mtls, Protocol::Detect, b"").await;
            // The proxy connects to the application once the client has been silent for long enough.
            let mut application = lab.application().await;
            lab.client.write_all(REQUEST.as_bytes()).await.unwrap();
            assert!(head(&mut application).await.starts_with("GET / HTTP/1.1\r\n"));
            application.write_all(ANSWER.as_bytes()).await.unwrap();
            assert!(lab.hear().await.ends_with("\r\n\r\nhi"));
            lab.assert_detected("http1");
            assert!(lab.metrics().contains("leno_requests_total{"), "{}", lab.metrics());
        });
    }
}

#[test]
fn a_server_that_speaks_first_does_not_wait_for_its_client() {
    run(async {
        let mut lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, b"").await;
        let mut application = lab.application().await;
        application.write_all(b"220 ready\r\n").await.unwrap();
        let mut greeting = [0; 11];
        lab.client.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"220 ready\r\n");
        lab.client.write_all(b"QUIT\r\n").await.unwrap();
        let mut said = [0; 6];
        application.read_exact(&mut said).await.unwrap();
        drop(application);
        assert_eq!(lab.hear().await, "");
        lab.assert_detected("server_first");
    });
}

#[test]
fn a_server_that_speaks_first_is_not_connected_to_for_a_client_that_is_denied() {
    for (mtls, declared) in [
        (MtlsMode::Permissive, Protocol::Detect),
        (MtlsMode::Permissive, Protocol::Opaque),
        (MtlsMode::Disabled, Protocol::Opaque),
    ] {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let denying = DefaultAuthorization::Deny;
            let denying = Authorization { default: denying, ..Authorization::default() };
            let rules = (mtls, &[(address.port(), declared)][..]);
            let mut lab = Lab::authorizing(listener, Some(address), rules, b"", denying).await;
            assert_eq!(lab.hear().await, "");
            lab.served.await.unwrap();
            let accepted = lab.application.into_std().unwrap().accept();
            let nothing = accepted.unwrap_err().kind();
            assert_eq!(nothing, std::io::ErrorKind::WouldBlock, "{mtls:?} {declared:?}");
        });
    }
}

/// Policies that deny TLS to `bad.example.com`.
fn denying_by_name() -> Authorization {
    let name = RequestMatch { server_names: vec!["bad.example.com".into()], ..Default::default() };
    let policy = AuthorizationPolicy {
        source: PolicySource { created: 0, namespace: "shop".into(), name: "no-name".into() },
        action: Action::Deny,
        ports: None,
        rules: [PermissionRule { from: Vec::new(), to: vec![name], claims: Vec::new() }].into(),
        tokens: [].into(),
        external: None,
    };
    Authorization { policies: [policy].into(), ..Authorization::default() }
}

/// A ClientHello that names this server.
fn hello(name: &str) -> Vec<u8> {
    let vector = |body: &[u8]| [&(body.len() as u16).to_be_bytes()[..], body].concat();
    let names = vector(&[&b"\0"[..], &vector(name.as_bytes())].concat());
    let extensions = vector(&[&b"\0\0"[..], &vector(&names)].concat());
    let body = [&b"\x03\x03"[..], &[0; 32], b"\0\0\x02\x13\x01\x01\0", &extensions].concat();
    let message = [&b"\x01\0"[..], &vector(&body)].concat();
    [&b"\x16\x03\x01"[..], &vector(&message)].concat()
}

#[test]
fn server_names_are_read_on_ports_that_are_declared_to_carry_bytes() {
    let (good, bad) = (hello("good.example.com"), hello("bad.example.com"));
    let version = |minor: u8| [&b"\x16\x03"[..], &[minor], &bad[3..]].concat();
    let empty = [&b"\x16\x03\x01\0\0"[..], &bad].concat();
    let refused = [bad.clone(), version(5), version(0xff), empty];
    for (mtls, declared) in [
        (MtlsMode::Permissive, Protocol::Opaque),
        (MtlsMode::Disabled, Protocol::Opaque),
        (MtlsMode::Permissive, Protocol::Detect),
        (MtlsMode::Disabled, Protocol::Detect),
    ] {
        let lab = async |first: &[u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let rules = (mtls, &[(address.port(), declared)][..]);
            Lab::authorizing(listener, Some(address), rules, first, denying_by_name()).await
        };
        for first in &refused {
            run(async {
                let lab = lab(first).await;
                lab.served.await.unwrap();
                let accepted = lab.application.into_std().unwrap().accept();
                let nothing = accepted.unwrap_err().kind();
                assert_eq!(nothing, std::io::ErrorKind::WouldBlock, "{mtls:?} {declared:?}");
            });
        }
        for first in [&b"hello"[..], good.as_slice()] {
            run(async {
                let lab = lab(first).await;
                let mut read = vec![0; first.len()];
                lab.application().await.read_exact(&mut read).await.unwrap();
                assert_eq!(read, first);
            });
        }
    }
}

#[test]
fn settings_of_an_application_do_not_make_its_connection_opaque() {
    run(async {
        let mut lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, b"").await;
        let mut early = lab.application().await;
        early.write_all(&PREFACE[24..]).await.unwrap();
        // The proxy resets that connection, and then waits for the client.
        assert!(early.read_u8().await.is_err());
        lab.client.write_all(PREFACE).await.unwrap();
        let mut settings = [0; 9];
        lab.client.read_exact(&mut settings).await.unwrap();
        assert_eq!(settings[3], 4);
        lab.assert_detected("http2");
    });
}

#[test]
fn a_declared_port_of_http_takes_either_version() {
    for declared in [Protocol::Http1, Protocol::Http2] {
        for mtls in [MtlsMode::Permissive, MtlsMode::Disabled] {
            run(async {
                let mut lab = Lab::new(mtls, declared, PREFACE).await;
                let mut settings = [0; 9];
                lab.client.read_exact(&mut settings).await.unwrap();
                assert_eq!(settings[3], 4, "{settings:?}");
                lab.assert_detected("http2");
            });
        }
    }
}

#[test]
fn a_declared_port_of_http_lets_nothing_else_through() {
    for declared in [Protocol::Http1, Protocol::Http2] {
        run(async {
            let mut lab = Lab::new(MtlsMode::Permissive, declared, b"\0\0\x01binary\r\n").await;
            lab.client.shutdown().await.unwrap();
            let heard = lab.hear().await;
            // The client receives a GOAWAY or a 400.
            assert!(heard.contains("HTTP/1.1 400 ") || heard.contains('\x07'), "{heard:?}");
            lab.served.await.unwrap();
        });
    }
}

#[test]
fn a_request_line_that_does_not_go_on_is_not_relayed() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, b"GE").await;
        let heard = lab.hear().await;
        assert!(heard.starts_with("HTTP/1.1 408 "), "{heard:?}");
        lab.assert_detected("http1");
    });
}

#[test]
fn a_reset_while_detecting_does_not_reach_the_application() {
    run(async {
        let lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, b"GE").await;
        SockRef::from(&lab.client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(lab.client);
        lab.served.await.unwrap();
        let accepted = lab.application.accept();
        tokio::select! {
            biased;
            _connection = accepted => panic!("the application was connected to"),
            () = std::future::ready(()) => {}
        }
    });
}

#[test]
fn tls_is_passed_through_and_its_name_is_seen() {
    // A ClientHello: version, random, no session, one cipher suite, no compression, and `web.example` as server_name.
    let name = b"\0\0\0\x10\0\x0e\0\0\x0bweb.example";
    let mut body = [&[3, 3][..], &[7; 32], b"\0\0\x02\x13\x01\x01\0\0\x14"].concat();
    body.extend_from_slice(name);
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let hello = [&[0x16, 3, 1, 0, message.len() as u8][..], &message].concat();
    run(async {
        let lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, &hello).await;
        let mut application = lab.application().await;
        let mut got = vec![0; hello.len()];
        application.read_exact(&mut got).await.unwrap();
        assert_eq!(got, hello);
        lab.assert_detected("tls");
        let line =
            "leno_tls_passthrough_total{direction=\"inbound\",server_name=\"web.example\"} 1\n";
        assert!(lab.metrics().contains(line), "{}", lab.metrics());
    });
}

#[test]
fn loopback_is_reached_on_named_ports_only() {
    for named in [true, false] {
        run(async {
            let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = application.local_addr().unwrap().port();
            let ports = [(if named { port } else { 1 }, Protocol::Detect)];
            let policy = (MtlsMode::Permissive, &ports[..]);
            let mut lab = Lab::before(application, None, policy, REQUEST.as_bytes()).await;
            if named {
                let mut application = lab.application().await;
                head(&mut application).await;
                application.write_all(ANSWER.as_bytes()).await.unwrap();
                assert!(lab.hear().await.starts_with("HTTP/1.1 200 "));
            } else {
                let heard = lab.hear().await;
                assert!(heard.contains("\r\nleno-error: application-unreachable\r\n"), "{heard}");
            }
        });
    }
}

/// The next HTTP/2 frame (RFC 9113 section 4.1): its type, its stream and its payload.
async fn frame(client: &mut TcpStream) -> (u8, u32, Vec<u8>) {
    let mut header = [0; 9];
    client.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
    let mut payload = vec![0; length as usize];
    client.read_exact(&mut payload).await.unwrap();
    (header[3], stream, payload)
}

/// The next frame of this type.
async fn frame_of(kind: u8, client: &mut TcpStream) -> (u32, Vec<u8>) {
    loop {
        let (found, stream, payload) = frame(client).await;
        if found == kind {
            return (stream, payload);
        }
    }
}

#[test]
fn a_drain_says_goaway_and_waits_for_the_streams_there_are() {
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    // HEADERS on stream 1 for `GET /` of http://a, with END_STREAM.
    let get = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
    run(async {
        let first = [PREFACE, get].concat();
        let mut lab = Lab::new(MtlsMode::Permissive, Protocol::Http2, &first).await;
        // The proxy connects to the application with HTTP/2, the client's version.
        let mut application = lab.application().await;
        let mut preface = [0; 24];
        application.read_exact(&mut preface).await.unwrap();
        application.write_all(&PREFACE[24..]).await.unwrap();
        assert_eq!(frame_of(HEADERS, &mut application).await.0, 1);
        lab.activity.drain(Duration::ZERO);
        // The first GOAWAY allows all stream identifiers, so requests that are on their way are still accepted (RFC
        // 9113 section 6.8).
        let (_, said) = frame_of(GOAWAY, &mut lab.client).await;
        assert_eq!(said, b"\x7f\xff\xff\xff\0\0\0\0");
        assert!(lab.activity.busy() > 0);
        application.write_all(b"\0\0\x01\x01\x05\0\0\0\x01\x88").await.unwrap();
        let mut kinds = Vec::new();
        let ping = loop {
            let (kind, _, payload) = frame(&mut lab.client).await;
            kinds.push(kind);
            if kind == PING {
                break payload;
            }
        };
        if !kinds.contains(&HEADERS) {
            assert_eq!(frame_of(HEADERS, &mut lab.client).await.0, 1);
        }
        let pong = [&b"\0\0\x08\x06\x01\0\0\0\0"[..], &ping].concat();
        lab.client.write_all(&pong).await.unwrap();
        let (_, said) = frame_of(GOAWAY, &mut lab.client).await;
        assert_eq!(said, b"\0\0\0\x01\0\0\0\0");
        lab.client.shutdown().await.unwrap();
        lab.served.await.unwrap();
        assert_eq!(lab.activity.busy(), 0);
    });
}

/// An application that is about to exit closes its idle connections, perhaps while a request is on its way. So a
/// draining proxy does not reuse them.
#[test]
fn an_application_that_ends_gets_requests_on_new_connections() {
    run(async {
        let kept = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 0\r\n\r\n";
        let mut lab = Lab::new(MtlsMode::Disabled, Protocol::Http1, kept).await;
        let mut idle = lab.application().await;
        head(&mut idle).await;
        idle.write_all(ANSWER.as_bytes()).await.unwrap();
        let mut answer = [0; ANSWER.len()];
        lab.client.read_exact(&mut answer).await.unwrap();
        lab.activity.drain(Duration::ZERO);
        lab.client.write_all(kept).await.unwrap();
        let mut new = tokio::select! {
            new = lab.application() => new,
            said = idle.read_u8() => panic!("the idle connection has {said:?}"),
        };
        head(&mut new).await;
        new.write_all(ANSWER.as_bytes()).await.unwrap();
        assert!(lab.hear().await.ends_with("\r\n\r\nhi"));
    });
}

#[test]
fn a_drain_waits_for_a_handshake_that_has_begun() {
    run(async {
        for mtls in [MtlsMode::Permissive, MtlsMode::Strict] {
            let lab = Lab::new(mtls, Protocol::Detect, b"\x16\x03\x01").await;
            while lab.activity.busy() == 0 {
                yield_now().await;
            }
            SockRef::from(&lab.client).set_linger(Some(Duration::ZERO)).unwrap();
            drop(lab.client);
            lab.served.await.unwrap();
            assert_eq!(lab.activity.busy(), 0);
        }
        // A drain does not wait for a client that is silent.
        let lab = Lab::new(MtlsMode::Permissive, Protocol::Detect, b"").await;
        let _application = lab.application().await;
        assert_eq!(lab.activity.busy(), 0);
    });
}
