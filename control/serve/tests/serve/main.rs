//! Tests identity and discovery over loopback with a raw client.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod client;
mod discovery;
mod identity;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_identity::{Authority, TokenStore};
use leno_index::{Index, MeshSettings as IndexSettings, ObjectChange};
use leno_resources::{Kind, ObjectKey};
use leno_serve::{LocalTokens, PlaneServer, PlaneState, ServerSettings};
use leno_types::{Identity, InstanceName, TrustDomain};
use tempfile::TempDir;
use tokio::sync::watch;

use client::{Stream, TestIdentity};

/// A control plane on a port of its own. Dropping this ends it.
struct Plane {
    address: SocketAddr,
    state: Arc<PlaneState>,
    tokens: Arc<TokenStore>,
    authority: Arc<Authority>,
    _stop: watch::Sender<bool>,
    directory: TempDir,
}

impl Plane {
    /// Starts a control plane that serves `documents`.
    async fn start(documents: &str) -> Self {
        Self::start_with(documents, Duration::from_hours(1)).await
    }

    async fn start_with(documents: &str, lifetime: Duration) -> Self {
        let authority = Authority::ephemeral(&TrustDomain::default()).unwrap();
        Self::start_as(Arc::new(authority), documents, lifetime).await
    }

    async fn start_as(authority: Arc<Authority>, documents: &str, lifetime: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, authority, documents, lifetime).await
    }

    /// Starts another control plane on the same files. All other state of the first one is lost.
    async fn restart(self, documents: &str) -> Self {
        let Self { directory, authority, .. } = self;
        Self::start_in(directory, authority, documents, Duration::from_hours(1)).await
    }

    async fn start_in(
        directory: TempDir,
        authority: Arc<Authority>,
        documents: &str,
        lifetime: Duration,
    ) -> Self {
        let tokens = Arc::new(TokenStore::open(&directory.path().join("tokens")).unwrap());
        let state = PlaneState::new(Index::new(IndexSettings::default()));
        state.apply(upserts(documents));
        let shared = Arc::clone(&authority);
        let authenticator = Arc::new(LocalTokens::new(Arc::clone(&tokens)));
        let settings = ServerSettings { authority: shared, authenticator, lifetime };
        let address = "127.0.0.1:0".parse().unwrap();
        let server = PlaneServer::bind(address, settings, Arc::clone(&state)).await.unwrap();
        let address = server.address();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(server.run(stopped));
        Self { address, state, tokens, authority, _stop: stop, directory }
    }

    fn apply(&self, documents: &str) {
        self.state.apply(upserts(documents));
    }

    fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.state.apply(vec![ObjectChange::Delete(ObjectKey { kind, namespace, name })]);
    }

    fn grant(&self, instance: &str, account: &str) -> String {
        let instance: InstanceName = instance.parse().unwrap();
        let identity = Identity::new(TrustDomain::default(), &instance.namespace, account).unwrap();
        self.tokens.grant(&instance, &identity).unwrap()
    }

    /// The certificate of an instance, with the service account `web`.
    async fn certificate(&self, instance: &str) -> TestIdentity {
        let token = self.grant(instance, "web");
        client::issue(self.address, &token, None).await.unwrap().1
    }

    /// Opens a stream for an instance, with its own certificate.
    async fn stream(&self, instance: &str) -> Stream {
        let shown = self.certificate(instance).await;
        let channel = client::connect(self.address, Some(&shown)).await.unwrap();
        Stream::open(channel, instance).await.unwrap()
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        self.state.render_metrics(&mut text);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap().parse().unwrap()
    }
}

fn upserts(documents: &str) -> Vec<ObjectChange> {
    let parsed = leno_resources::parse("test.yaml", documents).unwrap();
    parsed.objects.into_iter().map(|located| ObjectChange::Upsert(located.value)).collect()
}

/// A service with a VIP and one port.
fn service(namespace: &str, name: &str, vip: &str, port: u16) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{clusterIP: \"{vip}\", ports: [{{name: http, port: {port}, appProtocol: http}}]}}\n"
    )
}

/// A workload with one instance, `<name>-0`.
fn workload(namespace: &str, name: &str, address: &str, mtls: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: {namespace}, annotations: {{leno.dev/mtls: {mtls}}}}}\n\
         spec: {{serviceAccount: web, command: [sleep], ports: [{{port: 8080, appProtocol: http}}]}}\n\
         status: {{instances: [{{name: {name}-0, addresses: [{address}], meshed: true, ready: true}}]}}\n"
    )
}
