//! Joins the records of taps into requests: the proxy of the client and the proxy of the server each record one
//! half.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use leno_tap::TappedRequest;

/// How long a half waits for the other one.
const WAIT: Duration = Duration::from_millis(1500);
/// Most halves that wait. Beyond this number, a half is returned without its other half.
const MAX_WAITING: usize = 8192;

/// Joins the requests of several proxies.
#[derive(Debug, Default)]
pub struct Joiner {
    /// The halves that wait, by mark: the client's, and the server's. The server's half may arrive first, and may
    /// come from a proxy that is tapped only to complete the records of others.
    clients: HashMap<Box<str>, (Instant, TappedRequest)>,
    servers: HashMap<Box<str>, (Instant, TappedRequest, bool)>,
}

impl Joiner {
    /// Adds a record of a proxy. A request is returned only if one of its halves has `is_target`; other halves
    /// only complete it. Returns the requests that are complete.
    pub fn push(
        &mut self,
        requests: Vec<TappedRequest>,
        is_target: bool,
        now: Instant,
    ) -> Vec<TappedRequest> {
        let mut ready = Vec::new();
        for half in requests {
            let Some(mark) = half.mark.clone() else {
                ready.extend(is_target.then_some(half));
                continue;
            };
            if half.is_outbound() {
                match self.servers.remove(&mark) {
                    Some((_, server, _)) => ready.push(half.join(&server)),
                    None if half.mtls && self.clients.len() < MAX_WAITING => {
                        self.clients.insert(mark, (now, half));
                    }
                    None => ready.push(alone(half)),
                }
            } else {
                match self.clients.remove(&mark) {
                    Some((_, client)) => ready.push(client.join(&half)),
                    None if self.servers.len() < MAX_WAITING => {
                        self.servers.insert(mark, (now, half, is_target));
                    }
                    None => ready.extend(is_target.then(|| alone(half))),
                }
            }
        }
        ready
    }

    /// The halves whose other half did not arrive in time.
    pub fn late(&mut self, now: Instant) -> Vec<TappedRequest> {
        let is_late = |at: &Instant| now.saturating_duration_since(*at) >= WAIT;
        let clients = self.clients.extract_if(|_, (at, _)| is_late(at));
        let mut late: Vec<TappedRequest> = clients.map(|(_, (_, half))| alone(half)).collect();
        let servers = self.servers.extract_if(|_, (at, ..)| is_late(at));
        late.extend(servers.filter_map(|(_, (_, half, is_target))| is_target.then(|| alone(half))));
        late.sort_by_key(|request| request.at_unix_us);
        late
    }

    /// All halves that are left.
    pub fn rest(&mut self, now: Instant) -> Vec<TappedRequest> {
        self.late(now.checked_add(WAIT).unwrap_or(now))
    }
}

/// Turns a half into a request without its other half.
fn alone(half: TappedRequest) -> TappedRequest {
    TappedRequest { mark: None, ..half }
}

#[cfg(test)]
mod tests {
    use leno_tap::RequestLatency;

    use super::*;

    fn half(
        direction: &'static str,
        mark: Option<&str>,
        latency: RequestLatency,
    ) -> Vec<TappedRequest> {
        vec![TappedRequest {
            direction: direction.into(),
            mtls: true,
            mark: mark.map(Into::into),
            latency,
            ..TappedRequest::default()
        }]
    }

    fn of_client(mark: &str) -> Vec<TappedRequest> {
        half("outbound", Some(mark), RequestLatency::of_client(1200, Some(100), Some(1100)))
    }

    fn of_server(mark: Option<&str>) -> Vec<TappedRequest> {
        half("inbound", mark, RequestLatency::of_server(900, Some(50), Some(850)))
    }

    #[test]
    fn the_halves_of_a_request_are_joined_whichever_comes_first() {
        let now = Instant::now();
        for client_first in [true, false] {
            let mut joiner = Joiner::default();
            let client = (of_client("7"), true);
            let server = (of_server(Some("7")), false);
            let halves = if client_first { [client, server] } else { [server, client] };
            let [first, second] = halves.map(|(half, target)| joiner.push(half, target, now));
            assert!(first.is_empty());
            let networks: Vec<_> = second.iter().map(|one| one.latency.network_us).collect();
            assert_eq!(networks, [Some(150)]);
            assert!(joiner.rest(now).is_empty());
        }
    }

    #[test]
    fn a_half_is_shown_in_time_unless_it_is_of_a_proxy_that_was_tapped_for_another() {
        let now = Instant::now();
        let mut joiner = Joiner::default();
        assert!(joiner.push(of_client("7"), true, now).is_empty());
        assert!(joiner.push(of_server(Some("8")), false, now).is_empty());
        assert!(joiner.late(now).is_empty());
        let late = joiner.late(now + WAIT);
        assert_eq!(late.len(), 1);
        assert_eq!((late[0].latency.application_us, &late[0].mark), (None, &None));
        let unmarked = joiner.push(of_server(None), true, now);
        assert_eq!(unmarked.len(), 1, "of a client outside of the mesh");
    }
}
