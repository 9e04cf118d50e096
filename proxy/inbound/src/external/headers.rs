//! Selects the headers that an authorizer receives, and the headers of its answer that are used.

use std::collections::HashMap;
use std::sync::Arc;

use leno_http::{HeaderLine, RequestView};
use leno_policy::authorization::is_spelling;
use leno_types::authorizer::ExternalAuthorizer;

use super::Grants;

/// Headers that frame a message, belong to one connection, or make a request conditional or partial. They are not
/// copied to messages to or from an authorizer. An authorizer would apply conditions and ranges to its own answer
/// instead of the application's.
const OF_MESSAGES: [&str; 17] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The header that tells an authorizer whether it received only the beginning of a body. Envoy uses the same header.
pub(super) const IS_PARTIAL: &str = "x-envoy-auth-partial-body";

/// Headers with which a client proves who its user is. An authorizer verifies their values, so it does no harm that
/// clients can set them.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];

/// Whether a header belongs to the mesh, says who the client is, or tells an authorizer something about the body.
fn is_reserved(name: &str) -> bool {
    let starts =
        |start: &str| name.get(..start.len()).is_some_and(|given| is_spelling(given, start));
    starts("leno-")
        || is_spelling(name, "x-forwarded-client-cert")
        || is_spelling(name, "l5d-client-id")
        || is_spelling(name, IS_PARTIAL)
}

/// The headers of a request that an authorizer receives. These are the headers that the application will get, and those
/// credentials of the client that the authorizer's answer will replace.
pub(super) fn sent<'a>(
    of: &'a ExternalAuthorizer,
    request: RequestView<'a>,
    grants: &'a Grants,
) -> Vec<(&'a str, &'a [u8])> {
    let is_one =
        |list: &[Arc<str>], name: &str| list.iter().any(|one| name.eq_ignore_ascii_case(one));
    let is_sent = move |name: &str| {
        !is_reserved(name) && of.sent.as_ref().is_none_or(|sent| is_one(sent, name))
    };
    let is_shown = move |name: &str| {
        let is_replaced = || {
            CREDENTIALS.iter().any(|one| name.eq_ignore_ascii_case(one))
                && is_one(&of.on_request, name)
        };
        !grants.removes(name) || is_replaced() && !grants.sets(name)
    };
    let of_client = request.forwarded(is_sent).filter(move |(name, _)| is_shown(name));
    of_client.chain(grants.lines().filter(|(name, _)| is_sent(name))).collect()
}

/// Whether a header may be copied to another message, to or from an authorizer.
pub(super) fn is_of_request(name: &str) -> bool {
    !OF_MESSAGES.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// The headers by name, in lower case. If a header has several lines, they are joined (RFC 9110 section 5.3); the lines
/// of `cookie` are joined with semicolons (RFC 9113 section 8.2.3).
pub(super) fn joined<'a>(
    lines: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> HashMap<String, String> {
    let mut all: HashMap<String, String> = HashMap::new();
    for (name, value) in lines {
        let (name, value) = (name.to_ascii_lowercase(), String::from_utf8_lossy(value));
        let separator = if name == "cookie" { "; " } else { "," };
        all.entry(name)
            .and_modify(|known| {
                known.push_str(separator);
                known.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    all
}

/// The headers of an answer whose names are allowed.
pub(super) fn allowed(headers: &[(String, bytes::Bytes)], names: &[Arc<str>]) -> Vec<HeaderLine> {
    let is_allowed = |name: &str| names.iter().any(|one| name.eq_ignore_ascii_case(one));
    lines(headers.iter().filter(|(name, _)| is_allowed(name) && is_of_request(name)))
}

/// The headers of a denial that the client gets. The proxy frames the answer and sets the gRPC status itself.
pub(super) fn of_denial(headers: &[(String, bytes::Bytes)]) -> Vec<HeaderLine> {
    let is_passed = |name: &str| {
        is_of_request(name)
            && !is_reserved(name)
            && !name.eq_ignore_ascii_case("content-type")
            && !name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("grpc-"))
    };
    lines(headers.iter().filter(|(name, _)| is_passed(name)))
}

/// Converts headers to header lines. Headers that would not be valid lines are left out.
fn lines<'a>(headers: impl Iterator<Item = &'a (String, bytes::Bytes)>) -> Vec<HeaderLine> {
    headers.filter_map(|(name, value)| HeaderLine::new(name, value).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_mesh_are_reserved_in_every_spelling() {
        for name in ["leno-error", "LENO_X", "X_Forwarded_Client_Cert", "l5d-client-id"] {
            assert!(is_reserved(name), "{name}");
        }
        assert!(!is_reserved("lenox") && !is_reserved("leno") && !is_reserved("x-forwarded-for"));
    }

    #[test]
    fn a_denial_keeps_what_is_for_the_client() {
        let header = |name: &str| (name.to_owned(), bytes::Bytes::from_static(b"1"));
        let given = ["set-cookie", "Content-Type", "content-length", "grpc-status", "leno-error"];
        let given: Vec<_> = given.into_iter().chain(["location", "a b"]).map(header).collect();
        let names: Vec<_> = of_denial(&given).iter().map(|line| line.name().to_owned()).collect();
        assert_eq!(names, ["set-cookie", "location"]);
        let only = allowed(&given, &["location".into(), "content-length".into()]);
        assert_eq!(only.len(), 1);
    }

    #[test]
    fn lines_of_one_header_are_joined() {
        let lines = [("A", &b"1"[..]), ("a", b"2"), ("cookie", b"x=1"), ("Cookie", b"y=2")];
        let all = joined(lines.into_iter());
        assert_eq!((all["a"].as_str(), all["cookie"].as_str()), ("1,2", "x=1; y=2"));
    }
}
