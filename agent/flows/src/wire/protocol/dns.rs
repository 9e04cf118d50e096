//! Parses DNS (RFC 1035) over UDP and TCP, on port 53: the type of a query, and the code of its response.

use super::{MessageMeaning, Parsed, Side};

const HEADER: usize = 12;
/// Types by their numbers.
const TYPES: &[(u16, &str)] = &[
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (12, "PTR"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (35, "NAPTR"),
    (43, "DS"),
    (48, "DNSKEY"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (255, "ANY"),
    (257, "CAA"),
];
/// Response codes, by their number (RFC 1035 section 4.1.1, RFC 2136).
const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];
/// Most bytes of a name (RFC 1035 section 3.1).
const MAX_NAME: usize = 255;

#[derive(Debug)]
pub(in crate::wire) struct Dns {
    /// Whether each message has a length prefix, which is so over TCP.
    pub(in crate::wire) has_lengths: bool,
}

impl Dns {
    pub(in crate::wire) fn read(&self, side: Side, bytes: &[u8]) -> Parsed {
        if !self.has_lengths {
            return message(side, bytes)
                .map_or(Parsed::Foreign, |says| Parsed::message(None, says));
        }
        let Some([high, low]) = bytes.get(..2) else { return Parsed::Incomplete };
        let length = u16::from_be_bytes([*high, *low]);
        let rest = bytes.get(2..).unwrap_or_default();
        let own = rest.get(..usize::from(length)).unwrap_or(rest);
        match message(side, own) {
            Some(says) => Parsed::message(u32::from(length) + 2, says),
            None if own.len() < usize::from(length) => Parsed::Incomplete,
            None => Parsed::Foreign,
        }
    }
}

/// The meaning of a message; `None` if it is invalid, or is cut off before the end of its question.
fn message(side: Side, bytes: &[u8]) -> Option<MessageMeaning> {
    let header = bytes.get(..HEADER)?;
    let word = |at: usize| Some(u16::from_be_bytes(header.get(at..at + 2)?.try_into().ok()?));
    let (id, flags, questions) = (u32::from(word(0)?), word(2)?, word(4)?);
    let is_response = flags & 0x8000 != 0;
    // A standard query has one question. A server that cannot parse a query may answer without a question.
    let is_query = (flags >> 11) & 15 == 0 && questions <= 1;
    match side {
        Side::Client if !is_response && is_query && questions == 1 => {
            let kind = kind(bytes.get(HEADER..)?)?;
            Some(MessageMeaning::Request { kind, id })
        }
        Side::Server if is_response && is_query => {
            let result = CODES.get(usize::from(flags & 15)).copied().unwrap_or("other");
            Some(MessageMeaning::Result { result, id })
        }
        _ => None,
    }
}

/// The type of a question.
fn kind(mut question: &[u8]) -> Option<&'static str> {
    let mut read = 0;
    loop {
        let (length, rest) = question.split_first()?;
        read += usize::from(*length) + 1;
        // A label has at most 63 bytes, and a question has no compression pointers.
        if *length > 63 || read > MAX_NAME {
            return None;
        }
        question = rest.get(usize::from(*length)..)?;
        if *length == 0 {
            break;
        }
    }
    let number = u16::from_be_bytes(question.get(..2)?.try_into().ok()?);
    Some(TYPES.iter().find(|(one, _)| *one == number).map_or("other", |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(flags: u16, kind: u8) -> Vec<u8> {
        let flags = flags.to_be_bytes();
        let header = [1, 2, flags[0], flags[1], 0, 1, 0, 0, 0, 0, 0, 0];
        [&header[..], b"\x03web\x04shop\0", &[0, kind, 0, 1]].concat()
    }

    #[test]
    fn queries_have_their_type_and_responses_their_code() {
        let udp = Dns { has_lengths: false };
        let request = |kind| Parsed::message(None, MessageMeaning::Request { kind, id: 0x102 });
        assert_eq!(udp.read(Side::Client, &query(0x100, 28)), request("AAAA"));
        assert_eq!(udp.read(Side::Client, &query(0x100, 99)), request("other"));
        let result = |result| Parsed::message(None, MessageMeaning::Result { result, id: 0x102 });
        assert_eq!(udp.read(Side::Server, &query(0x8180, 1)), result("NOERROR"));
        assert_eq!(udp.read(Side::Server, &query(0x8183, 1)), result("NXDOMAIN"));
        let tcp = Dns { has_lengths: true };
        let framed = [&[0, 26][..], &query(0x100, 1)].concat();
        assert_eq!(
            tcp.read(Side::Client, &framed),
            Parsed::message(28, MessageMeaning::Request { kind: "A", id: 0x102 })
        );
        assert_eq!(tcp.read(Side::Client, &framed[..20]), Parsed::Incomplete);
        for (side, bytes) in [
            (Side::Client, query(0x8180, 1)),
            (Side::Client, query(0x2800, 1)),
            (Side::Client, query(0x100, 1)[..20].to_vec()),
            (Side::Server, query(0x100, 1)),
        ] {
            assert_eq!(udp.read(side, &bytes), Parsed::Foreign, "{bytes:?}");
        }
    }
}
