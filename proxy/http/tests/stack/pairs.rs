//! A proxy with any pair of versions on its two sides, which tests use in the same way for all pairs. HTTP/1 clients
//! and servers use pipes that show how the other end was closed, as TCP does.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_h2::{Accept, Client, Code, Head, ResetBy, Stream};
use leno_http::{After, Conn, Exchange, Io, exchange, h1_to_h2, h2_to_h1};
use leno_transport::Presence;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::h2::support::{Done, Settings, call, conclude, h2_back, h2_front, serve_h2_h2};

/// The version of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    H1,
    H2,
}

/// The versions of client and server.
pub(crate) type Pair = (Side, Side);

pub(crate) const PAIRS: [Pair; 4] =
    [(Side::H1, Side::H1), (Side::H1, Side::H2), (Side::H2, Side::H1), (Side::H2, Side::H2)];

/// What the two ends of a pipe find out about each other.
#[derive(Debug, Default)]
struct Ends {
    /// Whether the test's end was dropped, which means that its program has closed the connection.
    closed: Cell<bool>,
    /// Whether the proxy's end was dropped after a reset had been requested for it.
    reset: Cell<bool>,
    /// Whether the test's end was dropped with a reset.
    broken: Cell<bool>,
}

/// The proxy's end of a pipe.
pub(crate) struct Near {
    io: DuplexStream,
    ends: Rc<Ends>,
    resets: bool,
}

/// The test's end.
pub(crate) struct Far {
    io: DuplexStream,
    ends: Rc<Ends>,
}

pub(crate) fn pipe(bytes: usize) -> (Near, Far) {
    let (near, far) = duplex(bytes);
    let ends = Rc::<Ends>::default();
    (Near { io: near, ends: Rc::clone(&ends), resets: false }, Far { io: far, ends })
}

impl Drop for Far {
    fn drop(&mut self) {
        self.ends.closed.set(true);
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.ends.reset.set(self.resets);
    }
}

impl AsyncRead for Near {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let ended = buf.filled().len() == before;
        let broken = ended && self.ends.broken.get();
        Poll::Ready(if broken { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) })
    }
}

impl AsyncWrite for Near {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Io for Near {
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn reset_on_drop(&mut self) {
        self.resets = true;
    }

    fn presence(&self) -> Presence {
        if self.ends.closed.get() { Presence::Left } else { Presence::Here }
    }
}

/// How a message or a connection ended, as seen by the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Properly: by its framing, by END_STREAM, or by the end of the connection.
    Whole,
    /// With RST_STREAM and this code.
    Reset(Code),
    /// The connection was reset before the message's end.
    Cut,
    /// The connection ended properly before the message's end.
    Short,
}

/// A message as the test received it, in a form that is the same for both versions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// For each head: the status, or the method and target, and then one line per field with its name in lower case.
    /// Fields that exist in one version only are left out.
    pub(crate) heads: Vec<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
    pub(crate) ending: Ending,
}

