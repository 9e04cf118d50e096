//! A control plane on loopback, and the files that its proxies need.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::{CertificateSource, Client, Directory, Settings};
use leno_identity::{Authority, AuthorityDirectory, AuthorityState, TokenStore};
use leno_index::{Index, MeshSettings as IndexSettings};
use leno_resources::Problem;
use leno_serve::{LocalTokens, PlaneServer, PlaneState, ServerSettings as ServeSettings};
use leno_sources::{FilesSource, SourceUpdate, UPDATES};
use leno_types::{Identity, InstanceName, TrustDomain};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How many problems a test may leave unread.
const REFUSALS: usize = 16;

pub(crate) struct Plane {
    directory: TempDir,
    address: SocketAddr,
    lifetime: Duration,
    pub(crate) stream_age: Duration,
    tokens: Arc<TokenStore>,
    running: Option<Running>,
    refusals: mpsc::Receiver<Vec<Problem>>,
    refused: mpsc::Sender<Vec<Problem>>,
}

struct Running {
    authority: Arc<Authority>,
    state: Arc<PlaneState>,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
    updates: JoinHandle<()>,
}

impl Plane {
    pub(crate) async fn start(documents: &str) -> Self {
        Self::start_with(documents, Duration::from_hours(1)).await
    }

    pub(crate) async fn start_with(documents: &str, lifetime: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("mesh.yaml"), documents).unwrap();
        let tokens = Arc::new(TokenStore::open(&directory.path().join("tokens")).unwrap());
        let (refused, refusals) = mpsc::channel(REFUSALS);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut plane = Self {
            directory,
            address,
            lifetime,
            stream_age: leno_serve::STREAM_AGE,
            tokens,
            running: None,
            refusals,
            refused,
        };
        plane.restart().await;
        plane
    }

    /// Starts the control plane, or restarts it on the same address and with the same authority.
    pub(crate) async fn restart(&mut self) {
        let trust_domain = TrustDomain::default();
        let ca = self.directory.path().join("ca");
        let authority = Arc::new(Authority::open(&ca, None, &trust_domain).unwrap());
        let roots = self.directory.path().join("roots.pem");
        std::fs::write(roots, authority.trust().roots_pem()).unwrap();
        let state = PlaneState::new(Index::new(IndexSettings::default()));
        let source = FilesSource::open(&[self.directory.path().join("mesh.yaml")]).unwrap();
        let (sender, mut updates) = mpsc::channel(UPDATES);
        tokio::spawn(source.run(sender));
        match updates.recv().await {
            Some(SourceUpdate::Changes(changes)) => state.apply(changes),
            other => panic!("the first documents are not good: {other:?}"),
        }
        let authenticator = Arc::new(LocalTokens::new(Arc::clone(&self.tokens)));
        let signs = Arc::clone(&authority);
        let settings = ServeSettings { authority, authenticator, lifetime: self.lifetime };
        let server = PlaneServer::bind(self.address, settings, Arc::clone(&state)).await.unwrap();
        let server = server.with_stream_age(self.stream_age);
        self.address = server.address();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(async move { server.run(stopped).await.unwrap() });
        let (applied, refused) = (Arc::clone(&state), self.refused.clone());
        let updates = tokio::spawn(async move {
            while let Some(update) = updates.recv().await {
                match update {
                    SourceUpdate::Changes(changes) => applied.apply(changes),
                    SourceUpdate::Refused(problems) => refused.send(problems).await.unwrap(),
                    SourceUpdate::Early(_) | SourceUpdate::Misread(_) => {
                        unreachable!("a file is read as a whole")
                    }
                }
            }
        });
        self.running = Some(Running { authority: signs, state, stop, server, updates });
    }

    pub(crate) async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.updates.abort();
        running.stop.send_replace(true);
        running.server.await.unwrap();
    }

    /// Replaces the documents in one step, as an editor does.
    pub(crate) fn edit(&self, documents: &str) {
        let next = self.directory.path().join("mesh.yaml.next");
        std::fs::write(&next, documents).unwrap();
        std::fs::rename(next, self.directory.path().join("mesh.yaml")).unwrap();
    }

    /// The problems of the next refused edit.
    pub(crate) async fn refused(&mut self) -> Vec<Problem> {
        self.refusals.recv().await.unwrap()
    }

    /// Issues a token for an instance. Returns the file with the token.
    pub(crate) fn grant(&self, instance: &str) -> PathBuf {
        let name: InstanceName = instance.parse().unwrap();
        let account = name.name.trim_end_matches("-0");
        let identity = Identity::new(TrustDomain::default(), &name.namespace, account).unwrap();
        let token = self.tokens.grant(&name, &identity).unwrap();
        let file = format!("token-{}-{}", name.namespace, name.name);
        let path = self.directory.path().join(file);
        std::fs::write(&path, token + "\n").unwrap();
        path
    }

    /// Makes the token of an instance invalid.
    pub(crate) fn revoke(&self, instance: &str) {
        self.tokens.revoke(&instance.parse().unwrap()).unwrap();
    }

    /// Removes the authority's key, so that the next start makes another one.
    pub(crate) fn lose_authority(&self) {
        std::fs::remove_dir_all(self.directory.path().join("ca")).unwrap();
    }

    /// The settings of a proxy for this instance.
    pub(crate) fn settings(&self, instance: &str) -> Settings {
        Settings {
            control: format!("https://{}", self.address),
            roots: self.directory.path().join("roots.pem"),
            certificates: CertificateSource::Token(self.grant(instance)),
            instance: instance.parse().unwrap(),
            pod_uid: None,
            trust_domain: TrustDomain::default(),
        }
    }

    pub(crate) fn client(&self, instance: &str) -> (Client, Directory) {
        Client::new(self.settings(instance))
    }

    /// A running proxy, which the test must abort at its end.
    pub(crate) fn proxy(&self, instance: &str) -> (JoinHandle<Infallible>, Directory) {
        let (client, directory) = self.client(instance);
        (tokio::spawn(client.run()), directory)
    }

    pub(crate) fn state(&self) -> &PlaneState {
        &self.running.as_ref().unwrap().state
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.running.as_ref().unwrap().authority
    }

    /// Stores a state of the authority, which the control plane then uses.
    pub(crate) fn apply(&self, state: &AuthorityState) {
        let ca = self.directory.path().join("ca");
        AuthorityDirectory::new(&ca).save(state).unwrap();
        self.authority().apply(&ca, state.clone()).unwrap();
        self.state().publish_trust(self.authority());
    }

    /// The value of one of the control plane's metrics.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        self.running.as_ref().unwrap().state.render_metrics(&mut text);
        let prefix = format!("{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }
}

