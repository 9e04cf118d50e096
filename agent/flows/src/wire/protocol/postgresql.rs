//! Parses version 3 of PostgreSQL's protocol: statements, and whether they have failed.
//!
//! ```text
//!   client   Startup │ Query            ─► │ Parse Bind Execute ... Sync ─► │
//!   server           │ ... ReadyForQuery   │ ... ReadyForQuery              │
//! ```
//! A request is a Query, or all messages up to a Sync. If it has several statements, its kind is that of the first
//! one, and an error in any of them is its result. An error after rows that exceed a sample is not seen.
//! Authentication is not counted.

use super::{MessageMeaning, Parsed, Side, sql};

/// The numbers that stand in place of a version in `SSLRequest`, `GSSENCRequest` and `CancelRequest`, and the
/// number of version 3.
const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;
const CANCEL: u32 = 80_877_102;
const VERSION_3: std::ops::RangeInclusive<u32> = 0x3_0000..=0x3_0002;
/// The server's limit for a startup message, and the limit for other messages.
const MAX_STARTUP: u32 = 10_000;
const MAX_MESSAGE: u32 = 1 << 30;

#[derive(Debug, Default)]
pub(in crate::wire) struct Postgresql {
    /// Whether a request has begun and its Sync was not seen yet.
    is_open: bool,
    /// Whether the server has reported an error.
    has_failed: bool,
    /// Whether the server's next ReadyForQuery ends a request, and not the startup.
    has_started: bool,
    /// Whether the client has requested encryption, which the server answers with one byte.
    asked: bool,
}

/// Whether a startup message or a statement begins here.
pub(in crate::wire) fn begins(bytes: &[u8]) -> bool {
    if startup(bytes).is_some() {
        return true;
    }
    let Some((kind @ (b'Q' | b'P'), length)) = header(bytes) else { return false };
    let body = bytes.get(5..).unwrap_or_default();
    let is_query = kind == b'Q';
    let is_whole = is_query && bytes.len() == length as usize + 1;
    let statement = if is_query { body } else { after_name(body) };
    sql::kind(statement) != "other" && (!is_whole || body.last() == Some(&0))
}

/// The number in a startup message, and its length.
fn startup(bytes: &[u8]) -> Option<(u32, u32)> {
    let [length, number] = [be32(bytes, 0)?, be32(bytes, 4)?];
    let is_one = match number {
        SSL | GSS => length == 8,
        CANCEL => length == 16,
        number => VERSION_3.contains(&number) && (8..=MAX_STARTUP).contains(&length),
    };
    is_one.then_some((number, length))
}

/// The type of a message, and its length without the type.
fn header(bytes: &[u8]) -> Option<(u8, u32)> {
    let length = be32(bytes, 1)?;
    let kind = *bytes.first()?;
    (kind.is_ascii_graphic() && (4..=MAX_MESSAGE).contains(&length)).then_some((kind, length))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

impl Postgresql {
    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        if side == Side::Client
            && let Some((number, length)) = startup(bytes)
        {
            self.asked = matches!(number, SSL | GSS);
            (self.has_started, self.is_open) = (false, false);
            return Parsed::message(length, MessageMeaning::Nothing);
        }
        if side == Side::Server && self.asked {
            self.asked = false;
            let says = if bytes.first() == Some(&b'N') {
                MessageMeaning::Nothing
            } else {
                MessageMeaning::Leaves("ok")
            };
            return Parsed::message(1, says);
        }
        let Some((kind, length)) = header(bytes) else {
            return if bytes.len() < 5 { Parsed::Incomplete } else { Parsed::Foreign };
        };
        let says = match side {
            Side::Client => self.client(kind, bytes.get(5..).unwrap_or_default()),
            Side::Server => self.server(kind),
        };
        says.map_or(Parsed::Foreign, |says| Parsed::message(length + 1, says))
    }

    fn client(&mut self, message: u8, body: &[u8]) -> Option<MessageMeaning> {
        let mut begin = |kind| {
            self.has_started = true;
            let was_open = std::mem::replace(&mut self.is_open, true);
            if was_open { MessageMeaning::Nothing } else { MessageMeaning::Request { kind, id: 0 } }
        };
        Some(match message {
            b'Q' => {
                let says = begin(sql::kind(body));
                self.is_open = false;
                says
            }
            // The name of the prepared statement comes first.
            b'P' => begin(sql::kind(after_name(body))),
            b'B' => begin("EXECUTE"),
            b'D' | b'E' | b'C' => begin("other"),
            b'F' => {
                let says = begin("FUNCTION");
                self.is_open = false;
                says
            }
            b'S' => {
                let says = begin("other");
                self.is_open = false;
                says
            }
            // These are Flush, CopyData, CopyDone, CopyFail, a password, and Terminate.
            b'H' | b'd' | b'c' | b'f' | b'p' | b'X' => MessageMeaning::Nothing,
            _ => return None,
        })
    }

    fn server(&mut self, message: u8) -> Option<MessageMeaning> {
        Some(match message {
            b'Z' => {
                let failed = std::mem::take(&mut self.has_failed);
                match std::mem::replace(&mut self.has_started, true) {
                    false => MessageMeaning::Nothing,
                    true => MessageMeaning::Result { result: result(failed), id: 0 },
                }
            }
            b'E' => {
                self.has_failed = true;
                MessageMeaning::Answer { result: result(true), id: 0 }
            }
            // Notices, notifications and parameters may be sent at any time.
            b'N' | b'A' | b'S' | b'R' | b'K' | b'v' => MessageMeaning::Nothing,
            b'1' | b'2' | b'3' | b'n' | b't' | b'T' | b'D' | b'C' | b'I' | b's' | b'G' | b'H'
            | b'W' | b'c' | b'd' | b'V' => {
                MessageMeaning::Answer { result: result(self.has_failed), id: 0 }
            }
            _ => return None,
        })
    }
}

