//! Shows live requests on the page. The page polls taps that have the same rights and limits as those of `leno
//! tap`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_observe::admin::AdminReply;
use leno_tap::TappedRequest;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::commands::tap::proxies::PollFailure;
use crate::commands::tap::{RequestFilter, Tap, TapSession};
use crate::commands::{AnyMesh, OutputForm};

/// Most taps at once. A proxy has the same limit.
const MAX_TAPS: usize = 4;
/// A tap that is not polled for this long is dropped. By then, its proxies have closed it.
const FORGOTTEN: Duration = leno_telemetry::tap::LAPSE;
/// Requests per second that one tap shows: as many as a person can follow.
const MAX_RPS: u32 = 20;
/// Longest name of a tap, in bytes.
const MAX_ID: usize = 64;

/// The taps of the page.
pub(super) struct LiveTaps {
    mesh: AnyMesh,
    taps: RefCell<HashMap<String, LiveTap>>,
}

struct LiveTap {
    /// The open tap; `None` until the first poll opens it.
    session: Rc<Mutex<Option<TapSession>>>,
    polled: Instant,
}

impl LiveTaps {
    pub(super) fn new(mesh: AnyMesh) -> Self {
        Self { mesh, taps: RefCell::default() }
    }

    /// Polls the tap that a query names, and opens it at the first poll. If the query contains `close=true`,
    /// closes it instead.
    pub(super) async fn answer(&self, query: &str) -> AdminReply {
        let parameters: Parameters =
            form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let known = ["id", "workload", "to", "method", "path", "status", "close"];
        if let Some(name) = parameters.keys().find(|name| !known.contains(&&***name)) {
            return refusal(400, &format!("there is no parameter {name:?}"));
        }
        let Some(id) = text(&parameters, "id").filter(|id| id.len() <= MAX_ID) else {
            return refusal(400, "say an id");
        };
        if text(&parameters, "close").is_some_and(|closes| closes == "true") {
            self.close(&id).await;
            return AdminReply { status: 200, body: "{}".to_owned() };
        }
        let Some((namespace, name)) =
            parameters.get("workload").and_then(|name| name.split_once('/'))
        else {
            return refusal(400, "the parameter workload is missing: pass workload=NAMESPACE/NAME");
        };
        let Some(session) = self.reserve(&id) else {
            let why = "four pages with live requests are open, which is the limit: close one of \
                       them";
            return refusal(503, why);
        };
        let mut open = session.lock().await;
        let polled = async {
            if open.is_none() {
                *open = Some(TapSession::open(&self.tap(namespace, name, &parameters)).await?);
            }
            let session = open.as_mut().expect("it was opened");
            let requests = session.step().await?;
            let (beyond, dropped) = session.missed();
            Ok(page(&requests, beyond, dropped))
        };
        let polled: Result<_, anyhow::Error> = polled.await;
        let mut taps = self.taps.borrow_mut();
        let own = taps.get_mut(&id).filter(|tap| Rc::ptr_eq(&tap.session, &session));
        match polled {
            Ok(body) => {
                if let Some(tap) = own {
                    tap.polled = Instant::now();
                }
                AdminReply { status: 200, body: body.to_string() }
            }
            Err(error) => {
                if own.is_some() {
                    taps.remove(&id);
                }
                refusal(status_of(&error), &format!("cannot open a tap: {error:#}"))
            }
        }
    }

    /// The tap with this name, or a new entry for it; `None` if there are too many taps.
    fn reserve(&self, id: &str) -> Option<Rc<Mutex<Option<TapSession>>>> {
        let mut taps = self.taps.borrow_mut();
        // A tap that is being polled has other owners, and is therefore kept.
        taps.retain(|_, tap| {
            Rc::strong_count(&tap.session) > 1 || tap.polled.elapsed() < FORGOTTEN
        });
        if !taps.contains_key(id) && taps.len() >= MAX_TAPS {
            return None;
        }
        let tap = taps
            .entry(id.to_owned())
            .or_insert_with(|| LiveTap { session: Rc::default(), polled: Instant::now() });
        tap.polled = Instant::now();
        Some(tap.session.clone())
    }

    /// Removes the entry of a tap, and closes the tap.
    async fn close(&self, id: &str) {
        let tap = self.taps.borrow_mut().remove(id);
        let Some(tap) = tap else { return };
        if let Some(session) = tap.session.lock().await.take() {
            session.close().await;
        }
    }

    fn tap(&self, namespace: &str, name: &str, parameters: &Parameters) -> Tap {
        Tap {
            filter: RequestFilter {
                workloads: vec![name.to_owned()],
                mesh: self.mesh.clone(),
                namespace: Some(namespace.to_owned()),
                to: text(parameters, "to"),
                method: text(parameters, "method"),
                path: text(parameters, "path"),
            },
            from: None,
            status: text(parameters, "status"),
            max_rps: MAX_RPS,
            count: None,
            time: None,
            headers: false,
            output: OutputForm::Json,
        }
    }
}