/// Polls until `holds` returns true. Fails the test after 30 s.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), poll).await;
    assert!(waited.is_ok(), "{what}");
}

/// Documents of a mesh with the strict service `shop/web`, and with `data/db`, which has one endpoint for each of these
/// addresses.
pub(crate) fn mesh(databases: &[&str]) -> String {
    let instance = |(number, address): (usize, &&str)| {
        format!("  - {{name: db-{number}, addresses: [{address}], meshed: true, ready: true}}\n")
    };
    let endpoint = |(number, address): (usize, &&str)| {
        format!(
            "- addresses: [{address}]\n  conditions: {{ready: true}}\n  \
             targetRef: {{kind: Workload, name: db-{number}, namespace: data}}\n"
        )
    };
    let instances: String = databases.iter().enumerate().map(instance).collect();
    let endpoints: String = databases.iter().enumerate().map(endpoint).collect();
    format!(
        "\
apiVersion: v1
kind: Namespace
metadata: {{name: shop, annotations: {{leno.dev/mtls: strict}}}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: web, namespace: shop}}
spec: {{serviceAccount: web, replicas: 1, command: [web], ports: [{{port: 8080}}]}}
status: {{instances: [{{name: web-0, addresses: [10.89.0.2], meshed: true, ready: true}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.96.0.6, ports: [{{port: 80}}]}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: db, namespace: data}}
spec: {{serviceAccount: db, command: [db], ports: [{{port: 5432, appProtocol: postgresql}}]}}
status:
  instances:
{instances}---
apiVersion: v1
kind: Service
metadata: {{name: db, namespace: data}}
spec: {{clusterIP: 10.96.0.5, ports: [{{port: 80, targetPort: 5432}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: db-1, namespace: data, labels: {{kubernetes.io/service-name: db}}}}
addressType: IPv4
ports: [{{port: 5432}}]
endpoints:
{endpoints}"
    )
}