impl Far {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The proxy may already have ended the connection.
        let _ = self.io.write_all(bytes.as_ref()).await;
    }

    pub(crate) async fn finish(&mut self) {
        self.io.shutdown().await.unwrap();
    }

    /// Ends the connection with a reset.
    pub(crate) fn break_off(self) {
        self.ends.broken.set(true);
    }

    async fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.io.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    async fn byte(&mut self) -> Option<u8> {
        self.io.read_u8().await.ok()
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = vec![];
        while !line.ends_with(b"\r\n") {
            line.push(self.byte().await?);
        }
        Some(String::from_utf8(line[..line.len() - 2].to_vec()).unwrap())
    }

    /// The lines before the empty line.
    async fn lines(&mut self) -> Option<Vec<String>> {
        let mut lines = vec![];
        loop {
            match self.line().await?.as_str() {
                "" => return Some(lines),
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// How the connection has ended. To be called after its end.
    fn ending(&self) -> Ending {
        if self.ends.reset.get() { Ending::Cut } else { Ending::Short }
    }

    /// All bytes that follow, and how the connection ends.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, Ending) {
        let mut rest = vec![];
        self.io.read_to_end(&mut rest).await.unwrap();
        (rest, self.ending())
    }

    async fn head(&mut self) -> Option<Http1Head> {
        let lines = self.lines().await?;
        let (first, fields) = lines.split_first().unwrap();
        let mut words = first.split(' ');
        let (first, second) = (words.next().unwrap(), words.next().unwrap());
        let status = first.starts_with("HTTP/").then(|| second.parse::<u16>().unwrap());
        let start = if status.is_some() { second.into() } else { format!("{first} {second}") };
        let mut head = Http1Head { status, ..Http1Head::default() };
        let framed = !matches!(status, Some(100..=199 | 204));
        let mut text = format!("{start}\n");
        for field in fields {
            let (name, value) = field.split_once(": ").unwrap();
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "content-length" => head.length = Some(value.parse().unwrap()),
                "transfer-encoding" => head.chunked = value == "chunked",
                _ => {}
            }
            let of_version = matches!(name.as_str(), "host" | "connection")
                || name == "transfer-encoding" && framed;
            if !of_version {
                text += &format!("{name}: {value}\n");
            }
        }
        head.text = text;
        Some(head)
    }

    /// A complete message, including the interim heads of a response.
    pub(crate) async fn message(&mut self) -> Seen {
        let mut seen =
            Seen { heads: vec![], body: vec![], trailers: String::new(), ending: Ending::Whole };
        let head = loop {
            let Some(head) = self.head().await else {
                seen.ending = self.ending();
                return seen;
            };
            seen.heads.push(head.text.clone());
            if !head.status.is_some_and(|status| (102..200).contains(&status) || status == 100) {
                break head;
            }
        };
        if self.content(&head, &mut seen).await.is_none() {
            seen.ending = self.ending();
        }
        seen
    }

    async fn content(&mut self, head: &Http1Head, seen: &mut Seen) -> Option<()> {
        if matches!(head.status, Some(101 | 204 | 304)) {
            return Some(());
        }
        if head.chunked {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
                if size == 0 {
                    break;
                }
                for _ in 0..size {
                    seen.body.push(self.byte().await?);
                }
                self.line().await?;
            }
            for line in self.lines().await? {
                let (name, value) = line.split_once(": ").unwrap();
                seen.trailers += &format!("{}: {value}\n", name.to_ascii_lowercase());
            }
            return Some(());
        }
        if let Some(length) = head.length {
            for _ in 0..length {
                seen.body.push(self.byte().await?);
            }
        } else if head.status.is_some() {
            let (rest, ending) = self.rest().await;
            seen.body = rest;
            return (ending == Ending::Short).then_some(());
        }
        Some(())
    }
}

#[derive(Default)]
struct Http1Head {
    text: String,
    status: Option<u16>,
    length: Option<usize>,
    chunked: bool,
}

fn head_text(head: &Head) -> String {
    let value = |name: &[u8]| {
        head.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
    };
    let mut text = match head.status() {
        Some(status) => format!("{status}\n"),
        None => format!("{} {}\n", value(b":method"), value(b":path")),
    };
    let fields = head.iter().filter(|field| !field.is_pseudo());
    for field in fields {
        text += &format!("{}: {}\n", field.name().escape_ascii(), field.value().escape_ascii());
    }
    text
}

async fn stream_message(stream: &mut Stream, head: Option<Head>) -> Seen {
    let mut seen =
        Seen { heads: vec![], body: vec![], trailers: String::new(), ending: Ending::Whole };
    if let Err(reset) = stream_content(stream, head, &mut seen).await {
        seen.ending = Ending::Reset(reset.code);
        assert!(reset.by != ResetBy::Us);
    }
    seen
}

