//! Connections relayed as bytes, through a whole outbound side over loopback.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_discovery::Directory;
use leno_http::Limits;
use leno_outbound::{Fixed, Outbound, Parts};
use leno_telemetry::Registry;
use leno_tls::Keyring;
use leno_types::mesh::{Endpoint, Resolution, Service, ServicePort};
use leno_types::{InstanceName, Protocol, ServiceName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

/// The port of the service; nothing listens on it.
const PORT: u16 = 9000;

fn outbound(endpoints: &[SocketAddr]) -> Outbound {
    let endpoint = |address: &SocketAddr| Endpoint {
        workload: None,
        addresses: vec![address.ip()],
        port: address.port(),
        identity: None,
    };
    let service = Service {
        name: ServiceName::new("shop", "db").unwrap(),
        vips: Vec::new(),
        ports: vec![ServicePort {
            port: PORT,
            name: "".into(),
            protocol: Protocol::Opaque,
            endpoints: endpoints.iter().map(endpoint).collect(),
        }],
    };
    let resolution = watch::Sender::new(Resolution::Service(Arc::new(service))).subscribe();
    Outbound::new(Parts {
        workload: InstanceName::new("shop", "web-0").unwrap(),
        directory: Directory::fixed(|_| Resolution::Unknown),
        tls: Keyring::new().connector(),
        registry: Rc::new(Registry::new()),
        activity: Rc::default(),
        limits: Limits::default(),
        fixed: Some(Fixed { resolution, port: PORT }),
    })
}

/// Listens, and counts the connections; each is `answered` or ended without a word once it has
/// been asked something.
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

/// Says something and listens to the end.
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
        let outbound = outbound(&[mute, echo]);
        while echoes.get() == 0 {
            ask(&outbound).await;
        }
        let before = mutes.get();
        for _ in 0..40 {
            ask(&outbound).await;
        }
        // It is tried once before anything is known of it.
        assert!(before.max(1) >= mutes.get(), "{before}, then {}", mutes.get());
    };
    LocalSet::new().run_until(talk).await;
}
