//! Decodes the parts of one run: a configuration, connections with requests and their responses, and the order of
//! events.

use super::config::Config;
use super::input::Input;

/// Most client connections of a run.
const CONNECTIONS: usize = 4;
/// Most requests on one connection.
const REQUESTS: usize = 5;
/// Most steps of a run.
const STEPS: usize = 40;

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The configuration of the planes.
    pub config: Config,
    /// The client connections.
    pub connections: Vec<Connection>,
    /// The events, in order. Bytes that are not sent by then are sent after the last event.
    pub steps: Vec<Step>,
}

/// A client's connection.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// Whether the client speaks HTTP/2.
    pub http2: bool,
    /// INITIAL_WINDOW_SIZE of an HTTP/2 client; `None` leaves it at 65,535.
    pub window: Option<u32>,
    /// Whether the client shuts down its sending direction after the last request.
    pub half_closes: bool,
    /// Its requests, in order.
    pub requests: Vec<Request>,
    /// Changes to the bytes that the client sends.
    pub mutations: Vec<Mutation>,
}

/// One request and its response.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The length of the path after its slash.
    pub path: usize,
    /// Whether the request is HTTP/1.0, unless the connection uses HTTP/2.
    pub http10: bool,
    /// Fields in addition to those of every request.
    pub extras: Vec<Extra>,
    /// The length of the content.
    pub body: usize,
    /// The size of the chunks or DATA frames of the content. 0 means that the content has a Content-Length.
    pub chunk: usize,
    /// Whether trailers follow the content.
    pub trailers: bool,
    /// Whether an HTTP/2 client resets the stream after its last frame.
    pub reset: bool,
    /// The application's response.
    pub answer: Answer,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say what they are")]
pub enum Method {
    #[default]
    Get,
    Post,
    Head,
    Put,
    Options,
    Patch,
}

/// Extra fields of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say what they are")]
pub enum Extra {
    Close,
    KeepAlive,
    Expect,
    Upgrade,
    Origin,
    LongOrigin,
    Preflight,
    Cookie,
    Te,
    Grpc,
    /// The target in absolute form.
    Absolute,
    /// The field `x-marked`, which routes and policies match and change.
    Marked,
    LongField,
    LenoError,
    /// A field `Connection` that names `x-fill`.
    Nominated,
    Query,
}

/// A response of the application.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The status; 0 means 200.
    pub status: u16,
    /// The number of 103 heads before it.
    pub interim: usize,
    /// The length of the content.
    pub body: usize,
    /// How an HTTP/1 response ends.
    pub framing: Framing,
    /// Whether the application responds before it has read the whole request.
    pub early: bool,
    /// The delay before it, in milliseconds.
    pub delay_ms: u32,
    /// Whether trailers follow the content.
    pub trailers: bool,
    /// A field in addition to the fields of every response.
    pub extra: Option<AnswerExtra>,
    /// Where the response is cut off, and how the connection ends there; `None` if it is complete.
    pub cut: Option<(u16, Ending)>,
    /// Changes to the bytes of the response.
    pub mutations: Vec<Mutation>,
}

/// How an HTTP/1 response ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say what they are")]
pub enum Framing {
    #[default]
    Length,
    Chunked,
    Close,
}

/// Extra fields of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say what they are")]
pub enum AnswerExtra {
    Close,
    Upgrade,
    Unreachable,
    RetryAfter,
    GrpcUnavailable,
    SetCookie,
    LongField,
}

/// How a connection ends after a response that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The rest is never sent.
    Stall,
    /// The connection is closed.
    Close,
    /// An HTTP/2 stream is reset, with REFUSED_STREAM if nothing was sent; an HTTP/1 connection is closed.
    Refuse,
    /// An HTTP/2 server sends GOAWAY; an HTTP/1 connection is closed.
    GoAway,
}

/// A change to a message's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// Its position, in 256ths of the message's length.
    pub at: u8,
    /// A number of bytes that is added to that position.
    pub further: u8,
    /// The change at that position.
    pub change: Change,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Replaces a byte.
    Byte(u8),
    /// Deletes this many bytes.
    Delete(u8),
    /// Inserts one of [`TOKENS`].
    Insert(u8),
}

/// Fragments that are inserted into messages.
pub(crate) const TOKENS: [&[u8]; 20] = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b":",
    b"\r\n\r\n",
    b"\r\nTransfer-Encoding: chunked",
    b"\r\nTransfer-Encoding: gzip, chunked",
    b"\r\nContent-Length: 5",
    b"\r\nContent-Length: 0",
    b"0\r\n\r\n",
    b"5\r\n",
    b"\r\nConnection: content-length, x-tag",
    b"\r\nHost: other",
    b";ext=\"\n\"",
    b"\xff\xfe",
    b"HTTP/1.0",
    b"GET /0 HTTP/1.1\r\nHost: 0\r\n\r\n",
];

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A client sends this many of its remaining bytes.
    Send(usize, usize),
    /// The clock advances by this many milliseconds.
    Wait(u32),
    /// A client closes its connection.
    Close(usize),
    /// A client stops reading.
    Deafen(usize),
    /// A client that stopped reading reads again.
    Listen(usize),
    /// The application stops reading on all connections.
    DeafenApplication,
    /// The application, which stopped reading, reads again.
    ListenApplication,
    /// The application closes its connections that have no request in progress.
    CloseIdle,
    /// Both planes begin to drain.
    Drain,
    /// The network ends all connections between the planes.
    Cut,
    /// The server's workload leaves the process: all tasks of its inbound plane, if that is a guest
    /// ([`Planes::Guest`]), end at once. Later connections get a new guest.
    EndGuest,
}

