//! Where load is made in a cluster: a pod that waits for plans on its loopback, where a port-forward comes
//! in, and gives the report back.
//!
//! ```text
//! POST /load  plans   202 begun, 409 one is under way, 400 no plans
//! GET  /load          what became of the last one, as JSON
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use leno_measure::load::{self, Plan, Report};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The port of every station.
pub(crate) const PORT: u16 = 9091;
/// Most bytes of plans: some thousand services.
const MAX_PLANS: usize = 1024 * 1024;

/// What became of the plans that were given last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// There were none.
    #[default]
    Idle,
    /// Load is made.
    Running,
    /// It was.
    Done(Box<Report>),
    /// It could not be.
    Failed(String),
}

/// Serves until the process ends; `listen` is an address of loopback, for nobody is asked who they are.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(listen: SocketAddr) -> Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await;
        accept(listener.with_context(|| format!("cannot listen on {listen}"))?).await
    })
}

async fn accept(listener: TcpListener) -> Result<Infallible> {
    let state = Arc::new(Mutex::new(State::Idle));
    loop {
        let (stream, _) = listener.accept().await.context("cannot take a connection")?;
        let state = state.clone();
        let service = service_fn(move |request| answer(request, state.clone()));
        tokio::spawn(async move {
            // How a connection ends is the client's to judge.
            let builder = auto::Builder::new(TokioExecutor::new());
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

type Shared = Arc<Mutex<State>>;

async fn answer(
    request: Request<Incoming>,
    state: Shared,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/load") => {
            let state = lock(&state).clone();
            (StatusCode::OK, serde_json::to_string(&state).expect("a state has only text keys"))
        }
        (&Method::POST, "/load") => {
            match Limited::new(request.into_body(), MAX_PLANS).collect().await {
                Ok(body) => begin(&body.to_bytes(), &state),
                Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            }
        }
        _ => (StatusCode::NOT_FOUND, "POST or GET /load".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    Ok(response)
}

/// Begins with plans, on a thread that ends with the load.
fn begin(plans: &[u8], state: &Shared) -> (StatusCode, String) {
    let plans: Vec<Plan> = match serde_json::from_slice(plans) {
        Ok(plans) => plans,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("no plans of load: {error}")),
    };
    let mut locked = lock(state);
    if *locked == State::Running {
        return (StatusCode::CONFLICT, "load is made already".to_owned());
    }
    *locked = State::Running;
    drop(locked);
    let state = state.clone();
    std::thread::spawn(move || {
        let made = match load::run_all(&plans) {
            Ok(report) => State::Done(Box::new(report)),
            Err(error) => State::Failed(format!("{error:#}")),
        };
        *lock(&state) = made;
    });
    (StatusCode::ACCEPTED, String::new())
}

fn lock(state: &Shared) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_observe::admin::{Reply, send};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(address: SocketAddr, method: &str, body: &str) -> Reply {
        let stream = TcpStream::connect(address).await.unwrap();
        send(stream, (method, "/load"), body).await.unwrap()
    }

    async fn state(address: SocketAddr) -> State {
        loop {
            let state = serde_json::from_str(&ask(address, "GET", "").await.body).unwrap();
            if state != State::Running {
                return state;
            }
        }
    }

    #[tokio::test]
    async fn plans_are_taken_one_after_the_other_and_their_report_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let station = listener.local_addr().unwrap();
        tokio::spawn(accept(listener));
        assert_eq!(state(station).await, State::Idle);
        // Closed at once by the kernel: each request is an error, and counted.
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let plan = Plan::new(format!("http://{nobody}/"), 100.0, Duration::from_millis(100));
        let text = serde_json::to_string(&[&plan]).unwrap();
        assert_eq!(ask(station, "POST", &text).await.status, 202);
        assert_eq!(ask(station, "POST", &text).await.status, 409, "one at a time");
        let State::Done(report) = state(station).await else { panic!("not done") };
        assert_eq!((report.requests, report.errors), (10, 10));
        let wrong = ask(station, "POST", "[1]").await;
        assert_eq!(wrong.status, 400);
        assert!(wrong.body.contains("no plans"), "{}", wrong.body);
        let nowhere = Plan { connections: 0, ..plan };
        let text = serde_json::to_string(&[nowhere]).unwrap();
        assert_eq!(ask(station, "POST", &text).await.status, 202);
        assert!(matches!(state(station).await, State::Failed(_)));
    }
}
