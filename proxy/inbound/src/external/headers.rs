//! Which headers go to an authorizer, and which of its answer go on.

use std::collections::HashMap;
use std::sync::Arc;

use leno_http::{HeaderLine, RequestView};

use super::Grants;

/// Headers that frame a message, belong to one connection, or would have the authorizer answer about a document of its
/// own.
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

/// Whether programs that read headers as variables of CGI take a header for another one: `x_user` for `x-user`.
/// `own`: in lower case.
pub(crate) fn is_same_variable(name: &str, own: &str) -> bool {
    let folded = |byte: u8| match byte.to_ascii_lowercase() {
        byte if byte.is_ascii_alphanumeric() => byte,
        _ => b'_',
    };
    name.bytes().map(folded).eq(own.bytes().map(folded))
}

/// Whether a header is the mesh's own, or says who the client is.
fn is_reserved(name: &str) -> bool {
    let starts =
        |start: &str| name.get(..start.len()).is_some_and(|given| is_same_variable(given, start));
    starts("leno-")
        || is_same_variable(name, "x-forwarded-client-cert")
        || is_same_variable(name, "l5d-client-id")
}

/// The headers of a request that an authorizer gets to see: those that the application gets.
pub(super) fn sent<'a>(
    request: RequestView<'a>,
    grants: &'a Grants,
    sent: Option<&'a [Arc<str>]>,
) -> Vec<(&'a str, &'a [u8])> {
    let is_sent = move |name: &str| {
        !is_reserved(name)
            && sent.is_none_or(|sent| sent.iter().any(|one| name.eq_ignore_ascii_case(one)))
    };
    let of_client = request.forwarded(is_sent).filter(|(name, _)| !grants.removes(name));
    of_client.chain(grants.lines().filter(|(name, _)| is_sent(name))).collect()
}

/// Whether a header of a request may be one of another request, to the authorizer.
pub(super) fn is_of_request(name: &str) -> bool {
    !OF_MESSAGES.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// The headers by name, in lower case. Values of several lines are joined as RFC 9110 section 5.3 has it.
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

/// A header of an answer that is allowed by its name.
pub(super) fn allowed(headers: &[(String, bytes::Bytes)], names: &[Arc<str>]) -> Vec<HeaderLine> {
    let is_allowed = |name: &str| names.iter().any(|one| name.eq_ignore_ascii_case(one));
    lines(headers.iter().filter(|(name, _)| is_allowed(name) && is_of_request(name)))
}

/// The headers of a denial that the client gets. The proxy frames the answer itself, and has its own status of gRPC.
pub(super) fn of_denial(headers: &[(String, bytes::Bytes)]) -> Vec<HeaderLine> {
    let is_passed = |name: &str| {
        is_of_request(name)
            && !is_reserved(name)
            && !name.eq_ignore_ascii_case("content-type")
            && !name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("grpc-"))
    };
    lines(headers.iter().filter(|(name, _)| is_passed(name)))
}

/// Those that a header line can hold.
fn lines<'a>(headers: impl Iterator<Item = &'a (String, bytes::Bytes)>) -> Vec<HeaderLine> {
    headers.filter_map(|(name, value)| HeaderLine::new(name, value).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_header_are_the_same_variable() {
        for name in ["x-user", "X-User", "x_user", "x.USER"] {
            assert!(is_same_variable(name, "x-user"), "{name}");
        }
        assert!(!is_same_variable("x-users", "x-user"));
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
