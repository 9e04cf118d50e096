//! The load generator in a cluster: a pod that receives plans on loopback, through a port-forward,
//! and returns the report.
//!
//! ```text
//! POST /load/ID  plans   202 started, with the ms it has been running; 409 another load runs; 400 no plans
//! GET  /load/ID          the state of the load, as JSON
//! DELETE /load/ID        202 it ends early, and its report covers the time until then; 404 it does not run
//! POST /probe    plan    starts the probe unless one runs; returns its state as JSON; 400 no plan
//! DELETE /probe          stops the probe and returns its state as JSON
//! ```
//! A client that loses its connection repeats the request: load of the same ID is made only once.
//! There is one probe at a time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use leno_measure::load::{self, Plan, Report, Stop};
use serde::{Deserialize, Serialize};

use crate::loopback::{self, Answer, body, json, lock};
use crate::measurement::probe::probe_for;

/// The port of every load server.
pub(crate) const PORT: u16 = 9091;
/// The largest size of plans: a few thousand services.
const MAX_PLANS: usize = 1024 * 1024;
/// How long a probe runs. Kubelets wait 10 s before they restart a container for the second time.
const PROBE: Duration = Duration::from_secs(60);

/// The state of the plans with a given ID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadState {
    /// There are no such plans, or others have replaced them.
    #[default]
    Idle,
    /// The load is running.
    Running,
    /// The load is complete.
    Done(Box<Report>),
    /// The load failed.
    Failed(String),
}

/// The state of a probe. It sends requests until one succeeds, then until one fails, then until one
/// succeeds again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Probe {
    /// There is no probe.
    #[default]
    Idle,
    /// No request has succeeded yet.
    Asking,
    /// A request has succeeded.
    Answered,
    /// A request has succeeded again after a failure, at this time in nanoseconds of
    /// CLOCK_MONOTONIC.
    AnsweredAgain(u64),
    /// The probe failed, with the reason.
    Failed(String),
}

/// Serves until the process ends. `listen` must be a loopback address, because clients are not
/// authenticated.
///
/// # Errors
/// If the address is not a loopback address, or the server cannot listen on it.
pub fn serve(listen: SocketAddr) -> Result<Infallible> {
    let (state, probes) = (SharedPlans::default(), Probes::default());
    loopback::serve(listen, move |request| answer(request, state.clone(), probes.clone()))
}

/// The plans that were received last.
#[derive(Debug, Default)]
struct ReceivedPlans {
    id: String,
    state: LoadState,
    stop: Stop,
    /// When they were received.
    begun: Option<Instant>,
}

type SharedPlans = Arc<Mutex<ReceivedPlans>>;

/// The number of probes so far, and the state of the last one.
type Probes = Arc<Mutex<(u64, Probe)>>;

async fn answer(request: Request<Incoming>, state: SharedPlans, probes: Probes) -> Answer {
    let id = request.uri().path().strip_prefix("/load/").map(str::to_owned);
    let probe = request.uri().path() == "/probe";
    match (request.method(), id) {
        (&Method::POST, None) if probe => match body(request, MAX_PLANS).await {
            Ok(body) => begin_probe(&body, &probes),
            Err(refused) => refused,
        },
        (&Method::DELETE, None) if probe => {
            let last = std::mem::take(&mut lock(&probes).1);
            (StatusCode::OK, json(&last))
        }
        (&Method::GET, Some(id)) => {
            let last = lock(&state);
            let state = if last.id == id { last.state.clone() } else { LoadState::Idle };
            (StatusCode::OK, json(&state))
        }
        (&Method::POST, Some(id)) => match body(request, MAX_PLANS).await {
            Ok(body) => begin(id, &body, &state),
            Err(refused) => refused,
        },
        (&Method::DELETE, Some(id)) => {
            let last = lock(&state);
            if last.id == id && last.state == LoadState::Running {
                last.stop.stop();
                (StatusCode::ACCEPTED, String::new())
            } else {
                (StatusCode::NOT_FOUND, "no such load is under way".to_owned())
            }
        }
        _ => (
            StatusCode::NOT_FOUND,
            "POST, GET or DELETE /load/ID, POST or DELETE /probe".to_owned(),
        ),
    }
}

