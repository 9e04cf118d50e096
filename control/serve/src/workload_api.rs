//! The SPIFFE Workload API, through which applications of `leno up` get their own certificates.
//!
//! ```text
//!  application ── Unix socket ──► CgroupAttestor: which instance ──► PlaneState: its identity
//!      ▲                                                                │
//!      └──── certificate, key, bundle ◄── Authority ◄───────────────────┘
//!      └──── again at 70 % of its life, and when the authority or the identity changes
//! ```
//!
//! A stream ends when its client disconnects, or when its instance no longer has an identity.

mod attest;
mod connections;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, CertificateWithKey};
use leno_spiffe::server::{self, AnswerSource, AnswerStream, MAX_CALLS, OUTSTANDING, WINDOW};
use leno_types::{Identity, InstanceName};
use leno_wire::spiffe::spiffe_workload_api_server::SpiffeWorkloadApiServer;
use leno_wire::spiffe::{X509BundlesResponse, X509svid, X509svidResponse};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Status};

use crate::server::{ServeError, ServerSettings};
use crate::state::PlaneState;

pub use attest::CgroupAttestor;
use connections::CallingInstance;

/// When certificates are renewed, in percent of their lifetime.
const RENEW_AT: u32 = 70;

/// A server of the Workload API that listens. [`WorkloadApi::run`] serves.
#[derive(Debug)]
pub struct WorkloadApi {
    listener: UnixListener,
    path: PathBuf,
    attestor: CgroupAttestor,
    issuer: WorkloadIssuer,
}

/// The parts that are needed to issue certificates.
#[derive(Clone, Debug)]
struct WorkloadIssuer {
    authority: Arc<Authority>,
    lifetime: Duration,
    state: Arc<PlaneState>,
}

impl WorkloadApi {
    /// Listens on a Unix socket, and replaces the socket of an earlier process. All users may connect.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn bind(
        path: &Path,
        attestor: CgroupAttestor,
        (settings, state): (&ServerSettings, &Arc<PlaneState>),
    ) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        let issuer = WorkloadIssuer {
            authority: Arc::clone(&settings.authority),
            lifetime: settings.lifetime,
            state: Arc::clone(state),
        };
        Ok(Self { listener, path: path.to_owned(), attestor, issuer })
    }

    /// Serves until `stop` is true or its sender is dropped.
    ///
    /// # Errors
    /// [`ServeError::Ended`]; a client cannot cause it.
    pub async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), ServeError> {
        let Self { listener, path, attestor, issuer } = self;
        tracing::info!(path = %path.display(), "serving the SPIFFE Workload API");
        let metrics = Arc::clone(&issuer.state.metrics);
        let connections = connections::accept(listener, attestor, metrics);
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .serve_with_incoming(
                SpiffeWorkloadApiServer::new(server::WorkloadApi(issuer)),
                ReceiverStream::new(connections),
            );
        tokio::select! {
            ended = server => ended.map_err(ServeError::Ended),
            // If the sender was dropped, the process is ending.
            _ = stop.wait_for(|stop| *stop) => Ok(()),
        }
    }
}

impl AnswerSource for WorkloadIssuer {
    fn svids(&self, of: &Extensions) -> Result<AnswerStream<X509svidResponse>, Status> {
        let instance = caller(of)?;
        let (responses, answers) = mpsc::channel(OUTSTANDING);
        let issue = |issuer: Self, identity| async move { issuer.svid(identity).await };
        tokio::spawn(self.clone().follow(instance, responses, issue));
        Ok(ReceiverStream::new(answers))
    }

    fn bundles(&self, of: &Extensions) -> Result<AnswerStream<X509BundlesResponse>, Status> {
        let instance = caller(of)?;
        let (responses, answers) = mpsc::channel(OUTSTANDING);
        let bundles = |issuer: Self, _| async move { Ok((issuer.own_bundle(), None)) };
        tokio::spawn(self.clone().follow(instance, responses, bundles));
        Ok(ReceiverStream::new(answers))
    }
}

