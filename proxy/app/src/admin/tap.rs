//! Taps of live requests: `POST /tap?id=NAME&method=GET&...` opens one, polls it and, with `close=true`, closes it.
//!
//! Each answer has the requests that were recorded since the last one, so that a client polls a few times a second and
//! an admin connection stays short. A tap that is not polled any more is closed.
//!
//! A request needs the header `leno-tap-by`, which names the user for the log. An application that fetches addresses
//! for its clients (SSRF) sends neither POST nor a header of its client's choice; a browser would ask before.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use leno_program::content::{JSON, TEXT};
use leno_program::{Answer, respond};
use leno_telemetry::tap::{Counted, Event, Filter};
use serde_json::{Value, json};
use tokio::task::spawn_local;

use super::caller::Caller;
use crate::state::State;

/// The header that names the user.
const BY: &str = "leno-tap-by";
/// Longest name of a tap and of a user.
const MAX_NAME: usize = 64;
/// How often it is looked for taps that are not polled any more.
const LOOK: Duration = Duration::from_secs(1);

/// What a request to this page wants.
struct Wanted {
    id: String,
    filter: Filter,
    closes: bool,
}

pub(super) fn answer(request: &Request<Incoming>, caller: Caller, state: &State) -> Answer {
    let by = request.headers().get(BY).and_then(|value| value.to_str().ok());
    let Some(by) = by.filter(|by| is_name(by)) else {
        let why = "the header leno-tap-by must name the user: use `leno tap`\n";
        return respond(StatusCode::FORBIDDEN, TEXT, why);
    };
    let query = request.uri().query().unwrap_or_default();
    let wanted = match read(query) {
        Ok(wanted) => wanted,
        Err(why) => return respond(StatusCode::BAD_REQUEST, TEXT, why + "\n"),
    };
    if wanted.closes {
        let counted = state.taps.close(&wanted.id);
        if let Some(counted) = &counted {
            tracing::warn!(by, ?caller, queued = counted.queued, "a tap was closed");
        }
        return respond(StatusCode::OK, JSON, page(state, &[], counted.unwrap_or_default()));
    }
    if !state.taps.has(&wanted.id) {
        if let Err(error) = state.taps.open(&wanted.id, wanted.filter) {
            return respond(StatusCode::TOO_MANY_REQUESTS, TEXT, format!("{error}\n"));
        }
        // What a filter names is of the user, and is escaped by `Debug`.
        tracing::warn!(by, ?caller, ?query, "a tap of live requests was opened");
        watch(state);
    }
    let (events, counted) = state.taps.poll(&wanted.id).unwrap_or_default();
    respond(StatusCode::OK, JSON, page(state, &events, counted))
}

/// Closes taps that are not polled any more, as long as there is one.
fn watch(state: &State) {
    let taps = state.taps.clone();
    if !taps.begin_watch() {
        return;
    }
    spawn_local(async move {
        while taps.is_on() {
            tokio::time::sleep(LOOK).await;
            for (id, counted) in taps.close_lapsed(std::time::Instant::now()) {
                tracing::warn!(?id, queued = counted.queued, "a tap was closed: it was not polled");
            }
        }
        taps.end_watch();
    });
}

fn read(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted { id: String::new(), filter: Filter::default(), closes: false };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "id" => wanted.id = value.into_owned(),
            "close" => wanted.closes = value == "true",
            name => wanted.filter.set(name, &value).map_err(|error| error.to_string())?,
        }
    }
    match is_name(&wanted.id) {
        true => Ok(wanted),
        false => Err("give the tap a name of up to 64 letters and digits: id=NAME".to_owned()),
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@/".contains(&byte);
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(fits)
}

fn page(state: &State, events: &[Event], counted: Counted) -> String {
    let identity = state.identity.borrow().name.as_ref().map(ToString::to_string);
    json!({
        "workload": state.instance.to_string(),
        "identity": identity,
        "events": events.iter().map(value).collect::<Vec<_>>(),
        "queued": counted.queued,
        "sampled_out": counted.sampled_out,
        "dropped": counted.dropped,
    })
    .to_string()
}

fn value(event: &Event) -> Value {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let unix = event.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({
        "at_unix_us": micros(unix),
        "direction": event.edge.direction.as_str(),
        "client_namespace": &*event.edge.client_namespace,
        "client": &*event.edge.client,
        "server_namespace": &*event.edge.server_namespace,
        "server": &*event.edge.server,
        "service": &*event.edge.service,
        "mtls": event.edge.mtls,
        "peer": event.peer,
        "mark": event.mark.map(|mark| format!("{mark:016x}")),
        "protocol": event.protocol,
        "method": event.method,
        "authority": event.authority,
        "target": event.target,
        "route": event.route,
        "retries": event.retries,
        "status": event.status,
        "grpc_status": event.grpc_status,
        "request_bytes": event.bytes.0,
        "response_bytes": event.bytes.1,
        "error": event.error,
        "sent_us": event.times.sent.map(micros),
        "first_byte_us": event.times.first_byte.map(micros),
        "total_us": micros(event.times.total),
        "headers": event.headers,
    })
}
