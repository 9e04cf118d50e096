//! Applications, which respond as the case says and check the requests that reach them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::case::{Answer, AnswerExtra, Ending, Extra, Framing, Method, Request};
use super::client::chunked;
use super::end::ScriptedEnd;
use super::frames::PREFACE;
use super::framing;
use super::letters::{filled, mutate, runs};
use super::streams::Streams;

/// The length of a response field that is longer than most buffers.
const LONG: usize = 9000;

/// State that all applications of a run share.
#[derive(Default)]
pub(crate) struct RunState {
    /// The requests by their letter, each with the number of its connection.
    pub(crate) requests: BTreeMap<u8, (usize, Request)>,
    /// Whether everything in the case is valid HTTP.
    pub(crate) is_clean: bool,
    /// Whether applications must receive valid HTTP, whatever clients send.
    pub(crate) is_http: bool,
    /// How many times each request has reached a service.
    pub(crate) seen: RefCell<BTreeMap<(usize, u8), usize>>,
    /// The properties that did not hold.
    pub(crate) violations: RefCell<Vec<String>>,
}

impl RunState {
    pub(crate) fn violation(&self, what: String) {
        self.violations.borrow_mut().push(what);
    }

    /// Counts a request that has arrived. Returns its method, the response to send, and whether it asks for an upgrade.
    pub(crate) fn saw(&self, service: usize, letter: u8) -> (Method, Answer, bool) {
        *self.seen.borrow_mut().entry((service, letter)).or_default() += 1;
        let Some((_, request)) = self.requests.get(&letter) else {
            return (Method::Get, Answer::default(), false);
        };
        let upgrades = request.extras.contains(&Extra::Upgrade);
        (request.method, request.answer.clone(), upgrades)
    }

    /// Checks that the bytes of a request belong to that request. If clients send invalid HTTP, checks that the
    /// bytes belong to one connection.
    pub(crate) fn check(&self, letter: u8, runs: &[u8]) {
        if self.requests.is_empty() {
            return;
        }
        let connection = |letter: &u8| self.requests.get(letter).map(|(connection, _)| *connection);
        let first = runs.first().and_then(connection);
        let mixed = runs
            .iter()
            .any(|other| if self.is_clean { *other != letter } else { connection(other) != first });
        if mixed {
            let letters = String::from_utf8_lossy(runs);
            self.violation(format!("a request of {:?} has bytes of {letters:?}", letter as char));
        }
    }
}

/// A request as the application parsed it.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// The fields. In HTTP/2, the authority is listed as `host`.
    pub fields: Vec<(String, Vec<u8>)>,
    /// The content.
    pub body: Vec<u8>,
}

impl Received {
    /// Parses the first request; returns it and its length.
    fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let readable = in_ascii(bytes);
        let mut fields = [httparse::EMPTY_HEADER; 300];
        let mut head = httparse::Request::new(&mut fields);
        let Ok(httparse::Status::Complete(at)) = head.parse(&readable) else { return None };
        let target = bytes.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let framing = framing::of(head.headers).ok()?;
        let length = match framing {
            Some(framing) => framing.length(&bytes[at..]).ok()??,
            None => 0,
        };
        let framed = &bytes[at..at + length];
        let request = Self {
            method: head.method.unwrap_or_default().to_owned(),
            target: String::from_utf8_lossy(target).into_owned(),
            fields: head
                .headers
                .iter()
                .map(|field| (field.name.into(), field.value.into()))
                .collect(),
            body: framing.map_or(Vec::new(), |framing| framing.content(framed)),
        };
        Some((request, at + length))
    }
}

/// A connection to an application.
pub(crate) struct Application {
    pub(crate) end: ScriptedEnd,
    pub(crate) service: usize,
    spoken: Spoken,
    closes: bool,
}

enum Spoken {
    /// The first bytes have not arrived yet.
    Nothing,
    Http1 {
        at: usize,
        current: Option<Current>,
    },
    Http2(Box<Streams>),
    /// Bytes that follow an upgrade, or that are not HTTP.
    Bytes,
}

/// The request that an HTTP/1 connection is serving.
struct Current {
    letter: u8,
    answer: Answer,
    method: Method,
    upgrades: bool,
    body_at: usize,
    framing: Option<framing::Framing>,
    end: Option<usize>,
    due: Option<Instant>,
    is_answered: bool,
}

impl Application {
    pub(crate) fn new(end: ScriptedEnd, service: usize) -> Self {
        Self { end, service, spoken: Spoken::Nothing, closes: false }
    }

