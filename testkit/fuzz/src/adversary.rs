//! What an adversary sends: crafted requests, each with what the proxy may make of it.
//!
//! Every case passes each plane of a real proxy in process ([`crate::proxy`]), with an application behind
//! it that reads HTTP strictly. A request is forwarded with the one meaning that the RFCs give it, or it
//! is refused; what an application gets is never open to a second reading. The cases come from
//! generators, one for each family:
//!
//! | module | families |
//! |---|---|
//! | `lines` | methods, targets and versions; absolute form; `Host` |
//! | `fields` | names and values, byte by byte; whitespace; folding; fields of one connection; upgrades |
//! | `framing` | `Content-Length` and `Transfer-Encoding` in every disguise; chunks and their extensions; trailers |
//! | `streams` | HTTP/2: pseudo-fields, fields, lengths, frames on the wrong stream, in the wrong size or order |

mod fields;
mod framing;
mod lines;
mod streams;

use crate::proxy::{Config, Exchanged, Planes, exchange};

/// What no application may ever be asked for: cases hide it where only a wrong reading finds a request.
const HIDDEN: &str = "/smuggled";

/// One crafted connection.
#[derive(Clone, Debug)]
pub struct Case {
    /// The family and what is special about it.
    pub name: String,
    /// What the client sends.
    pub sent: Vec<u8>,
    /// What may become of it.
    pub expected: Expected,
}

/// What may become of what a client sends.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The requests that the application may get: all of them, or none if a refusal is right as well.
    pub requests: Vec<Asked>,
    /// The statuses with which it may be refused instead; the end of the connection or stream without a
    /// response is a refusal, too. Empty where it must be forwarded.
    pub refused: &'static [u16],
}

/// A request as an application understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// The content.
    pub body: Vec<u8>,
    /// A field that it has, where the case is about one.
    pub field: Option<(String, Vec<u8>)>,
}

impl Asked {
    fn new(method: &str, target: &str, body: &[u8]) -> Self {
        Self { method: method.into(), target: target.into(), body: body.into(), field: None }
    }

    fn with(self, name: &str, value: &[u8]) -> Self {
        Self { field: Some((name.into(), value.into())), ..self }
    }
}

impl Case {
    /// It is forwarded as this, and not refused.
    fn forwarded(name: String, sent: impl Into<Vec<u8>>, requests: Vec<Asked>) -> Self {
        Self { name, sent: sent.into(), expected: Expected { requests, refused: &[] } }
    }

    /// It is refused, and no application hears of it.
    fn refused(name: String, sent: impl Into<Vec<u8>>) -> Self {
        Self::either(name, sent, Vec::new())
    }

    /// It is forwarded as this, or refused.
    fn either(name: String, sent: impl Into<Vec<u8>>, requests: Vec<Asked>) -> Self {
        Self { name, sent: sent.into(), expected: Expected { requests, refused: &REFUSALS } }
    }
}

/// What a refusal may be: a bad request, one that is too long, an expectation, a method or version that
/// is not served.
const REFUSALS: [u16; 10] = [400, 403, 405, 411, 413, 414, 417, 431, 501, 505];

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    [lines::cases(), fields::cases(), framing::cases(), streams::cases()].concat()
}

/// Sends a case through a plane; `Err` says what was wrong.
///
/// # Errors
/// What the application or the client got that it should not have.
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
        // What came before was answered, and the connection ended there.
        Some(200) if got.statuses.len() == got.requests.len() && is_ended(&got) => Ok(()),
        _ => wrong(&format!("refused with {:?}", got.statuses)),
    }
}

fn is_ended(got: &Exchanged) -> bool {
    got.ended
}

fn is_same(got: &crate::proxy::Received, expected: &Asked) -> bool {
    let has = |(name, value): &(String, Vec<u8>)| {
        got.fields.iter().any(|(other, is)| other.eq_ignore_ascii_case(name) && is == value)
    };
    got.method == expected.method
        && path(&got.target) == path(&expected.target)
        && got.body == expected.body
        && expected.field.as_ref().is_none_or(has)
}

/// A target in origin form: a proxy may keep absolute form, whose meaning is the same (RFC 9112 section 3.2.2).
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
        let other = Case::forwarded("other".into(), sent, vec![Asked::new("GET", "/b", b"")]);
        assert!(check(&other, Planes::Inbound).is_err_and(|what| what.contains("not Asked")));
        let bad = Case::forwarded("bad".into(), "GET\r\n\r\n", vec![Asked::new("GET", "/", b"")]);
        assert!(check(&bad, Planes::Outbound).is_err_and(|what| what.contains("not forwarded")));
        let good = Case::refused("good".into(), sent);
        assert!(check(&good, Planes::Outbound).is_err_and(|what| what.contains("more requests")));
    }
}
