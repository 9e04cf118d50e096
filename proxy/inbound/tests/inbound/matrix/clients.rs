//! The clients of the tests, by the identity that they prove, and the expected outcome for each.

use std::fmt;
use std::sync::Arc;

use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper_util::rt::TokioIo;
use leno_tls::{Alpn, Credentials, Keyring};
use leno_types::{Identity, Protocol, Revocations};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType, date_time_ymd};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio_rustls::TlsConnector;

use super::server::Workload;
use crate::support::AnyServer;

pub(crate) const PING: &[u8; 5] = b"ping\n";
pub(crate) const PONG: &[u8; 5] = b"pong\n";

const ORDERS: &str = "spiffe://cluster.local/ns/shop/sa/orders";
const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
/// The same namespace and name as in the policies, but in a federated trust domain.
const FAR: &str = "spiffe://far.example/ns/shop/sa/web";
/// An identity whose certificates are revoked.
const STOLEN: &str = "spiffe://cluster.local/ns/shop/sa/stolen";

/// The identity that a client proves, and by whose authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Plaintext,
    NoCertificate,
    OtherAuthority,
    OtherTrustDomain,
    /// A federated trust domain, proven by that domain's own authority.
    Federated,
    /// The mesh's own trust domain, but signed by the authority of the federated one.
    OwnNameOfFederated,
    Expired,
    NotYetValid,
    Revoked,
    OtherNamespace,
    Right,
}

impl Client {
    pub(crate) const ALL: [Self; 11] = [
        Self::Plaintext,
        Self::NoCertificate,
        Self::OtherAuthority,
        Self::OtherTrustDomain,
        Self::Federated,
        Self::OwnNameOfFederated,
        Self::Expired,
        Self::NotYetValid,
        Self::Revoked,
        Self::OtherNamespace,
        Self::Right,
    ];
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plaintext => "plaintext",
            Self::NoCertificate => "TLS without certificate",
            Self::OtherAuthority => "of another authority",
            Self::OtherTrustDomain => "other trust domain",
            Self::Federated => "federated",
            Self::OwnNameOfFederated => "of a federated authority",
            Self::Expired => "expired",
            Self::NotYetValid => "not yet valid",
            Self::Revoked => "revoked",
            Self::OtherNamespace => "other namespace",
            Self::Right => "right",
        })
    }
}

/// A connection with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The authority of the mesh, that of a trust domain that the mesh does not accept, and that of a federated trust
/// domain.
pub(crate) struct Clients {
    authority: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    other: Issuer<'static, KeyPair>,
    federated: Issuer<'static, KeyPair>,
    federated_root: CertificateDer<'static>,
}

impl Clients {
    pub(crate) fn new() -> Self {
        // The authorities have the same name, because a name proves nothing.
        let ((authority, root), (other, _)) = (self::authority(), self::authority());
        let (federated, federated_root) = self::authority();
        Self { authority, root, other, federated, federated_root }
    }

    /// The server's certificate, and the roots with which it verifies clients.
    pub(crate) fn of_server(&self) -> Keyring {
        let (chain, key) = certificate(ORDERS, &self.authority, None);
        let keyring = Keyring::new();
        let credentials = Credentials::from_der(chain, key, vec![self.root.clone()]).unwrap();
        let until_now = UnixTime::now().as_secs().try_into().unwrap();
        let revoked = Revocations::new([(STOLEN.parse().unwrap(), until_now)]);
        let far: Identity = FAR.parse().unwrap();
        let federated = [(far.trust_domain().clone(), vec![self.federated_root.clone()])];
        let credentials = credentials.with_revoked(revoked).with_federated(federated.into());
        keyring.rotate(credentials).unwrap();
        keyring
    }

