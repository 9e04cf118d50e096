//! Parses MySQL and MariaDB: commands and statements, and whether they have failed.
//!
//! A packet has a length and a number, which starts at 0 with each command; packet 1 begins the response. An error
//! after rows is not detected. Encrypted and compressed connections are not read.

use super::{MessageMeaning, Parsed, Side, sql};

const HEADER: usize = 4;
const ERROR: u8 = 0xff;
/// The protocol version in a server's greeting.
const PROTOCOL: u8 = 10;
/// Flags of a client which mean that the rest is compressed or encrypted.
const COMPRESS: u32 = 0x20;
const SSL: u32 = 0x800;
/// Commands without a response.
const SILENT: [u8; 3] = [0x01, 0x18, 0x19];
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
/// Commands by their numbers.
const COMMANDS: &[(u8, &str)] = &[
    (0x02, "USE"),
    (0x04, "FIELD_LIST"),
    (0x09, "STATISTICS"),
    (0x0e, "PING"),
    (0x11, "CHANGE_USER"),
    (PREPARE, "PREPARE"),
    (0x17, "EXECUTE"),
    (0x1a, "RESET"),
    (0x1b, "SET_OPTION"),
    (0x1c, "FETCH"),
    (0x1f, "RESET"),
];

#[derive(Debug, Default)]
pub(in crate::wire) struct Mysql {
    /// Whether a command was seen, so that the handshake is over.
    is_ready: bool,
}

/// Whether these bytes are the greeting of a server, or a statement of a client.
pub(in crate::wire) fn begins(side: Side, bytes: &[u8]) -> bool {
    let Some((length, number, body)) = packet(bytes) else { return false };
    match side {
        Side::Server => {
            let version = body.get(1..).unwrap_or_default();
            let end = version.iter().position(|byte| *byte == 0).unwrap_or_default();
            let is_text = version.iter().take(end).all(u8::is_ascii_graphic);
            number == 0 && body.first() == Some(&PROTOCOL) && (3..64).contains(&end) && is_text
        }
        Side::Client => {
            let is_first = number == 0 && body.len() <= length as usize;
            is_first && body.first() == Some(&QUERY) && sql::kind(statement(body)) != "other"
        }
    }
}

/// The length of a packet without its header, its number, and its available bytes.
fn packet(bytes: &[u8]) -> Option<(u32, u8, &[u8])> {
    let [low, middle, high, number] = bytes.get(..HEADER)? else { return None };
    let length = u32::from_le_bytes([*low, *middle, *high, 0]);
    let rest = bytes.get(HEADER..)?;
    Some((length, *number, rest.get(..length as usize).unwrap_or(rest)))
}

/// The text of a query. In MySQL 8, attributes may precede it; only the case of one set without attributes is
/// supported.
fn statement(body: &[u8]) -> &[u8] {
    let text = body.get(1..).unwrap_or_default();
    text.strip_prefix(&[0, 1]).unwrap_or(text)
}

impl Mysql {
    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        let Some((length, number, body)) = packet(bytes) else { return Parsed::Incomplete };
        let Some(first) = body.first() else {
            // A message that is longer than the largest packet ends with a shorter packet, which may be empty.
            let is_cut = length > 0;
            return if is_cut {
                Parsed::Incomplete
            } else {
                Parsed::message(4, MessageMeaning::Nothing)
            };
        };
        let says = match (side, number) {
            (Side::Client, 0) => {
                self.is_ready = true;
                command(*first, body)
            }
            (Side::Client, 1) if !self.is_ready => match start(body) {
                Some(says) => says,
                None => return Parsed::Incomplete,
            },
            (Side::Server, 1) if self.is_ready => {
                let result = if *first == ERROR { "error" } else { "ok" };
                MessageMeaning::Result { result, id: 0 }
            }
            _ => MessageMeaning::Nothing,
        };
        Parsed::message(length + HEADER as u32, says)
    }
}

fn command(number: u8, body: &[u8]) -> MessageMeaning {
    if SILENT.contains(&number) {
        return MessageMeaning::Nothing;
    }
    let kind = match number {
        QUERY => sql::kind(statement(body)),
        _ => COMMANDS.iter().find(|(one, _)| *one == number).map_or("other", |(_, name)| name),
    };
    MessageMeaning::Request { kind, id: 0 }
}

/// The meaning of a client's message during the handshake.
fn start(body: &[u8]) -> Option<MessageMeaning> {
    let flags = u32::from_le_bytes(body.get(..4)?.try_into().ok()?);
    let is_hidden = flags & (COMPRESS | SSL) != 0;
    Some(if is_hidden { MessageMeaning::Leaves("ok") } else { MessageMeaning::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        [&length[..3], &[number], body].concat()
    }

    fn says(parser: &mut Mysql, side: Side, number: u8, body: &[u8]) -> MessageMeaning {
        let bytes = packet(number, body);
        match parser.read(side, &bytes) {
            Parsed::Message(message) => {
                assert_eq!(message.length, Some(bytes.len() as u32));
                message.says
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_are_answered_by_the_packet_after_them() {
        let mut parser = Mysql::default();
        let greeting = packet(0, b"\x0a10.11.6-MariaDB\0rest");
        assert!(begins(Side::Server, &greeting));
        assert_eq!(
            parser.read(Side::Server, &greeting),
            Parsed::message(25, MessageMeaning::Nothing)
        );
        assert_eq!(
            says(&mut parser, Side::Client, 1, &[0x85, 0xa2, 0, 0, 1]),
            MessageMeaning::Nothing
        );
        assert_eq!(says(&mut parser, Side::Server, 2, &[0]), MessageMeaning::Nothing);
        let request = |kind| MessageMeaning::Request { kind, id: 0 };
        let result = |result| MessageMeaning::Result { result, id: 0 };
        let select = b"\x03select 1";
        assert_eq!(says(&mut parser, Side::Client, 0, select), request("SELECT"));
        assert_eq!(says(&mut parser, Side::Server, 1, &[1]), result("ok"));
        assert_eq!(
            says(&mut parser, Side::Server, 2, &[3, b'd', b'e', b'f']),
            MessageMeaning::Nothing
        );
        let with_attributes = b"\x03\x00\x01insert into t";
        assert_eq!(says(&mut parser, Side::Client, 0, with_attributes), request("INSERT"));
        assert_eq!(says(&mut parser, Side::Server, 1, &[ERROR, 1, 4]), result("error"));
        assert_eq!(says(&mut parser, Side::Client, 0, b"\x0e"), request("PING"));
        assert_eq!(says(&mut parser, Side::Client, 0, b"\x19\0\0\0\0"), MessageMeaning::Nothing);
        assert_eq!(says(&mut parser, Side::Client, 0, b"\x01"), MessageMeaning::Nothing);
    }

    #[test]
    fn what_is_encrypted_or_compressed_is_left() {
        for flags in [SSL, COMPRESS] {
            let body = [&(flags | 0x200).to_le_bytes()[..], &[0; 28]].concat();
            let mut parser = Mysql::default();
            assert_eq!(says(&mut parser, Side::Client, 1, &body), MessageMeaning::Leaves("ok"));
        }
        assert!(begins(Side::Client, &packet(0, b"\x03select 1")));
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"*1\r\n$4\r\nPING\r\n", &packet(0, b"\x03hello")]
        {
            assert!(!begins(Side::Client, other), "{other:?}");
        }
        assert!(!begins(Side::Server, b"220 mail.example.com ESMTP\r\n"));
        assert_eq!(Mysql::default().read(Side::Server, b"\x01\0"), Parsed::Incomplete);
    }
}
