//! What is served: the page and the interface for readers, and the admin server.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, StatusCode};
use leno_dashboard::front;
use leno_dashboard::hub::Hub;
use leno_dashboard::serve::{ROOT, answer, refuse};
use leno_dashboard::sight::Sight;
use leno_program::{Answer, answer_pages, refuse_method};
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::pods::Pods;
use crate::readers::{Readers, Refusal};

/// The page and the interface.
pub(crate) struct Front {
    pub(crate) hub: Arc<Hub>,
    pub(crate) readers: Readers,
}

impl Front {
    /// Serves until the future is dropped.
    pub(crate) async fn serve(&self, listener: TcpListener) {
        leno_program::serve(listener, async |request, _| {
            front::with_headers(self.answer(&request).await)
        })
        .await;
    }

    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return refused;
        }
        let path = request.uri().path();
        if !path.starts_with(ROOT) {
            return front::file(path);
        }
        let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        match self.readers.sight(token, self.hub.namespaces()).await {
            Ok(sight) => answer((&self.hub, &sight), request.method(), path, request.uri().query()),
            Err(Refusal::NoToken) => refuse(
                StatusCode::UNAUTHORIZED,
                "the observer wants a token of the cluster: use leno dashboard, or add #token=TOKEN to the address",
            ),
            Err(Refusal::Bad(why)) => refuse(StatusCode::UNAUTHORIZED, &why),
            Err(Refusal::Unavailable(why)) => refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("the API server does not say what the reader may see: {why}"),
            ),
        }
    }
}

/// The admin server.
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Admin {
    /// Serves until the future is dropped; without a listener nothing is served.
    pub(crate) async fn serve(&self, listener: Option<TcpListener>) {
        let Some(listener) = listener else { return std::future::pending().await };
        leno_program::serve(listener, async |request, _| {
            answer_pages(&request, || self.not_ready(), || self.metrics())
        })
        .await;
    }

    fn not_ready(&self) -> Option<&'static str> {
        (!self.pods.are_known())
            .then_some("the pods are not known from the API server: see the log")
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        let overview = self.hub.overview(&Sight::Namespaces(std::collections::BTreeSet::new()));
        let history = (overview.history_bytes, overview.lost);
        self.metrics.render(&mut text, history, self.pods.beyond());
        text
    }
}

/// Logs the addresses, of which tests know the ports by that.
pub(crate) fn say_where(listener: &TcpListener, admin: Option<&TcpListener>) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving the history");
    }
    if let Some(Ok(address)) = admin.map(TcpListener::local_addr) {
        tracing::info!(%address, "serving /metrics");
    }
}
