//! Clients: what they send, and checks of what they receive.

use super::case::{Connection, Extra, Method, Request};
use super::end::ScriptedEnd;
use super::frames::{self, END_STREAM, FRAME, INITIAL_WINDOW, PREFACE, Peer, kind};
use super::letters::{filled, mutate, runs};

/// The length of a field that is longer than most limits.
const LONG: usize = 20_000;

/// A client's connection.
pub(crate) struct Client {
    pub(crate) end: ScriptedEnd,
    spec: Connection,
    /// The letter of the client's first request. The letters after it belong to its other requests.
    pub(crate) first: u8,
    /// All bytes that the client is to send.
    script: Vec<u8>,
    /// The offsets at which frames end.
    frames: Vec<usize>,
    /// The offsets at which requests end.
    requests: Vec<usize>,
    sent: usize,
    /// How many bytes of the script may be sent so far.
    allowed: usize,
    peer: Option<Peer>,
}

impl Client {
    pub(crate) fn new(end: ScriptedEnd, spec: &Connection, first: u8) -> Self {
        let mut client = Self {
            end,
            spec: spec.clone(),
            first,
            script: Vec::new(),
            frames: Vec::new(),
            requests: Vec::new(),
            sent: 0,
            allowed: 0,
            peer: spec.http2.then(|| Peer::new(0)),
        };
        client.write_script();
        client
    }

    fn write_script(&mut self) {
        if self.spec.http2 {
            self.script.extend_from_slice(PREFACE);
            let window = self.spec.window.map(|window| (INITIAL_WINDOW, window));
            let settings = frames::settings(window.as_slice());
            self.script.extend(settings);
            self.frames.push(self.script.len());
        }
        let requests = self.spec.requests.clone();
        for (nth, request) in (0_u8..).zip(&requests) {
            let letter = self.first + nth;
            if self.spec.http2 {
                let stream = 1 + 2 * u32::from(nth);
                self.write_stream(stream, letter, request);
            } else {
                self.script.extend(http1(letter, request));
            }
            self.requests.push(self.script.len());
        }
        mutate(&mut self.script, &self.spec.mutations);
    }

