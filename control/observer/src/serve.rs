//! Serves the page and the interface for readers, and the admin server.

use std::sync::Arc;

use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, StatusCode};
use leno_dashboard::ReaderLimits;
use leno_dashboard::front::{self, RequestHandler};
use leno_dashboard::hub::Hub;
use leno_dashboard::serve::{ROOT, answer, refuse};
use leno_dashboard::visible_namespaces::VisibleNamespaces;
use leno_program::{AdminResponse, Shares, answer_pages, refuse_method};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::{ForeignCounts, Metrics};
use crate::objects::ObjectEdits;
use crate::pods::Pods;
use crate::readers::{ReaderRefusal, Readers};

/// Most connections of readers at the same time. All come from loopback, through port-forwards. An HTTP/1
/// connection without a request for 30 s is closed, and an HTTP/2 connection whose calls are all refused is closed
/// after 5 s.
const MAX_CONNECTIONS: usize = 128;
/// Most additional HTTP/2 connections of readers who may see something. These may last for up to an hour.
const MAX_HTTP2: usize = 32;
/// Most answers that are computed at the same time, each on a separate thread.
const MAX_COMPUTED: usize = 4;

/// The server of the page and the interface.
pub(crate) struct ObserverFront {
    hub: Arc<Hub>,
    pods: Arc<Pods>,
    readers: Readers,
    /// Permits for answers that are computed.
    computed: Arc<Semaphore>,
    pub(crate) limits: Arc<ReaderLimits>,
}

impl ObserverFront {
    pub(crate) fn new(hub: Arc<Hub>, pods: Arc<Pods>, readers: Readers) -> Self {
        let computed = Arc::new(Semaphore::new(MAX_COMPUTED));
        // The bound per client is one above the total and so never reached. When all connections are in use, the
        // oldest one is closed, and the newest is accepted.
        let connections = Shares::new(MAX_CONNECTIONS, MAX_CONNECTIONS + 1);
        let limits = Arc::new(ReaderLimits::new(connections, MAX_HTTP2));
        Self { hub, pods, readers, computed, limits }
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(&self, listener: TcpListener) {
        front::serve(listener, self).await;
    }

    async fn page<B>(&self, request: &Request<B>) -> AdminResponse {
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return refused;
        }
        let path = request.uri().path();
        if !path.starts_with(ROOT) {
            return front::file(path);
        }
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        // A proxy's metrics may name namespaces that do not exist. The API server is only asked about existing
        // ones.
        let namespaces = || self.pods.namespaces(&self.hub.namespaces());
        match self.readers.sight(token, namespaces).await {
            Ok(sight) => self.compute(sight, request).await,
            Err(ReaderRefusal::NoToken) => refuse(
                StatusCode::UNAUTHORIZED,
                "the observer requires a token of the cluster: use leno dashboard, or add \
                 #token=TOKEN to the address",
            ),
            Err(ReaderRefusal::Bad(why)) => refuse(StatusCode::UNAUTHORIZED, &why),
            Err(ReaderRefusal::Unavailable(why)) => refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("the API server does not report what the reader may see: {why}"),
            ),
        }
    }
}

impl RequestHandler for ObserverFront {
    async fn answer<B>(&self, request: &Request<B>) -> AdminResponse {
        front::with_headers(self.page(request).await)
    }

    fn limits(&self) -> &ReaderLimits {
        &self.limits
    }
}

impl ObserverFront {
    /// The answer for a reader. It is computed on another thread, because it takes long for a large mesh and must
    /// not delay anything else.
    async fn compute<B>(&self, sight: VisibleNamespaces, request: &Request<B>) -> AdminResponse {
        let (hub, method, uri) =
            (self.hub.clone(), request.method().clone(), request.uri().clone());
        let computed = async {
            let place = self.computed.clone().acquire_owned().await.ok()?;
            let work = move || {
                let _place = place;
                answer((&hub, &sight), &method, uri.path(), uri.query())
            };
            tokio::task::spawn_blocking(work).await.ok()
        };
        computed.await.unwrap_or_else(|| {
            refuse(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the response cannot be computed: see the log of the observer",
            )
        })
    }
}

/// The admin server.
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) edits: Arc<ObjectEdits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Arc<ReaderLimits>,
}

impl Admin {
    /// Serves until the future is dropped. Without a listener, nothing is served.
    pub(crate) async fn serve(&self, listener: Option<TcpListener>) {
        let Some(listener) = listener else { return std::future::pending().await };
        leno_program::serve(listener, async |request, _| {
            answer_pages(&request, || self.not_ready(), || self.metrics())
        })
        .await;
    }

    fn not_ready(&self) -> Option<&'static str> {
        (!self.pods.are_known()).then_some(
            "the pods have not been received from the API server: see the log of the \
             observer",
        )
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        let overview = self.hub.overview(&VisibleNamespaces::All);
        let of_others = ForeignCounts {
            history: (overview.history_bytes, overview.lost),
            pods: self.pods.beyond(),
            objects: self.edits.beyond(),
            left_out: self.hub.left_out(),
        };
        self.metrics.render(&mut text, &of_others);
        self.limits.render(&mut text, "leno_observer");
        text
    }
}

/// Logs the addresses. Tests read the ports from this line.
pub(crate) fn say_where(listener: &TcpListener, admin: Option<&TcpListener>) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving the history");
    }
    if let Some(Ok(address)) = admin.map(TcpListener::local_addr) {
        tracing::info!(%address, "serving /metrics");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_metrics_of_the_observer() {
        let directory = tempfile::tempdir().unwrap();
        let hub = Arc::new(Hub::open("mesh", directory.path().join("history")).unwrap());
        let limits = Arc::new(ReaderLimits::new(Shares::new(1, 1), 1));
        let (pods, edits, metrics) = Default::default();
        let page = Admin { hub, pods, edits, metrics, limits }.metrics();
        let guide = include_str!("../../../docs/guide/kubernetes.md");
        leno_testkit::reference::check_metrics(guide, "leno_observer_", &page, &[]);
    }
}
