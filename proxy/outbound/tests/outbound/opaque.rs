//! Tests connections that are relayed as bytes, or detected as HTTP, through a whole outbound side over loopback.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_outbound::Outbound;
use leno_telemetry::Registry;
use leno_tls::Keyring;
use leno_types::Protocol;
use leno_types::mesh::{Endpoint, Resolution, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

use crate::support;

/// The port of the service; nothing listens on it.
const PORT: u16 = 9000;

fn outbound(protocol: Protocol, endpoints: &[SocketAddr]) -> Outbound {
    let endpoint = |address: &SocketAddr| Endpoint {
        workload: None,
        addresses: vec![address.ip()],
        port: address.port(),
        identity: None,
        place: Topology::default(),
        wire: Default::default(),
    };
    let service = support::service("db", PORT, protocol, endpoints.iter().map(endpoint).collect());
    let resolution = watch::Sender::new(Resolution::Service(Arc::new(service))).subscribe();
    support::outbound(Keyring::new().connector(), &Rc::new(Registry::new()), resolution, PORT)
}

/// A server that counts its connections. On each it reads four bytes, sends them back if `answered`, and closes.
async fn server(answered: bool) -> (SocketAddr, Rc<Cell<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Rc::new(Cell::new(0)));
    let counted = Rc::clone(&count);
    spawn_local(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.set(counted.get() + 1);
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            if answered {
                stream.write_all(&asked).await.unwrap();
            }
        }
    });
    (address, count)
}

/// Sends some bytes, and reads to the end of the connection.
async fn ask(outbound: &Outbound) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let talk = async {
        client.write_all(b"ping").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        drop(client);
        answer
    };
    let ((), answer) = tokio::join!(outbound.serve(accepted, address), talk);
    answer
}

#[tokio::test]
async fn an_endpoint_that_ends_without_an_answer_is_avoided() {
    let talk = async {
        let ((mute, mutes), (echo, echoes)) = (server(false).await, server(true).await);
        let outbound = outbound(Protocol::Opaque, &[mute, echo]);
        while echoes.get() == 0 {
            ask(&outbound).await;
        }
        let before = mutes.get();
        for _ in 0..40 {
            ask(&outbound).await;
        }
        // The first attempts may go to the silent endpoint, because the proxy does not know yet that it is silent.
        assert!(before.max(1) >= mutes.get(), "{before}, then {}", mutes.get());
    };
    LocalSet::new().run_until(talk).await;
}

/// A client of `outbound` that has sent `first`.
async fn connect(outbound: &Rc<Outbound>, first: &[u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(first).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let outbound = Rc::clone(outbound);
    spawn_local(async move { outbound.serve(accepted, address).await });
    client
}

/// The preface of an HTTP/2 client (RFC 9113 section 3.4), and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn settings_of_a_server_do_not_make_its_connection_opaque() {
    let talk = async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outbound = Rc::new(outbound(Protocol::Detect, &[server.local_addr().unwrap()]));
        let mut client = connect(&outbound, b"").await;
        let (mut early, _) = server.accept().await.unwrap();
        early.write_all(&PREFACE[24..]).await.unwrap();
        // The proxy resets that connection, and then waits for the client.
        assert!(early.read_u8().await.is_err());
        client.write_all(PREFACE).await.unwrap();
        let mut settings = [0; 9];
        client.read_exact(&mut settings).await.unwrap();
        assert_eq!(settings[3], 4);
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_client_that_breaks_off_while_detecting_is_not_relayed() {
    let talk = async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let outbound = Rc::new(outbound(Protocol::Detect, &[address]));
        let client = connect(&outbound, b"GE").await;
        client.set_zero_linger().unwrap();
        drop(client);
        // The server receives the bytes of the next client, and none of the client that has left.
        let _next = connect(&outbound, b"\0next").await;
        let (mut first, _) = server.accept().await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), 0);
    };
    LocalSet::new().run_until(talk).await;
}

#[tokio::test]
async fn a_declared_service_of_http_takes_either_version() {
    let talk = async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let outbound = Rc::new(outbound(protocol, &[server.local_addr().unwrap()]));
            let mut client = connect(&outbound, PREFACE).await;
            let mut settings = [0; 9];
            client.read_exact(&mut settings).await.unwrap();
            assert_eq!(settings[3], 4);
            let _client = connect(&outbound, b"GET / HTTP/1.1\r\nHost: db\r\n\r\n").await;
            let (mut asked, _) = server.accept().await.unwrap();
            assert_eq!(asked.read_u8().await.unwrap(), b'G');
        }
    };
    LocalSet::new().run_until(talk).await;
}