/// The instance whose process has made the call.
fn caller(of: &Extensions) -> Result<InstanceName, Status> {
    let caller = of
        .get::<CallingInstance>()
        .ok_or_else(|| Status::internal("the connection is not known"))?;
    caller.0.clone().ok_or_else(|| {
        Status::permission_denied(
            "no identity is issued: this process belongs to no workload of the mesh",
        )
    })
}

impl WorkloadIssuer {
    /// Sends an answer, and another one whenever the answer changes or its certificate must be renewed.
    async fn follow<T, F>(
        self,
        instance: InstanceName,
        responses: mpsc::Sender<Result<T, Status>>,
        answer: impl Fn(Self, Identity) -> F,
    ) where
        F: Future<Output = Result<(T, Option<Duration>), Status>>,
    {
        let mut trust = self.authority.changes();
        loop {
            trust.borrow_and_update();
            let identity = self.state.identity_of(&instance);
            let answered = match identity.clone() {
                Some(identity) => answer(self.clone(), identity).await,
                None => Err(Status::permission_denied(format!(
                    "no identity is issued: {instance} is not in the documents of the mesh"
                ))),
            };
            let (answered, due) = match answered {
                Ok((answered, due)) => (Ok(answered), due),
                Err(status) => {
                    tracing::warn!(%instance, reason = status.message(), "a request of the Workload API failed");
                    (Err(status), None)
                }
            };
            let is_last = answered.is_err();
            if responses.send(answered).await.is_err() || is_last {
                return;
            }
            tokio::select! {
                () = after(due) => {}
                // This cannot fail, because `self.authority` holds the sender.
                _ = trust.changed() => {}
                () = self.changed(&instance, identity.as_ref()) => {}
                () = responses.closed() => return,
            }
        }
    }

    /// Waits until the identity of an instance changes.
    async fn changed(&self, instance: &InstanceName, before: Option<&Identity>) {
        let mut versions = self.state.subscribe();
        while self.state.identity_of(instance).as_ref() == before {
            if versions.changed().await.is_err() {
                return;
            }
        }
    }

    async fn svid(
        self,
        identity: Identity,
    ) -> Result<(X509svidResponse, Option<Duration>), Status> {
        let (authority, lifetime, of) =
            (Arc::clone(&self.authority), self.lifetime, identity.clone());
        // A blocking task, because signing uses a processor for a while.
        let made =
            tokio::task::spawn_blocking(move || authority.workload_certificate(&of, lifetime));
        let ended = |_| Status::unavailable("the control plane is ending");
        let CertificateWithKey { issued, key } = made.await.map_err(ended)?.map_err(|error| {
            tracing::error!(%identity, error = &error as &dyn std::error::Error, "no certificate issued");
            Status::internal("see the control plane's log")
        })?;
        self.state.metrics.workload_api_svids.increment();
        let left = issued.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        let svid = X509svid {
            spiffe_id: identity.to_string(),
            x509_svid: issued.chain_der.concat().into(),
            x509_svid_key: key.secret_pkcs8_der().to_vec().into(),
            bundle: self.authority.trust().bundle_der().concat().into(),
            hint: String::new(),
        };
        let response = X509svidResponse { svids: vec![svid], ..Default::default() };
        Ok((response, Some(left * RENEW_AT / 100)))
    }

    fn own_bundle(&self) -> X509BundlesResponse {
        let roots = self.authority.trust().bundle_der().concat();
        let bundle = server::bundle(self.authority.trust_domain().as_str(), roots);
        X509BundlesResponse { crl: Vec::new(), bundles: [bundle].into() }
    }
}

async fn after(due: Option<Duration>) {
    match due {
        Some(due) => sleep(due).await,
        None => std::future::pending().await,
    }
}
