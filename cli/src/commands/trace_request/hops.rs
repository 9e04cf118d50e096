//! Arranges the hops of one request as a tree.

use leno_tap::{TappedBody, TappedRequest};
use serde::Serialize;

use crate::commands::tap::text::{lines, ms};

/// How long after the end of a hop another one may begin and still count as caused by it. The clocks of machines differ,
/// and an application may send a request shortly after it has answered the one that caused it.
const SLACK_US: u64 = 5_000;

/// The hops in the order of the tree: each comes after the hop that caused it.
#[derive(Debug, Serialize)]
pub(super) struct Hops {
    hops: Vec<Hop>,
}

#[derive(Debug, Serialize)]
struct Hop {
    /// 0 for a hop without a parent, otherwise one more than the depth of its parent.
    depth: usize,
    #[serde(flatten)]
    request: TappedRequest,
}

impl Hops {
    /// Builds the tree. The parent of a hop is, of the hops that began before it and whose server is its client, the last
    /// one that had not ended when it began (with a tolerance of [`SLACK_US`]).
    pub(super) fn new(mut requests: Vec<TappedRequest>) -> Self {
        requests.sort_by_key(|request| request.at_unix_us);
        let parent = |nth: usize| {
            let own = &requests[nth];
            let is_for = |earlier: &TappedRequest| {
                let end = earlier.at_unix_us + earlier.latency.total_us + SLACK_US;
                earlier.server == own.client && own.at_unix_us <= end
            };
            requests[..nth].iter().rposition(is_for)
        };
        let parents: Vec<Option<usize>> = (0..requests.len()).map(parent).collect();
        let mut order = Vec::new();
        let mut open: Vec<(usize, usize)> = Vec::new();
        for root in (0..requests.len()).rev().filter(|nth| parents[*nth].is_none()) {
            open.push((root, 0));
        }
        while let Some((nth, depth)) = open.pop() {
            order.push((nth, depth));
            let of = |child: &usize| parents[*child] == Some(nth);
            open.extend((0..requests.len()).rev().filter(of).map(|child| (child, depth + 1)));
        }
        let hop = |(nth, depth): (usize, usize)| Hop { depth, request: requests[nth].clone() };
        Self { hops: order.into_iter().map(hop).collect() }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for Hop { depth, request } in &self.hops {
            let indent = "  ".repeat(*depth);
            let all = lines(request);
            let (first, headers) = all.split_once('\n').unwrap_or((&all, ""));
            text += &format!("{indent}{first}\n");
            for decision in &request.decisions {
                let (by, at, what) = (&decision.by, ms(decision.at_us), &decision.what);
                text += &format!("{indent}    {by} at {at} ms: {what}\n");
            }
            for header in headers.lines() {
                text += &format!("{indent}{header}\n");
            }
            for (of, body) in
                [("request", &request.request_body), ("response", &request.response_body)]
            {
                if let Some(body) = body {
                    text += &body_text(of, body, &indent);
                }
            }
        }
        if let [Hop { request, .. }] = self.hops.as_slice() {
            text += &format!(
                "one hop: requests that {} has sent for it are unknown unless it passes on the \
                 header tracestate\n",
                request.server
            );
        }
        text
    }
}

/// The beginning of a body, with one line for each of its lines.
fn body_text(of: &str, body: &TappedBody, indent: &str) -> String {
    let TappedBody { text, bytes, is_cut } = body;
    let shown = if *is_cut { ", of which the first are" } else { "" };
    let mut lines = format!("{indent}    {of} body, {bytes} bytes{shown}\n");
    for line in text.lines() {
        lines += &format!("{indent}      {line}\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use leno_tap::{ProxyDecision, RequestLatency};

    use super::*;

    fn request(client: &str, server: &str, at_unix_us: u64, total_us: u64) -> TappedRequest {
        TappedRequest {
            at_unix_us,
            client: client.to_owned(),
            server: server.to_owned(),
            method: "GET".into(),
            target: "/".into(),
            status: 200,
            mtls: true,
            latency: RequestLatency { total_us, ..RequestLatency::default() },
            ..TappedRequest::default()
        }
    }

    #[test]
    fn a_hop_is_below_the_one_that_it_is_for() {
        let hops = Hops::new(vec![
            request("s/db", "s/disk", 30_000, 100),
            request("s/web", "s/cart", 10_000, 50_000),
            request("s/cart", "s/users", 40_000, 100),
            request("s/cart", "s/db", 20_000, 15_000),
        ]);
        let shown: Vec<(usize, &str)> =
            hops.hops.iter().map(|hop| (hop.depth, hop.request.server.as_str())).collect();
        assert_eq!(shown, [(0, "s/cart"), (1, "s/db"), (2, "s/disk"), (1, "s/users")]);
        let text = hops.text();
        assert!(
            text.contains("\n    00:00:00.030 s/db -> s/disk  GET /  200  0.10 ms\n"),
            "{text}"
        );
    }

    #[test]
    fn decisions_are_below_their_hop_and_one_hop_has_a_remark() {
        let decision = |by: &'static str, at_us, what: &str| ProxyDecision {
            by: by.into(),
            at_us,
            what: what.into(),
        };
        let decisions = vec![
            decision("client proxy", 20, "follows HTTPRoute s/cart rule 0"),
            decision("server proxy", 30, "permits spiffe://a by AuthorizationPolicy s/cart"),
        ];
        let headers = vec![("accept".into(), "*/*".into())];
        let one = request("s/web", "s/cart", 0, 1_000);
        let request_body = Some(TappedBody { text: "one\ntwo".into(), bytes: 7, is_cut: false });
        let response_body = Some(TappedBody { text: "three".into(), bytes: 5000, is_cut: true });
        let one = TappedRequest { request_body, response_body, ..one };
        let text = Hops::new(vec![TappedRequest { decisions, headers, ..one }]).text();
        assert_eq!(
            text,
            "00:00:00.000 s/web -> s/cart  GET /  200  1.00 ms\n    \
             client proxy at 0.02 ms: follows HTTPRoute s/cart rule 0\n    \
             server proxy at 0.03 ms: permits spiffe://a by AuthorizationPolicy s/cart\n    accept: */*\n    \
             request body, 7 bytes\n      one\n      two\n    \
             response body, 5000 bytes, of which the first are\n      three\n\
             one hop: requests that s/cart has sent for it are unknown unless it passes on the header tracestate\n"
        );
    }
}
