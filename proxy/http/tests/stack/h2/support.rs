//! A proxy that is built from the engine, with connections of either version on both sides. The clock is paused, so a
//! wait for something that never happens ends at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use leno_h2::{Accept, Client, Head, Request, Reset, Stream};
use leno_http::{
    Call, Conn, Edits, Exchange, HeaderLine, Judgement, Limits, Order, ResponseView, h1_to_h2,
    h2_to_h1, h2_to_h2,
};
use leno_tap::BodyCopies;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::support::Wire;

/// Runs a test with tasks that stay on its thread.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// The limits of the proxy.
    pub(crate) h2: leno_h2::Limits,
    /// The limits of the client and the server.
    pub(crate) peers: leno_h2::Limits,
    /// How many bytes each pipe holds before a writer must wait.
    pub(crate) pipe: usize,
    pub(crate) deadline: Option<Duration>,
    /// The time limit for the beginning of the response.
    pub(crate) response_within: Option<Duration>,
    /// How long another protocol may be used after an upgrade.
    pub(crate) upgraded_for: Option<Duration>,
    /// Whether the server is another proxy of the mesh.
    pub(crate) mesh: bool,
    /// Whether the client is another proxy of the mesh.
    pub(crate) from_mesh: bool,
    /// Whether CONNECT is relayed.
    pub(crate) connect: bool,
    pub(crate) draining: bool,
    pub(crate) set: Vec<HeaderLine>,
    pub(crate) set_response: Vec<HeaderLine>,
    pub(crate) target: Option<&'static [u8]>,
    /// The status of responses that are refused, so that the request is retried.
    pub(crate) retry_on: Option<u16>,
    /// How many attempts there may be for one request.
    pub(crate) tries: usize,
    /// How many bytes of the body are read before the request is relayed, as if an external authorizer needed them.
    pub(crate) read_ahead: Option<usize>,
    /// How long the proxy waits between two attempts.
    pub(crate) back_off: Duration,
    /// Where the beginnings of bodies are copied to.
    pub(crate) copies: Option<BodyCopies>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            h2: leno_h2::Limits::default(),
            peers: leno_h2::Limits::default(),
            pipe: 64 * 1024,
            deadline: None,
            response_within: None,
            upgraded_for: None,
            mesh: false,
            from_mesh: false,
            connect: false,
            draining: false,
            set: vec![],
            set_response: vec![],
            target: None,
            retry_on: None,
            tries: 3,
            read_ahead: None,
            back_off: Duration::ZERO,
            copies: None,
        }
    }
}

impl Settings {
    pub(crate) fn order(&self) -> Order<'_, impl leno_http::Judge> {
        let retry_on = self.retry_on;
        let judge = move |response: ResponseView<'_>, replayable: bool| match retry_on {
            Some(status) if status == response.status() && replayable => Judgement::Refuse,
            _ => Judgement::Forward,
        };
        Order {
            request: Edits { set: &self.set, target: self.target, ..Edits::default() },
            response: Edits { set: &self.set_response, ..Edits::default() },
            deadline: self.deadline.map(|after| Instant::now() + after),
            response_by: self.response_within.map(|after| Instant::now() + after),
            close_client: self.draining,
            upgraded_for: self.upgraded_for,
            mesh: self.mesh,
            connect: self.connect,
            copies: self.copies.clone(),
            ..Order::new(&self.limits)
        }
        .judged_by(judge)
    }
}

/// The result of each exchange.
pub(crate) type Done = mpsc::UnboundedReceiver<Exchange>;

/// An HTTP/2 connection from a client: the client's end and the proxy's.
pub(crate) fn h2_front(settings: &Settings) -> (Client, Accept) {
    let (near, far) = tokio::io::duplex(settings.pipe);
    let (client, driver) = leno_h2::client(near, &Rc::new(settings.peers.clone()));
    spawn_local(driver.run());
    let (accept, driver) = leno_h2::server(far, &[], &Rc::new(settings.h2.clone()));
    spawn_local(driver.run());
    (client, accept)
}

/// An HTTP/2 connection to a server: the proxy's end and the server's.
pub(crate) fn h2_back(settings: &Settings) -> (Client, Accept) {
    let (near, far) = tokio::io::duplex(settings.pipe);
    let (client, driver) = leno_h2::client(near, &Rc::new(settings.h2.clone()));
    spawn_local(driver.run());
    let (accept, driver) = leno_h2::server(far, &[], &Rc::new(settings.peers.clone()));
    spawn_local(driver.run());
    (client, accept)
}