    fn write_stream(&mut self, stream: u32, letter: u8, request: &Request) {
        let owned = fields(letter, request);
        let path = target(letter, request);
        let mut all: Vec<(&str, &[u8])> = vec![
            (":method", request.method.name().as_bytes()),
            (":scheme", b"http"),
            (":authority", b"cart"),
            (":path", &path),
        ];
        all.extend(owned.iter().map(|(name, value)| (*name, &value[..])));
        let sized = (request.chunk == 0 && request.body > 0).then(|| request.body.to_string());
        if let Some(length) = &sized {
            all.push(("content-length", length.as_bytes()));
        }
        let has_more = request.body > 0 || request.trailers;
        self.frame(frames::headers(stream, &all, !has_more));
        let chunk = if request.chunk == 0 { FRAME } else { request.chunk.max(request.body / 50) };
        let body = filled(letter, request.body);
        let count = body.len().div_ceil(chunk.min(FRAME));
        for (nth, part) in body.chunks(chunk.min(FRAME)).enumerate() {
            let ends = nth + 1 == count && !request.trailers;
            let flags = if ends { END_STREAM } else { 0 };
            self.frame(frames::frame(kind::DATA, flags, stream, part));
        }
        if request.trailers {
            let fill = filled(letter, 10);
            self.frame(frames::headers(stream, &[("x-trailer", &fill)], true));
        }
        if request.reset {
            self.frame(frames::frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
    }

    fn frame(&mut self, frame: Vec<u8>) {
        self.script.extend(frame);
        self.frames.push(self.script.len());
    }

    /// Lets the client send this many more bytes.
    pub(crate) fn allow(&mut self, bytes: usize) {
        self.allowed = self.allowed.saturating_add(bytes).min(self.script.len());
    }

    pub(crate) fn letters(&self) -> std::ops::Range<u8> {
        self.first..self.first + self.spec.requests.len() as u8
    }

    /// Reads and writes as much as possible; returns whether anything moved.
    pub(crate) fn pump(&mut self) -> Result<bool, String> {
        if self.sent < self.allowed {
            self.end.send(&self.script[self.sent..self.allowed]);
            self.sent = self.allowed;
            if self.spec.half_closes && self.sent == self.script.len() {
                self.end.finish();
            }
        }
        let mut moved = self.end.pump();
        if let Some(peer) = &mut self.peer {
            peer.read(&self.end.inbox).map_err(|error| format!("to an HTTP/2 client: {error}"))?;
            // Replies may be sent only between two frames.
            let between = self.sent == self.script.len() || self.frames.contains(&self.sent);
            if between && !peer.replies.is_empty() && !self.spec.half_closes {
                let replies = std::mem::take(&mut peer.replies);
                self.end.send(&replies);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Checks what the client has received so far. There must be no bytes of another connection, and in a case
    /// without mutations, each response must belong to its request.
    pub(crate) fn check(&self, is_clean: bool) -> Result<(), String> {
        match &self.peer {
            Some(peer) => self.check_streams(peer, is_clean),
            None => self.check_responses(is_clean),
        }
    }

    fn check_streams(&self, peer: &Peer, is_clean: bool) -> Result<(), String> {
        for (stream, message) in &peer.streams {
            // Mutated frames may open streams with arbitrary numbers.
            let own = self.first.wrapping_add((stream.saturating_sub(1) / 2) as u8);
            let heads = message.heads.iter().flatten().flat_map(|(_, value)| runs(value));
            for letter in heads.chain(runs(&message.body)) {
                let letter = letter.to_ascii_lowercase();
                if !self.letters().contains(&letter) || is_clean && letter != own {
                    return Err(mixed(letter, self.first, &format!("stream {stream}")));
                }
            }
        }
        Ok(())
    }

    fn check_responses(&self, is_clean: bool) -> Result<(), String> {
        for letter in runs(&self.end.inbox).iter().map(u8::to_ascii_lowercase) {
            if !self.letters().contains(&letter) {
                return Err(mixed(letter, self.first, "a connection"));
            }
        }
        // The bytes may be those of an HTTP/2 server, which sends SETTINGS before the client has sent anything. They
        // are no response of HTTP/1.
        let is_other = self.end.inbox.starts_with(b"\0\0");
        if !is_clean || is_other {
            return Ok(());
        }
        let mut rest = &self.end.inbox[..];
        for (nth, request) in (0_u8..).zip(&self.spec.requests) {
            let is_head = request.method == Method::Head;
            let Some(length) = response(rest, is_head, self.end.ended)? else { return Ok(()) };
            let (response, behind) = rest.split_at(length);
            let own = self.first + nth;
            for letter in runs(response).iter().map(u8::to_ascii_lowercase) {
                if letter != own {
                    return Err(mixed(letter, own, "a response"));
                }
            }
            if response.starts_with(b"HTTP/1.1 101 ") {
                return Ok(());
            }
            rest = behind;
            // If the head of a request was too long or too late, the proxy does not know its method. The response
            // then has content, and closes the connection.
            let text = response.to_ascii_lowercase();
            let closes = text.windows(17).any(|part| part == b"connection: close");
            if is_head && closes && self.end.ended && is_error(&text) {
                return Ok(());
            }
        }
        match rest {
            [] => Ok(()),
            _ => Err(format!("{} bytes that no request asked for", rest.len())),
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.peer.is_some()
    }

    /// Whether the connection is closed, or the client waits for nothing more.
    pub(crate) fn is_over(&self) -> bool {
        let is_reset_by_client = |stream: u32| {
            let nth = usize::try_from(stream.saturating_sub(1) / 2).unwrap_or_default();
            self.spec.requests.get(nth).is_some_and(|request| request.reset)
        };
        let is_done = |peer: &Peer| {
            let is_over = |(stream, message): (&u32, &frames::Message)| {
                message.is_complete || message.is_reset || is_reset_by_client(*stream)
            };
            peer.streams.iter().all(is_over)
        };
        self.end.is_closed() || self.end.ended || self.peer.as_ref().is_some_and(is_done)
    }

    /// How many requests the client has sent completely.
    pub(crate) fn whole(&self) -> usize {
        let sent = self.sent.saturating_sub(self.end.unsent());
        self.requests.iter().filter(|end| **end <= sent).count()
    }

    pub(crate) fn describe(&self) -> String {
        let inbox = &self.end.inbox;
        let start = String::from_utf8_lossy(&inbox[..inbox.len().min(300)]);
        let end = String::from_utf8_lossy(&inbox[inbox.len().saturating_sub(200)..]);
        format!("{} bytes: {start:?} .. {end:?}", inbox.len())
    }
}

/// Whether a response says that the request was not read.
fn is_error(response: &[u8]) -> bool {
    [b"http/1.1 408", b"http/1.1 414", b"http/1.1 431"]
        .iter()
        .any(|start| response.starts_with(*start))
}

fn mixed(letter: u8, own: u8, place: &str) -> String {
    format!("bytes of {:?} in {place} of {:?}", letter as char, own as char)
}

/// The length of the first response with its interim responses; `None` if it is incomplete.
fn response(bytes: &[u8], is_head: bool, has_ended: bool) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 300];
        let mut head = httparse::Response::new(&mut fields);
        let length = match head.parse(&bytes[at..]) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("no response: {error}")),
        };
        let status = head.code.unwrap_or_default();
        let framing = super::framing::of(head.headers)?;
        at += length;
        match status {
            101 => return Ok(Some(at)),
            100..=199 => continue,
            204 | 304 => return Ok(Some(at)),
            _ if is_head => return Ok(Some(at)),
            _ => {}
        }
        let length = match framing {
            Some(framing) => framing.length(&bytes[at..])?,
            None => has_ended.then_some(bytes.len() - at),
        };
        return Ok(length.map(|length| at + length));
    }
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
        }
    }

    /// Whether the method is idempotent (RFC 9110 section 9.2.2).
    pub(crate) fn is_idempotent(self) -> bool {
        !matches!(self, Self::Post | Self::Patch)
    }
}

