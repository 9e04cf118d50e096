//! Serves certificates to the application itself, which gets them from its proxy over the SPIFFE Workload API.
//!
//! ```text
//!  application ── Unix socket in a volume of the pod ──► serve ──► ApplicationIdentity ── token ──► control plane
//!                                                          ▲              (a key of its own)
//!                       certificate, key, trust bundles ───┘ again whenever one of them is replaced
//! ```
//! The socket is in a volume of the pod, so every caller is a process of that pod. It gets the identity of the pod's
//! service account without a check of the process.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use leno_spiffe::server::{
    AnswerSource, AnswerStream, MAX_CALLS, OUTSTANDING, WINDOW, WorkloadApi, bundle,
};
use leno_wire::spiffe::spiffe_workload_api_server::SpiffeWorkloadApiServer;
use leno_wire::spiffe::{X509BundlesResponse, X509svid, X509svidResponse};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service as _;
use tonic::{Extensions, Status};

use crate::certificate::Certificate;
use crate::identity::IdentityClient;

/// How many connections there may be. An application has one or two, and a pod has few processes.
const MAX_CONNECTIONS: usize = 16;
/// How many bytes the fields of a request may have.
const MAX_HEAD: u32 = 16 << 10;
/// The largest number of bytes of responses that wait to be sent on a connection.
const MAX_SENT: usize = 256 << 10;
/// The time between two PINGs, and the longest wait for the reply to one. The connection of a stopped process is closed
/// in this way.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait for the first call of a connection: PINGs are only sent once the client speaks HTTP/2, which it may
/// never do.
const FIRST_CALL: Duration = Duration::from_secs(10);
/// The longest wait for the first certificate: after that the call fails, and the client repeats it.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The identity of a workload with a separate key for the application. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApplicationIdentity {
    identity: IdentityClient,
    /// Whether a call was ever made. Before the first call, no certificate is requested.
    is_wanted: watch::Sender<bool>,
    counts: Arc<Counts>,
}

/// Counters of what was served.
#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    refused: AtomicU64,
    silent: AtomicU64,
    svids: AtomicU64,
}

/// The values of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplicationCounts {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were closed at once, because there were already [`MAX_CONNECTIONS`](self).
    pub refused: u64,
    /// Connections that were closed because they made no call in time.
    pub silent: u64,
    /// Certificates that were sent.
    pub svids: u64,
}

impl ApplicationIdentity {
    pub(crate) fn new(identity: IdentityClient) -> Self {
        Self { identity, is_wanted: watch::Sender::new(false), counts: Arc::default() }
    }

    /// The client that gets the certificates.
    pub(crate) fn identity(&self) -> &IdentityClient {
        &self.identity
    }

    /// Once the first call was made, gets certificates and renews them, for as long as the future is polled.
    pub(crate) async fn run(&self) -> Infallible {
        let mut is_wanted = self.is_wanted.subscribe();
        // The sender lives as long as `self`. The result holds the lock of the value, so it is dropped.
        drop(is_wanted.wait_for(|is_wanted| *is_wanted).await);
        self.identity.clone().run().await
    }