    /// Whether no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.spoken {
            Spoken::Nothing => self.end.inbox.is_empty(),
            Spoken::Http1 { at, current } => current.is_none() && *at == self.end.inbox.len(),
            Spoken::Http2(streams) => streams.is_idle(),
            Spoken::Bytes => false,
        }
    }

    /// The requests that were received completely.
    pub(crate) fn received(&self) -> Vec<Received> {
        let mut received = Vec::new();
        let mut rest = &self.end.inbox[..];
        match &self.spoken {
            Spoken::Http2(streams) => return streams.received(),
            Spoken::Nothing => return received,
            Spoken::Http1 { .. } | Spoken::Bytes => {}
        }
        while let Some((request, length)) = Received::read(rest) {
            received.push(request);
            rest = &rest[length..];
        }
        received
    }

    /// Reads and writes as much as possible; returns whether anything moved.
    pub(crate) fn pump(&mut self, shared: &Rc<RunState>) -> bool {
        let mut moved = self.end.pump();
        if self.closes {
            if self.end.unsent() == 0 && !self.end.is_closed() {
                self.end.close();
                return true;
            }
            return moved;
        }
        if matches!(self.spoken, Spoken::Nothing) && !self.end.inbox.is_empty() {
            let length = self.end.inbox.len().min(PREFACE.len());
            if self.end.inbox[..length] != PREFACE[..length] {
                self.spoken = Spoken::Http1 { at: 0, current: None };
            } else if length == PREFACE.len() {
                self.end.send(&super::frames::settings(&[]));
                self.spoken = Spoken::Http2(Box::new(Streams::new(PREFACE.len())));
            }
        }
        match &mut self.spoken {
            Spoken::Nothing | Spoken::Bytes => {}
            Spoken::Http1 { .. } => {
                // A server that closes its connection with a response reads no further request from it.
                while !self.closes && self.http1(shared) {
                    moved = true;
                }
            }
            Spoken::Http2(streams) => {
                let (sent, closes) = streams.pump(&mut self.end, self.service, shared);
                self.closes = closes;
                moved |= sent;
            }
        }
        // The application closes a connection after its client has closed it.
        if self.end.ended && self.end.unsent() == 0 && !self.end.is_closed() {
            self.end.close();
        }
        moved
    }

    /// Makes one step on an HTTP/1 connection; returns false if none was possible.
    fn http1(&mut self, shared: &Rc<RunState>) -> bool {
        let Spoken::Http1 { at, current } = &mut self.spoken else { return false };
        let inbox = &self.end.inbox;
        let Some(now) = current else {
            if inbox.len() == *at {
                return false;
            }
            match head(&inbox[*at..]) {
                Ok(None) => return false,
                Ok(Some((length, letter, framing))) => {
                    let saw = shared.saw(self.service, letter);
                    *current = Some(Current::new((*at, length), letter, framing, saw));
                }
                Err(error) => {
                    if shared.is_http {
                        let text = inbox[*at..].escape_ascii().to_string();
                        shared.violation(format!("to an application: {error}: {text:.400}"));
                    }
                    self.spoken = Spoken::Bytes;
                }
            }
            return true;
        };
        if now.end.is_none() {
            let body = &inbox[now.body_at..];
            let length = now.framing.map_or(Ok(Some(0)), |framing| framing.length(body));
            match length {
                Ok(length) => now.end = length.map(|length| now.body_at + length),
                Err(error) => {
                    if shared.is_http {
                        shared.violation(format!("to an application: {error}"));
                    }
                    self.spoken = Spoken::Bytes;
                    return true;
                }
            }
            if let Some(end) = now.end {
                shared.check(now.letter, &runs(&inbox[*at..end]));
            }
        }
        if let (true, Some(end)) = (now.is_answered, now.end) {
            *at = end;
            *current = None;
            return true;
        }
        let ready = now.end.is_some() || now.answer.early;
        if now.is_answered || !ready || !now.is_due() {
            return false;
        }
        now.is_answered = true;
        let becomes_bytes = now.answer.status == 101 && now.upgrades;
        let (bytes, ends) = http1(now.letter.to_ascii_uppercase(), now.method, &now.answer);
        self.end.send(&bytes);
        match ends {
            Some(Ending::Stall) => self.spoken = Spoken::Bytes,
            Some(_) => self.closes = true,
            None if becomes_bytes => self.spoken = Spoken::Bytes,
            None => {}
        }
        true
    }
}

