//! Tests unauthenticated clients on the discovery port, and programs that pose as the control plane.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::Certificate;
use leno_testkit_api::{binary, until};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;

use crate::proxy::{self, Proxy};
use crate::replica::Replica;
use crate::scale::open_enough;
use crate::{cluster, run_pod};

/// The attacker's addresses, each with as many connections as the control plane permits for one address. Together
/// they exceed the slots for clients without a certificate (1,024).
const ADDRESSES: u8 = 8;
const OF_ADDRESS: usize = 256;
/// How many connections are open at least while all slots are in use.
const FULL: u64 = 900;
/// How long the attacker waits before it reopens a closed connection.
const AGAIN: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_holds_places_keeps_no_proxy_from_its_certificate() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let control: SocketAddr = replica.address().await.parse().unwrap();
    open_enough(usize::from(ADDRESSES) * OF_ADDRESS);
    let mut stranger = JoinSet::new();
    for last in 2..2 + ADDRESSES {
        for _ in 0..OF_ADDRESS {
            stranger.spawn(async move { hold(Ipv4Addr::new(127, 0, 0, last), control).await });
        }
    }
    let open = async || replica.metric("leno_control_connections").await as u64;
    until("all places are held", async || (open().await >= FULL).then_some(())).await;

    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let proxy = Proxy::start(&bed, &replica, "shop/web-0", &token).await;
    proxy.certificate().await;
    proxy.has_policy().await;
    assert!(proxy.is_connected());
    assert_eq!(proxy.status().connects, 1);
    until("the stranger goes on", async || (open().await >= FULL).then_some(())).await;
    stranger.shutdown().await;
    replica.end();
}

/// Holds a connection from an address without sending anything, and reopens it whenever it is closed.
async fn hold(from: Ipv4Addr, control: SocketAddr) {
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
        if let Ok(mut connection) = socket.connect(control).await {
            // Returns once the control plane closes the connection, gracefully or not.
            let _ = connection.read(&mut [0]).await;
        }
        sleep(AGAIN).await;
    }
}

/// The tokens are malformed, have another audience, or are signed by a key that is not the cluster's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_tokens_cost_the_api_server_no_review() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let good = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let for_others = bed.token(("shop", "web"), Some("vault"), Some("web-0")).await;
    let (head, signature) = good.rsplit_once('.').unwrap();
    let (of_others, _) = for_others.rsplit_once('.').unwrap();
    let unsigned = "is not signed by the key of the cluster";
    let junk = [
        ("junk".to_owned(), ""),
        ("a.b.c".to_owned(), ""),
        (good.repeat(20), ""),
        (for_others.clone(), "not for \"leno\""),
        (format!("{of_others}.{signature}"), "not for \"leno\""),
        (format!("{head}.AAAA"), unsigned),
        (format!("{head}.BBBB"), unsigned),
        (format!("{head}.CCCC"), unsigned),
    ];
    // Each is sent twice. If a token were reviewed, the result would be cached, so a single attempt would prove
    // less.
    for (token, why) in junk.iter().chain(&junk) {
        let refused = proxy::issue(&bed, &replica, token).await.unwrap_err();
        assert!(refused.contains(why), "{token}: {refused}");
    }
    let reviews = async |result: &str| {
        let series = format!("leno_control_token_reviews_total{{result=\"{result}\"}}");
        replica.metric(&series).await as u64
    };
    assert_eq!((reviews("unsigned").await, reviews("refused").await), (6, 10));
    for reviewed in ["cached", "accepted", "failed"] {
        assert_eq!(reviews(reviewed).await, 0, "{reviewed}: the API server was asked about junk");
    }
    proxy::issue(&bed, &replica, &good).await.unwrap();
    assert_eq!(reviews("accepted").await, 1);
    replica.end();
}

/// A user who may create pods in a namespace can get a certificate of each of its service accounts, even of
/// accounts that have the same names as the control plane's. But proxies send no token to a program with such a
/// certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leno_system_look_alike_gets_no_tokens_of_proxies() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let replica = Replica::start("controller-0", &kubeconfig);
    let token = bed.token(("leno-system", "controller"), Some("leno"), None).await;
    let certificate = proxy::issue(&bed, &replica, &token).await.unwrap();
    let own = b"spiffe://cluster.local/ns/leno-system/sa/controller";
    let leaf = &certificate.chain_der[0];
    assert!(leaf.windows(own.len()).any(|part| part == own), "it is a certificate of the mesh");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let control = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = acceptor(&certificate);
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.map(drop)
    });
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    let refused = proxy::issue_at(&bed, control, &token).await.unwrap_err();
    assert!(refused.contains("cannot reach the control plane"), "{refused}");
    assert!(served.await.unwrap().is_err(), "the proxy ends the handshake, and sends no token");
    // The real control plane accepts the same token.
    proxy::issue(&bed, &replica, &token).await.unwrap();
    replica.end();
}

/// A TLS server that presents this certificate.
fn acceptor(certificate: &Certificate) -> TlsAcceptor {
    let chain = certificate.chain_der.iter().cloned().map(CertificateDer::from).collect();
    let key = PrivateKeyDer::Pkcs8(certificate.key_der.clone().into());
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
