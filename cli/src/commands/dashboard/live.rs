//! Live requests for the page: it polls taps, which are those of `leno tap` and have the same rights and bounds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_observe::admin::Reply;
use serde_json::json;
use tokio::sync::Mutex;

use crate::commands::tap::{RequestFilter, Session, Tap};
use crate::commands::{AnyMesh, Output};

/// Taps at once: a proxy has as many.
const MAX_TAPS: usize = 4;
/// A tap that is not polled for this long is forgotten; its proxies have closed it by then.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Requests a second of one tap: what a person can glance at.
const MAX_RPS: u32 = 20;
/// Longest name of a tap.
const MAX_ID: usize = 64;

/// The taps of the page.
pub(super) struct Live {
    mesh: AnyMesh,
    taps: RefCell<HashMap<String, LiveTap>>,
}

struct LiveTap {
    session: Rc<Mutex<Session>>,
    polled: Instant,
}

impl Live {
    pub(super) fn new(mesh: AnyMesh) -> Self {
        Self { mesh, taps: RefCell::default() }
    }

    /// Polls the tap that a query names, which is opened by its first poll.
    pub(super) async fn answer(&self, query: &str) -> Result<Reply, String> {
        let parameters: HashMap<String, String> =
            form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let known = ["id", "workload", "to", "method", "path", "status"];
        if let Some(name) = parameters.keys().find(|name| !known.contains(&&***name)) {
            return Ok(refusal(&format!("there is no parameter {name:?}")));
        }
        let text = |name: &str| parameters.get(name).filter(|text| !text.is_empty()).cloned();
        let Some(id) = text("id").filter(|id| id.len() <= MAX_ID) else {
            return Ok(refusal("say an id"));
        };
        self.taps.borrow_mut().retain(|_, tap| tap.polled.elapsed() < FORGOTTEN);
        let known = self.taps.borrow_mut().get_mut(&id).map(|tap| {
            tap.polled = Instant::now();
            tap.session.clone()
        });
        let session = match known {
            Some(session) => session,
            None if self.taps.borrow().len() >= MAX_TAPS => {
                return Ok(refusal("there are four pages with live requests already: close one"));
            }
            None => {
                let Some((namespace, name)) =
                    parameters.get("workload").and_then(|name| name.split_once('/'))
                else {
                    return Ok(refusal("say a workload, namespace/name"));
                };
                let tap = Tap {
                    filter: RequestFilter {
                        workloads: vec![name.to_owned()],
                        mesh: self.mesh.clone(),
                        namespace: Some(namespace.to_owned()),
                        to: text("to"),
                        method: text("method"),
                        path: text("path"),
                    },
                    from: None,
                    status: text("status"),
                    max_rps: MAX_RPS,
                    count: None,
                    time: None,
                    headers: false,
                    output: Output::Json,
                };
                let session = Session::open(&tap).await.map_err(|error| format!("{error:#}"))?;
                let session = Rc::new(Mutex::new(session));
                let tap = LiveTap { session: session.clone(), polled: Instant::now() };
                self.taps.borrow_mut().insert(id.clone(), tap);
                session
            }
        };
        let mut session = session.lock().await;
        let requests = match session.step().await {
            Ok(requests) => requests,
            Err(error) => {
                self.taps.borrow_mut().remove(&id);
                return Err(format!("{error:#}"));
            }
        };
        let (beyond, dropped) = session.missed();
        let body = json!({"requests": requests, "beyond": beyond, "dropped": dropped});
        Ok(Reply { status: 200, body: body.to_string() })
    }
}

fn refusal(why: &str) -> Reply {
    Reply { status: 400, body: json!({"error": why}).to_string() }
}
