//! The code by which a proxy uses identity and discovery, without the other parts of a proxy.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use leno_discovery::{
    Certificate, CertificateSource, Client, Directory, IdentityClient, Settings, Status,
};
use leno_testkit_api::{LIMIT, TestApiServer, until};
use leno_types::mesh::{Resolution, Roots};
use leno_types::{ServiceName, TrustDomain};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::replica::Replica;

/// A client that follows the control plane as a proxy does. Dropping this ends it.
pub(crate) struct Proxy {
    directory: Directory,
    certificates: watch::Receiver<Option<Arc<Certificate>>>,
    running: JoinHandle<()>,
}

impl Proxy {
    /// Starts the proxy of an instance with a token.
    pub(crate) async fn start(
        bed: &TestApiServer,
        replica: &Replica,
        instance: &str,
        token: &str,
    ) -> Self {
        Self::start_at(bed, control(replica).await, instance, token).await
    }

    /// Starts a proxy that connects to the control plane at this URL.
    pub(crate) async fn start_at(
        bed: &TestApiServer,
        control: String,
        instance: &str,
        token: &str,
    ) -> Self {
        Self::with(settings(bed, control, instance, token).await)
    }

    /// Starts a proxy with these settings.
    pub(crate) fn with(settings: Settings) -> Self {
        let (client, directory) = Client::new(settings);
        let certificates = client.certificates();
        let (acknowledged, mut used) = (directory.clone(), certificates.clone());
        let running = tokio::spawn(async move {
            let uses = async {
                while used.changed().await.is_ok() {
                    let latest = used.borrow_and_update().clone();
                    if let Some(latest) = latest {
                        acknowledged.uses(&latest);
                    }
                }
            };
            tokio::select! { never = client.run() => match never {}, () = uses => {} }
        });
        Self { directory, certificates, running }
    }

    /// Waits until a service of the shop has exactly these endpoints, each an address and an identity.
    pub(crate) async fn sees(&self, service: &str, endpoints: &[&str]) {
        self.sees_that(service, &format!("{endpoints:?}"), |now| {
            endpoints_of(now).is_some_and(|seen| seen == endpoints)
        })
        .await;
    }

    /// Waits until a service of the shop has authorities for TLS origination that satisfy `like`.
    pub(crate) async fn sees_roots(&self, service: &str, like: impl Fn(&Roots) -> bool) {
        self.sees_that(service, "roots", |now| roots_of(now).is_some_and(&like)).await;
    }

    /// Waits until the proxy has received the policy that it must enforce as the waypoint of a service of the
    /// shop.
    pub(crate) async fn is_waypoint_of(&self, service: &str) {
        let enforces =
            |now: &Resolution| matches!(now, Resolution::Service(of) if of.waypoint.is_some());
        self.sees_that(service, "what a waypoint enforces", enforces).await;
    }

    async fn sees_that(&self, service: &str, what: &str, is: impl Fn(&Resolution) -> bool) {
        let name = ServiceName::new("shop", service).unwrap();
        let mut watch = self.directory.watch_service(&name);
        let seen = watch.wait_for(is);
        let seen = tokio::time::timeout(LIMIT, seen).await.map(|seen| seen.unwrap().clone());
        assert!(seen.is_ok(), "{what} was awaited, and {:?} seen", *watch.borrow());
    }

    /// Subscribes to an address, as a proxy does when its application connects to it.
    pub(crate) fn dial(&self, ip: IpAddr) -> watch::Receiver<Resolution> {
        self.directory.watch(ip)
    }

    /// Waits until the proxy has the policy of its workload.
    pub(crate) async fn has_policy(&self) {
        let mut policy = self.directory.server_policy();
        let known = policy.wait_for(Option::is_some);
        tokio::time::timeout(LIMIT, known).await.expect("in time").unwrap();
    }

    /// Whether the proxy has received the policy of its workload.
    pub(crate) fn knows_its_policy(&self) -> bool {
        self.directory.server_policy().borrow().is_some()
    }

    /// The certificate that was issued to the proxy.
    pub(crate) async fn certificate(&self) -> Vec<u8> {
        let mut certificates = self.certificates.clone();
        let issued = certificates.wait_for(Option::is_some);
        let issued = tokio::time::timeout(LIMIT, issued).await.expect("in time").unwrap().clone();
        issued.unwrap().chain_der[0].clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.status().connected
    }

    /// The state of the proxy's discovery stream.
    pub(crate) fn status(&self) -> Status {
        self.directory.status()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Requests a certificate once. Returns the error message if none is issued.
pub(crate) async fn issue(
    bed: &TestApiServer,
    replica: &Replica,
    token: &str,
) -> Result<Certificate, String> {
    issue_at(bed, control(replica).await, token).await
}

/// As [`issue`], from the control plane at this URL.
pub(crate) async fn issue_at(
    bed: &TestApiServer,
    control: String,
    token: &str,
) -> Result<Certificate, String> {
    let settings = settings(bed, control, "shop/web-0", token).await;
    IdentityClient::new(Arc::new(settings)).issue().await.map_err(|error| error.to_string())
}

async fn control(replica: &Replica) -> String {
    format!("https://{}", replica.address().await)
}

/// The settings with which the proxy of an instance connects to a replica, with this token.
pub(crate) async fn settings_of(
    bed: &TestApiServer,
    replica: &Replica,
    instance: &str,
    token: &str,
) -> Settings {
    settings(bed, control(replica).await, instance, token).await
}

async fn settings(bed: &TestApiServer, control: String, instance: &str, token: &str) -> Settings {
    let file = |name: String, content: &str| -> PathBuf {
        let path = bed.directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    Settings {
        control: control.clone(),
        roots: file("roots.pem".to_owned(), &roots(bed).await),
        certificates: CertificateSource::Token(file(
            format!("token-{}-{}", control.rsplit(':').next().unwrap(), instance.replace('/', ".")),
            token,
        )),
        instance: instance.parse().unwrap(),
        pod_uid: None,
        trust_domain: TrustDomain::default(),
    }
}

/// The Secret in which the replicas keep their authority.
pub(crate) fn authority() -> Value {
    let metadata = json!({"name": "leno-ca", "namespace": "leno-system"});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
}

/// The mesh's roots, which all replicas have.
pub(crate) async fn roots(bed: &TestApiServer) -> String {
    until("the authority's Secret", async || {
        let secret = bed.get(authority()).await?;
        let encoded = secret.data["data"]["ca.pem"].as_str()?.to_owned();
        let decoded = data_encoding::BASE64.decode(encoded.as_bytes()).unwrap();
        Some(String::from_utf8(decoded).unwrap())
    })
    .await
}

fn endpoints_of(now: &Resolution) -> Option<Vec<String>> {
    let Resolution::Service(service) = now else { return None };
    let [port] = &service.ports[..] else { return None };
    let endpoint = |one: &leno_types::mesh::Endpoint| {
        let identity = one.identity.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("{}:{} {identity}", one.addresses[0], one.port)
    };
    Some(port.endpoints.iter().map(endpoint).collect())
}

fn roots_of(now: &Resolution) -> Option<&Roots> {
    let Resolution::Service(service) = now else { return None };
    let [port] = &service.ports[..] else { return None };
    Some(&port.external.as_ref()?.tls.as_ref()?.roots)
}
