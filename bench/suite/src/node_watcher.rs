//! The watcher of a node in a cluster: a pod that reads the counters of containers' processes, and
//! kills containers for a measurement. It receives its requests on loopback, through a
//! port-forward.
//!
//! ```text
//! POST /look      question         200 the current figures, as JSON
//! POST /kill/ID   container IDs    200 all their processes are killed; 404 one has none, and none is killed
//! POST /start/ID  a container ID   202 kills as /kill, and waits for the program in the next container
//! GET  /start/ID                   200 the state of that start, as JSON
//! ```
//! The status is 400 for any other body, and 403 without the token of the run. A client that loses
//! its connection repeats the request: a request with an ID takes effect only once.

pub(crate) mod container_start;
mod containers;
pub(crate) mod counters;

use std::convert::Infallible;
use std::fs::File;
use std::future::ready;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use futures_util::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use leno_bpf::Counting;

use crate::loopback::{self, Answer, body, json, lock};

use container_start::Start;
use counters::Question;

/// The port of every watcher.
pub(crate) const PORT: u16 = 9092;
/// The largest request body: a few thousand containers.
const MAX_BODY: usize = 128 * 1024;
/// The environment variable of a watcher that holds the token of the run.
pub const TOKEN: &str = "LENO_BENCH_TOKEN";

/// Serves clients that present the token, until the process ends; `listen` must be a loopback
/// address.
///
/// # Errors
/// If the token is empty, the address is not a loopback address, or the server cannot listen on it.
pub fn serve(listen: SocketAddr, token: &str) -> Result<Infallible> {
    ensure!(!token.is_empty(), "the token is empty, so that anybody could kill: set {TOKEN}");
    loopback::serve(listen, answerer(token))
}

/// A random token.
pub(crate) fn token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The state that requests share.
#[derive(Debug, Default)]
struct Watcher {
    /// Makes the kernel time its programs, from the first question about the whole kernel until the
    /// process ends, which is after one measurement. `None` before that question, and if the kernel
    /// cannot time programs.
    counting: Option<Counting>,
    /// The ID of the last request to kill.
    killed: String,
    /// The ID and the state of the last requested start.
    start: (String, Start),
}

type SharedWatcher = Arc<Mutex<Watcher>>;

/// The handler for clients that present the token.
fn answerer(
    token: &str,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Clone + use<> {
    let (watcher, shown) = (SharedWatcher::default(), format!("Bearer {token}"));
    move |request: Request<Incoming>| -> BoxFuture<'static, Answer> {
        let value = request.headers().get(AUTHORIZATION);
        if value.is_none_or(|value| value.as_bytes() != shown.as_bytes()) {
            let why = "only the run that has made this watcher may ask it".to_owned();
            return Box::pin(ready((StatusCode::FORBIDDEN, why)));
        }
        Box::pin(answer(request, watcher.clone()))
    }
}

async fn answer(request: Request<Incoming>, watcher: SharedWatcher) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match body(request, MAX_BODY).await {
        Ok(body) => route((&method, &path), &body, &watcher),
        Err(refused) => refused,
    }
}

fn route((method, path): (&Method, &str), body: &[u8], watcher: &SharedWatcher) -> Answer {
    let id = |of: &str| path.strip_prefix(of).filter(|id| !id.is_empty()).map(str::to_owned);
    let done = match (method, path) {
        (&Method::POST, "/look") => look(body, watcher),
        (&Method::POST, _) if path.starts_with("/kill/") => match id("/kill/") {
            Some(id) => kill(id, body, watcher),
            None => Err(unknown()),
        },
        (&Method::POST, _) if path.starts_with("/start/") => match id("/start/") {
            Some(id) => begin(id, body, watcher),
            None => Err(unknown()),
        },
        (&Method::GET, _) if path.starts_with("/start/") => {
            let watcher = lock(watcher);
            let is_it = id("/start/").is_some_and(|id| id == watcher.start.0);
            Ok((StatusCode::OK, json(if is_it { &watcher.start.1 } else { &Start::Unknown })))
        }
        _ => Err(unknown()),
    };
    done.unwrap_or_else(|refused| refused)
}

fn unknown() -> Answer {
    (StatusCode::NOT_FOUND, "POST /look, /kill/ID, /start/ID or GET /start/ID".to_owned())
}

fn look(body: &[u8], watcher: &SharedWatcher) -> Result<Answer, Answer> {
    let question: Question = parse(body)?;
    let asked = question.containers.iter().chain(&question.connections_of);
    asked.map(String::as_str).try_for_each(is_id)?;
    if question.whole {
        let mut watcher = lock(watcher);
        // If the kernel cannot time its programs, their run time counts as 0.
        watcher.counting = watcher.counting.take().or_else(|| Counting::start().ok());
    }
    let seen = counters::read(&question);
    let failed = |error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"));
    Ok((StatusCode::OK, json(&seen.map_err(failed)?)))
}

fn kill(id: String, body: &[u8], watcher: &SharedWatcher) -> Result<Answer, Answer> {
    let containers: Vec<String> = parse(body)?;
    containers.iter().map(String::as_str).try_for_each(is_id)?;
    let mut watcher = lock(watcher);
    if watcher.killed != id {
        container_start::kill(&containers).map_err(missing)?;
        watcher.killed = id;
    }
    Ok((StatusCode::OK, String::new()))
}

/// Kills a container. A thread then waits until its program runs again or the time limit is over.
fn begin(id: String, body: &[u8], watcher: &SharedWatcher) -> Result<Answer, Answer> {
    let container: String = parse(body)?;
    is_id(&container)?;
    let mut locked = lock(watcher);
    if locked.start.0 != id {
        if locked.start.1 == Start::Waiting {
            return Err((StatusCode::CONFLICT, "another start is waited for".to_owned()));
        }
        let killed = container_start::KilledContainer::now(&container).map_err(missing)?;
        locked.start = (id, Start::Waiting);
        let watcher = watcher.clone();
        std::thread::spawn(move || {
            let seen = killed.follow(container_start::LIMIT);
            lock(&watcher).start.1 = seen;
        });
    }
    Ok((StatusCode::ACCEPTED, String::new()))
}

fn parse<'b, T: serde::Deserialize<'b>>(body: &'b [u8]) -> Result<T, Answer> {
    serde_json::from_slice(body)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("this is no such question: {error}")))
}

/// Rejects any text that is not a container's ID.
fn is_id(text: &str) -> Result<(), Answer> {
    if containers::is_id(text) {
        return Ok(());
    }
    Err((
        StatusCode::BAD_REQUEST,
        format!("{text:?} is no ID of a container, 64 digits of base 16"),
    ))
}

fn missing(error: anyhow::Error) -> Answer {
    (StatusCode::NOT_FOUND, format!("{error:#}"))
}

#[cfg(test)]
mod tests;