    /// The values of the counters.
    #[must_use]
    pub fn counts(&self) -> ApplicationCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { connections, refused, silent, svids } = &*self.counts;
        ApplicationCounts {
            connections: of(connections),
            refused: of(refused),
            silent: of(silent),
            svids: of(svids),
        }
    }

    /// Serves the Workload API on a socket to which only processes of the workload can connect, for as long as the
    /// future is polled.
    pub async fn serve(self, listener: UnixListener) -> Infallible {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let stream = accept(&listener).await;
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let own = self.clone();
            tokio::spawn(async move {
                own.counts.connections.fetch_add(1, Ordering::Relaxed);
                let counted = Counted(Arc::clone(&own.counts));
                own.serve_connection(stream).await;
                drop((place, counted));
            });
        }
    }

    async fn serve_connection(self, stream: UnixStream) {
        let (counts, called) = (Arc::clone(&self.counts), Arc::new(Notify::new()));
        let first = Arc::clone(&called);
        let api = SpiffeWorkloadApiServer::new(WorkloadApi(self));
        let service = service_fn(move |request| {
            called.notify_one();
            // This service is always ready.
            api.clone().call(request)
        });
        let mut server = http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(MAX_HEAD)
            .max_send_buf_size(MAX_SENT)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let silent = async {
            if timeout(FIRST_CALL, first.notified()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = server.serve_connection(TokioIo::new(stream), service) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of the Workload API ended");
                }
            }
            () = silent => {
                counts.silent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Answers a call now, and again whenever the answer has changed.
    fn follow<T: Clone + PartialEq + Send + 'static>(&self, call: Call<T>) -> AnswerStream<T> {
        self.is_wanted.send_if_modified(|is_wanted| !std::mem::replace(is_wanted, true));
        let certificates = self.identity.certificates();
        let (responses, answers) = mpsc::channel(OUTSTANDING);
        let own = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = own.answer(certificates, &responses, call) => {}
                () = responses.closed() => {}
            }
        });
        ReceiverStream::new(answers)
    }

    async fn answer<T: Clone + PartialEq>(
        &self,
        mut certificates: watch::Receiver<Option<Arc<Certificate>>>,
        responses: &mpsc::Sender<Result<T, Status>>,
        call: Call<T>,
    ) {
        let fits = |one: &Option<Arc<Certificate>>| one.as_deref().is_some_and(call.fits);
        let is_there = timeout(FIRST_WAIT, certificates.wait_for(fits)).await.is_ok();
        if !is_there {
            let reason = "the control plane has issued no valid certificate: see the log of the \
                          pod's proxy";
            // If the client has gone, it needs no error.
            let _gone = responses.send(Err(Status::unavailable(reason))).await;
            return;
        }
        let mut last = None;
        loop {
            let certificate = certificates.borrow_and_update().clone();
            // A certificate that is no longer valid is not sent again; its successor will follow.
            if let Some(certificate) = certificate.filter(|one| (call.fits)(one)) {
                let next = match (call.answer)(&certificate) {
                    Ok(next) => next,
                    Err(status) => {
                        let _gone = responses.send(Err(status)).await;
                        return;
                    }
                };
                if last.as_ref() != Some(&next) {
                    if responses.send(Ok(next.clone())).await.is_err() {
                        return;
                    }
                    (call.sent)(&self.counts);
                    last = Some(next);
                }
            }
            if certificates.changed().await.is_err() {
                return;
            }
        }
    }
}

/// How a kind of call is answered.
struct Call<T> {
    /// Whether the call can be answered from this certificate.
    fits: fn(&Certificate) -> bool,
    answer: fn(&Certificate) -> Result<T, Status>,
    /// Counts an answer.
    sent: fn(&Counts),
}

const SVIDS: Call<X509svidResponse> = Call {
    // The identity client keeps a certificate until its successor has been issued, even if it has expired or was
    // revoked. Peers refuse it then.
    fits: |one| one.not_after > SystemTime::now() && !one.is_revoked(&one.revoked),
    answer: svid,
    sent: |counts| {
        counts.svids.fetch_add(1, Ordering::Relaxed);
    },
};

/// Trust bundles remain valid even if the certificate that they came with does not.
const BUNDLES: Call<X509BundlesResponse> =
    Call { fits: |_| true, answer: bundles, sent: |_counts| () };

fn svid(certificate: &Certificate) -> Result<X509svidResponse, Status> {
    let id =
        certificate.id().ok_or_else(|| Status::internal("the certificate has no SPIFFE ID"))?;
    let svid = X509svid {
        spiffe_id: id,
        x509_svid: certificate.chain_der.concat().into(),
        x509_svid_key: certificate.key_der.clone().into(),
        bundle: certificate.roots_der().concat().into(),
        hint: String::new(),
    };
    let federated_bundles = federated(certificate).collect();
    Ok(X509svidResponse { svids: vec![svid], crl: Vec::new(), federated_bundles })
}

/// An open connection, counted until this is dropped.
struct Counted(Arc<Counts>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    let next =
        leno_program::accept("connection of the Workload API", async || listener.accept().await);
    next.await.0
}

/// The bundles of other trust domains, by the SPIFFE ID of each.
fn federated(certificate: &Certificate) -> impl Iterator<Item = (String, leno_wire::Bytes)> {
    certificate.federated.iter().map(|(domain, roots)| bundle(domain.as_str(), roots.concat()))
}

/// The bundles of all trust domains, by the SPIFFE ID of each. The certificate's own bundle replaces a federated one of
/// the same domain.
fn bundles(certificate: &Certificate) -> Result<X509BundlesResponse, Status> {
    let id =
        certificate.id().ok_or_else(|| Status::internal("the certificate has no SPIFFE ID"))?;
    let domain = id.strip_prefix("spiffe://").and_then(|rest| rest.split('/').next());
    let own = bundle(domain.unwrap_or_default(), certificate.roots_der().concat());
    let bundles = federated(certificate).chain([own]).collect();
    Ok(X509BundlesResponse { crl: Vec::new(), bundles })
}

impl AnswerSource for ApplicationIdentity {
    fn svids(&self, _: &Extensions) -> Result<AnswerStream<X509svidResponse>, Status> {
        Ok(self.follow(SVIDS))
    }

    fn bundles(&self, _: &Extensions) -> Result<AnswerStream<X509BundlesResponse>, Status> {
        Ok(self.follow(BUNDLES))
    }
}
