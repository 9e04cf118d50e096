//! The supported protocols, and what their parsers return. A turn of a side is everything that it sends until the other
//! side sends something.

pub(super) mod dns;
pub(super) mod http1;
pub(super) mod http2;
pub(super) mod kafka;
pub(super) mod mysql;
pub(super) mod postgresql;
pub(super) mod redis;
mod sql;

use dns::Dns;
use http1::Http1;
use http2::{Http2, TableSlots};
use kafka::Kafka;
use mysql::Mysql;
use postgresql::Postgresql;
use redis::Redis;

/// Which side of a connection sent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// The result of parsing at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A message.
    Message(Message),
    /// More bytes are needed.
    Incomplete,
    /// The bytes are not of the protocol.
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its length in bytes, which may exceed the available bytes; `None` if the rest of this side's turn is part
    /// of it.
    pub(super) length: Option<u32>,
    pub(super) says: MessageMeaning,
}

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageMeaning {
    /// The message is not part of a request.
    Nothing,
    /// A request begins.
    Request { kind: &'static str, id: u32 },
    /// The response to a request begins. `result` is the request's result if no more of the response is seen.
    Answer { result: &'static str, id: u32 },
    /// The result of a request is known.
    Result { result: &'static str, id: u32 },
    /// The rest of the connection is not read. The text is the result of the request that has caused this.
    Leaves(&'static str),
}

impl Parsed {
    pub(super) fn message(length: impl Into<Option<u32>>, says: MessageMeaning) -> Self {
        Self::Message(Message { length: length.into(), says })
    }
}

/// A protocol. Its number is that in the kernel's table, which must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Protocol {
    Http1 = 1,
    Redis = 2,
    Postgresql = 3,
    Mysql = 4,
    Kafka = 5,
    Dns = 6,
    Http2 = 7,
    Grpc = 8,
}

impl Protocol {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Http1, "http1"),
        (Self::Redis, "redis"),
        (Self::Postgresql, "postgresql"),
        (Self::Mysql, "mysql"),
        (Self::Kafka, "kafka"),
        (Self::Dns, "dns"),
        (Self::Http2, "http2"),
        (Self::Grpc, "grpc"),
    ];

    /// The name of the protocol with this number, as in metrics; `other` for protocols of later versions.
    pub(super) fn name_of(number: u8) -> &'static str {
        let found = Self::ALL.iter().find(|(protocol, _)| *protocol as u8 == number);
        found.map_or("other", |(_, name)| name)
    }
}

/// The parser of a connection.
#[derive(Debug)]
pub(super) enum Parser {
    Http1(Http1),
    Redis(Redis),
    Postgresql(Postgresql),
    Mysql(Mysql),
    Kafka(Kafka),
    Dns(Dns),
    Http2(Box<Http2>),
}

impl Parser {
    /// Detects the protocol from the first bytes of a side's turn; `None` if it cannot be detected.
    pub(super) fn detect(side: Side, bytes: &[u8], places: &TableSlots) -> Option<Self> {
        match side {
            Side::Client if http1::begins(bytes) => Some(Self::Http1(Http1)),
            Side::Client if http2::begins(bytes) => Some(Self::Http2(Box::new(Http2::new(places)))),
            Side::Client if redis::begins(bytes) => Some(Self::Redis(Redis)),
            Side::Client if postgresql::begins(bytes) => {
                Some(Self::Postgresql(Postgresql::default()))
            }
            side if mysql::begins(side, bytes) => Some(Self::Mysql(Mysql::default())),
            Side::Client if kafka::begins(bytes) => Some(Self::Kafka(Kafka)),
            _ => None,
        }
    }

    /// The parser of DNS. DNS is detected by its port.
    pub(super) fn dns(has_lengths: bool) -> Self {
        Self::Dns(Dns { has_lengths })
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Self::Http1(_) => Protocol::Http1,
            Self::Redis(_) => Protocol::Redis,
            Self::Postgresql(_) => Protocol::Postgresql,
            Self::Mysql(_) => Protocol::Mysql,
            Self::Kafka(_) => Protocol::Kafka,
            Self::Dns(_) => Protocol::Dns,
            Self::Http2(parser) if parser.is_grpc() => Protocol::Grpc,
            Self::Http2(_) => Protocol::Http2,
        }
    }

    /// Parses the message at the beginning of `bytes`, which are not empty.
    pub(super) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        match self {
            Self::Http1(parser) => parser.read(side, bytes),
            Self::Redis(parser) => parser.read(side, bytes),
            Self::Postgresql(parser) => parser.read(side, bytes),
            Self::Mysql(parser) => parser.read(side, bytes),
            Self::Kafka(parser) => parser.read(side, bytes),
            Self::Dns(parser) => parser.read(side, bytes),
            Self::Http2(parser) => parser.read(side, bytes),
        }
    }

    /// Records that some bytes of a side had no sample.
    pub(super) fn lose(&mut self, side: Side) {
        if let Self::Http2(parser) = self {
            parser.lose(side);
        }
    }

    /// Whether a request ends the one before it, because a connection carries only one request at a time.
    pub(super) fn alternates(&self) -> bool {
        matches!(self, Self::Http1(_))
    }

    /// Whether requests and responses have IDs. Otherwise responses have the order of the requests.
    pub(super) fn has_ids(&self) -> bool {
        matches!(self, Self::Kafka(_) | Self::Dns(_) | Self::Http2(_))
    }
}

/// The bytes before the first CRLF, and the number of bytes up to and including it.
pub(super) fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((bytes.get(..end)?, end + 2))
}

/// The name in a list that matches `word` without regard to case; `other` if none matches.
pub(super) fn known(names: &[&'static str], word: &[u8]) -> &'static str {
    names.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word)).copied().unwrap_or("other")
}

/// The class of an HTTP status.
pub(super) fn class_of(status: u16) -> &'static str {
    match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500..600 => "5xx",
        _ => "other",
    }
}