/// A proxy with one HTTP/2 connection on each side.
pub(crate) fn h2_h2(settings: Settings) -> (Client, Accept, Done) {
    let (user, accept) = h2_front(&settings);
    let (server, app) = h2_back(&settings);
    (user, app, serve_h2_h2(settings, accept, server))
}

pub(crate) fn serve_h2_h2(settings: Settings, mut accept: Accept, server: Client) -> Done {
    let (report, done) = mpsc::unbounded_channel();
    let settings = Rc::new(settings);
    spawn_local(async move {
        while let Some(request) = accept.accept().await {
            let (settings, server, report) = (settings.clone(), server.clone(), report.clone());
            spawn_local(async move {
                let mut call = call(&settings, request).await;
                for left in (0..settings.tries).rev() {
                    let done = h2_to_h2(&mut call, &server, &mut settings.order()).await;
                    match conclude(&report, done, left == 0, call) {
                        Some(kept) => call = kept,
                        None => return,
                    }
                    sleep(settings.back_off).await;
                }
            });
        }
    });
    done
}

/// An HTTP/1 client, its proxy, and the proxy of an application that speaks HTTP/2.
pub(crate) fn mesh_to_h2() -> (Wire, Accept, Done) {
    let outbound = Settings { mesh: true, ..Settings::default() };
    let inbound = Settings { from_mesh: true, ..Settings::default() };
    let (near, far) = duplex(outbound.pipe);
    let (server, accept) = h2_back(&outbound);
    let (report, first) = mpsc::unbounded_channel();
    spawn_local(serve_h1(outbound, far, server, report));
    let (server, app) = h2_back(&inbound);
    serve_h2_h2(inbound, accept, server);
    (Wire(near), app, first)
}

/// Three proxies in a row, with HTTP/1 at both ends.
pub(crate) fn gateway() -> (Wire, Servers) {
    let outbound = Settings { mesh: true, ..Settings::default() };
    let middle = Settings { mesh: true, from_mesh: true, ..Settings::default() };
    let (near, far) = duplex(outbound.pipe);
    let (server, accept) = h2_back(&outbound);
    let (report, _) = mpsc::unbounded_channel();
    spawn_local(serve_h1(outbound, far, server, report));
    let (server, last) = h2_back(&middle);
    serve_h2_h2(middle, accept, server);
    let inbound = Settings { from_mesh: true, ..Settings::default() };
    (Wire(near), serve_h2(inbound, last).0)
}

/// A proxy with an HTTP/1 client and an HTTP/2 server.
pub(crate) fn h1_h2(settings: Settings) -> (Wire, Accept, Done) {
    let (near, far) = duplex(settings.pipe);
    let (server, app) = h2_back(&settings);
    let (report, done) = mpsc::unbounded_channel();
    spawn_local(serve_h1(settings, far, server, report));
    (Wire(near), app, done)
}

async fn serve_h1(
    settings: Settings,
    client: DuplexStream,
    server: Client,
    report: mpsc::UnboundedSender<Exchange>,
) {
    let limits = &settings.limits;
    let mut client = Conn::new(client);
    while let Ok(Some(request)) = client.read_request(limits).await {
        let mut tries = 0;
        let done = loop {
            tries += 1;
            let done = h1_to_h2(&mut client, &request, &server, &mut settings.order()).await;
            if tries == settings.tries || !done.failure.as_ref().is_some_and(|it| it.retryable) {
                break done;
            }
            // The test may not read the results.
            let _ = report.send(done);
        };
        let after = client.conclude(&request, &done).await;
        // The test may not read the results.
        let _ = report.send(done);
        match after {
            leno_http::After::Next => {}
            leno_http::After::Close => break,
            leno_http::After::Abort(report) => return client.abort(report),
        }
    }
    client.close(limits).await;
}

/// The servers' ends of the connections that the proxy opens.
pub(crate) type Servers = mpsc::UnboundedReceiver<DuplexStream>;

/// A proxy with an HTTP/2 client and HTTP/1 servers.
pub(crate) fn h2_h1(settings: Settings) -> (Client, Servers, Done) {
    let (user, accept) = h2_front(&settings);
    let (servers, done) = serve_h2(settings, accept);
    (user, servers, done)
}

