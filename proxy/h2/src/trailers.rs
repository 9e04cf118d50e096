//! Which fields may be trailers (RFC 9110 section 6.5.1).

/// Fields that frame, route, authenticate or qualify a message, or that control how its content is processed. A
/// receiver needs them before the content, and a receiver that merges trailers into the head would treat them as head
/// fields. They are the list in Go's `httpguts.ValidTrailerHeader`, and cookies and fields about the connection, which
/// that list lacks.
const FORBIDDEN: [&str; 24] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

/// The beginning of the names of conditional fields in requests, such as `If-Match`.
const CONDITIONS: &[u8] = b"if-";

/// Whether a trailer with this name, in upper or lower case, is forwarded. Other trailers are removed.
#[must_use]
pub fn may_be_trailer(name: &[u8]) -> bool {
    let is_condition =
        name.get(..CONDITIONS.len()).is_some_and(|start| start.eq_ignore_ascii_case(CONDITIONS));
    !is_condition && !FORBIDDEN.iter().any(|field| name.eq_ignore_ascii_case(field.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_a_receiver_needs_before_the_content_are_no_trailers() {
        for name in ["Host", "te", "AUTHORIZATION", "If-Match", "if-none-match", "Set-Cookie"] {
            assert!(!may_be_trailer(name.as_bytes()), "{name}");
        }
        for name in ["grpc-status", "ETag", "Digest", "Server-Timing", "hosts", "if", ""] {
            assert!(may_be_trailer(name.as_bytes()), "{name}");
        }
    }
}