async fn stream_content(
    stream: &mut Stream,
    head: Option<Head>,
    seen: &mut Seen,
) -> Result<(), leno_h2::Reset> {
    match head {
        Some(head) => seen.heads.push(head_text(&head)),
        None => loop {
            let head = stream.head().await?;
            seen.heads.push(head_text(&head));
            if !head.is_interim() {
                break;
            }
        },
    }
    while let Some(piece) = stream.data().await? {
        seen.body.extend_from_slice(&piece);
        stream.release(piece.len());
    }
    if let Some(trailers) = stream.trailers() {
        seen.trailers = head_text(&trailers).split_once('\n').unwrap().1.to_owned();
    }
    Ok(())
}

/// A message in both versions.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) h1: &'static str,
    /// The heads. The last of them has the message's pseudo-headers.
    pub(crate) h2: &'static [&'static [(&'static str, &'static str)]],
    pub(crate) data: &'static str,
    /// The trailers; empty if there is no trailer section.
    pub(crate) trailers: &'static [(&'static str, &'static str)],
}

/// Sends the part of a message that follows its head.
fn send_rest(stream: &mut Stream, message: &Message) {
    if !message.data.is_empty() {
        stream.send_data(message.data.as_bytes(), message.trailers.is_empty());
    }
    if !message.trailers.is_empty() {
        stream.send_trailers(message.trailers.iter().copied().collect());
    }
}

/// The client, which a test controls, with one request at a time.
pub(crate) enum User {
    H1(Far),
    H2(Client, Option<Stream>),
}

impl User {
    pub(crate) async fn send(&mut self, message: &Message) {
        match self {
            Self::H1(far) => far.send(message.h1).await,
            Self::H2(client, stream) => {
                let head: Head = message.h2[0].iter().copied().collect();
                let end = message.data.is_empty() && message.trailers.is_empty();
                let mut opened = client.open(&head, end).unwrap();
                send_rest(&mut opened, message);
                *stream = Some(opened);
            }
        }
    }

    /// Sends the head of a message and does not end the message: the head of a request for another protocol, or of one
    /// with a body.
    pub(crate) async fn upgrade(&mut self, message: &Message) {
        match self {
            Self::H1(far) => far.send(message.h1).await,
            Self::H2(client, stream) => {
                let head: Head = message.h2[0].iter().copied().collect();
                *stream = Some(client.open(&head, false).unwrap());
            }
        }
    }

    /// Sends a `GET`; or a `POST` that announces a body of `length` bytes and sends `body` of it.
    pub(crate) async fn ask(&mut self, length: Option<usize>, body: &str) {
        match self {
            Self::H1(far) => {
                let line = length.map(|length| format!("Content-Length: {length}\r\n"));
                let method = if length.is_some() { "POST" } else { "GET" };
                let line = line.unwrap_or_default();
                far.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n{line}\r\n{body}")).await;
            }
            Self::H2(client, stream) => {
                let method = if length.is_some() { "POST" } else { "GET" };
                let mut head = crate::h2::support::request(method, "/");
                if let Some(length) = length {
                    head.push(b"content-length", length.to_string().as_bytes());
                }
                let mut opened = client.open(&head, length.is_none()).unwrap();
                if !body.is_empty() {
                    opened.send_data(body.as_bytes(), length == Some(body.len()));
                }
                *stream = Some(opened);
            }
        }
    }

    /// Sends more of the body. If `end` is true, ends the body.
    pub(crate) async fn body(&mut self, bytes: impl AsRef<[u8]>, end: bool) {
        match self {
            Self::H1(far) => far.send(bytes).await,
            Self::H2(_, stream) => stream.as_mut().unwrap().send_data(bytes.as_ref(), end),
        }
    }

    /// The response, with its interim heads.
    pub(crate) async fn response(&mut self) -> Seen {
        match self {
            Self::H1(far) => far.message().await,
            Self::H2(_, stream) => stream_message(stream.as_mut().unwrap(), None).await,
        }
    }

