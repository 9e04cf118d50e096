//! What the taps of proxies record, joined to requests: the proxies of the client and of the server each see a half.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long a half waits for the other one.
const WAIT: Duration = Duration::from_millis(1500);
/// Most halves that wait. The others are shown as they are.
const MAX_WAITING: usize = 8192;

/// An answer of the page `/tap` of a proxy.
#[derive(Clone, Debug, Deserialize)]
pub struct Page {
    /// The identity of the proxy's workload.
    pub identity: Option<String>,
    /// What was recorded since the last answer.
    pub events: Vec<Event>,
    /// Requests beyond the rate since the tap was opened.
    pub sampled_out: u64,
    /// Requests that did not fit into the queue since the tap was opened.
    pub dropped: u64,
}

/// A request as one proxy has seen it. Times are in microseconds since the head of the request.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of `TappedRequest`, or named as on the page")]
pub struct Event {
    pub at_unix_us: u64,
    pub direction: String,
    pub client_namespace: String,
    pub client: String,
    pub server_namespace: String,
    pub server: String,
    pub service: String,
    pub mtls: bool,
    pub peer: Option<String>,
    pub mark: Option<String>,
    pub protocol: String,
    pub method: String,
    pub authority: String,
    pub target: String,
    pub route: Option<String>,
    pub retries: u32,
    pub status: u16,
    pub grpc_status: Option<u8>,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub error: Option<String>,
    pub sent_us: Option<u64>,
    pub first_byte_us: Option<u64>,
    pub total_us: u64,
    pub headers: Vec<(String, String)>,
}

/// A request of a mesh.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TappedRequest {
    /// When it began, in microseconds of Unix time.
    pub at_unix_us: u64,
    /// `outbound` if the proxy of its client was tapped, else `inbound`.
    pub direction: String,
    /// The client, `namespace/name`; without the client's proxy the service account of its identity.
    pub client: String,
    /// The client's identity.
    pub client_identity: Option<String>,
    /// The server, `namespace/name`.
    pub server: String,
    /// The server's identity.
    pub server_identity: Option<String>,
    /// The service that the client called; empty without the client's proxy.
    pub service: String,
    /// Whether the connection between client and server is mTLS.
    pub mtls: bool,
    /// The version of HTTP in which the request came.
    pub protocol: String,
    /// The method.
    pub method: String,
    /// The host that the request is for.
    pub authority: String,
    /// The path with its query.
    pub target: String,
    /// The route and the rule that it followed.
    pub route: Option<String>,
    /// How often it was sent again.
    pub retries: u32,
    /// The status.
    pub status: u16,
    /// The `grpc-status` of a gRPC call.
    pub grpc_status: Option<u8>,
    /// Bytes from the client.
    pub request_bytes: u64,
    /// Bytes to the client.
    pub response_bytes: u64,
    /// Why the mesh failed it.
    pub error: Option<String>,
    /// Where its time went.
    pub latency: Latency,
    /// Headers without secrets, if wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// The parts of a request's time, in microseconds. `None`: the proxy that knows it was not tapped, or the request did
/// not get so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// All of it.
    pub total_us: u64,
    /// In the client's proxy, before the request was sent on the last time.
    pub client_proxy_us: Option<u64>,
    /// Between the two proxies, there and back.
    pub network_us: Option<u64>,
    /// In the server's proxy, before the application had the request.
    pub server_proxy_us: Option<u64>,
    /// In the application, until its response began.
    pub application_us: Option<u64>,
    /// From the beginning of the response to its end.
    pub response_us: Option<u64>,
}

/// Joins the events of several proxies.
#[derive(Debug, Default)]
pub struct Joiner {
    /// By mark: the client's half that waits, or the server's, which may be here first.
    clients: HashMap<String, (Instant, TappedRequest, Event)>,
    servers: HashMap<String, (Instant, TappedRequest, Event, bool)>,
}

impl Joiner {
    /// Takes an answer. `is_target`: its events are shown; those of other proxies complete them only. Returns the
    /// requests that are complete.
    pub fn push(&mut self, page: Page, is_target: bool, now: Instant) -> Vec<TappedRequest> {
        let mut ready = Vec::new();
        for event in page.events {
            let half = half(&event, page.identity.as_deref());
            let Some(mark) = event.mark.clone() else {
                ready.extend(is_target.then_some(half));
                continue;
            };
            if event.direction == "outbound" {
                match self.servers.remove(&mark) {
                    Some((_, _, server, _)) => ready.push(joined(half, &event, &server)),
                    None if event.mtls && self.clients.len() < MAX_WAITING => {
                        self.clients.insert(mark, (now, half, event));
                    }
                    None => ready.push(half),
                }
            } else {
                match self.clients.remove(&mark) {
                    Some((_, client, of_client)) => ready.push(joined(client, &of_client, &event)),
                    None if self.servers.len() < MAX_WAITING => {
                        self.servers.insert(mark, (now, half, event, is_target));
                    }
                    None => ready.extend(is_target.then_some(half)),
                }
            }
        }
        ready
    }

    /// The halves whose others have not come in time.
    pub fn late(&mut self, now: Instant) -> Vec<TappedRequest> {
        let is_late = |at: &Instant| now.saturating_duration_since(*at) >= WAIT;
        let clients = self.clients.extract_if(|_, (at, ..)| is_late(at));
        let mut late: Vec<TappedRequest> = clients.map(|(_, (_, half, _))| half).collect();
        let servers = self.servers.extract_if(|_, (at, ..)| is_late(at));
        late.extend(servers.filter_map(|(_, (_, half, _, is_target))| is_target.then_some(half)));
        late.sort_by_key(|request| request.at_unix_us);
        late
    }

