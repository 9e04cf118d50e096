//! Taps of live requests: `POST /tap?id=NAME&method=GET&...` opens one, polls it and, with `close=true`, closes it.
//!
//! Each response has the requests that were recorded since the last one, so a client polls a few times a second, and
//! admin connections stay short. A tap that is no longer polled is closed.
//!
//! A request must have the header `leno-tap-by`, which names the user for the log. An application that fetches URLs for
//! its clients (SSRF) sends neither POST nor a header that its client chooses. A browser would first send a preflight
//! request (CORS), which the proxy does not permit.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use leno_program::content::{JSON, TEXT};
use leno_program::{AdminResponse, respond};
use leno_tap::{TapPage, TappedRequest};
use leno_telemetry::tap::{Counted, Filter};
use tokio::task::spawn_local;

use super::caller::Caller;
use crate::state::State;

/// The header that names the user.
const USER_HEADER: &str = "leno-tap-by";
/// The longest name of a tap or of a user, in bytes.
const MAX_NAME: usize = 64;
/// How often to check for taps that are no longer polled.
const CLOSE_INTERVAL: Duration = Duration::from_secs(1);

/// The parameters of a request: the tap's name, which requests it records, and whether to close it.
struct TapRequest {
    id: String,
    filter: Filter,
    closes: bool,
}

pub(super) fn answer(request: &Request<Incoming>, caller: Caller, state: &State) -> AdminResponse {
    let by = request.headers().get(USER_HEADER).and_then(|value| value.to_str().ok());
    let Some(by) = by.filter(|by| is_name(by)) else {
        let why = "the header leno-tap-by must name the user: use `leno tap`\n";
        return respond(StatusCode::FORBIDDEN, TEXT, why);
    };
    let query = request.uri().query().unwrap_or_default();
    let wanted = match read(query) {
        Ok(wanted) => wanted,
        Err(why) => return respond(StatusCode::BAD_REQUEST, TEXT, why + "\n"),
    };
    if let Some(refused) = refuse_bodies(&wanted.filter, state) {
        return refused;
    }
    if wanted.closes {
        let counted = state.taps.close(&wanted.id);
        if let Some(counted) = &counted {
            tracing::warn!(by, ?caller, queued = counted.queued, "a tap was closed");
        }
        return respond(StatusCode::OK, JSON, page(state, Vec::new(), counted.unwrap_or_default()));
    }
    if !state.taps.has(&wanted.id) {
        if let Err(error) = state.taps.open(&wanted.id, wanted.filter) {
            return respond(StatusCode::TOO_MANY_REQUESTS, TEXT, format!("{error}\n"));
        }
        // The query is input from the user, which `Debug` escapes.
        tracing::warn!(by, ?caller, ?query, "a tap of live requests was opened");
        watch(state);
    }
    let (requests, counted) = state.taps.poll(&wanted.id).unwrap_or_default();
    respond(StatusCode::OK, JSON, page(state, requests, counted))
}

/// Refuses to show bodies if the administrator has not permitted this, or if the tap is not limited to single requests.
fn refuse_bodies(filter: &Filter, state: &State) -> Option<AdminResponse> {
    if !filter.with_bodies {
        return None;
    }
    if !state.tap_bodies {
        let why = "this proxy does not show bodies: permit it with leno up --tap-bodies, or \
                   proxy.tapBodies of the chart\n";
        return Some(respond(StatusCode::FORBIDDEN, TEXT, why));
    }
    if filter.most != Some(1) && filter.followed.is_none() {
        let why = "bodies are shown only for single requests: add most=1, or use `leno \
                   trace-request --bodies`\n";
        return Some(respond(StatusCode::BAD_REQUEST, TEXT, why));
    }
    None
}

/// Closes taps that are no longer polled, as long as there are any taps.
fn watch(state: &State) {
    let taps = state.taps.clone();
    if !taps.begin_watch() {
        return;
    }
    spawn_local(async move {
        while taps.is_on() {
            tokio::time::sleep(CLOSE_INTERVAL).await;
            for (id, counted) in taps.close_lapsed(std::time::Instant::now()) {
                tracing::warn!(?id, queued = counted.queued, "a tap was closed: it was not polled");
            }
        }
        taps.end_watch();
    });
}

fn read(query: &str) -> Result<TapRequest, String> {
    let mut wanted = TapRequest { id: String::new(), filter: Filter::default(), closes: false };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "id" => wanted.id = value.into_owned(),
            "close" => wanted.closes = value == "true",
            name => wanted.filter.set(name, &value).map_err(|error| error.to_string())?,
        }
    }
    match is_name(&wanted.id) {
        true => Ok(wanted),
        false => {
            Err("the tap has no valid name: pass id=NAME, of up to 64 letters and digits"
                .to_owned())
        }
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@/".contains(&byte);
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(fits)
}

/// The recorded requests as a page. Workers do not record the identity of this proxy, so it is added here.
fn page(state: &State, mut requests: Vec<TappedRequest>, counted: Counted) -> String {
    let own = state.identity.borrow().name.as_ref().map(ToString::to_string);
    let own: Option<Box<str>> = own.map(Into::into);
    for request in &mut requests {
        match request.is_outbound() {
            true => request.client_identity.clone_from(&own),
            false => request.server_identity.clone_from(&own),
        }
    }
    let page = TapPage {
        workload: state.instance.to_string(),
        requests,
        queued: counted.queued,
        sampled_out: counted.sampled_out,
        dropped: counted.dropped,
    };
    serde_json::to_string(&page).unwrap_or_default()
}
