//! gRPC's statuses, deadlines and errors, as far as the proxy needs them.

use std::time::Duration;

use leno_hpack::{Block, Token};

use crate::head::decimal;

/// The largest number of digits in a `grpc-timeout`.
const TIMEOUT_DIGITS: usize = 8;

/// The status CANCELLED.
const CANCELLED: u8 = 1;
/// The status DEADLINE_EXCEEDED.
const DEADLINE_EXCEEDED: u8 = 4;
/// The status UNKNOWN.
pub(crate) const UNKNOWN: u8 = 2;

/// The duration in a `grpc-timeout` header: up to eight digits and a unit. `None` if it is malformed.
#[must_use]
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let amount = decimal(digits).filter(|_| digits.len() <= TIMEOUT_DIGITS)?;
    Some(match unit {
        b'H' => Duration::from_hours(amount),
        b'M' => Duration::from_mins(amount),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// The gRPC status for an HTTP status (gRPC's "HTTP to gRPC Status Code Mapping").
#[must_use]
pub fn grpc_status_of(http_status: u16) -> u8 {
    match http_status {
        // INTERNAL, UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED, UNAVAILABLE.
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => UNKNOWN,
    }
}

/// The gRPC status of an error that the mesh generates. An expired deadline has a status of its own, and so has a call
/// that the server has cancelled (gRPC over HTTP/2, "HTTP2 Transport Mapping", Errors).
pub(crate) fn status_of_error(http_status: u16, cause: &str) -> u8 {
    match (http_status, cause) {
        (504, "deadline" | "response-timeout") => DEADLINE_EXCEEDED,
        (502, "cancel") => CANCELLED,
        _ => grpc_status_of(http_status),
    }
}

/// Whether a `Content-Type` is `application/grpc`, perhaps followed by `+` and a subtype, or by parameters.
pub(crate) fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(content_type.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
}

/// Whether the head has the content type of gRPC.
pub(crate) fn has_grpc(block: &Block) -> bool {
    block.find(Token::CONTENT_TYPE).is_some_and(is_grpc)
}

/// The `grpc-status` in a head or in trailers.
pub(crate) fn status_in(block: &Block) -> Option<u8> {
    let value = block.find(Token::GRPC_STATUS)?;
    let status = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
    Some(status.unwrap_or(UNKNOWN))
}

/// Appends `text` as a `grpc-message`: printable ASCII unchanged, other bytes and `%` as `%XX`.
pub(crate) fn push_message(message: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            message.push(byte);
        } else {
            message.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        let cases = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("4m", Some(Duration::from_millis(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_secs(359_999_996_400))),
            ("0S", Some(Duration::ZERO)),
            ("100000000n", None),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
            ("1S ", None),
        ];
        for (value, expected) in cases {
            assert_eq!(grpc_timeout(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn statuses() {
        let cases = [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (500, 2), (503, 14)];
        for (http, grpc) in cases {
            assert_eq!(grpc_status_of(http), grpc, "{http}");
        }
        assert_eq!(status_of_error(504, "deadline"), 4);
        assert_eq!(status_of_error(504, "stalled"), 14);
        assert_eq!(status_of_error(502, "cancel"), 1);
        assert_eq!(status_of_error(502, "closed"), 14);
    }

    #[test]
    fn content_types() {
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;a=b"] {
            assert!(is_grpc(good.as_bytes()), "{good}");
        }
        for bad in ["application/grpc-web", "application/grpcx", "text/plain", ""] {
            assert!(!is_grpc(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn messages_are_escaped() {
        let mut message = vec![];
        push_message(&mut message, "a b%\r\né~");
        assert_eq!(message, b"a b%25%0D%0A%C3%A9~");
    }

    #[test]
    fn a_status_that_is_not_a_number_is_unknown() {
        for (value, expected) in [("0", 0), ("16", 16), ("x", UNKNOWN), ("999", UNKNOWN)] {
            let block: Block = [("grpc-status", value)].into_iter().collect();
            assert_eq!(status_in(&block), Some(expected));
        }
    }
}
