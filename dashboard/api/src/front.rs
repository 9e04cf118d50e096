//! The dashboard for a browser: it serves the page, and forwards requests to the interface of an observer on this
//! machine or in a cluster.
//!
//! Pages of other sites must not be able to read the dashboard. Without a token, it answers only if `Host` is this
//! machine, which protects against DNS rebinding, and no answer permits another origin. Documents may contain
//! information that is only for administrators, so they always need the token.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use leno_observe::admin::{ANSWER_BOUND, AdminReply, ask};
use leno_program::content::{JSON, PROMETHEUS, TEXT};
use leno_program::{AdminResponse, Share, refuse_method, respond};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::grpc;
use crate::limits::ReaderLimits;
use crate::serve::{ROOT, refuse};

/// The page, built from `dashboard/web` by `scripts/web.sh`.
const PAGE: [(&str, &str, &[u8]); 4] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../../web/dist/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../../web/dist/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../../web/dist/app.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../../web/dist/icon.svg")),
];

/// Restrictions for the browser that are sent with every answer: nothing is loaded from elsewhere, and no other
/// page embeds this one.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
];

/// The dashboard's server for browsers.
#[derive(Clone)]
pub struct DashboardFront {
    observer: Observer,
    token: Option<String>,
    /// Whether browsers on this machine can read everything except documents without the token.
    is_open: bool,
    limits: Rc<ReaderLimits>,
    /// Polls a tap; gets the query of the request.
    taps: Option<ObserverQuery>,
    /// Answers the paths in [`OWN`]; gets the path with its query.
    own: Option<ObserverQuery>,
}

/// The paths that this program itself answers, with the rights of its user: health checks, the certificates of the
/// authority, and documents.
const OWN: [&str; 3] = ["/api/v1/checks", "/api/v1/authority", DOCUMENT];
/// The path of documents.
const DOCUMENT: &str = "/api/v1/document";
/// Most simultaneous HTTP/2 connections of callers that have proved that they may read something. Connections of
/// browsers have their own limit.
const MAX_HTTP2: usize = 8;
/// Longest wait for the next request on a connection of a browser. Browsers open connections before they need them, and
/// open others in place of those that the server has closed by then. But Chromium reports `ERR_SOCKET_NOT_CONNECTED` if
/// it opened the connection for a request, which it may send seconds later on a busy machine. The page polls every 5 s,
/// so this also lets the browser keep its connections.
const BROWSER_WAIT: Duration = Duration::from_secs(30);
/// The path of the dashboard's own metrics, for Prometheus.
const METRICS: &str = "/metrics";
/// The path at which a tap is polled.
const TAP: &str = "/api/v1/tap";
/// A header that the page adds to its own requests. Pages of other sites cannot send it, and therefore cannot
/// start taps.
pub(crate) const PAGE_HEADER: HeaderName = HeaderName::from_static("leno-page");

/// The answer of an observer, or the reason why there is no answer.
pub type ObserverReply = Pin<Box<dyn Future<Output = Result<AdminReply, String>>>>;

/// Sends a request for a path with its query to an observer.
pub type ObserverQuery = Rc<dyn Fn(String) -> ObserverReply>;

/// The way to reach the observer.
#[derive(Clone)]
enum Observer {
    /// Through the socket of a mesh on this machine.
    Socket(PathBuf),
    /// In a cluster, with the rights of the user of this program.
    Far(ObserverQuery),
}