impl Case {
    /// Decodes the case from an input.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let input = &mut Input::new(bytes);
        let config = Config::decode(input);
        let count = 1 + input.below(CONNECTIONS);
        let connections: Vec<_> = (0..count).map(|_| connection(input)).collect();
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < STEPS {
            steps.push(step(input, connections.len()));
        }
        Self { config, connections, steps }
    }

    /// Whether everything that clients and applications send is valid HTTP.
    pub(crate) fn is_clean(&self) -> bool {
        let request = |request: &Request, http2: bool| {
            let upgrades = request.extras.contains(&Extra::Upgrade) && !http2;
            request.answer.mutations.is_empty() && (upgrades || request.answer.status != 101)
        };
        let connection = |c: &Connection| {
            c.mutations.is_empty() && c.requests.iter().all(|of| request(of, c.http2))
        };
        self.connections.iter().all(connection)
    }

    /// Whether an application cuts off any response in this way.
    pub(crate) fn breaks_off_by(&self, ending: Ending) -> bool {
        let requests = self.connections.iter().flat_map(|connection| &connection.requests);
        requests.into_iter().any(|of| of.answer.cut.is_some_and(|(_, by)| by == ending))
    }
}

fn connection(input: &mut Input<'_>) -> Connection {
    Connection {
        http2: input.one_in(2),
        window: input.maybe(&[0, 100, 3000, 1 << 20]),
        half_closes: input.one_in(8),
        requests: {
            let count = 1 + input.below(REQUESTS);
            (0..count).map(|_| request(input)).collect()
        },
        mutations: if input.one_in(3) { input.list(3, mutation) } else { Vec::new() },
    }
}

fn request(input: &mut Input<'_>) -> Request {
    use Extra::*;
    const EXTRAS: [Extra; 16] = [
        Close, KeepAlive, Expect, Upgrade, Origin, LongOrigin, Preflight, Cookie, Te, Grpc,
        Absolute, Marked, LongField, LenoError, Nominated, Query,
    ];
    use Method::*;
    Request {
        method: input.of(&[Get, Get, Post, Head, Put, Options, Patch]),
        path: input.of(&[0, 1, 10, 200, 4000, 17_000, 33_000, 66_000]),
        http10: input.one_in(10),
        extras: input.list(3, |input| input.of(&EXTRAS)),
        body: input.of(&[0, 0, 1, 10, 1000, 9000, 40_000]),
        chunk: input.of(&[0, 0, 1, 100, 5000]),
        trailers: input.one_in(5),
        reset: input.one_in(8),
        answer: answer(input),
    }
}

fn answer(input: &mut Input<'_>) -> Answer {
    use AnswerExtra::*;
    use Ending::*;
    const EXTRAS: [AnswerExtra; 7] = [
        AnswerExtra::Close,
        Upgrade,
        Unreachable,
        RetryAfter,
        GrpcUnavailable,
        SetCookie,
        LongField,
    ];
    Answer {
        status: input.of(&[200, 200, 200, 204, 304, 404, 500, 503, 502, 429, 101, 302, 999]),
        interim: input.of(&[0, 0, 0, 0, 1, 2, 20]),
        body: input.of(&[0, 1, 10, 1000, 20_000, 200_000]),
        framing: input.of(&[Framing::Length, Framing::Length, Framing::Chunked, Framing::Close]),
        early: input.one_in(4),
        delay_ms: input.of(&[0, 0, 0, 1, 20, 300, 5000, 100_000]),
        trailers: input.one_in(5),
        extra: input.maybe(&EXTRAS),
        cut: input.one_in(4).then(|| {
            let at = input.of(&[0, 1, 12, 40, 100, 150, 500, 5000, 30_000]);
            (at, input.of(&[Ending::Close, Stall, Refuse, GoAway]))
        }),
        mutations: if input.one_in(5) { input.list(3, mutation) } else { Vec::new() },
    }
}

fn mutation(input: &mut Input<'_>) -> Mutation {
    Mutation {
        at: input.byte(),
        further: input.byte(),
        change: match input.below(3) {
            0 => Change::Insert(input.byte()),
            1 => Change::Delete(input.byte()),
            // Letters are replaced, because they could be mistaken for bytes of another request.
            _ => Change::Byte(match input.byte() {
                letter if letter.is_ascii_alphabetic() => b'0',
                other => other,
            }),
        },
    }
}

fn step(input: &mut Input<'_>, connections: usize) -> Step {
    let kind = input.byte();
    let nth = input.below(connections);
    match kind % 16 {
        0..=5 => Step::Send(nth, input.of(&[usize::MAX, 1, 10, 24, 33, 60, 100, 1000, 16_384])),
        6..=9 => Step::Wait(input.of(&[1, 6, 25, 100, 250, 1000, 2500, 10_000, 31_000, 61_000])),
        10 => Step::Close(nth),
        11 => Step::Deafen(nth),
        12 => Step::Listen(nth),
        13 => Step::DeafenApplication,
        14 => input.of(&[Step::ListenApplication, Step::CloseIdle]),
        _ if kind < 128 => Step::Drain,
        _ if kind < 192 => Step::Cut,
        _ => Step::EndGuest,
    }
}
