//! Tests two proxies in one process. Their certificates are from a real authority, and their applications use sockets
//! on loopback.

mod ca;
mod certificates;
mod flows;
mod paths;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_tls::{Keyring, TlsConfigs};
use leno_types::Identity;
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::{
    Asked, Captured, Count, Datagrams, Destinations, Gate, LocalFuture, Parts, Permitted,
    ProcessMark, Refusal, Route, Routes,
};
use ca::Ca;

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

/// The address of the server's proxy and of its application.
const SERVER: &str = "127.0.0.2";
/// The address that an application sees as its client.
const STAND_IN: &str = "127.0.0.3";
/// The address to which the client's application sends.
const PLACEHOLDER: &str = "127.64.0.1";
/// The longest wait for an expected event.
const SOON: Duration = Duration::from_secs(20);
/// The interval of repeated sends, because datagrams may be lost.
const AGAIN: Duration = Duration::from_secs(1);
/// How much later than the first answer another answer may arrive.
const LATE: Duration = Duration::from_millis(50);
/// How long to wait for an event that must not happen.
const NEVER: Duration = Duration::from_millis(300);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn identity(text: &str) -> Identity {
    text.parse().unwrap()
}

/// Runs a test in the way in which a worker runs its tasks.
fn run(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(test);
}

/// The destinations of placeholders, and their routes.
#[derive(Clone, Debug, Default)]
struct Map {
    destinations: Rc<RefCell<HashMap<IpAddr, SocketAddr>>>,
    routes: Rc<RefCell<HashMap<SocketAddr, Route>>>,
}

impl Destinations for Map {
    fn of(&self, placeholder: IpAddr) -> io::Result<SocketAddr> {
        let known = self.destinations.borrow().get(&placeholder).copied();
        known.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Routes for Map {
    fn route(&self, to: SocketAddr) -> LocalFuture<'_, Route> {
        let known = self.routes.borrow().get(&to).cloned();
        Box::pin(async move { known.unwrap_or(Route::Refused("no route")) })
    }

    fn still(&self, to: SocketAddr, route: &Route) -> bool {
        self.routes.borrow().get(&to) == Some(route)
    }
}

/// A gate whose decision a test can change.
#[derive(Clone, Debug)]
struct TestGate {
    /// The present refusal, or none. A change ends the flows that were permitted before.
    refusal: watch::Sender<Option<Refusal>>,
    application: Rc<RefCell<Vec<SocketAddr>>>,
    asked: Rc<RefCell<Vec<Asked>>>,
}

impl Gate for TestGate {
    fn judge(&self, asked: Asked) -> LocalFuture<'_, Result<Permitted, Refusal>> {
        self.asked.borrow_mut().push(asked);
        let mut changes = self.refusal.subscribe();
        Box::pin(async move {
            if let Some(refusal) = *changes.borrow_and_update() {
                return Err(refusal);
            }
            let revoked = async move {
                // If the gate was dropped, its decision can no longer change.
                let _changed = changes.changed().await;
            };
            let application = self.application.borrow().clone();
            Ok(Permitted { source: ip(STAND_IN), application, revoked: Box::pin(revoked) })
        })
    }
}

/// A proxy and its datagrams.
struct Proxy {
    datagrams: Datagrams,
    map: Map,
    gate: TestGate,
    keyring: Keyring,
    captured_at: u16,
    quic_at: SocketAddr,
}

impl Proxy {
    /// Starts a proxy. `port` is its port for QUIC, 0 for any; `of_others` is the port of other proxies.
    fn start(at: &str, (port, of_others): (u16, u16), keyring: Keyring) -> Self {
        let captured = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let mark = ProcessMark::random();
        let quic = quic_at((ip(at), port).into(), mark);
        let (captured_at, quic_at) =
            (captured.local_addr().unwrap().port(), quic.local_addr().unwrap());
        let map = Map::default();
        let gate = TestGate {
            refusal: watch::Sender::new(None),
            application: Rc::default(),
            asked: Rc::default(),
        };
        let destinations: Rc<dyn Destinations> = Rc::new(map.clone());
        let datagrams = Datagrams::start(Parts {
            captured: vec![Captured::new(captured, destinations).unwrap()],
            sockets: vec![quic],
            mark,
            credentials: keyring.watch(),
            routes: Rc::new(map.clone()),
            gate: Rc::new(gate.clone()),
            port: of_others,
        })
        .unwrap();
        Self { datagrams, map, gate, keyring, captured_at, quic_at }
    }

