//! A client with only TLS, HTTP/2 and the generated stubs, and no code of a proxy.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use leno_wire::proto::discovery_client::DiscoveryClient;
use leno_wire::proto::identity_client::IdentityClient;
use leno_wire::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, IssueCertificateRequest,
    IssueCertificateResponse, Node, Resource, Status,
};
use leno_wire::{ADDRESS_TYPE, MAX_MESSAGE, decode};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

/// The bound of every wait of a test. It is generous, because no test measures a duration.
const PATIENCE: Duration = Duration::from_secs(30);

/// A certificate with its key.
pub(crate) struct TestIdentity {
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) key: Vec<u8>,
}

/// A new key, and a certificate request for it.
pub(crate) fn request() -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).unwrap().der().to_vec();
    (key, csr)
}

/// Connects, with or without a certificate.
pub(crate) async fn connect(
    address: SocketAddr,
    shown: Option<&TestIdentity>,
) -> Result<Channel, tonic::transport::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(TestIdentity { chain, key }) => {
            let chain = chain.iter().cloned().map(CertificateDer::from).collect();
            let key = PrivateKeyDer::Pkcs8(key.clone().into());
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = Connector { address, tls: TlsConnector::from(Arc::new(config)) };
    Endpoint::from_static("https://leno-controller").connect_with_connector(connector).await
}

/// Requests a certificate. `shown` is the certificate that the client presents, if any.
pub(crate) async fn issue(
    address: SocketAddr,
    token: &str,
    shown: Option<&TestIdentity>,
) -> Result<(IssueCertificateResponse, TestIdentity), tonic::Status> {
    let channel = connect(address, shown).await.unwrap();
    let (key, csr) = request();
    let request = IssueCertificateRequest { csr: csr.into(), token: token.to_owned(), pod: None };
    let answer = IdentityClient::new(channel).issue_certificate(request).await?.into_inner();
    let chain = answer.chain.iter().map(|der| der.to_vec()).collect();
    Ok((answer, TestIdentity { chain, key: key.serialize_der() }))
}

/// A response with its resources decoded.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    pub(crate) resources: Vec<Resource>,
    pub(crate) removed_resources: Vec<String>,
}

/// A discovery stream.
pub(crate) struct Stream {
    node: Option<Node>,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Stream {
    /// Opens a stream whose first request will name `node`.
    pub(crate) async fn open(channel: Channel, node: &str) -> Result<Self, tonic::Status> {
        let (requests, outgoing) = mpsc::channel(16);
        let mut client = DiscoveryClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let outgoing = ReceiverStream::new(outgoing);
        let responses = client.delta_aggregated_resources(outgoing).await?.into_inner();
        Ok(Self { node: Some(Node::of(node)), requests, responses })
    }

    pub(crate) async fn send(&mut self, request: DeltaDiscoveryRequest) {
        let request = DeltaDiscoveryRequest { node: self.node.take(), ..request };
        self.requests.send(request).await.unwrap();
    }

    /// Sends a first request that names another node.
    pub(crate) async fn send_as(&mut self, node: Node) {
        self.node = Some(node);
        self.subscribe(&[]).await;
    }

    /// Subscribes to addresses and services.
    pub(crate) async fn subscribe(&mut self, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        })
        .await;
    }

    /// Ends the subscription to addresses.
    pub(crate) async fn unsubscribe(&mut self, names: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_unsubscribe: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        })
        .await;
    }

    /// Reports that a response was invalid.
    pub(crate) async fn nack(&mut self, response: &Response) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: Some(Status { code: 3, message: "no good".to_owned() }),
            ..Default::default()
        })
        .await;
    }

    /// Waits for the next response.
    pub(crate) async fn next(&mut self) -> Result<Response, tonic::Status> {
        let next = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        let response = next.expect("a response in time")?.expect("the stream goes on");
        let resources = response.resources.into_iter().map(|one| decode::resource(one).unwrap());
        Ok(Response {
            type_url: response.type_url,
            nonce: response.nonce,
            resources: resources.collect(),
            removed_resources: response.removed_resources,
        })
    }
}

/// Names of the resources of a response, sorted.
pub(crate) fn names(response: &Response) -> Vec<&str> {
    let mut names: Vec<_> = response.resources.iter().map(|r| r.name.as_str()).collect();
    names.sort_unstable();
    names
}

struct Connector {
    address: SocketAddr,
    tls: TlsConnector,
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TlsStream<TcpStream>>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Connecting {
        let (address, tls) = (self.address, self.tls.clone());
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("leno-controller").unwrap();
            Ok(TokioIo::new(tls.connect(name, stream).await?))
        })
    }
}

/// Accepts any server certificate, because these tests are about how the server treats clients.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        unreachable!("TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