impl DashboardFront {
    /// The dashboard of the observer whose socket is at `observer`, for browsers that connect to `listen`.
    /// Browsers on other machines must send the token.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(observer: PathBuf, listen: IpAddr) -> Result<Self, NoRandomness> {
        let is_open = listen.is_loopback();
        let token = (!is_open).then(random).transpose()?;
        let (limits, observer) = (limits(), Observer::Socket(observer));
        Ok(Self { observer, token, is_open, limits, taps: None, own: None })
    }

    /// The dashboard of an observer to which `ask` sends requests with the rights of the user of this program.
    /// Other users of this machine do not have these rights, so browsers must send the token on loopback as well.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn far(ask: ObserverQuery) -> Result<Self, NoRandomness> {
        let (token, observer) = (Some(random()?), Observer::Far(ask));
        Ok(Self { observer, token, is_open: false, limits: limits(), taps: None, own: None })
    }

    /// Lets browsers watch requests through taps; `taps` polls a tap. Browsers must then send the token on loopback as
    /// well.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn with_taps(self, taps: ObserverQuery) -> Result<Self, NoRandomness> {
        let token = Some(self.token.map_or_else(random, Ok)?);
        Ok(Self { taps: Some(taps), token, is_open: false, ..self })
    }

    /// Adds health checks, the certificates of the authority and documents, which `own` answers. For documents,
    /// browsers must send the token on loopback as well.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn with_own(self, own: ObserverQuery) -> Result<Self, NoRandomness> {
        let token = Some(self.token.map_or_else(random, Ok)?);
        Ok(Self { own: Some(own), token, ..self })
    }

    /// The URL for a browser. The token is in the fragment, which browsers never send.
    #[must_use]
    pub fn address(&self, listen: SocketAddr) -> String {
        match &self.token {
            None => format!("http://{listen}/"),
            Some(token) => format!("http://{listen}/#token={token}"),
        }
    }

    /// Serves until the future is dropped.
    pub async fn serve(&self, listener: TcpListener) {
        serve(listener, self).await;
    }

    fn refusal<B>(&self, request: &Request<B>) -> Option<AdminResponse> {
        if let Some(refused) = refuse_method(request.method(), &Method::GET) {
            return Some(refused);
        }
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        if self.is_open && !header(HOST).is_some_and(is_this_machine) {
            let why = "open the dashboard at the address that leno has printed\n";
            return Some(respond(StatusCode::MISDIRECTED_REQUEST, TEXT, why));
        }
        let path = request.uri().path();
        let is_file = !path.starts_with("/api/") && path != METRICS;
        if is_file || (self.is_open && path != DOCUMENT) {
            return None;
        }
        let token = self.token.as_ref()?;
        let shown = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let same = |shown: &str| {
            let (shown, token) = (shown.as_bytes(), token.as_bytes());
            aws_lc_rs::constant_time::verify_slices_are_equal(shown, token).is_ok()
        };
        (!shown.is_some_and(same)).then(|| {
            let why = "the token is missing: open the complete address that leno has printed";
            refuse(StatusCode::UNAUTHORIZED, why)
        })
    }

    async fn page<B>(&self, request: &Request<B>) -> AdminResponse {
        let path = request.uri().path();
        if path == METRICS {
            let mut text = String::new();
            self.limits.render(&mut text, "leno_dashboard");
            return respond(StatusCode::OK, PROMETHEUS, text);
        }
        if path == TAP {
            return self.tap(request).await;
        }
        let target = request.uri().path_and_query().map_or(path, |whole| whole.as_str());
        if let Some(own) = self.own.as_ref().filter(|_| OWN.contains(&path)) {
            return answer_of(own(target.to_owned()).await, "cannot read the state of the mesh");
        }
        if path.starts_with(ROOT) {
            return self.relay(target).await;
        }
        file(path)
    }

    async fn tap<B>(&self, request: &Request<B>) -> AdminResponse {
        let Some(taps) = &self.taps else {
            return refuse(
                StatusCode::NOT_FOUND,
                "live requests are off: start the dashboard with leno dashboard --tap",
            );
        };
        if !request.headers().contains_key(PAGE_HEADER) {
            return refuse(StatusCode::BAD_REQUEST, "the header leno-page is missing: send it");
        }
        answer_of(taps(request.uri().query().unwrap_or_default().to_owned()).await, "cannot tap")
    }

    async fn relay(&self, target: &str) -> AdminResponse {
        let asked = async {
            match &self.observer {
                Observer::Far(ask) => ask(target.to_owned()).await,
                Observer::Socket(path) => {
                    let asked =
                        async { ask(UnixStream::connect(path).await?, "GET", target).await };
                    let answer = tokio::time::timeout(ANSWER_BOUND, asked).await;
                    let answer = answer.map_err(|_| "no answer in time".to_owned())?;
                    answer.map_err(|error| error.to_string())
                }
            }
        };
        answer_of(asked.await, "the history of the mesh is away")
    }
}

/// Answers requests that arrive over HTTP/1 or HTTP/2.
pub trait RequestHandler {
    /// The answer to one request without a body.
    fn answer<B>(&self, request: &Request<B>) -> impl Future<Output = AdminResponse>;