    /// All halves.
    pub fn rest(&mut self, now: Instant) -> Vec<TappedRequest> {
        self.late(now.checked_add(WAIT).unwrap_or(now))
    }
}

/// What one proxy knows of a request.
fn half(event: &Event, identity: Option<&str>) -> TappedRequest {
    let named = |namespace: &str, name: &str| match (namespace, name) {
        ("", "") => String::new(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let is_outbound = event.direction == "outbound";
    let (own, peer) = (identity.map(str::to_owned), event.peer.clone());
    let (client_identity, server_identity) = if is_outbound { (own, peer) } else { (peer, own) };
    let waited =
        event.first_byte_us.zip(event.sent_us).map(|(byte, sent)| byte.saturating_sub(sent));
    let response_us = event.first_byte_us.map(|byte| event.total_us.saturating_sub(byte));
    let latency = match is_outbound {
        true => Latency { client_proxy_us: event.sent_us, ..Latency::default() },
        false => {
            Latency { server_proxy_us: event.sent_us, application_us: waited, ..Latency::default() }
        }
    };
    TappedRequest {
        at_unix_us: event.at_unix_us,
        direction: event.direction.clone(),
        client: named(&event.client_namespace, &event.client),
        client_identity,
        server: named(&event.server_namespace, &event.server),
        server_identity,
        service: event.service.clone(),
        mtls: event.mtls,
        protocol: event.protocol.clone(),
        method: event.method.clone(),
        authority: event.authority.clone(),
        target: event.target.clone(),
        route: event.route.clone(),
        retries: event.retries,
        status: event.status,
        grpc_status: event.grpc_status,
        request_bytes: event.request_bytes,
        response_bytes: event.response_bytes,
        error: event.error.clone(),
        latency: Latency { total_us: event.total_us, response_us, ..latency },
        headers: event.headers.clone(),
    }
}

/// The half of the client's proxy with the figures of the server's.
fn joined(client: TappedRequest, of_client: &Event, of_server: &Event) -> TappedRequest {
    let of = half(of_server, None).latency;
    let waited = of_client.first_byte_us.zip(of_client.sent_us);
    let network_us = waited
        .zip(of_server.first_byte_us)
        .map(|((byte, sent), server)| byte.saturating_sub(sent).saturating_sub(server));
    let latency = Latency {
        network_us,
        server_proxy_us: of.server_proxy_us,
        application_us: of.application_us,
        ..client.latency
    };
    TappedRequest { latency, ..client }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(direction: &str, mark: Option<&str>, (sent, byte, total): (u64, u64, u64)) -> Event {
        Event {
            at_unix_us: 1,
            direction: direction.to_owned(),
            client_namespace: "shop".to_owned(),
            client: "web-0".to_owned(),
            server_namespace: "shop".to_owned(),
            server: "cart-0".to_owned(),
            service: "cart".to_owned(),
            mtls: true,
            peer: None,
            mark: mark.map(str::to_owned),
            protocol: "HTTP/1.1".to_owned(),
            method: "GET".to_owned(),
            authority: "cart".to_owned(),
            target: "/".to_owned(),
            route: None,
            retries: 0,
            status: 200,
            grpc_status: None,
            request_bytes: 0,
            response_bytes: 0,
            error: None,
            sent_us: Some(sent),
            first_byte_us: Some(byte),
            total_us: total,
            headers: Vec::new(),
        }
    }

    fn page(event: Event) -> Page {
        let identity = Some("spiffe://a/ns/shop/sa/web".to_owned());
        Page { identity, events: vec![event], sampled_out: 0, dropped: 0 }
    }

    #[test]
    fn the_halves_of_a_request_are_joined_whichever_comes_first() {
        let client = || page(event("outbound", Some("7"), (100, 1100, 1200)));
        let server = || page(event("inbound", Some("7"), (50, 850, 900)));
        let wanted = Latency {
            total_us: 1200,
            client_proxy_us: Some(100),
            network_us: Some(150),
            server_proxy_us: Some(50),
            application_us: Some(800),
            response_us: Some(100),
        };
        let now = Instant::now();
        for client_first in [true, false] {
            let mut joiner = Joiner::default();
            let pages = match client_first {
                true => [(client(), true), (server(), false)],
                false => [(server(), false), (client(), true)],
            };
            let ready = pages.map(|(page, is_target)| joiner.push(page, is_target, now));
            let [first, second] = ready;
            assert!(first.is_empty());
            assert_eq!(second.iter().map(|one| one.latency).collect::<Vec<_>>(), [wanted]);
            assert_eq!(second[0].client_identity.as_deref(), Some("spiffe://a/ns/shop/sa/web"));
            assert!(joiner.rest(now).is_empty());
        }
    }

    #[test]
    fn a_half_is_shown_in_time_unless_it_is_of_a_proxy_that_was_tapped_for_another() {
        let now = Instant::now();
        let mut joiner = Joiner::default();
        assert!(joiner.push(page(event("outbound", Some("7"), (1, 2, 3))), true, now).is_empty());
        assert!(joiner.push(page(event("inbound", Some("8"), (1, 2, 3))), false, now).is_empty());
        assert!(joiner.late(now).is_empty());
        let late = joiner.late(now + WAIT);
        assert_eq!(late.len(), 1);
        assert_eq!(late[0].latency.application_us, None);
        let unmarked = page(event("inbound", None, (1, 2, 3)));
        assert_eq!(joiner.push(unmarked, true, now).len(), 1, "of a client outside of the mesh");
    }
}