    fn config(&self, client: Client, alpn: Alpn) -> ClientConfig {
        let is_of = |id: &str, issuer| Some(certificate(id, issuer, None));
        let of_years = |from, until| Some(certificate(WEB, &self.authority, Some((from, until))));
        let proves = match client {
            Client::Plaintext | Client::NoCertificate => None,
            Client::OtherAuthority => is_of(WEB, &self.other),
            Client::OtherTrustDomain => is_of("spiffe://other/ns/shop/sa/web", &self.authority),
            Client::Federated => is_of(FAR, &self.federated),
            Client::OwnNameOfFederated => is_of(WEB, &self.federated),
            Client::Expired => of_years(2020, 2021),
            Client::NotYetValid => of_years(2100, 2101),
            Client::Revoked => is_of(STOLEN, &self.authority),
            Client::OtherNamespace => {
                is_of("spiffe://cluster.local/ns/bank/sa/web", &self.authority)
            }
            Client::Right => is_of(WEB, &self.authority),
        };
        let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer));
        let mut config = match proves {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        config
    }

    /// The outcome for a client that sends a request, or bytes.
    pub(crate) async fn try_as(
        &self,
        client: Client,
        workload: &Workload,
        protocol: Protocol,
        token: Option<&str>,
    ) -> String {
        let (reached, audited) = (workload.reached(), workload.audited());
        let answer = self.answer(client, workload, protocol, token).await;
        let is_reached = workload.reached() > reached;
        let outcome = match &answer {
            Some((200, _)) if workload.audited() > audited => "audited".to_owned(),
            Some((200, _)) => "served".to_owned(),
            Some((status, reason)) => format!("{status} {reason}").trim_end().to_owned(),
            None if is_reached => "passed on".to_owned(),
            None if client == Client::Plaintext => "reset".to_owned(),
            None => "no TLS".to_owned(),
        };
        let is_served = matches!(answer, Some((200, _)));
        assert!(is_served == is_reached || outcome == "passed on", "{client}: {outcome}");
        outcome
    }

    /// The status of the response and the reason in `leno-error`; 200 if bytes are answered; `None` if nothing is
    /// received.
    async fn answer(
        &self,
        client: Client,
        workload: &Workload,
        protocol: Protocol,
        token: Option<&str>,
    ) -> Option<(u16, String)> {
        let alpn = match protocol {
            Protocol::Http1 => Alpn::Http1,
            Protocol::Http2 => Alpn::Http2,
            _ => Alpn::Opaque,
        };
        let tcp = TcpStream::connect(workload.proxy).await.unwrap();
        let mut stream: Box<dyn Stream> = match client {
            Client::Plaintext => Box::new(tcp),
            _ => {
                let connector = TlsConnector::from(Arc::new(self.config(client, alpn)));
                let name = ServerName::try_from("orders").unwrap();
                Box::new(connector.connect(name, tcp).await.ok()?)
            }
        };
        if alpn != Alpn::Opaque {
            return request(stream, protocol, token).await;
        }
        stream.write_all(PING).await.ok()?;
        stream.flush().await.ok()?;
        let mut heard = [0; PONG.len()];
        stream.read_exact(&mut heard).await.ok()?;
        (heard == *PONG).then_some((200, String::new()))
    }
}

/// Runs hyper's tasks on the test's thread.
#[derive(Clone, Copy)]
pub(crate) struct Tasks;

impl<F: Future + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        spawn_local(async move { drop(task.await) });
    }
}

async fn request(
    stream: Box<dyn Stream>,
    protocol: Protocol,
    token: Option<&str>,
) -> Option<(u16, String)> {
    let is_http2 = protocol == Protocol::Http2;
    let mut request = Request::get(if is_http2 { "http://orders/items" } else { "/items" });
    if !is_http2 {
        request = request.header(HOST, "orders");
    }
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(String::new()).unwrap();
    let response = if is_http2 {
        let (mut sender, driver) = http2::handshake(Tasks, TokioIo::new(stream)).await.ok()?;
        spawn_local(driver);
        sender.send_request(request).await.ok()?
    } else {
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        spawn_local(driver);
        sender.send_request(request).await.ok()?
    };
    Some((response.status().as_u16(), reason(response.headers())))
}

/// The reason in the header, such as `token-expired` in `authorization-denied; reason=token-expired`.
fn reason(headers: &HeaderMap) -> String {
    let error = headers.get("leno-error").map(|error| error.to_str().unwrap());
    let parts = error.into_iter().flat_map(|error| error.split("; "));
    parts.filter_map(|part| part.strip_prefix("reason=")).map(str::to_owned).collect()
}

fn authority() -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = root.self_signed(&key).unwrap().der().clone();
    (Issuer::new(root, key), certificate)
}

/// A certificate of this identity. `years` says that the certificate is valid from the beginning of the first year to
/// the beginning of the second.
fn certificate(
    id: &str,
    issuer: &Issuer<'static, KeyPair>,
    years: Option<(i32, i32)>,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    if let Some((from, until)) = years {
        leaf.not_before = date_time_ymd(from, 1, 1);
        leaf.not_after = date_time_ymd(until, 1, 1);
    }
    let chain = vec![leaf.signed_by(&key, issuer).unwrap().der().clone()];
    (chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into())
}
