//! The clients of the admin server, and which pages each may request.
//!
//! ```text
//!             /metrics /ready /live /probe    /config /audited /tap    /drain
//! network              yes*                       -                  -
//! loopback             yes                       yes                 -
//! Unix socket          yes                       yes                yes
//! * if --scrape-from has addresses, /metrics only for these
//! ```
//! A request over loopback may come from the application, which an outside client may have tricked into sending it
//! (SSRF). So everything that ends the proxy requires the Unix socket, to which only this user and root can connect. In
//! a DNS rebinding attack a page of a browser makes its own name resolve to a loopback address; its requests have that
//! name as `Host`. So requests over loopback must have an IP address or `localhost`. Requests from the network may have
//! any name, because a scraper may know the proxy by a name.

use std::net::IpAddr;

use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode};
use leno_program::content::TEXT;
use leno_program::{AdminResponse, SocketPair, respond};
use leno_types::authorization::Cidr;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// From another machine or pod.
    Network { client: IpAddr, called: IpAddr },
    /// From a process in this network namespace, which called this loopback address.
    Loopback(IpAddr),
    /// From a process of this user or of root, on the Unix socket.
    Socket,
}

impl Caller {
    /// Finds out who the client of a TCP connection is.
    pub(crate) fn of(ends: &SocketPair) -> Self {
        let (client, called) = (ends.client.ip().to_canonical(), ends.called.ip());
        if client.is_loopback() { Self::Loopback(called) } else { Self::Network { client, called } }
    }

    /// The address that the client called.
    pub(crate) fn called(self) -> IpAddr {
        match self {
            Self::Network { called, .. } | Self::Loopback(called) => called,
            Self::Socket => std::net::Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// The error response, if this caller may not make the request. `scrapers` are the network addresses that may
    /// request metrics; if there are none, all may.
    pub(crate) fn refuse<B>(
        self,
        request: &Request<B>,
        scrapers: &[Cidr],
    ) -> Option<AdminResponse> {
        let refused = |status, why: &'static str| Some(respond(status, TEXT, why));
        if matches!(self, Self::Loopback(_)) && !names_this_server(request) {
            let why = "the Host header must be an IP address or localhost\n";
            return refused(StatusCode::MISDIRECTED_REQUEST, why);
        }
        match (request.uri().path(), self) {
            ("/drain", Self::Network { .. } | Self::Loopback(_)) => refused(
                StatusCode::FORBIDDEN,
                "/drain is served on the Unix socket of --admin-socket only; SIGTERM drains too\n",
            ),
            ("/metrics", Self::Network { client, .. }) if !is_among(scrapers, client) => refused(
                StatusCode::FORBIDDEN,
                "this address may not read metrics: add it to --scrape-from\n",
            ),
            ("/config" | "/audited" | "/tap", Self::Network { .. }) => refused(
                StatusCode::FORBIDDEN,
                "this page is served only on loopback: query it \
                 from within the workload's network namespace\n",
            ),
            _ => None,
        }
    }
}

/// Whether `scrapers` contains this address. Without any, every address may request metrics.
fn is_among(scrapers: &[Cidr], ip: IpAddr) -> bool {
    scrapers.is_empty() || scrapers.iter().any(|one| one.contains(ip))
}

/// Whether `Host` is an IP address or `localhost`, as it is in probes. HTTP/1.0 requests may omit it.
fn names_this_server<B>(request: &Request<B>) -> bool {
    let named = |authority: &Authority| {
        let host = authority.host();
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
    };
    let mut hosts = request.headers().get_all(HOST).iter();
    let of_host = |host: &hyper::header::HeaderValue| {
        host.to_str().ok().and_then(|host| host.parse().ok()).is_some_and(|host| named(&host))
    };
    request.uri().authority().is_none_or(named) && hosts.all(of_host)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn status(from: &str, path: &str, host: Option<&str>) -> Option<u16> {
        let called = SocketAddr::from(([127, 0, 0, 1], 15020));
        let caller = match from {
            "socket" => Caller::Socket,
            client => Caller::of(&SocketPair {
                client: SocketAddr::new(client.parse().unwrap(), 1),
                called,
            }),
        };
        let mut request = Request::builder().uri(path);
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        let scrapers = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
        caller.refuse(&request.body(()).unwrap(), &scrapers).map(|answer| answer.status().as_u16())
    }

    #[test]
    fn each_caller_has_its_pages() {
        for (from, allowed) in
            [("10.0.0.1", 4), ("127.0.0.1", 6), ("::ffff:127.0.0.1", 6), ("socket", 7)]
        {
            let pages =
                ["/metrics", "/ready", "/live", "/probe/web/liveness", "/config", "/tap", "/drain"];
            for (number, page) in pages.into_iter().enumerate() {
                let refused = (number >= allowed).then_some(403);
                assert_eq!(status(from, page, Some("10.0.0.2:15020")), refused, "{from} {page}");
            }
        }
    }

    #[test]
    fn metrics_are_for_scrapers_and_health_for_all() {
        for (from, refused) in [
            ("10.1.2.3", None),
            ("::ffff:10.1.2.3", None),
            ("fd00::7", None),
            ("127.0.0.1", None),
            ("socket", None),
            ("192.0.2.1", Some(403)),
            ("::ffff:192.0.2.1", Some(403)),
            ("2001:db8::1", Some(403)),
        ] {
            assert_eq!(status(from, "/metrics", None), refused, "{from}");
            for page in ["/ready", "/live", "/probe/web/liveness"] {
                assert_eq!(status(from, page, None), None, "{from} {page}");
            }
        }
        assert!(is_among(&[], "192.0.2.1".parse().unwrap()), "everyone, where none is named");
    }

    #[test]
    fn the_name_of_someone_else_is_refused() {
        for (host, refused) in [
            (None, None),
            (Some("127.0.0.1:15020"), None),
            (Some("[fd00::1]:15020"), None),
            (Some("LocalHost"), None),
            (Some("rebound.example"), Some(421)),
            (Some("localhost.rebound.example:15020"), Some(421)),
            (Some("127.0.0.1.rebound.example"), Some(421)),
            (Some(""), Some(421)),
            (Some("a b"), Some(421)),
        ] {
            assert_eq!(status("127.0.0.1", "/config", host), refused, "{host:?}");
            assert_eq!(status("socket", "/drain", host), None, "{host:?}");
            assert_eq!(status("10.0.0.1", "/metrics", host), None, "{host:?}");
        }
        assert_eq!(status("127.0.0.1", "http://rebound.example/config", None), Some(421));
    }
}
