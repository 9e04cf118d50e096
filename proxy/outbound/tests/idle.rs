//! Measures the memory that an idle connection holds. Only memory of the proxy's thread is counted.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as BlockingListener, TcpStream as BlockingStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leno_discovery::Directory;
use leno_http::Limits;
use leno_names::{Names, Resolvers};
use leno_outbound::{Fixed, Outbound, Parts};
use leno_telemetry::Registry;
use leno_tls::Keyring;
use leno_transport::spawn_contained;
use leno_types::mesh::{Distribution, Endpoint, Resolution, Service, ServicePort, Topology};
use leno_types::{InstanceName, Protocol, ServiceName};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::{ALLOCATIONS, BYTES};

const PORT: u16 = 80;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
/// How many connections are opened first, because they allocate the memory that all connections share.
const FIRST: usize = 8;
const MORE: usize = 64;
/// The longest wait. It does not affect the measurement.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts an application that answers all requests.
fn application() -> SocketAddr {
    let listener = BlockingListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut request = [0; REQUEST.len()];
                while stream.read_exact(&mut request).is_ok() {
                    stream.write_all(ANSWER).unwrap();
                }
            });
        }
    });
    address
}

/// A connection over which a request was sent.
fn used(proxy: SocketAddr) -> BlockingStream {
    let mut stream = BlockingStream::connect(proxy).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(REQUEST).unwrap();
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    stream
}

fn outbound(server: SocketAddr, protocol: Protocol) -> Outbound {
    let endpoint = Endpoint {
        workload: None,
        addresses: vec![server.ip()],
        port: server.port(),
        identity: None,
        place: Topology::default(),
        wire: Default::default(),
    };
    let service = Service {
        name: ServiceName::new("shop", "web").unwrap(),
        vips: Vec::new(),
        distribution: Distribution::Any,
        waypoint: None,
        ports: vec![ServicePort {
            port: PORT,
            name: "".into(),
            protocol,
            endpoints: [endpoint].into(),
            external: None,
        }],
        routes: [].into(),
        traffic: [].into(),
    };
    let resolution = watch::Sender::new(Resolution::Service(Arc::new(service))).subscribe();
    Outbound::new(Parts {
        workload: InstanceName::new("shop", "client-0").unwrap(),
        directory: Directory::fixed(|_| Resolution::Unknown),
        tls: Keyring::new().connector(),
        registry: Rc::new(Registry::new()),
        activity: Rc::default(),
        limits: Limits::default(),
        names: Names::new(Resolvers::new(Vec::new())),
        fixed: Some(Fixed { resolution, port: PORT }),
    })
}

/// The bytes that each of [`MORE`] idle connections holds, and the bytes that each of as many requests allocates.
async fn measured(protocol: Protocol) -> (i64, u64) {
    let outbound = Rc::new(outbound(application(), protocol));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_contained(async move {
        loop {
            let (accepted, _): (TcpStream, _) = listener.accept().await.unwrap();
            let outbound = Rc::clone(&outbound);
            spawn_contained(async move { outbound.serve(accepted, address).await });
        }
    });
    let (opened, mut opens) = mpsc::channel(1);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let clients = thread::spawn(move || {
        let mut open: Vec<_> = (0..FIRST).map(|_| used(address)).collect();
        opened.blocking_send(()).unwrap();
        gone.recv().unwrap();
        open.extend((0..MORE).map(|_| used(address)));
        opened.blocking_send(()).unwrap();
        gone.recv().unwrap();
        for stream in &mut open[FIRST..] {
            stream.write_all(REQUEST).unwrap();
            stream.read_exact(&mut [0; ANSWER.len()]).unwrap();
        }
        opened.blocking_send(()).unwrap();
        gone.recv().unwrap();
    });
    let mut moments = Vec::new();
    for _ in 0..3 {
        opens.recv().await.unwrap();
        moments.push((BYTES.get(), ALLOCATIONS.get()));
        go.send(()).unwrap();
    }
    clients.join().unwrap();
    let bytes = (moments[1].0 - moments[0].0) / MORE as i64;
    (bytes, (moments[2].1 - moments[1].1) / MORE as u64)
}

#[test]
fn an_idle_connection_of_http1_holds_three_kibibytes_at_most() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    for protocol in [Protocol::Http1, Protocol::Detect] {
        let (bytes, allocations) = runtime.block_on(measured(protocol));
        println!(
            "{protocol:?}: {bytes} bytes an idle connection, {allocations} allocations a request"
        );
        assert!(bytes <= 3 * 1024, "{protocol:?}: {bytes} bytes");
        assert_eq!(allocations, 0, "{protocol:?}: a request on an idle connection");
    }
}