    /// The next head of the response.
    pub(crate) async fn head(&mut self) -> String {
        match self {
            Self::H1(far) => far.head().await.expect("a head").text,
            Self::H2(_, stream) => {
                head_text(&stream.as_mut().unwrap().head().await.expect("a head"))
            }
        }
    }

    /// The bytes that follow the last head, whatever its framing is, and how the stream ends after them.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, Ending) {
        match self {
            Self::H1(far) => far.rest().await,
            Self::H2(_, stream) => rest(stream.as_mut().unwrap()).await,
        }
    }

    /// Sends bytes without framing.
    pub(crate) async fn raw(&mut self, bytes: &str) {
        self.body(bytes, false).await;
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        match self {
            Self::H1(far) => far.take(count).await,
            Self::H2(_, stream) => take(stream.as_mut().unwrap(), count).await,
        }
    }

    /// Ends the client's stream.
    pub(crate) async fn finish(&mut self) {
        match self {
            Self::H1(far) => far.finish().await,
            Self::H2(_, stream) => stream.as_mut().unwrap().send_data(Vec::new(), true),
        }
    }

    /// How a proper end of bytes without framing appears. In HTTP/1 it looks like the end of a truncated message.
    pub(crate) fn ends_in_order(&self) -> Ending {
        if matches!(self, Self::H1(_)) { Ending::Short } else { Ending::Whole }
    }
}

async fn take(stream: &mut Stream, count: usize) -> Vec<u8> {
    let mut bytes = vec![];
    while bytes.len() < count {
        let piece = stream.data().await.unwrap().expect("more bytes");
        bytes.extend_from_slice(&piece);
        stream.release(piece.len());
    }
    bytes
}

async fn rest(stream: &mut Stream) -> (Vec<u8>, Ending) {
    let mut body = vec![];
    loop {
        match stream.data().await {
            Ok(Some(piece)) => {
                body.extend_from_slice(&piece);
                stream.release(piece.len());
            }
            Ok(None) => return (body, Ending::Whole),
            Err(reset) => return (body, Ending::Reset(reset.code)),
        }
    }
}

/// The server's end of one request.
pub(crate) enum App {
    H1(Far),
    H2(Head, Stream),
}

impl App {
    pub(crate) async fn request(&mut self) -> Seen {
        match self {
            Self::H1(far) => far.message().await,
            Self::H2(head, stream) => stream_message(stream, Some(head.clone())).await,
        }
    }

    /// The request's head.
    pub(crate) async fn head(&mut self) -> String {
        match self {
            Self::H1(far) => far.head().await.expect("a head").text,
            Self::H2(head, _) => head_text(head),
        }
    }

    pub(crate) async fn send(&mut self, message: &Message) {
        match self {
            Self::H1(far) => far.send(message.h1).await,
            Self::H2(_, stream) => {
                for (at, head) in message.h2.iter().enumerate() {
                    let last = at + 1 == message.h2.len();
                    let end = last && message.data.is_empty() && message.trailers.is_empty();
                    stream.send_head(&head.iter().copied().collect::<Head>(), end);
                }
                send_rest(stream, message);
            }
        }
    }