/// The requests that were tapped since the previous poll, and two counts since the tap was opened: the requests beyond
/// the rate, and the requests that proxies have dropped.
fn page(requests: &[TappedRequest], beyond: u64, dropped: u64) -> Value {
    json!({"requests": requests, "beyond": beyond, "dropped": dropped})
}

/// The parameters of a poll's query.
type Parameters = HashMap<String, String>;

fn text(parameters: &Parameters, name: &str) -> Option<String> {
    parameters.get(name).filter(|text| !text.is_empty()).cloned()
}

/// The HTTP status for an error. It is between 400 and 499 if another attempt would fail as well.
fn status_of(error: &anyhow::Error) -> u16 {
    for cause in error.chain() {
        if let Some(unpolled) = cause.downcast_ref::<PollFailure>() {
            return unpolled.refusal.unwrap_or(502);
        }
        if let Some(error) = cause.downcast_ref::<leno_operate::Error>() {
            return if error.is_forbidden() { 403 } else { 502 };
        }
        if cause.is::<leno_local::Error>() {
            return 502;
        }
    }
    // The requested object does not exist.
    400
}

fn refusal(status: u16, why: &str) -> AdminReply {
    AdminReply { status, body: json!({"error": why}).to_string() }
}

#[cfg(test)]
mod tests {
    use leno_dashboard::grpc::proto;
    use leno_tap::RequestLatency;

    use super::*;

    #[test]
    fn what_is_tapped_has_the_fields_of_its_message() {
        let request = TappedRequest {
            at_unix_us: 1,
            direction: "outbound".into(),
            client: "shop/web-0".to_owned(),
            client_identity: Some("spiffe://a".into()),
            server: "shop/cart-0".to_owned(),
            server_identity: Some("spiffe://b".into()),
            service: "shop/cart".to_owned(),
            mtls: true,
            protocol: "HTTP/2".into(),
            method: "GET".into(),
            authority: "cart".into(),
            target: "/a".into(),
            route: Some("HTTPRoute shop/cart rule 1".into()),
            retries: 2,
            status: 503,
            grpc_status: Some(14),
            request_bytes: 3,
            response_bytes: 4,
            error: Some("late".into()),
            latency: RequestLatency {
                total_us: 5,
                client_proxy_us: Some(6),
                network_us: Some(7),
                server_proxy_us: Some(8),
                application_us: Some(9),
                response_us: Some(10),
            },
            ..TappedRequest::default()
        };
        let json = page(&[request], 11, 12).to_string();
        let read: proto::TappedRequests = serde_json::from_str(&json).unwrap();
        let text = |text: &str| text.to_owned();
        let expected = proto::TappedRequest {
            at_unix_us: 1,
            direction: text("outbound"),
            client: text("shop/web-0"),
            client_identity: Some(text("spiffe://a")),
            server: text("shop/cart-0"),
            server_identity: Some(text("spiffe://b")),
            service: text("shop/cart"),
            mtls: true,
            protocol: text("HTTP/2"),
            method: text("GET"),
            authority: text("cart"),
            target: text("/a"),
            route: Some(text("HTTPRoute shop/cart rule 1")),
            retries: 2,
            status: 503,
            grpc_status: Some(14),
            request_bytes: 3,
            response_bytes: 4,
            error: Some(text("late")),
            latency: Some(proto::LatencyParts {
                total_us: 5,
                client_proxy_us: Some(6),
                network_us: Some(7),
                server_proxy_us: Some(8),
                application_us: Some(9),
                response_us: Some(10),
            }),
        };
        assert_eq!(
            read,
            proto::TappedRequests { requests: vec![expected], beyond: 11, dropped: 12 }
        );
    }

    #[test]
    fn what_asking_again_does_not_mend_is_a_refusal() {
        let unpolled = |refusal| {
            anyhow::Error::new(PollFailure::new("HTTP", refusal)).context("the proxy of shop/web-0")
        };
        assert_eq!(status_of(&unpolled(Some(400))), 400);
        assert_eq!(status_of(&unpolled(None)), 502);
        let forbidden =
            leno_operate::Error::Forbidden { what: "ask".to_owned(), said: "no".to_owned() };
        assert_eq!(status_of(&forbidden.into()), 403);
        let late = leno_operate::Error::Late("ask".to_owned(), 4);
        assert_eq!(status_of(&anyhow::Error::new(late).context("x")), 502);
        assert_eq!(status_of(&anyhow::anyhow!("shop has no workload wbe")), 400);
    }
}
