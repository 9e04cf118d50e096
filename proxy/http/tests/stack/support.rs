//! A proxy that is built from the engine, between a scripted client and scripted servers on in-memory pipes. Tests
//! pause the clock, so a wait for something that never happens ends at once.

use leno_http::{
    Answer, Cause, Conn, Edits, Exchange, Failure, HeaderLine, Judgement, Limits, Order, exchange,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

/// One end of a connection, which a test controls.
pub(crate) struct Wire(pub(crate) DuplexStream);

impl Wire {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Checks that the next bytes are these.
    pub(crate) async fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        let mut length = 0;
        while length < got.len() {
            match self.0.read(&mut got[length..]).await.unwrap() {
                0 => break,
                count => length += count,
            }
        }
        let got = &got[..length];
        assert!(
            got == expected,
            "expected: {}\n     got: {}",
            expected.escape_ascii(),
            got.escape_ascii()
        );
    }

    /// Checks that the other side ends its stream without another byte.
    pub(crate) async fn expect_end(&mut self) {
        assert_eq!(self.rest().await, "");
    }

    /// Returns all bytes until the end.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = vec![];
        self.0.read_to_end(&mut rest).await.unwrap();
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Returns the next `count` bytes.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Returns the next line without its end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = vec![];
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await.unwrap());
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    /// Returns a complete head, with the empty line.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head += &self.line().await;
            head += "\r\n";
        }
        head
    }

    pub(crate) async fn finish(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// Checks that the proxy answers with an error, and closes the connection.
    pub(crate) async fn expect_error(&mut self, status: u16, cause: &str) {
        let rest = self.rest().await;
        assert!(rest.starts_with(&format!("HTTP/1.1 {status} ")), "{status} {cause}: {rest}");
        assert!(rest.contains(&format!("\r\nleno-error: {cause}\r\n")), "{status} {cause}: {rest}");
        assert!(rest.contains("\r\nConnection: close\r\n"), "{rest}");
    }
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// How many bytes each pipe holds before a writer must wait.
    pub(crate) pipe: usize,
    pub(crate) deadline: Option<Duration>,
    /// The time limit for the beginning of the response.
    pub(crate) response_within: Option<Duration>,
    pub(crate) draining: bool,
    pub(crate) set: Vec<HeaderLine>,
    /// Responses with this status are refused, and the request is tried again.
    pub(crate) retry_on: Option<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            pipe: 64 * 1024,
            deadline: None,
            response_within: None,
            draining: false,
            set: vec![],
            retry_on: None,
        }
    }
}

/// A running proxy, with the test's ends of its connections.
pub(crate) struct Lab {
    pub(crate) client: Wire,
    /// The servers' ends of the connections that the proxy opens.
    pub(crate) servers: mpsc::UnboundedReceiver<DuplexStream>,
    /// The result of each exchange.
    pub(crate) done: mpsc::UnboundedReceiver<Exchange>,
}

impl Lab {
    pub(crate) fn new(settings: Settings) -> Self {
        let (near, far) = duplex(settings.pipe);
        let (connect, servers) = mpsc::unbounded_channel();
        let (report, done) = mpsc::unbounded_channel();
        let proxy = Proxy { settings, connect, report };
        tokio::spawn(proxy.serve(far));
        Self { client: Wire(near), servers, done }
    }

    /// Returns the next connection that the proxy opens.
    pub(crate) async fn server(&mut self) -> Wire {
        Wire(self.servers.recv().await.expect("the proxy has ended and made no connection"))
    }

    /// Checks that the proxy ends without having opened any connection since the last one that the test took.
    pub(crate) async fn expect_no_server(&mut self) {
        assert!(self.servers.recv().await.is_none(), "the proxy made a connection");
    }

    pub(crate) async fn outcome(&mut self) -> Exchange {
        self.done.recv().await.expect("the proxy has ended without an exchange")
    }
}

struct Proxy {
    settings: Settings,
    connect: mpsc::UnboundedSender<DuplexStream>,
    report: mpsc::UnboundedSender<Exchange>,
}

impl Proxy {
    async fn serve(self, client: DuplexStream) {
        let limits = &self.settings.limits;
        let mut client = Conn::new(client);
        let mut pool = vec![];
        loop {
            let request = match client.read_request(limits).await {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(failure) => {
                    if let Some(status) = failure.status() {
                        let answer = Answer::error(status, failure.cause.label());
                        let _ = client.respond(None, &answer).await;
                    }
                    break;
                }
            };
            if !self.relay(&mut client, &request, &mut pool).await {
                break;
            }
        }
        client.close(limits).await;
    }

    async fn relay(
        &self,
        client: &mut Conn<DuplexStream>,
        request: &leno_http::RequestHead,
        pool: &mut Vec<Conn<DuplexStream>>,
    ) -> bool {
        loop {
            pool.retain_mut(Conn::is_quiet);
            let mut server = match pool.pop() {
                Some(server) => server,
                None => {
                    let (near, far) = duplex(self.settings.pipe);
                    if self.connect.send(far).is_err() {
                        // The test is over.
                        return false;
                    }
                    Conn::new(near)
                }
            };
            let retry_on = self.settings.retry_on;
            let mut order = Order {
                request: Edits { set: &self.settings.set, ..Edits::default() },
                deadline: self.settings.deadline.map(|after| Instant::now() + after),
                response_by: self.settings.response_within.map(|after| Instant::now() + after),
                close_client: self.settings.draining,
                ..Order::new(&self.settings.limits)
            }
            .judged_by(
                move |response: leno_http::ResponseView<'_>, replayable: bool| match retry_on {
                    Some(status) if status == response.status() && replayable => Judgement::Refuse,
                    _ => Judgement::Forward,
                },
            );
            let done = exchange(client, request, &mut server, &mut order).await;
            if done.server_reusable {
                pool.push(server);
            }
            let (reusable, started) = (done.client_reusable, done.response_started);
            let failure = done.failure.as_ref();
            // This caller does not retry after a response that is not HTTP.
            let is_http = |failure: &Failure| !matches!(failure.cause, Cause::Head(_));
            let retry = failure.is_some_and(|failure| failure.retryable && is_http(failure));
            let status = failure.and_then(Failure::status);
            let cause = failure.map(|failure| failure.cause.label());
            let _ = self.report.send(done);
            match (cause, status) {
                (None, _) => return reusable,
                (Some(_), _) if retry => {}
                (Some(cause), Some(status)) if !started => {
                    let answer = Answer::error(status, cause);
                    return client.respond(Some(request), &answer).await.unwrap_or(false);
                }
                _ => return false,
            }
        }
    }
}