    /// The limits on connections.
    fn limits(&self) -> &ReaderLimits;
}

impl RequestHandler for DashboardFront {
    async fn answer<B>(&self, request: &Request<B>) -> AdminResponse {
        with_headers(match self.refusal(request) {
            Some(refused) => refused,
            None => self.page(request).await,
        })
    }

    fn limits(&self) -> &ReaderLimits {
        &self.limits
    }
}

/// Serves browsers and clients of gRPC until the future is dropped; all connections share one task.
pub async fn serve(listener: TcpListener, answers: &impl RequestHandler) {
    let shares = &answers.limits().connections;
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            (stream, client, share) = shares.accept(&listener) => {
                connections.push(serve_connection(stream, (client, share), answers));
            }
            Some(_ended) = connections.next() => {}
        }
    }
}

/// Serves a connection of a browser, or of a client of gRPC, until it ends.
async fn serve_connection(
    stream: TcpStream,
    (client, mut share): (SocketAddr, Share<IpAddr>),
    answers: &impl RequestHandler,
) {
    let is_http2 = tokio::select! {
        is_http2 = grpc::is_http2(&stream) => is_http2,
        () = poll_fn(|cx| share.poll_lost(cx)) => return,
    };
    if is_http2 {
        let answer = async |request: Request<()>| answers.answer(&request).await;
        grpc::serve(stream, (client, share), &answers.limits().places, answer).await;
    } else {
        let answer = async |request: Request<Incoming>| answers.answer(&request).await;
        // The connection ends early if a newer connection takes its place.
        let served = leno_program::serve_stream_with(stream, (client, BROWSER_WAIT), answer);
        let _lost = share.hold(served).await;
    }
}

/// The answer that passes on the reply of an observer, or its error.
fn answer_of(reply: Result<AdminReply, String>, what: &str) -> AdminResponse {
    match reply {
        Ok(AdminReply { status, body }) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            respond(status, JSON, body)
        }
        Err(why) => refuse(StatusCode::BAD_GATEWAY, &format!("{what}: {why}")),
    }
}

impl std::fmt::Debug for DashboardFront {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

/// The limits of a dashboard.
fn limits() -> Rc<ReaderLimits> {
    Rc::new(ReaderLimits::new(leno_program::connections(), MAX_HTTP2))
}

/// A file of the page.
#[must_use]
pub fn file(path: &str) -> AdminResponse {
    match PAGE.iter().find(|(known, ..)| *known == path) {
        Some((_, kind, bytes)) => respond(StatusCode::OK, kind, *bytes),
        None => respond(StatusCode::NOT_FOUND, TEXT, "there is no such page\n"),
    }
}

/// Adds the restrictions for the browser to an answer.
#[must_use]
pub fn with_headers(mut answer: AdminResponse) -> AdminResponse {
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A new random token.
fn random() -> Result<String, NoRandomness> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(HEXLOWER.encode(&bytes))
}

/// The error that the system has no random numbers for a token.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system has no random numbers for the token of the dashboard")]
pub struct NoRandomness;

/// Whether the value of `Host` is a loopback address or `localhost`.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let address = name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixListener};

    use super::*;

    async fn get(front: DashboardFront, target: &str, headers: &str) -> String {
        get_after(Duration::ZERO, front, (target, headers)).await
    }

    /// Sends a request after this time on an open connection.
    async fn get_after(
        wait: Duration,
        front: DashboardFront,
        (target, headers): (&str, &str),
    ) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            tokio::time::sleep(wait).await;
            let head = format!("{target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        };
        tokio::select! {
            () = front.serve(listener) => unreachable!("it serves until it is dropped"),
            answer = asked => answer,
        }
    }