    fn count(&self, of: Count) -> u64 {
        self.datagrams.counts()[of as usize]
    }

    /// Waits until a counter reaches this value.
    async fn counted(&self, of: Count, times: u64) {
        let reached = async {
            while self.count(of) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, reached).await.unwrap_or_else(|_| {
            panic!("{of:?} is {} and not {times}: {:?}", self.count(of), self.datagrams.counts())
        });
    }

    /// Sets the destination and the route of a placeholder.
    fn leads(&self, placeholder: &str, to: SocketAddr, route: Route) {
        self.map.destinations.borrow_mut().insert(ip(placeholder), to);
        self.map.routes.borrow_mut().insert(to, route);
    }
}

/// Like [`crate::bind_quic`], but at one address.
fn quic_at(address: SocketAddr, mark: ProcessMark) -> std::net::UdpSocket {
    let socket = socket2::Socket::from(leno_sockets::udp(false).unwrap());
    socket.set_reuse_port(true).unwrap();
    socket.bind(&address.into()).unwrap();
    leno_sockets::steer_connections(&socket, mark.bytes()).unwrap();
    socket.into()
}

/// A client and a server, with an application that sends everything back.
struct Pair {
    ca: Ca,
    client: Proxy,
    server: Proxy,
    application: SocketAddr,
}

fn keyring(ca: &Ca, of: &str) -> Keyring {
    let keyring = Keyring::new();
    keyring.rotate(ca.credentials(of)).unwrap();
    keyring
}

impl Pair {
    async fn start() -> Self {
        let ca = Ca::new("root");
        let server = Proxy::start(SERVER, (0, 0), keyring(&ca, CART));
        let of_server = server.quic_at.port();
        let client = Proxy::start("127.0.0.1", (0, of_server), keyring(&ca, WEB));
        let application = echo(SERVER).await;
        server.gate.application.replace(vec![application]);
        let pair = Self { ca, client, server, application };
        pair.client.leads(PLACEHOLDER, application, pair.route(CART));
        pair
    }

    fn route(&self, of: &str) -> Route {
        Route::Mesh { server: self.application, identity: identity(of) }
    }

    fn placeholder(&self) -> SocketAddr {
        SocketAddr::new(ip(PLACEHOLDER), self.client.captured_at)
    }

    /// Sends repeatedly until an answer arrives, because datagrams are dropped while a flow is refused.
    async fn reaches(&self, socket: &UdpSocket, payload: &[u8]) {
        let mut buffer = [0; 2048];
        let answered = async {
            loop {
                socket.send_to(payload, self.placeholder()).await.unwrap();
                let answer = timeout(AGAIN, socket.recv_from(&mut buffer)).await;
                if let Ok(Ok((length, from))) = answer {
                    assert_eq!(from, self.placeholder());
                    if buffer[..length] == *payload {
                        break;
                    }
                }
            }
        };
        let answered = async {
            answered.await;
            // Reads answers to earlier sends.
            let mut late = [0; 2048];
            while timeout(LATE, socket.recv_from(&mut late)).await.is_ok() {}
        };
        timeout(SOON, answered).await.unwrap_or_else(|_| {
            let counts = (self.client.datagrams.counts(), self.server.datagrams.counts());
            panic!("no answer: {counts:?}")
        });
    }
}

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// Starts an application that sends everything back.
async fn echo(at: &str) -> SocketAddr {
    let socket = UdpSocket::bind((ip(at), 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let mut buffer = vec![0; 65536];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            socket.send_to(&buffer[..length], from).await.unwrap();
        }
    });
    address
}

async fn hears_nothing(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    let heard = timeout(NEVER, socket.recv_from(&mut buffer)).await;
    assert!(heard.is_err(), "{heard:?}");
}

async fn hears(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 65536];
    let (length, from) = timeout(SOON, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(length);
    (buffer, from)
}

/// The present credentials of a keyring.
fn configs(keyring: &Keyring) -> Arc<TlsConfigs> {
    keyring.current().unwrap()
}