/// Starts the load of these plans on a thread that ends with it. If the load of this ID was started
/// already, this only reports it.
fn begin(id: String, plans: &[u8], state: &SharedPlans) -> (StatusCode, String) {
    let plans: Vec<Plan> = match serde_json::from_slice(plans) {
        Ok(plans) => plans,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("no plans of load: {error}")),
    };
    let mut locked = lock(state);
    if locked.id == id {
        let since = locked.begun.map_or(0, |begun| begun.elapsed().as_millis());
        return (StatusCode::ACCEPTED, since.to_string());
    }
    if locked.state == LoadState::Running {
        return (StatusCode::CONFLICT, "other load is made already".to_owned());
    }
    let stop = Stop::default();
    *locked = ReceivedPlans {
        id,
        state: LoadState::Running,
        stop: stop.clone(),
        begun: Some(Instant::now()),
    };
    drop(locked);
    let state = state.clone();
    std::thread::spawn(move || {
        let made = match load::run_until(&plans, &stop) {
            Ok(report) => LoadState::Done(Box::new(report)),
            Err(error) => LoadState::Failed(format!("{error:#}")),
        };
        lock(&state).state = made;
    });
    (StatusCode::ACCEPTED, "0".to_owned())
}

/// Starts a probe unless one is running. Its thread ends when the probe succeeds again, runs out of
/// time, or is stopped.
fn begin_probe(plan: &[u8], probes: &Probes) -> (StatusCode, String) {
    let plan: Plan = match serde_json::from_slice(plan) {
        Ok(plan) => plan,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("no plan of load: {error}")),
    };
    let mut locked = lock(probes);
    if locked.1 != Probe::Idle {
        return (StatusCode::OK, json(&locked.1));
    }
    let nth = locked.0 + 1;
    *locked = (nth, Probe::Asking);
    drop(locked);
    let probes = probes.clone();
    std::thread::spawn(move || {
        // If this probe was stopped, its state is `Idle` or belongs to another probe.
        let set = |next: &dyn Fn(&Probe) -> Probe| {
            let mut last = lock(&probes);
            anyhow::ensure!(last.0 == nth && last.1 != Probe::Idle, "it was told to end");
            last.1 = next(&last.1);
            Ok(())
        };
        let goes_on = || set(&Probe::clone);
        let asked = probe_for(plan, PROBE, goes_on, |at| {
            let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            set(&|last| match last {
                Probe::Asking => Probe::Answered,
                _ => Probe::AnsweredAgain(at),
            })
        });
        if let Err(error) = asked {
            let _ended = set(&|_| Probe::Failed(format!("{error:#}")));
        }
    });
    (StatusCode::OK, json(&Probe::Asking))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_measure::load::Pace;
    use leno_observe::admin::{Reply, send};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A load server in this process, and its address.
    async fn load_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, probes) = (SharedPlans::default(), Probes::default());
        let answers = move |request| answer(request, state.clone(), probes.clone());
        tokio::spawn(loopback::accept(listener, answers));
        address
    }

    async fn ask(address: SocketAddr, (method, id): (&str, &str), body: &str) -> Reply {
        let stream = TcpStream::connect(address).await.unwrap();
        send(stream, (method, &format!("/load/{id}")), body).await.unwrap()
    }

    async fn state(address: SocketAddr, id: &str) -> LoadState {
        loop {
            let state = serde_json::from_str(&ask(address, ("GET", id), "").await.body).unwrap();
            if state != LoadState::Running {
                return state;
            }
        }
    }

    #[tokio::test]
    async fn a_probe_says_when_it_was_answered_again() {
        let server = self::load_server().await;
        let ask = async |method: &str, body: &str| {
            let stream = TcpStream::connect(server).await.unwrap();
            send(stream, (method, "/probe"), body).await.unwrap()
        };
        // The test controls whether this server answers.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answers, told) = tokio::sync::watch::channel(false);
        let (count, mut refused) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                if *told.borrow() {
                    let mut request = [0; 1024];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                } else {
                    count.send_modify(|count| *count += 1);
                }
            }
        });
        let plan = Plan::new(format!("http://{address}/"), 1.0, Duration::from_secs(1));
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(ask("POST", "[]").await.status, 400);
        let state = async |method: &str| -> Probe {
            serde_json::from_str(&ask(method, &text).await.body).unwrap()
        };
        assert_eq!(state("POST").await, Probe::Asking);
        assert_eq!(state("DELETE").await, Probe::Asking);
        assert_eq!(state("DELETE").await, Probe::Idle, "it was told to end");
        assert_eq!(state("POST").await, Probe::Asking);
        answers.send(true).unwrap();
        while state("POST").await == Probe::Asking {}
        assert_eq!(state("POST").await, Probe::Answered);
        answers.send(false).unwrap();
        // One request may have been in flight; the next one is from this probe.
        let before = *refused.borrow();
        refused.wait_for(|count| *count > before + 1).await.unwrap();
        answers.send(true).unwrap();
        while state("POST").await == Probe::Answered {}
        let Probe::AnsweredAgain(at) = state("POST").await else { panic!("it was answered again") };
        assert!(at > 0);
        assert_eq!(state("DELETE").await, Probe::AnsweredAgain(at));
    }

    #[tokio::test]
    async fn load_ends_when_it_is_told_to_and_is_reported_as_far_as_it_came() {
        let server = self::load_server().await;
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        // One hour of load: the test only ends if the load is stopped early.
        for (id, pace) in [("a", Pace::Saturate), ("b", Pace::Rate(1000.0))] {
            let plan = Plan {
                pace,
                ..Plan::new(format!("http://{closed}/"), 1.0, Duration::from_hours(1))
            };
            let text = serde_json::to_string(&[plan]).unwrap();
            assert_eq!(ask(server, ("POST", id), &text).await.status, 202);
            assert_eq!(ask(server, ("DELETE", "other"), "").await.status, 404);
            assert_eq!(ask(server, ("DELETE", id), "").await.status, 202);
            let LoadState::Done(report) = state(server, id).await else { panic!("not done") };
            assert!(report.duration_s < 3600.0, "{report:?}");
            assert_eq!(ask(server, ("DELETE", id), "").await.status, 404, "it has ended");
        }
    }

    #[tokio::test]
    async fn plans_are_taken_one_after_the_other_and_their_report_is_kept() {
        let server = self::load_server().await;
        assert_eq!(state(server, "a").await, LoadState::Idle);
        // The kernel refuses these connections: each request is an error, and is counted.
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let plan = Plan::new(format!("http://{closed}/"), 100.0, Duration::from_secs(1));
        let text = serde_json::to_string(&[&plan]).unwrap();
        assert_eq!(ask(server, ("POST", "a"), &text).await.status, 202);
        assert_eq!(ask(server, ("POST", "b"), &text).await.status, 409, "one at a time");
        let again = ask(server, ("POST", "a"), &text).await;
        assert_eq!(again.status, 202, "of a client whose connection was lost");
        again.body.parse::<u64>().expect("for how long it goes on already");
        let LoadState::Done(report) = state(server, "a").await else { panic!("not done") };
        assert_eq!((report.requests, report.errors), (100, 100));
        assert_eq!(ask(server, ("POST", "a"), &text).await.status, 202, "late, and not made again");
        let again = ask(server, ("GET", "a"), "").await.body;
        assert_eq!(serde_json::from_str::<LoadState>(&again).unwrap(), LoadState::Done(report));
        assert_eq!(state(server, "b").await, LoadState::Idle);
        let wrong = ask(server, ("POST", "c"), "[1]").await;
        assert_eq!(wrong.status, 400);
        assert!(wrong.body.contains("no plans"), "{}", wrong.body);
        let nowhere = Plan { connections: 0, ..plan };
        let text = serde_json::to_string(&[nowhere]).unwrap();
        assert_eq!(ask(server, ("POST", "d"), &text).await.status, 202);
        assert!(matches!(state(server, "d").await, LoadState::Failed(_)));
    }
}