impl Current {
    /// The state of a request whose head starts at `at` and is `length` bytes long.
    fn new(
        (at, length): (usize, usize),
        letter: u8,
        framing: Option<framing::Framing>,
        (method, answer, upgrades): (Method, Answer, bool),
    ) -> Self {
        let (end, due, is_answered) = (None, None, false);
        let body_at = at + length;
        Self { letter, answer, method, upgrades, body_at, framing, end, due, is_answered }
    }

    /// Whether the response is due; its delay starts with the first call.
    fn is_due(&mut self) -> bool {
        let delay = Duration::from_millis(self.answer.delay_ms.into());
        Instant::now() >= *self.due.get_or_insert_with(|| Instant::now() + delay)
    }
}

/// The request, with its request line made ASCII. httparse requires targets to be UTF-8, but servers do not.
fn in_ascii(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let line = bytes.iter_mut().take_while(|byte| **byte != b'\n');
    line.filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'~');
    bytes
}

/// The length, the letter and the framing of the first request's head.
type Head = (usize, u8, Option<framing::Framing>);

fn head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let readable = in_ascii(bytes);
    let mut fields = [httparse::EMPTY_HEADER; 300];
    let mut head = httparse::Request::new(&mut fields);
    match head.parse(&readable) {
        Ok(httparse::Status::Complete(length)) => {
            let framing = framing::of(head.headers)?;
            let tag = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("x-tag"));
            let letter = tag.and_then(|tag| tag.value.first().copied()).unwrap_or(b'?');
            Ok(Some((length, letter, framing)))
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The header fields of a response, in either HTTP version.
pub(crate) fn fields(letter: u8, answer: &Answer) -> Vec<(&'static str, Vec<u8>)> {
    let mut fields = vec![("x-tag", vec![letter]), ("x-fill", filled(letter, 10))];
    match answer.extra {
        Some(AnswerExtra::Unreachable) => {
            fields.push(("leno-error", b"application-unreachable".to_vec()));
        }
        Some(AnswerExtra::RetryAfter) => fields.push(("retry-after", b"1".to_vec())),
        Some(AnswerExtra::GrpcUnavailable) => fields.push(("grpc-status", b"14".to_vec())),
        Some(AnswerExtra::SetCookie) => fields.push(("set-cookie", b"session=0".to_vec())),
        Some(AnswerExtra::LongField) => fields.push(("x-long", filled(letter, LONG))),
        Some(AnswerExtra::Close | AnswerExtra::Upgrade) | None => {}
    }
    fields
}

/// An HTTP/1 response, and how the application ends the connection after it; `None` if it does not.
fn http1(letter: u8, method: Method, answer: &Answer) -> (Vec<u8>, Option<Ending>) {
    let mut bytes = Vec::new();
    for _ in 0..answer.interim {
        bytes.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nx-fill: ");
        bytes.extend(filled(letter, 10));
        bytes.extend_from_slice(b"\r\n\r\n");
    }
    let status = if answer.status == 0 { 200 } else { answer.status };
    bytes.extend_from_slice(format!("HTTP/1.1 {status} 0\r\n").as_bytes());
    for (name, value) in fields(letter, answer) {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend(value);
        bytes.extend_from_slice(b"\r\n");
    }
    let mut ends = None;
    match answer.extra {
        Some(AnswerExtra::Close) => {
            bytes.extend_from_slice(b"Connection: close\r\n");
            ends = Some(Ending::Close);
        }
        Some(AnswerExtra::Upgrade) => {
            bytes.extend_from_slice(b"Connection: upgrade\r\nUpgrade: websocket\r\n");
        }
        _ if status == 101 => {
            bytes.extend_from_slice(b"Connection: upgrade\r\nUpgrade: websocket\r\n");
        }
        _ => {}
    }
    let has_content = method != Method::Head && !matches!(status, 101 | 204 | 304);
    match answer.framing {
        _ if matches!(status, 101 | 204) => bytes.extend_from_slice(b"\r\n"),
        Framing::Length => {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", answer.body).as_bytes());
            if has_content {
                bytes.extend(filled(letter, answer.body));
            }
        }
        Framing::Chunked => {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            if has_content {
                bytes.extend(chunked(letter, answer.body, 0, answer.trailers));
            }
        }
        Framing::Close => {
            bytes.extend_from_slice(b"\r\n");
            if has_content {
                bytes.extend(filled(letter, answer.body));
                ends = Some(Ending::Close);
            }
        }
    }
    mutate(&mut bytes, &answer.mutations);
    if let Some((at, ending)) = answer.cut {
        bytes.truncate(at.into());
        ends = Some(ending);
    }
    (bytes, ends)
}