    fn front(listen: &str) -> (tempfile::TempDir, DashboardFront) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("observer.sock");
        let front = DashboardFront::new(socket.clone(), listen.parse().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                stream.write_all(answer).await.unwrap();
                stream.read_to_end(&mut Vec::new()).await.unwrap();
            }
        });
        (directory, front)
    }

    #[tokio::test]
    async fn on_loopback_only_this_machine_is_answered() {
        let (_directory, front) = front("127.0.0.1");
        for (target, host, status) in [
            ("GET /", "localhost:7788", "200"),
            ("GET /app.js", "127.0.0.1:7788", "200"),
            ("GET /api/v1/overview", "[::1]:7788", "200"),
            ("GET /", "evil.example", "421"),
            ("GET /api/v1/overview", "127.0.0.1.evil.example:7788", "421"),
            ("POST /api/v1/overview", "localhost", "405"),
            ("GET /../etc/passwd", "localhost", "404"),
        ] {
            let answer = get(front.clone(), target, &format!("Host: {host}\r\n")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target} {host} {answer}");
            assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");
            assert!(!answer.contains("access-control-allow"), "{answer}");
        }
        let nameless = get(front, "GET /", "").await;
        assert!(nameless.starts_with("HTTP/1.1 4"), "{nameless}");
    }

    /// Tests that refused connections are counted. An address may have 16 connections, and one of them requests
    /// the metrics.
    #[tokio::test]
    async fn connections_that_are_refused_are_counted() {
        let (_directory, front) = front("127.0.0.1");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = async {
            let mut silent = Vec::new();
            for _ in 0..15 {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let mut stream = TcpStream::connect(address).await.unwrap();
            let mut refused = TcpStream::connect(address).await.unwrap();
            let mut nothing = Vec::new();
            refused.read_to_end(&mut nothing).await.unwrap();
            assert!(nothing.is_empty(), "{nothing:?}");
            let head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).await.unwrap();
            page
        };
        let page = tokio::select! {
            () = front.serve(listener) => unreachable!("it serves until it is dropped"),
            page = asked => page,
        };
        for line in ["_connections 16\n", "_connections_refused_total{reason=\"address\"} 1\n"] {
            assert!(page.contains(&format!("leno_dashboard{line}")), "{line} is not in {page}");
        }
    }

    #[tokio::test]
    async fn off_loopback_the_interface_requires_the_token() {
        let (_directory, front) = front("192.0.2.1");
        let token = front.token.clone().unwrap();
        let listen: SocketAddr = "192.0.2.1:80".parse().unwrap();
        assert_eq!(front.address(listen), format!("http://192.0.2.1:80/#token={token}"));
        let get = |target: &'static str, by: String| {
            let front = front.clone();
            async move { get(front, target, &format!("Host: mesh.example\r\n{by}")).await }
        };
        let api = "GET /api/v1/overview";
        assert!(get("GET /", String::new()).await.starts_with("HTTP/1.1 200 "));
        assert!(get(api, String::new()).await.starts_with("HTTP/1.1 401 "));
        let wrong = "Authorization: Bearer 00\r\n".to_owned();
        assert!(get(api, wrong).await.starts_with("HTTP/1.1 401 "));
        assert!(get("GET /metrics", String::new()).await.starts_with("HTTP/1.1 401 "));
        let right = format!("Authorization: Bearer {token}\r\n");
        assert!(get(api, right).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn a_cluster_requires_the_token_even_on_loopback() {
        let ask: ObserverQuery = Rc::new(|target| {
            Box::pin(async move {
                match target.as_str() {
                    "/api/v1/overview" => {
                        Ok(AdminReply { status: 200, body: "{\"mesh\":\"c\"}".to_owned() })
                    }
                    other => Err(format!("no way to {other}")),
                }
            })
        });
        let front = DashboardFront::far(ask).unwrap();
        let token = front.token.clone().unwrap();
        let shown = front.address("127.0.0.1:7788".parse().unwrap());
        assert_eq!(shown, format!("http://127.0.0.1:7788/#token={token}"));
        let get = async |target: &str, by: &str| {
            get(front.clone(), target, &format!("Host: localhost\r\n{by}")).await
        };
        assert!(get("GET /api/v1/overview", "").await.starts_with("HTTP/1.1 401 "));
        let right = format!("Authorization: Bearer {token}\r\n");
        assert!(get("GET /api/v1/overview", &right).await.ends_with("{\"mesh\":\"c\"}"));
        let away = get("GET /api/v1/changes", &right).await;
        assert!(away.starts_with("HTTP/1.1 502 ") && away.contains("no way to"), "{away}");
    }

    #[tokio::test]
    async fn taps_require_the_token_and_the_header_of_the_page() {
        let (_directory, front) = front("127.0.0.1");
        let ask = |front: &DashboardFront, headers: String| {
            let front = front.clone();
            async move {
                get(front, "GET /api/v1/tap?id=1", &format!("Host: localhost\r\n{headers}")).await
            }
        };
        assert!(ask(&front, String::new()).await.starts_with("HTTP/1.1 404 "));
        let taps: ObserverQuery =
            Rc::new(|query| Box::pin(async move { Ok(AdminReply { status: 200, body: query }) }));
        let front = front.with_taps(taps).unwrap();
        assert!(ask(&front, "leno-page: 1\r\n".to_owned()).await.starts_with("HTTP/1.1 401 "));
        let token = format!("Authorization: Bearer {}\r\n", front.token.clone().unwrap());
        assert!(ask(&front, token.clone()).await.starts_with("HTTP/1.1 400 "));
        assert!(ask(&front, format!("{token}leno-page: 1\r\n")).await.ends_with("\r\n\r\nid=1"));
    }

    #[tokio::test]
    async fn requests_that_the_program_answers_itself_do_not_reach_the_observer() {
        let (_directory, front) = front("127.0.0.1");
        let own: ObserverQuery = Rc::new(|path| {
            Box::pin(async move {
                match path.as_str() {
                    "/api/v1/checks" => {
                        Ok(AdminReply { status: 200, body: "[\"checked\"]".to_owned() })
                    }
                    _ => Err("forbidden".to_owned()),
                }
            })
        });
        let get = async |front: &DashboardFront, path: &str| {
            get(front.clone(), &format!("GET {path}"), "Host: localhost\r\n").await
        };
        assert!(get(&front, "/api/v1/checks").await.ends_with("{}"), "the observer answers");
        let front = front.with_own(own).unwrap();
        assert!(get(&front, "/api/v1/checks").await.ends_with("[\"checked\"]"));
        let refused = get(&front, "/api/v1/authority").await;
        assert!(refused.starts_with("HTTP/1.1 502 ") && refused.contains("forbidden"), "{refused}");
        assert!(get(&front, "/api/v1/overview").await.ends_with("{}"));
    }

    #[tokio::test]
    async fn documents_require_the_token_even_on_loopback() {
        let (_directory, front) = front("127.0.0.1");
        let own: ObserverQuery =
            Rc::new(|path| Box::pin(async move { Ok(AdminReply { status: 200, body: path }) }));
        let front = front.with_own(own).unwrap();
        let token = front.token.clone().unwrap();
        let shown = front.address("127.0.0.1:7788".parse().unwrap());
        assert_eq!(shown, format!("http://127.0.0.1:7788/#token={token}"));
        let get = async |path: &str, headers: &str| {
            get(front.clone(), &format!("GET {path}"), headers).await
        };
        let (right, wrong) =
            (format!("Authorization: Bearer {token}\r\n"), "Authorization: Bearer 00\r\n");
        let document = "/api/v1/document?kind=HTTPRoute&name=shop/web";
        for (path, headers, status) in [
            (document, "Host: localhost\r\n".to_owned(), "401"),
            (document, format!("Host: localhost\r\n{wrong}"), "401"),
            (document, format!("Host: localhost\r\n{right}"), "200"),
            (document, format!("Host: evil.example\r\n{right}"), "421"),
            ("/api/v1/document/", "Host: localhost\r\n".to_owned(), "200"),
            ("/api/v1/checks", "Host: localhost\r\n".to_owned(), "200"),
            ("/api/v1/overview", "Host: localhost\r\n".to_owned(), "200"),
        ] {
            let answer = get(path, &headers).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{path} {headers} {answer}"
            );
            // A similar path for which no token is required must not return documents.
            assert!(path == document || !answer.contains("/api/v1/document"), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_opened_early_is_served() {
        let (_directory, front) = front("127.0.0.1");
        let request = ("GET /icon.svg", "Host: localhost\r\n");
        let answer = get_after(Duration::from_secs(20), front, request).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    #[tokio::test]
    async fn an_unreachable_observer_is_reported() {
        let (directory, front) = front("127.0.0.1");
        drop(directory);
        let answer = get(front, "GET /api/v1/overview", "Host: localhost\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(answer.contains("{\"error\":\"the history of the mesh is away: "), "{answer}");
    }
}