fn result(failed: bool) -> &'static str {
    if failed { "error" } else { "ok" }
}

fn after_name(body: &[u8]) -> &[u8] {
    let end = body.iter().position(|byte| *byte == 0);
    end.and_then(|end| body.get(end + 1..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    fn startup(number: u32, body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32 + 8).to_be_bytes()[..], &number.to_be_bytes(), body].concat()
    }

    /// The meanings of one side's messages, except messages without a meaning.
    fn read(parser: &mut Postgresql, side: Side, mut bytes: &[u8]) -> Vec<MessageMeaning> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let Parsed::Message(message) = parser.read(side, bytes) else { panic!("{bytes:?}") };
            bytes = &bytes[message.length.unwrap() as usize..];
            all.extend(Some(message.says).filter(|says| *says != MessageMeaning::Nothing));
        }
        all
    }

    #[test]
    fn statements_of_both_protocols_end_with_ready_for_query() {
        let mut parser = Postgresql::default();
        let start = startup(SSL, b"");
        assert!(begins(&start));
        assert_eq!(read(&mut parser, Side::Client, &start), []);
        assert_eq!(read(&mut parser, Side::Server, b"N"), []);
        assert_eq!(read(&mut parser, Side::Client, &startup(0x3_0000, b"user\0a\0\0")), []);
        let ready = message(b'Z', b"I");
        let started = [message(b'R', &[0; 4]), message(b'S', b"a\0b\0"), ready.clone()].concat();
        assert_eq!(read(&mut parser, Side::Server, &started), []);
        let request = |kind| MessageMeaning::Request { kind, id: 0 };
        let (answer, done) = (
            |result| MessageMeaning::Answer { result, id: 0 },
            |result| MessageMeaning::Result { result, id: 0 },
        );
        let query = message(b'Q', b"select 1\0");
        assert_eq!(read(&mut parser, Side::Client, &query), [request("SELECT")]);
        let rows =
            [message(b'T', &[0; 9]), message(b'D', &[0; 9]), message(b'C', b"x\0"), ready.clone()];
        assert_eq!(
            read(&mut parser, Side::Server, &rows.concat()),
            [answer("ok"), answer("ok"), answer("ok"), done("ok")]
        );
        let extended = [
            message(b'P', b"name\0insert into t values ($1)\0"),
            message(b'B', &[0; 9]),
            message(b'E', &[0; 5]),
            message(b'S', b""),
            message(b'B', &[0; 9]),
            message(b'S', b""),
        ];
        assert_eq!(
            read(&mut parser, Side::Client, &extended.concat()),
            [request("INSERT"), request("EXECUTE")]
        );
        let failed = [
            message(b'1', b""),
            message(b'E', b"SERROR\0"),
            ready.clone(),
            message(b'2', b""),
            ready,
        ];
        assert_eq!(
            read(&mut parser, Side::Server, &failed.concat()),
            [answer("ok"), answer("error"), done("error"), answer("ok"), done("ok")]
        );
    }

    #[test]
    fn what_is_encrypted_is_left_and_what_is_none_of_it_is_foreign() {
        let mut parser = Postgresql::default();
        read(&mut parser, Side::Client, &startup(SSL, b""));
        assert_eq!(read(&mut parser, Side::Server, b"S"), [MessageMeaning::Leaves("ok")]);
        assert!(begins(&message(b'Q', b"select 1\0")));
        assert!(begins(&message(b'P', b"name\0insert into t values ($1)\0\0\0")));
        for other in
            [&b"GET / HTTP/1.1\r\n"[..], b"*1\r\n$4\r\nPING\r\n", &message(b'Q', b"hello\0")]
        {
            assert!(!begins(other), "{other:?}");
        }
        assert_eq!(
            Postgresql::default().read(Side::Server, b"\x15\x03\x01\x00\x02"),
            Parsed::Foreign
        );
    }
}
