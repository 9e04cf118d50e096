//! Fuzzes the translation of requests and responses by proxies: from HTTP/1 to HTTP/1, over HTTP/2, and from
//! HTTP/2. The other end must receive the same messages, and no others.
//!
//! ```text
//! 0: client ─ HTTP/1 ─► proxy ─ HTTP/1 ─► application
//! 1: client ─ HTTP/1 ─► proxy ─ HTTP/2 ─► proxy ─ HTTP/1 ─► application
//! 2: client ─ HTTP/2 ─────────────────────► proxy ─ HTTP/1 ─► application
//! 3: like 2, but the client is another proxy, whose field `leno-h1` is trusted
//! ```

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

use leno_http::{
    After, BodyWalker, Call, Conn, Limits, Order, RequestHead, ResponseHead, exchange, h1_to_h2,
    h2_to_h1, serve, serve_begun,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::spawn_local;

use crate::quiet::{self, PIPE};

/// The preface (RFC 9113 section 3.4), and an empty SETTINGS frame.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The number of paths through proxies, as in the drawing.
const WAYS: u8 = 4;

/// The bytes that applications received: one entry for each connection, in the order in which connections were
/// opened.
type Received = Rc<RefCell<Vec<Vec<u8>>>>;

/// The application: records what it receives, and sends `answer` after the first bytes of each
/// connection.
#[derive(Clone)]
struct Application {
    received: Received,
    answer: Rc<[u8]>,
}

/// The parts of a request that decide what it requests.
#[derive(Debug, PartialEq, Eq)]
struct RequestKey {
    method: String,
    target: Vec<u8>,
}

/// Runs the target. The first byte selects the path, the next two give the length of the client's bytes, and the
/// rest is the application's response.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&[way, high, low], rest)) = bytes.split_first_chunk::<3>() else { return };
    let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
    let (said, answer) = rest.split_at(length);
    let received = Received::default();
    let application = Application { received: Rc::clone(&received), answer: answer.into() };
    let way = way % WAYS;
    let heard = quiet::run(through(way, said, application));
    let received: Vec<Vec<RequestKey>> =
        received.take().iter().map(|bytes| requests(bytes)).collect();
    if way > 0 {
        // Each stream has its own connection to the application.
        let smuggled = received.iter().find(|asked| asked.len() > 1);
        assert!(smuggled.is_none(), "one stream asked for {smuggled:?}");
    }
    if way > 1 {
        return;
    }
    let asked: Vec<RequestKey> = received.into_iter().flatten().collect();
    let sent = requests_of_client(said);
    // Over HTTP/2, targets have another form, and requests may overtake each other.
    assert!(asked.len() <= sent.len(), "{asked:?} of {sent:?}");
    if way == 0 {
        assert_eq!(asked[..], sent[..asked.len()], "others were asked for");
    }
    responses(&heard, &sent);
}

async fn through(way: u8, said: &[u8], application: Application) -> Vec<u8> {
    let (near, mut far) = duplex(PIPE);
    match way {
        0 => drop(spawn_local(by_http1(near, application))),
        1 => drop(spawn_local(by_http2(near, application))),
        _ => {
            // The preface is sent first, because a proxy that fails before it has read all of it sends nothing
            // back.
            far.write_all(OPENING).await.expect("the pipe takes it");
            drop(spawn_local(from_http2(near, application, way == 3)));
        }
    }
    far.write_all(said).await.expect("the pipe takes it");
    quiet::settle().await;
    // The client shuts down its sending direction, but first reads what was sent to it.
    let mut heard = Vec::new();
    let _ended = far.shutdown().await;
    let read = far.read_to_end(&mut heard);
    tokio::select! {
        biased;
        // This happens for a connection that was cut as well.
        _ended = read => {}
        () = quiet::settle() => {}
    }
    heard
}

async fn by_http1(client: DuplexStream, application: Application) {
    let limits = Limits::default();
    let forward = async |client: &mut Conn<DuplexStream>, head: &RequestHead| -> After {
        let mut server = Conn::new(application.connect());
        let done = exchange(client, head, &mut server, &mut Order::new(&limits)).await;
        client.conclude(head, &done).await
    };
    let request = async |mut client: Box<Conn<DuplexStream>>| {
        let after = serve_begun(&mut client, &limits, &forward, |_, _| {}).await;
        (client, after)
    };
    serve(Box::new(Conn::new(client)), (&limits, pending()), request).await;
}

async fn by_http2(client: DuplexStream, application: Application) {
    let limits = Limits::default();
    let (near, far) = duplex(PIPE);
    let (server, driver) = leno_h2::client(near, &Rc::new(leno_h2::Limits::default()));
    spawn_local(driver.run());
    spawn_local(from_http2(far, application, true));
    let forward = async |client: &mut Conn<DuplexStream>, head: &RequestHead| -> After {
        let mut order = Order { mesh: true, ..Order::new(&limits) };
        let done = h1_to_h2(client, head, &server, &mut order).await;
        client.conclude(head, &done).await
    };
    let request = async |mut client: Box<Conn<DuplexStream>>| {
        let after = serve_begun(&mut client, &limits, &forward, |_, _| {}).await;
        (client, after)
    };
    serve(Box::new(Conn::new(client)), (&limits, pending()), request).await;
}