fn target(letter: u8, request: &Request) -> Vec<u8> {
    let mut target = b"/".to_vec();
    target.extend(filled(letter, request.path));
    if request.extras.contains(&Extra::Query) {
        target.extend_from_slice(b"?q=0&r=%20");
    }
    target
}

/// The header fields of a request, in either HTTP version.
fn fields(letter: u8, request: &Request) -> Vec<(&'static str, Vec<u8>)> {
    let mut fields = vec![("x-tag", vec![letter]), ("x-fill", filled(letter, 10))];
    for extra in &request.extras {
        match extra {
            Extra::Origin => fields.push(("origin", b"https://0.example".to_vec())),
            Extra::LongOrigin => {
                let mut origin = b"https://".to_vec();
                origin.extend(filled(letter, LONG));
                origin.extend_from_slice(b".example");
                fields.push(("origin", origin));
            }
            Extra::Preflight => {
                fields.push(("access-control-request-method", b"PUT".to_vec()));
                fields.push(("access-control-request-headers", filled(letter, LONG)));
            }
            Extra::Cookie => fields.push(("cookie", b"a=b; session=0123; c=d".to_vec())),
            Extra::Te => fields.push(("te", b"trailers".to_vec())),
            Extra::Grpc => {
                fields.push(("content-type", b"application/grpc".to_vec()));
                fields.push(("grpc-timeout", b"100m".to_vec()));
            }
            Extra::Marked => fields.push(("x-marked", filled(letter, 9))),
            Extra::LongField => fields.push(("x-long", filled(letter, LONG))),
            Extra::LenoError => {
                fields.push(("leno-error", b"application-unreachable".to_vec()));
            }
            Extra::Expect => fields.push(("expect", b"100-continue".to_vec())),
            Extra::Close
            | Extra::KeepAlive
            | Extra::Upgrade
            | Extra::Absolute
            | Extra::Nominated
            | Extra::Query => {}
        }
    }
    fields
}

fn http1(letter: u8, request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    let version = if request.http10 { "HTTP/1.0" } else { "HTTP/1.1" };
    bytes.extend_from_slice(request.method.name().as_bytes());
    bytes.push(b' ');
    if request.extras.contains(&Extra::Absolute) {
        bytes.extend_from_slice(b"http://cart");
    }
    bytes.extend(target(letter, request));
    bytes.extend_from_slice(format!(" {version}\r\nHost: cart\r\n").as_bytes());
    for (name, value) in fields(letter, request) {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend(value);
        bytes.extend_from_slice(b"\r\n");
    }
    for extra in &request.extras {
        bytes.extend_from_slice(match extra {
            Extra::Close => b"Connection: close\r\n",
            Extra::KeepAlive => b"Connection: keep-alive\r\n",
            Extra::Nominated => b"Connection: x-fill\r\n",
            Extra::Upgrade => b"Connection: upgrade\r\nUpgrade: websocket\r\n",
            _ => b"",
        });
    }
    let is_chunked = (request.chunk > 0 || request.trailers) && !request.http10;
    if !is_chunked {
        if request.body > 0 {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", request.body).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend(filled(letter, request.body));
        return bytes;
    }
    bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    bytes.extend(chunked(letter, request.body, request.chunk, request.trailers));
    bytes
}

/// Content in chunks (RFC 9112 section 7.1).
pub(crate) fn chunked(letter: u8, body: usize, chunk: usize, trailers: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let chunk = if chunk == 0 { body } else { chunk }.max(body / 50).max(1);
    for part in filled(letter, body).chunks(chunk) {
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n");
    if trailers {
        bytes.extend_from_slice(b"x-trailer: ");
        bytes.extend(filled(letter, 10));
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}
