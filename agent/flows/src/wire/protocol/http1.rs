//! Parses HTTP/1.0 and 1.1 (RFC 9112): the method of a request, and the status of its response.
//!
//! A head is only parsed at the beginning of a side's turn, which is everything that it sends until the other side
//! sends something. So of several pipelined requests, which are sent without waiting for responses, only the first one
//! counts.

use super::{MessageMeaning, Parsed, Side, class_of, known, line};

/// The methods that are counted by name. A head with any other method does not count as a request.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// The prefix of a status line.
const BEGIN: &[u8] = b"HTTP/1.";

#[derive(Debug)]
pub(in crate::wire) struct Http1;

/// Whether a request begins here: a method, a space, and something that may be a target.
pub(in crate::wire) fn begins(bytes: &[u8]) -> bool {
    method(bytes).is_some()
}

fn method(bytes: &[u8]) -> Option<&'static str> {
    let end = bytes.iter().take(8).position(|byte| *byte == b' ')?;
    let method = METHODS.into_iter().find(|one| Some(one.as_bytes()) == bytes.get(..end))?;
    let target = *bytes.get(end + 1)?;
    let is_target = match method {
        "CONNECT" => target.is_ascii_alphanumeric() || target == b'[',
        _ => matches!(target, b'/' | b'*') || target.is_ascii_alphabetic(),
    };
    // If the line is complete, it must contain the version.
    let is_http = line(bytes).is_none_or(|(line, _)| {
        line.len() > 9 && line.get(line.len() - 9..line.len() - 1) == Some(b" HTTP/1.")
    });
    (is_target && is_http).then(|| known(&METHODS, method.as_bytes()))
}

impl Http1 {
    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        match side {
            Side::Client => method(bytes).map_or(Parsed::Foreign, |kind| {
                Parsed::message(None, MessageMeaning::Request { kind, id: 0 })
            }),
            Side::Server => response(bytes),
        }
    }
}

fn response(bytes: &[u8]) -> Parsed {
    let (begin, rest) = bytes.split_at(bytes.len().min(BEGIN.len()));
    if !BEGIN.starts_with(begin) {
        return Parsed::Foreign;
    }
    // The remaining part is the last digit of the version, a space, and three digits.
    let Some([_, b' ', digits @ ..]) = rest.get(..5) else {
        return if rest.len() < 5 { Parsed::Incomplete } else { Parsed::Foreign };
    };
    let digits = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u16>().ok());
    match digits {
        None => Parsed::Foreign,
        Some(101) => Parsed::message(None, MessageMeaning::Leaves("1xx")),
        // The final response may follow in the same turn.
        Some(100..200) => {
            let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            let length = end.and_then(|end| u32::try_from(end + 4).ok());
            Parsed::message(length, MessageMeaning::Nothing)
        }
        Some(status) => {
            Parsed::message(None, MessageMeaning::Result { result: class_of(status), id: 0 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(side: Side, bytes: &[u8]) -> Option<MessageMeaning> {
        match Http1.read(side, bytes) {
            Parsed::Message(message) => Some(message.says),
            _ => None,
        }
    }

    #[test]
    fn requests_have_a_method_a_target_and_a_version() {
        let request = |kind| Some(MessageMeaning::Request { kind, id: 0 });
        assert_eq!(says(Side::Client, b"GET / HTTP/1.1\r\nhost: a\r\n"), request("GET"));
        assert_eq!(says(Side::Client, b"POST http://a/ HTTP/1.0\r\n"), request("POST"));
        assert_eq!(says(Side::Client, b"CONNECT [::1]:80 HTTP/1.1\r\n"), request("CONNECT"));
        // The target is longer than the sample.
        let long = [b"PUT /".as_slice(), &[b'a'; 600]].concat();
        assert_eq!(says(Side::Client, &long), request("PUT"));
        for other in ["get / HTTP/1.1", "GET", "GET ", "GETS /", "GET / HTTP/2.0\r\n", "GET /\r\n"]
        {
            assert_eq!(says(Side::Client, other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn responses_have_the_class_of_their_status() {
        let result = |result| Some(MessageMeaning::Result { result, id: 0 });
        assert_eq!(says(Side::Server, b"HTTP/1.1 200 OK\r\n"), result("2xx"));
        assert_eq!(says(Side::Server, b"HTTP/1.0 404"), result("4xx"));
        assert_eq!(says(Side::Server, b"HTTP/1.1 999 x"), result("other"));
        assert_eq!(
            says(Side::Server, b"HTTP/1.1 101 Switching Protocols\r\n"),
            Some(MessageMeaning::Leaves("1xx"))
        );
        let both = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n";
        assert_eq!(Http1.read(Side::Server, both), Parsed::message(25, MessageMeaning::Nothing));
        assert_eq!(Http1.read(Side::Server, b"HTTP/1.1 20"), Parsed::Incomplete);
        for other in ["HTTP/2.0 200", "HTTP/1.1-200", "HTTP/1.1 abc", "body"] {
            assert_eq!(Http1.read(Side::Server, other.as_bytes()), Parsed::Foreign, "{other}");
        }
    }
}
