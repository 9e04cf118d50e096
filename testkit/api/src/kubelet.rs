//! Plays the kubelet of a node, as far as port-forwards to pods need one.
//!
//! ```text
//!   kubectl port-forward, leno ── API server ── TLS, WebSocket ──► Kubelet ──► the address that stands for the pod
//! ```

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::TestApiServer;

/// The protocol of the WebSocket. The first byte of a message is its channel, and the first message of a channel
/// contains the port.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channel for the data of the first port.
const BYTES: u8 = 0;
/// The channel for errors of the first port.
const ERROR: u8 = 1;
/// Most bytes of a message.
const MESSAGE: usize = 16 * 1024;

/// The addresses that stand for pods, by `NAMESPACE/NAME`.
type Pods = Arc<Mutex<HashMap<String, SocketAddr>>>;

/// The kubelet of a node. Dropping this ends the kubelet.
pub struct Kubelet {
    pods: Pods,
    running: JoinHandle<()>,
}

impl Kubelet {
    /// Starts a kubelet, and creates a node with this name that the kubelet belongs to.
    pub async fn start(bed: &TestApiServer, node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        bed.apply(node.clone()).await;
        bed.set_status(node).await;
        let (acceptor, pods) = (acceptor(), Pods::default());
        let known = Arc::clone(&pods);
        let running = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, known) = (acceptor.clone(), Arc::clone(&known));
                // If the client leaves, the connection ends with an error.
                tokio::spawn(async move { forward(stream, acceptor, known).await.ok() });
            }
        });
        Self { pods, running }
    }

    /// Forwards port-forwards for a pod (`shop/web-0`) to this address. Port-forwards for unknown pods are
    /// refused.
    pub fn lead(&self, pod: &str, to: SocketAddr) {
        self.pods.lock().unwrap().insert(pod.to_owned(), to);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// TLS with a self-signed certificate, which the API server does not verify by default.
fn acceptor() -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Serves `/portForward/NAMESPACE/NAME?port=PORT`.
async fn forward(stream: TcpStream, acceptor: TlsAcceptor, pods: Pods) -> Result<(), Error> {
    let mut asked = String::new();
    #[expect(clippy::result_large_err, reason = "the callback is of tungstenite")]
    let accept = |request: &Request, mut response: Response| {
        asked = request.uri().to_string();
        response.headers_mut().insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
        Ok(response)
    };
    let mut client = accept_hdr_async(acceptor.accept(stream).await?, accept).await?;
    let (path, query) = asked.split_once('?').unwrap_or((&asked, ""));
    let pod = path.trim_start_matches("/portForward/").to_owned();
    let port: u16 = query.trim_start_matches("port=").parse().unwrap();
    for channel in [BYTES, ERROR] {
        let [low, high] = port.to_le_bytes();
        client.send(Message::binary(vec![channel, low, high])).await?;
    }
    let to = pods.lock().unwrap().get(&pod).copied();
    let Some(to) = to else {
        let error = [&[ERROR][..], format!("pod {pod} does not listen").as_bytes()].concat();
        client.send(Message::binary(error)).await?;
        return client.close(None).await;
    };
    let mut server = TcpStream::connect(to).await?;
    let mut buffer = vec![0; MESSAGE];
    loop {
        tokio::select! {
            message = client.next() => match message.transpose()? {
                Some(Message::Binary(bytes)) if bytes.first() == Some(&BYTES) => {
                    server.write_all(&bytes[1..]).await?;
                }
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
            read = server.read(&mut buffer) => match read? {
                0 => return client.close(None).await,
                read => {
                    let message = [&[BYTES][..], &buffer[..read]].concat();
                    client.send(Message::binary(message)).await?;
                }
            },
        }
    }
}
