//! Who watches a node of a cluster: a pod that looks at the processes of containers, and kills those that a
//! measurement has end, when it is told to by a port-forward to its loopback.
//!
//! ```text
//! POST /look        question          200 what is seen now, as JSON
//! POST /kill/ID     container IDs     200 each process of theirs is killed; 404 one of them has none, and none is
//! POST /start/ID    a container ID    202 as /kill, and the program is waited for in the container that follows
//! GET  /start/ID                      200 what became of that, as JSON
//! ```
//! 400 is a body that is none of these, 403 is for whoever does not show the token of the run. Whoever is cut off asks again:
//! what has an ID is done once.

mod containers;
mod look;
mod start;

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

pub(crate) use look::{Look, Process, Question, Whole};
pub(crate) use start::Start;

/// The port of every watcher.
pub(crate) const PORT: u16 = 9092;
/// Most bytes of a question: some thousand containers.
const MAX_BODY: usize = 128 * 1024;
/// The variable of a watcher's environment that has the token of the run.
pub const TOKEN: &str = "LENO_BENCH_TOKEN";

/// Serves whoever shows the token, until the process ends; `listen` is an address of loopback.
///
/// # Errors
/// When there is no token, or the address is another or cannot be listened on.
pub fn serve(listen: SocketAddr, token: &str) -> Result<Infallible> {
    ensure!(!token.is_empty(), "the token is empty, so that anybody could kill: set {TOKEN}");
    loopback::serve(listen, answerer(token))
}

/// A token that nobody guesses.
///
/// # Errors
/// When the kernel has no random bytes for it.
pub(crate) fn token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What is known beyond one question.
#[derive(Debug, Default)]
struct Watcher {
    /// Has kernel programs timed from the first question about the whole kernel on. None before it, and where the
    /// kernel cannot; it ends with the process, which is that of one measurement.
    counting: Option<Counting>,
    /// What was killed last, by the ID of the request.
    killed: String,
    /// The start that was asked for last.
    start: (String, Start),
}

type Shared = Arc<Mutex<Watcher>>;

/// What answers whoever shows the token.
fn answerer(
    token: &str,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Clone + use<> {
    let (watcher, shown) = (Shared::default(), format!("Bearer {token}"));
    move |request: Request<Incoming>| -> BoxFuture<'static, Answer> {
        let value = request.headers().get(AUTHORIZATION);
        if value.is_none_or(|value| value.as_bytes() != shown.as_bytes()) {
            let why = "only the run that has made this watcher may ask it".to_owned();
            return Box::pin(ready((StatusCode::FORBIDDEN, why)));
        }
        Box::pin(answer(request, watcher.clone()))
    }
}

async fn answer(request: Request<Incoming>, watcher: Shared) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match body(request, MAX_BODY).await {
        Ok(body) => route((&method, &path), &body, &watcher),
        Err(refused) => refused,
    }
}

fn route((method, path): (&Method, &str), body: &[u8], watcher: &Shared) -> Answer {
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

fn look(body: &[u8], watcher: &Shared) -> Result<Answer, Answer> {
    let question: Question = parse(body)?;
    let asked = question.containers.iter().chain(&question.connections_of);
    asked.map(String::as_str).try_for_each(is_id)?;
    if question.whole {
        let mut watcher = lock(watcher);
        // Where the kernel cannot time its programs, they ran for no time.
        watcher.counting = watcher.counting.take().or_else(|| Counting::start().ok());
    }
    let seen = look::look(&question);
    let failed = |error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"));
    Ok((StatusCode::OK, json(&seen.map_err(failed)?)))
}

fn kill(id: String, body: &[u8], watcher: &Shared) -> Result<Answer, Answer> {
    let containers: Vec<String> = parse(body)?;
    containers.iter().map(String::as_str).try_for_each(is_id)?;
    let mut watcher = lock(watcher);
    if watcher.killed != id {
        start::kill(&containers).map_err(missing)?;
        watcher.killed = id;
    }
    Ok((StatusCode::OK, String::new()))
}

/// Kills a container on a thread that ends when its program runs again, or not in time.
fn begin(id: String, body: &[u8], watcher: &Shared) -> Result<Answer, Answer> {
    let container: String = parse(body)?;
    is_id(&container)?;
    let mut locked = lock(watcher);
    if locked.start.0 != id {
        if locked.start.1 == Start::Waiting {
            return Err((StatusCode::CONFLICT, "another start is waited for".to_owned()));
        }
        let killed = start::Killed::now(&container).map_err(missing)?;
        locked.start = (id, Start::Waiting);
        let watcher = watcher.clone();
        std::thread::spawn(move || {
            let seen = killed.follow(start::LIMIT);
            lock(&watcher).start.1 = seen;
        });
    }
    Ok((StatusCode::ACCEPTED, String::new()))
}

fn parse<'b, T: serde::Deserialize<'b>>(body: &'b [u8]) -> Result<T, Answer> {
    serde_json::from_slice(body)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("this is no such question: {error}")))
}

/// Refuses what could be anything but a container's ID.
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