    /// Sends a head and `body`, the beginning of a body of `length` bytes; without a length the body ends later.
    pub(crate) async fn answer(&mut self, status: u16, length: Option<usize>, body: &str) {
        match self {
            Self::H1(far) => {
                let framing = match length {
                    Some(length) => format!("Content-Length: {length}\r\n\r\n{body}"),
                    None => {
                        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len())
                    }
                };
                far.send(format!("HTTP/1.1 {status} X\r\n{framing}")).await;
            }
            Self::H2(_, stream) => {
                let mut head = Head::new();
                head.push(b":status", status.to_string().as_bytes());
                if let Some(length) = length {
                    head.push(b"content-length", length.to_string().as_bytes());
                }
                let end = length == Some(body.len());
                stream.send_head(&head, end && body.is_empty());
                if !body.is_empty() {
                    stream.send_data(body.as_bytes(), end);
                }
            }
        }
    }

    /// Grants another protocol.
    pub(crate) async fn switch(&mut self) {
        match self {
            Self::H1(far) => {
                far.send("HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").await;
            }
            Self::H2(_, stream) => {
                let head: Head = [(":status", "200")].into_iter().collect();
                stream.send_head(&head, false);
            }
        }
    }

    pub(crate) async fn interim(&mut self, status: u16) {
        match self {
            Self::H1(far) => far.send(format!("HTTP/1.1 {status} X\r\n\r\n")).await,
            Self::H2(_, stream) => {
                let head: Head = [(":status", status.to_string())].into_iter().collect();
                stream.send_head(&head, false);
            }
        }
    }

    /// Sends more of a body whose length is known. If `end` is true, ends the body.
    pub(crate) async fn body(&mut self, bytes: &str, end: bool) {
        match self {
            Self::H1(far) => far.send(bytes).await,
            Self::H2(_, stream) => stream.send_data(bytes.as_bytes(), end),
        }
    }

    /// Sends bytes without framing.
    pub(crate) async fn raw(&mut self, bytes: &str) {
        self.body(bytes, false).await;
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<u8> {
        match self {
            Self::H1(far) => far.take(count).await,
            Self::H2(_, stream) => take(stream, count).await,
        }
    }

    pub(crate) async fn rest(&mut self) -> (Vec<u8>, Ending) {
        match self {
            Self::H1(far) => far.rest().await,
            Self::H2(_, stream) => rest(stream).await,
        }
    }

    /// Ends the server's stream.
    pub(crate) async fn finish(&mut self) {
        match self {
            Self::H1(far) => far.finish().await,
            Self::H2(_, stream) => stream.send_data(Vec::new(), true),
        }
    }

    /// As [`User::ends_in_order`].
    pub(crate) fn ends_in_order(&self) -> Ending {
        if matches!(self, Self::H1(_)) { Ending::Short } else { Ending::Whole }
    }

    /// Waits until the proxy has cancelled the request.
    pub(crate) async fn called_off(&mut self) -> Ending {
        match self {
            Self::H1(far) => far.rest().await.1,
            Self::H2(_, stream) => match stream.closed().await {
                Some(reset) => Ending::Reset(reset.code),
                None => Ending::Whole,
            },
        }
    }

    /// Closes the connection, or resets the stream.
    pub(crate) fn reset(self) {
        match self {
            Self::H1(far) => drop(far),
            Self::H2(_, stream) => stream.reset(Code::INTERNAL_ERROR),
        }
    }
}

/// Where the requests that the server receives come from.
enum Apps {
    H1(mpsc::UnboundedReceiver<Far>),
    H2(Accept),
}

/// A running proxy, with its client and its servers.
pub(crate) struct Bed {
    pub(crate) user: User,
    apps: Apps,
    pub(crate) done: Done,
}

impl Bed {
    pub(crate) fn new(pair: Pair, settings: Settings) -> Self {
        match pair {
            (Side::H1, Side::H1) => {
                let (near, far) = pipe(settings.pipe);
                let (connect, apps) = mpsc::unbounded_channel();
                let (report, done) = mpsc::unbounded_channel();
                spawn_local(serve_h1(settings, near, Server::H1(connect), report));
                Self { user: User::H1(far), apps: Apps::H1(apps), done }
            }
            (Side::H1, Side::H2) => {
                let (near, far) = pipe(settings.pipe);
                let (server, app) = h2_back(&settings);
                let (report, done) = mpsc::unbounded_channel();
                spawn_local(serve_h1(settings, near, Server::H2(server), report));
                Self { user: User::H1(far), apps: Apps::H2(app), done }
            }
            (Side::H2, Side::H1) => {
                let (user, accept) = h2_front(&settings);
                let (connect, apps) = mpsc::unbounded_channel();
                let (report, done) = mpsc::unbounded_channel();
                spawn_local(serve_h2(settings, accept, connect, report));
                Self { user: User::H2(user, None), apps: Apps::H1(apps), done }
            }
            (Side::H2, Side::H2) => {
                let (user, accept) = h2_front(&settings);
                let (server, app) = h2_back(&settings);
                let done = serve_h2_h2(settings, accept, server);
                Self { user: User::H2(user, None), apps: Apps::H2(app), done }
            }
        }
    }

