//! Crafted requests of an adversary, each with the outcomes that are permitted.
//!
//! Every case is sent through the two planes of a real proxy in this process, outbound and inbound
//! ([`crate::proxy::Planes`]), to an application that parses HTTP strictly. The proxy must forward a request with the
//! only meaning that the RFCs give it, or refuse it. The application must never receive bytes that can be read in two
//! ways. Each family of cases has a generator:
//!
//! | module | families |
//! |---|---|
//! | `lines` | methods, targets and versions; absolute form; `Host` |
//! | `fields` | names and values, byte by byte; whitespace; folding; connection-specific fields; upgrades |
//! | `framing` | `Content-Length` and `Transfer-Encoding` in every disguise; chunks and their extensions; trailers |
//! | `streams` | HTTP/2: pseudo-fields, fields, lengths, frames on the wrong stream, in the wrong size or order |

mod fields;
mod framing;
mod lines;
mod streams;

use crate::proxy::{Config, Exchanged, Planes, exchange};

/// The target of smuggled requests. Cases hide it where only a parser that errs finds a request.
const HIDDEN: &str = "/smuggled";

/// One crafted connection.
#[derive(Clone, Debug)]
pub struct Case {
    /// The family, and what distinguishes this case within it.
    pub name: String,
    /// The bytes that the client sends.
    pub sent: Vec<u8>,
    /// The permitted outcomes.
    pub expected: Expected,
}

/// The permitted outcomes of a case.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The requests that the application may receive. It must receive all of them; if a refusal is permitted as
    /// well, it may also receive none.
    pub requests: Vec<ParsedRequest>,
    /// The statuses with which the proxy may refuse instead. Closing the connection or the stream without a
    /// response counts as a refusal as well. Empty if the proxy must forward.
    pub refused: &'static [u16],
}

/// A request as the application parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRequest {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// The content.
    pub body: Vec<u8>,
    /// A field that the request must have, if the case concerns a field.
    pub field: Option<(String, Vec<u8>)>,
}

impl ParsedRequest {
    fn new(method: &str, target: &str, body: &[u8]) -> Self {
        Self { method: method.into(), target: target.into(), body: body.into(), field: None }
    }

    fn with(self, name: &str, value: &[u8]) -> Self {
        Self { field: Some((name.into(), value.into())), ..self }
    }
}

impl Case {
    /// A case that the proxy must forward.
    fn forwarded(name: String, sent: impl Into<Vec<u8>>, requests: Vec<ParsedRequest>) -> Self {
        Self { name, sent: sent.into(), expected: Expected { requests, refused: &[] } }
    }

    /// A case that the proxy must refuse, so that no application receives a request.
    fn refused(name: String, sent: impl Into<Vec<u8>>) -> Self {
        Self::either(name, sent, Vec::new())
    }

    /// A case that the proxy may either forward or refuse.
    fn either(name: String, sent: impl Into<Vec<u8>>, requests: Vec<ParsedRequest>) -> Self {
        Self { name, sent: sent.into(), expected: Expected { requests, refused: &REFUSALS } }
    }
}

/// The statuses of a refusal: for a bad or too long request, an unmet expectation, or an unsupported method or
/// version.
const REFUSALS: [u16; 10] = [400, 403, 405, 411, 413, 414, 417, 431, 501, 505];

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    [lines::cases(), fields::cases(), framing::cases(), streams::cases()].concat()
}

/// Sends a case through some planes.
///
/// # Errors
/// A description of what the application or the client received wrongly.
pub fn check(case: &Case, planes: Planes) -> Result<(), String> {
    let config = Config { planes, ..Config::default() };
    let got = exchange(&config, &case.sent);
    let wrong = |what: &str| {
        let sent = case.sent[..case.sent.len().min(400)].escape_ascii();
        let client = got.client[..got.client.len().min(400)].escape_ascii();
        let asked = &got.requests;
        Err(format!(
            "{} ({planes:?}): {what}\n sent {sent}\n asked {asked:?}\n got {client}",
            case.name
        ))
    };
    if !got.violations.is_empty() {
        return wrong(&got.violations.join("; "));
    }
    if got.requests.iter().any(|asked| asked.target.contains(HIDDEN)) {
        return wrong("a hidden request was found");
    }
    let expected = &case.expected;
    if !got.requests.is_empty() {
        if got.requests.len() > expected.requests.len() {
            return wrong("more requests than were sent");
        }
        for (got, expected) in got.requests.iter().zip(&expected.requests) {
            if !is_same(got, expected) {
                return wrong(&format!("not {expected:?}"));
            }
        }
    }
    if got.requests.len() == expected.requests.len() && !expected.requests.is_empty() {
        return Ok(());
    }
    if expected.refused.is_empty() {
        return wrong("not forwarded");
    }
    match got.statuses.last() {
        _ if is_ended(&got) && got.statuses.is_empty() => Ok(()),
        Some(status) if expected.refused.contains(status) => Ok(()),
        // The earlier requests were answered, and the connection was closed after them.
        Some(200) if got.statuses.len() == got.requests.len() && is_ended(&got) => Ok(()),
        _ => wrong(&format!("refused with {:?}", got.statuses)),
    }
}

fn is_ended(got: &Exchanged) -> bool {
    got.ended
}

fn is_same(got: &crate::proxy::Received, expected: &ParsedRequest) -> bool {
    let has = |(name, value): &(String, Vec<u8>)| {
        got.fields.iter().any(|(other, is)| other.eq_ignore_ascii_case(name) && is == value)
    };
    got.method == expected.method
        && path(&got.target) == path(&expected.target)
        && got.body == expected.body
        && expected.field.as_ref().is_none_or(has)
}

/// The origin form of a target. A proxy may keep the absolute form, which has the same meaning (RFC 9112 section
/// 3.2.2).
fn path(target: &str) -> String {
    let Some((scheme, rest)) = target.split_once("://") else { return target.to_owned() };
    if scheme.contains(['/', '?']) {
        return target.to_owned();
    }
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let path = &rest[at..];
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_expected_is_found() {
        let sent = "GET /smuggled HTTP/1.1\r\nHost: cart\r\n\r\n";
        let hidden = Case::refused("hidden".into(), sent);
        assert!(check(&hidden, Planes::Outbound).is_err_and(|what| what.contains("was found")));
        let sent = "GET /a HTTP/1.1\r\nHost: cart\r\n\r\n";
        let other =
            Case::forwarded("other".into(), sent, vec![ParsedRequest::new("GET", "/b", b"")]);
        assert!(
            check(&other, Planes::Inbound).is_err_and(|what| what.contains("not ParsedRequest"))
        );
        let bad =
            Case::forwarded("bad".into(), "GET\r\n\r\n", vec![ParsedRequest::new("GET", "/", b"")]);
        assert!(check(&bad, Planes::Outbound).is_err_and(|what| what.contains("not forwarded")));
        let good = Case::refused("good".into(), sent);
        assert!(check(&good, Planes::Outbound).is_err_and(|what| what.contains("more requests")));
    }
}
