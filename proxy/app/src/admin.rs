//! The admin server: `/metrics`, `/ready`, `/live`, `/drain`, `/config`, `/audited`, `/tap`, `/probe/...`.

use hyper::body::Incoming;
use hyper::header::{ACCEPT, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse, readiness, refuse_method, respond};
use leno_transport::test_panic;

pub(crate) mod caller;
pub(crate) mod metrics;
pub(crate) mod probe;
pub(crate) mod server;
pub(crate) mod socket;
mod tap;

use crate::state::State;
use caller::Caller;
use metrics::PageForm;

pub(crate) async fn answer(
    request: &Request<Incoming>,
    caller: Caller,
    state: &State,
) -> AdminResponse {
    test_panic("admin", request.uri().path().as_bytes());
    if let Some(refused) = caller.refuse(request, &state.scrapers) {
        tracing::debug!(?caller, path = request.uri().path(), "admin request refused");
        return refused;
    }
    let probe = request.uri().path().strip_prefix("/probe/");
    let allowed = match request.uri().path() {
        "/drain" | "/tap" => Method::POST,
        _ => Method::GET,
    };
    let known = matches!(
        request.uri().path(),
        "/metrics" | "/ready" | "/live" | "/drain" | "/config" | "/audited" | "/tap"
    );
    if !known && probe.is_none() {
        return respond(
            StatusCode::NOT_FOUND,
            TEXT,
            "use /metrics, /ready, /live, /drain, /config, /audited, /tap or /probe/<container>/<kind>\n",
        );
    }
    if let Some(refused) = refuse_method(request.method(), &allowed) {
        return refused;
    }
    if let Some(path) = probe {
        let agent = request.headers().get(USER_AGENT);
        let (status, reason) = state.probes.ask(path, caller.called(), agent).await;
        return respond(status, TEXT, reason);
    }
    match request.uri().path() {
        "/live" if state.hangs() => respond(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "a worker thread does not respond: see the proxy's log\n",
        ),
        "/live" => respond(StatusCode::OK, TEXT, "live\n"),
        "/ready" => readiness(state.not_ready()),
        "/drain" => {
            state.drain().await;
            respond(StatusCode::OK, TEXT, "draining\n")
        }
        "/tap" => tap::answer(request, caller, state),
        "/audited" => respond(StatusCode::OK, JSON, state.audited().await),
        "/config" => respond(StatusCode::OK, JSON, state.config().await),
        _ => page_of_metrics(request, state).await,
    }
}

async fn page_of_metrics(request: &Request<Incoming>, state: &State) -> AdminResponse {
    let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let form = PageForm::wanted(accepts.unwrap_or_default());
    respond(StatusCode::OK, form.content_type(), state.metrics(form).await)
}