async fn from_http2(client: DuplexStream, application: Application, mesh: bool) {
    let (mut accept, driver) = leno_h2::server(client, &[], &Rc::new(leno_h2::Limits::default()));
    spawn_local(driver.run());
    while let Some(request) = accept.accept().await {
        let application = application.clone();
        spawn_local(async move {
            let mut call = if mesh { Call::from_mesh(request) } else { Call::new(request) };
            let mut server = Conn::new(application.connect());
            let limits = Limits::default();
            let done = h2_to_h1(&mut call, &mut server, &mut Order::new(&limits)).await;
            call.conclude(&done);
        });
    }
}

impl Application {
    fn connect(&self) -> DuplexStream {
        let (near, mut far) = duplex(PIPE);
        let number = self.received.borrow().len();
        self.received.borrow_mut().push(Vec::new());
        let (received, answer) = (Rc::clone(&self.received), Rc::clone(&self.answer));
        spawn_local(async move {
            let mut chunk = vec![0; 4096];
            while let Ok(count @ 1..) = far.read(&mut chunk).await {
                let first = {
                    let mut received = received.borrow_mut();
                    received[number].extend_from_slice(&chunk[..count]);
                    received[number].len() == count
                };
                // Fails if the proxy has closed the connection.
                if first && (far.write_all(&answer).await.is_err() || far.shutdown().await.is_err())
                {
                    return;
                }
            }
        });
        near
    }
}

/// The requests that an application received. The last one may be cut off, but none may be malformed.
fn requests(mut bytes: &[u8]) -> Vec<RequestKey> {
    let mut asked = Vec::new();
    while !bytes.is_empty() {
        let mut head = RequestHead::default();
        match head.parse(bytes, &Limits::default()) {
            Ok(true) => {}
            Ok(false) => return asked,
            Err(error) => panic!("the application got {error}: {}", bytes.escape_ascii()),
        }
        asked.push(asked_by(&head, bytes));
        let mut walker = BodyWalker::new(head.framing());
        let walked = walker.walk(&bytes[head.len()..]);
        let Ok(length) = walked else {
            panic!("the application got {walked:?}: {}", bytes.escape_ascii());
        };
        // The bytes after an upgrade are not a request.
        if !walker.is_done() || head.upgrade() {
            return asked;
        }
        bytes = &bytes[head.len() + length..];
    }
    asked
}

/// The requests that the client sent, as far as they can be parsed.
fn requests_of_client(mut bytes: &[u8]) -> Vec<RequestKey> {
    let mut asked = Vec::new();
    loop {
        bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
        let mut head = RequestHead::default();
        if bytes.is_empty() || head.parse(bytes, &Limits::default()) != Ok(true) {
            return asked;
        }
        asked.push(asked_by(&head, bytes));
        let mut walker = BodyWalker::new(head.framing());
        match walker.walk(&bytes[head.len()..]) {
            Ok(length) if walker.is_done() => bytes = &bytes[head.len() + length..],
            _ => return asked,
        }
    }
}

fn asked_by(head: &RequestHead, bytes: &[u8]) -> RequestKey {
    let view = head.view(bytes);
    RequestKey { method: view.method().into(), target: view.target().to_vec() }
}

/// Checks what the client received: at most one response for each request; the last one may be cut off.
fn responses(mut bytes: &[u8], asked: &[RequestKey]) {
    let limits = Limits { headers: 1000, ..Limits::default() };
    // A request that cannot be parsed gets a response as well.
    let mut left = asked.len() + 1;
    let mut asked = asked.iter();
    while !bytes.is_empty() {
        let mut head = ResponseHead::default();
        match head.parse(bytes, &limits) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => panic!("the client got {error}: {}", bytes.escape_ascii()),
        }
        if head.is_interim() {
            if head.status() == 101 {
                return;
            }
            bytes = &bytes[head.len()..];
            continue;
        }
        assert!(left > 0, "a response without a request: {}", bytes.escape_ascii());
        left -= 1;
        let asked = asked.next();
        if asked.is_some_and(|asked| asked.method == "CONNECT") {
            return;
        }
        let mut walker = BodyWalker::new(head.framing(asked.is_some_and(|it| it.method == "HEAD")));
        match walker.walk(&bytes[head.len()..]) {
            Ok(length) if walker.is_done() => bytes = &bytes[head.len() + length..],
            // The response was cut off, or it is malformed at a point before which the proxy had already forwarded
            // it.
            _ => return,
        }
    }
}
