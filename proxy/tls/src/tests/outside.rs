//! Tests TLS with servers outside of the mesh: which certificates the proxy accepts, and on which protocol both agree.

use std::sync::Arc;

use leno_types::mesh::{Origination, Roots, SubjectName};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::*;

/// The certificate and the settings of a server.
struct Server {
    /// The DNS names in the server's certificate.
    names: Vec<&'static str>,
    uri: Option<&'static str>,
    /// The first and the last year in which the certificate is valid.
    years: (i32, i32),
    alpn: Vec<&'static str>,
    version: &'static rustls::SupportedProtocolVersion,
}

impl Default for Server {
    fn default() -> Self {
        let years = (2020, 4000);
        Self { names: vec!["api.example.com"], uri: None, years, alpn: Vec::new(), version: &TLS13 }
    }
}

/// The root of the server's authority, and the server's configuration.
fn made(of: &Server) -> (Vec<u8>, Arc<ServerConfig>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().der().to_vec();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    let dns = |name: &&str| SanType::DnsName((*name).try_into().unwrap());
    params.subject_alt_names = of.names.iter().map(dns).collect();
    params.subject_alt_names.extend(of.uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
    params.not_before = date_time_ymd(of.years.0, 1, 1);
    params.not_after = date_time_ymd(of.years.1, 1, 1);
    let leaf = params.signed_by(&key, &issuer).unwrap().der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[of.version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key.into())
        .unwrap();
    config.alpn_protocols = of.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    (root, Arc::new(config))
}

fn policy(roots: Roots, hostname: &str, names: &[SubjectName]) -> Origination {
    let source = "BackendTLSPolicy shop/pay".into();
    Origination { source, hostname: hostname.into(), roots, names: names.into() }
}

/// Connects and exchanges a few bytes. Returns the name that the server received, the protocol on which both agreed,
/// and the reply; or why it failed.
async fn asks(
    config: Arc<ServerConfig>,
    how: &Origination,
    offered: &[Alpn],
) -> Result<(String, Alpn, String), &'static str> {
    let originator = Originator::new(how).map_err(|_| "unusable")?;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let serves = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut tls = TlsAcceptor::from(config).accept(tcp).await.ok()?;
        let name = tls.get_ref().1.server_name().unwrap_or_default().to_owned();
        let mut asked = [0; 3];
        tls.read_exact(&mut asked).await.unwrap();
        tls.write_all(&asked).await.unwrap();
        tls.shutdown().await.unwrap();
        Some(name)
    };
    let calls = async {
        let mut stream = originator.connect(tcp, offered).await?;
        stream.write_all(b"hey").await.unwrap();
        stream.flush().await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        Ok::<_, HandshakeError>((stream.alpn(), heard))
    };
    let (name, called) = tokio::join!(serves, calls);
    let (alpn, heard) = called.map_err(|error| error.outside_cause())?;
    Ok((name.unwrap(), alpn, heard))
}

async fn outcome(server: &Server, how: impl Fn(Roots) -> Origination) -> String {
    let (root, config) = made(server);
    match asks(config, &how(Roots::Given([root].into())), &[Alpn::Http1]).await {
        Ok((name, _, heard)) => format!("{name} {heard}"),
        Err(cause) => cause.to_owned(),
    }
}

#[tokio::test]
async fn a_server_is_asked_for_by_name_and_checked_by_authority_name_and_time() {
    let host = |text: &str| SubjectName::Host(text.into());
    let plain = |roots| policy(roots, "api.example.com", &[]);
    assert_eq!(outcome(&Server::default(), plain).await, "api.example.com hey");
    let other = Server { names: vec!["www.example.com"], ..Server::default() };
    assert_eq!(outcome(&other, plain).await, "external-wrong-name");
    let wild = Server { names: vec!["*.example.com"], ..Server::default() };
    assert_eq!(outcome(&wild, plain).await, "api.example.com hey");
    // The names in the policy are checked, and the host name is not.
    let named =
        |roots| policy(roots, "api.example.com", &[host("x.test"), host("www.example.com")]);
    assert_eq!(outcome(&other, named).await, "api.example.com hey");
    assert_eq!(outcome(&Server::default(), named).await, "external-wrong-name");
    let uri = Server { uri: Some("spiffe://a/b"), ..Server::default() };
    let by_uri = |text: &'static str| {
        move |roots| policy(roots, "api.example.com", &[SubjectName::Uri(text.into())])
    };
    assert_eq!(outcome(&uri, by_uri("spiffe://a/b")).await, "api.example.com hey");
    assert_eq!(outcome(&uri, by_uri("spiffe://a/c")).await, "external-wrong-name");
    let old = Server { years: (2019, 2020), ..Server::default() };
    assert_eq!(outcome(&old, plain).await, "external-expired");
    let stranger =
        |_| policy(Roots::Given([made(&Server::default()).0].into()), "api.example.com", &[]);
    assert_eq!(outcome(&Server::default(), stranger).await, "external-unknown-authority");
    let missing = |_| policy(Roots::Missing("there is none".into()), "api.example.com", &[]);
    assert_eq!(outcome(&Server::default(), missing).await, "unusable");
    let unreadable = |_| policy(Roots::Given([vec![1, 2, 3]].into()), "api.example.com", &[]);
    assert_eq!(outcome(&Server::default(), unreadable).await, "unusable");
}

#[tokio::test]
async fn system_roots_do_not_verify_a_private_authority() {
    let (_, config) = made(&Server::default());
    let how = policy(Roots::System, "api.example.com", &[]);
    let said = asks(config, &how, &[Alpn::Http1]).await;
    assert_eq!(said.err(), Some("external-unknown-authority"));
}

#[tokio::test]
async fn http2_is_used_only_if_the_server_selects_it() {
    let cases: [(Vec<&'static str>, &[Alpn], Alpn); 5] = [
        (vec!["h2", "http/1.1"], Alpn::HTTP, Alpn::Http2),
        (vec!["http/1.1"], Alpn::HTTP, Alpn::Http1),
        (vec![], Alpn::HTTP, Alpn::Http1),
        (vec!["h2", "http/1.1"], &[Alpn::Http1], Alpn::Http1),
        (vec![], &[Alpn::Opaque], Alpn::Opaque),
    ];
    for version in [&TLS13, &TLS12] {
        for (alpn, offered, expected) in &cases {
            let (root, config) = made(&Server { alpn: alpn.clone(), version, ..Server::default() });
            let how = policy(Roots::Given([root].into()), "api.example.com", &[]);
            let (_, agreed, heard) = asks(config, &how, offered).await.unwrap();
            assert_eq!((agreed, heard.as_str()), (*expected, "hey"), "{alpn:?} {offered:?}");
        }
    }
}