    /// The next request at the server. Over HTTP/1 each comes on its own connection.
    pub(crate) async fn app(&mut self) -> App {
        self.next_app().await.expect("the proxy sends a request")
    }

    /// The next request at the server; `None` if the proxy has ended.
    pub(crate) async fn next_app(&mut self) -> Option<App> {
        match &mut self.apps {
            Apps::H1(apps) => apps.recv().await.map(App::H1),
            Apps::H2(accept) => {
                accept.accept().await.map(|request| App::H2(request.head, request.stream))
            }
        }
    }

    /// Cancels the client's request: the client closes its connection, or resets its stream.
    pub(crate) fn leave(&mut self) {
        match &mut self.user {
            User::H1(far) => *far = pipe(1).1,
            User::H2(_, stream) => stream.take().unwrap().reset(Code::CANCEL),
        }
    }

    /// The result of the exchange.
    pub(crate) async fn done(&mut self) -> Exchange {
        self.done.recv().await.expect("the proxy reports each exchange")
    }
}

/// How the proxy reaches the server.
enum Server {
    H1(mpsc::UnboundedSender<Far>),
    H2(Client),
}

async fn serve_h1(
    settings: Settings,
    client: Near,
    server: Server,
    report: mpsc::UnboundedSender<Exchange>,
) {
    let limits = &settings.limits;
    let mut client = Conn::new(client);
    while let Ok(Some(request)) = client.read_request(limits).await {
        let mut tries = 0;
        let done = loop {
            let mut order = settings.order();
            let done = match &server {
                Server::H1(connect) => {
                    let (near, far) = pipe(settings.pipe);
                    // An error means that the test is over.
                    let _ = connect.send(far);
                    exchange(&mut client, &request, &mut Conn::new(near), &mut order).await
                }
                Server::H2(server) => h1_to_h2(&mut client, &request, server, &mut order).await,
            };
            tries += 1;
            if tries == settings.tries || !done.failure.as_ref().is_some_and(|it| it.retryable) {
                break done;
            }
            let _ = report.send(done);
            sleep(settings.back_off).await;
        };
        let after = client.conclude(&request, &done).await;
        // The test may not read the results.
        let _ = report.send(done);
        match after {
            After::Next => {}
            After::Close => break,
            After::Abort(report) => return client.abort(report),
        }
    }
    client.close(limits).await;
}

async fn serve_h2(
    settings: Settings,
    mut accept: Accept,
    connect: mpsc::UnboundedSender<Far>,
    report: mpsc::UnboundedSender<Exchange>,
) {
    let settings = Rc::new(settings);
    while let Some(request) = accept.accept().await {
        let (settings, connect, report) = (settings.clone(), connect.clone(), report.clone());
        spawn_local(async move {
            let mut call = call(&settings, request).await;
            for left in (0..settings.tries).rev() {
                let (near, far) = pipe(settings.pipe);
                // An error means that the test is over.
                let _ = connect.send(far);
                let mut server = Conn::new(near);
                let done = h2_to_h1(&mut call, &mut server, &mut settings.order()).await;
                match conclude(&report, done, left == 0, call) {
                    Some(kept) => call = kept,
                    None => return,
                }
                sleep(settings.back_off).await;
            }
        });
    }
}