pub(crate) fn serve_h2(settings: Settings, mut accept: Accept) -> (Servers, Done) {
    let (connect, servers) = mpsc::unbounded_channel();
    let (report, done) = mpsc::unbounded_channel();
    let settings = Rc::new(settings);
    let pool: Rc<RefCell<Vec<Conn<DuplexStream>>>> = Rc::default();
    spawn_local(async move {
        while let Some(request) = accept.accept().await {
            let (settings, pool, report) = (settings.clone(), pool.clone(), report.clone());
            let connect = connect.clone();
            spawn_local(async move {
                let mut call = call(&settings, request).await;
                for left in (0..settings.tries).rev() {
                    let pooled = pool.borrow_mut().pop();
                    let mut server = pooled.unwrap_or_else(|| {
                        let (near, far) = duplex(settings.pipe);
                        // An error means that the test is over.
                        let _ = connect.send(far);
                        Conn::new(near)
                    });
                    let done = h2_to_h1(&mut call, &mut server, &mut settings.order()).await;
                    if done.server_reusable {
                        pool.borrow_mut().push(server);
                    }
                    match conclude(&report, done, left == 0, call) {
                        Some(kept) => call = kept,
                        None => return,
                    }
                }
            });
        }
    });
    (servers, done)
}

/// Two proxies with HTTP/2 between them, an HTTP/1 client and HTTP/1 servers.
pub(crate) fn mesh(mut outbound: Settings, mut inbound: Settings) -> (Wire, Servers, Done, Done) {
    outbound.mesh = true;
    inbound.from_mesh = true;
    let (near, far) = duplex(outbound.pipe);
    let (server, accept) = h2_back(&Settings { peers: inbound.h2.clone(), ..outbound.clone() });
    let (report, first) = mpsc::unbounded_channel();
    spawn_local(serve_h1(outbound, far, server, report));
    let (servers, second) = serve_h2(inbound, accept);
    (Wire(near), servers, first, second)
}

pub(crate) async fn server(servers: &mut Servers) -> Wire {
    Wire(servers.recv().await.expect("the proxy makes a connection"))
}

pub(crate) async fn call(settings: &Settings, request: Request) -> Call {
    let mut call = if settings.from_mesh { Call::from_mesh(request) } else { Call::new(request) };
    if let Some(limit) = settings.read_ahead {
        call.read_body(limit).await.unwrap();
    }
    call
}

/// Reports an exchange. Returns the call if it should be retried.
pub(crate) fn conclude(
    report: &mpsc::UnboundedSender<Exchange>,
    done: Exchange,
    last: bool,
    call: Call,
) -> Option<Call> {
    let again = !last && done.failure.as_ref().is_some_and(|failure| failure.retryable);
    let kept = if again {
        Some(call)
    } else {
        call.conclude(&done);
        None
    };
    // The test may not read the results.
    let _ = report.send(done);
    kept
}

/// Names and values of fields.
pub(crate) type Fields = &'static [(&'static str, &'static str)];

pub(crate) fn head<const N: usize>(fields: [(&str, &str); N]) -> Head {
    fields.into_iter().collect()
}

pub(crate) fn request(method: &str, path: &str) -> Head {
    head([(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)])
}

/// The fields as text, one field in each line.
pub(crate) fn lines(head: &Head) -> String {
    head.iter()
        .map(|field| format!("{}: {}\n", field.name().escape_ascii(), field.value().escape_ascii()))
        .collect()
}

/// The whole body. The peer gets credit as the body is read.
pub(crate) async fn body(stream: &mut Stream) -> Result<Vec<u8>, Reset> {
    let mut all = vec![];
    while let Some(piece) = stream.data().await? {
        all.extend_from_slice(&piece);
        stream.release(piece.len());
    }
    Ok(all)
}

/// Sends a body in parts. Waits until there is room for each part.
pub(crate) async fn send_body(stream: &mut Stream, bytes: &[u8], end: bool) {
    for part in bytes.chunks(30_000) {
        if stream.capacity().await.is_err() {
            return;
        }
        stream.send_data(part, false);
    }
    if end {
        stream.send_data(Vec::new(), true);
    }
}

/// Bytes without a repeating pattern.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The next request that an application receives.
pub(crate) async fn next(app: &mut Accept) -> (Head, Stream) {
    let Request { head, stream, .. } = app.accept().await.expect("the proxy sends a request");
    (head, stream)
}

/// Small windows on all connections.
pub(crate) fn small_windows() -> Settings {
    let h2 = leno_h2::Limits {
        stream_window: 1,
        connection_window: 1,
        send_bytes: 4096,
        write_bytes: 8192,
        ..leno_h2::Limits::default()
    };
    Settings { peers: h2.clone(), h2, pipe: 4096, ..Settings::default() }
}

/// With these settings, an attempt ends if nothing moves for 5 s.
pub(crate) fn impatient() -> Settings {
    let limits = Limits { stall: Duration::from_secs(5), ..Limits::default() };
    Settings { limits, tries: 1, ..Settings::default() }
}
