//! Helpers that several tests use: an authority, a service with one port, an outbound side whose only destination is
//! that service, and a client.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use leno_discovery::Directory;
use leno_http::Limits;
use leno_names::{Names, Resolvers};
use leno_outbound::{Fixed, Outbound, Parts};
use leno_telemetry::Registry;
use leno_tls::{Connector, Credentials, Keyring};
use leno_types::mesh::{Distribution, Endpoint, Resolution, Service, ServicePort};
use leno_types::{InstanceName, Protocol, ServiceName};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};

pub(crate) const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
pub(crate) const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

pub(crate) type Certified = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) root: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), root }
    }

    pub(crate) fn certify(&self, uri: &str) -> Certified {
        self.certified(uri, CertificateParams::default())
    }

    pub(crate) fn certified(&self, uri: &str, mut params: CertificateParams) -> Certified {
        let key = KeyPair::generate().unwrap();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        (vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    }

    pub(crate) fn keyring(&self, uri: &str) -> Keyring {
        let (chain, key) = self.certify(uri);
        let keyring = Keyring::new();
        let roots = vec![self.root.clone()];
        keyring.rotate(Credentials::from_der(chain, key, roots).unwrap()).unwrap();
        keyring
    }
}

pub(crate) fn service(
    name: &str,
    port: u16,
    protocol: Protocol,
    endpoints: Vec<Endpoint>,
) -> Service {
    Service {
        name: ServiceName::new("shop", name).unwrap(),
        vips: Vec::new(),
        distribution: Distribution::Any,
        waypoint: None,
        ports: vec![ServicePort {
            port,
            name: "".into(),
            protocol,
            endpoints: endpoints.into(),
            external: None,
        }],
        routes: [].into(),
        traffic: [].into(),
    }
}

pub(crate) fn outbound(
    tls: Connector,
    registry: &Rc<Registry>,
    resolution: watch::Receiver<Resolution>,
    port: u16,
) -> Outbound {
    Outbound::new(Parts {
        workload: InstanceName::new("shop", "web-0").unwrap(),
        directory: Directory::fixed(|_| Resolution::Unknown),
        tls,
        registry: Rc::clone(registry),
        activity: Rc::default(),
        limits: Limits::default(),
        names: Names::new(Resolvers::new(Vec::new())),
        fixed: Some(Fixed { resolution, port }),
    })
}

/// A client, and the task that serves its connection.
pub(crate) async fn serve(outbound: &Rc<Outbound>) -> (TcpStream, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let outbound = Rc::clone(outbound);
    let served = spawn_local(async move { outbound.serve(accepted, address).await });
    (client, served)
}
