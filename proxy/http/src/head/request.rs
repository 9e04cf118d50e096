//! Heads of requests.

use super::fields::Upgrade;
use super::view::RequestView;
use super::{
    Framing, HeadError, Headers, Meaning, Progress, Span, Version, head_limit, in_token,
    parse_headers, split_before,
};
use crate::limits::Limits;

/// A request's head: the positions of its parts in the bytes of its connection. Until the exchange begins, it can be
/// read as a [`RequestView`] together with those bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestHead {
    pub(super) progress: Progress,
    pub(crate) method: Span,
    /// Whether the method is HEAD. This is stored because the bytes of a head are dropped when its body is passed on.
    pub(crate) is_head: bool,
    /// Whether the method is CONNECT.
    pub(crate) is_connect: bool,
    pub(crate) target: Span,
    pub(crate) version: Version,
    pub(crate) headers: Headers,
    pub(crate) meaning: Meaning,
    pub(crate) framing: Framing,
}

impl RequestHead {
    /// Parses the bytes received so far, which begin with the head. Returns whether the head is complete; if not, call
    /// it again with more bytes.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<bool, HeadError> {
        let limit = if self.progress.first_line_done {
            head_limit(limits)
        } else {
            head_limit(limits).min(limits.request_line_bytes)
        };
        if !self.progress.worth_a_look(bytes, limit) {
            return Ok(false);
        }
        if !self.progress.first_line_done && !self.parse_request_line(bytes, limits)? {
            return Ok(false);
        }
        let complete =
            parse_headers(&mut self.progress, &mut self.headers, &mut self.meaning, bytes, limits)?;
        if complete {
            self.check(bytes)?;
        }
        Ok(complete)
    }

    /// The length of the head, including the empty line at its end.
    pub fn len(&self) -> usize {
        self.progress.at
    }

    /// Always false: a head has at least a request line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the end of the request's body is found.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// The version of the request.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the client intends to send more requests on its connection.
    pub fn keep_alive(&self) -> bool {
        self.meaning.keeps_alive(self.version)
    }

    /// Whether the client waits for a `100 Continue` before it sends the body.
    pub fn expect_continue(&self) -> bool {
        self.meaning.expect_continue
            && self.version == Version::Http11
            && self.framing != Framing::None
    }

    /// Whether the client asks for another protocol in a way that may be forwarded: in HTTP/1.1, with `Connection:
    /// upgrade`, and not for HTTP/2 in clear text.
    pub fn upgrade(&self) -> bool {
        self.meaning.upgrade == Upgrade::Other
            && self.meaning.connection.upgrade
            && self.version == Version::Http11
            && !self.is_connect
    }

    /// The parts of the head. `bytes` are those from which it was parsed.
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> RequestView<'a> {
        RequestView::of_http1(self, bytes.get(..self.len()).unwrap_or_default())
    }

    fn parse_request_line(&mut self, bytes: &[u8], limits: &Limits) -> Result<bool, HeadError> {
        let limit = limits.request_line_bytes.min(head_limit(limits));
        let window = bytes.get(..limit).unwrap_or(bytes);
        let unfinished =
            if window.len() == limit { Err(HeadError::RequestLineTooLong) } else { Ok(false) };
        let Some((method, rest)) = split_before(window, |byte| !in_token(byte)) else {
            return unfinished;
        };
        let (false, [b' ', rest @ ..]) = (method.is_empty(), rest) else {
            return Err(HeadError::RequestLine);
        };
        let Some((target, rest)) = split_before(rest, |byte| !in_target(byte)) else {
            return unfinished;
        };
        let (false, [b' ', rest @ ..]) = (target.is_empty(), rest) else {
            return Err(HeadError::RequestLine);
        };
        let Some(line_end) = rest.get(..10) else {
            return if rest.contains(&b'\n') { Err(HeadError::RequestLine) } else { unfinished };
        };
        self.version = match line_end {
            b"HTTP/1.1\r\n" => Version::Http11,
            b"HTTP/1.0\r\n" => Version::Http10,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r', b'\n']
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                return Err(HeadError::Version);
            }
            _ => return Err(HeadError::RequestLine),
        };
        self.is_head = method == b"HEAD";
        self.is_connect = method == b"CONNECT";
        let (target_at, target_end) = (method.len() + 1, method.len() + 1 + target.len());
        self.method = Span::new(0, method.len());
        self.target = Span::new(target_at, target_end);
        self.progress.at = target_end + 1 + line_end.len();
        self.progress.first_line_done = true;
        Ok(true)
    }

    /// Checks that depend on the whole head.
    fn check(&mut self, bytes: &[u8]) -> Result<(), HeadError> {
        self.framing = self.meaning.request_framing(self.version)?;
        let host = match self.meaning.host {
            Some(host) => Some(host.of(bytes)),
            None if self.version == Version::Http11 => return Err(HeadError::HostMissing),
            None => None,
        };
        if !host.is_none_or(is_authority) {
            return Err(HeadError::HostMalformed);
        }
        let target = self.target.of(bytes);
        if self.is_connect {
            return self.check_connect(target, host);
        }
        match target {
            [b'/', ..] => Ok(()),
            b"*" if self.method.of(bytes) == b"OPTIONS" => Ok(()),
            _ => {
                let (scheme, authority, _) = absolute(target).ok_or(HeadError::Target)?;
                let same = |host| {
                    without_port(host, scheme).eq_ignore_ascii_case(without_port(authority, scheme))
                };
                if authority.is_empty() || !is_authority(authority) {
                    Err(HeadError::Target)
                } else if host.is_none_or(same) {
                    Ok(())
                } else {
                    Err(HeadError::HostConflict)
                }
            }
        }
    }
}

impl RequestHead {
    /// A CONNECT names a host and a port, which Host repeats (RFC 9112 section 3.2.3), and has no content (RFC 9110
    /// section 9.3.6): servers disagree about where its body would end.
    fn check_connect(&self, target: &[u8], host: Option<&[u8]>) -> Result<(), HeadError> {
        if !is_host_and_port(target) {
            return Err(HeadError::Target);
        }
        if self.framing != Framing::None {
            return Err(HeadError::Connect);
        }
        match host {
            Some(host) if !host.eq_ignore_ascii_case(target) => Err(HeadError::HostConflict),
            _ => Ok(()),
        }
    }

    /// Whether the request opens a tunnel (RFC 9110 section 9.3.6).
    pub fn is_connect(&self) -> bool {
        self.is_connect
    }
}

/// Whether `target` is a valid target of a CONNECT.
pub(crate) fn is_host_and_port(target: &[u8]) -> bool {
    let port = target.rsplit(|byte| *byte == b':').next().unwrap_or_default();
    let has_port = !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    has_port && port.len() < target.len() && is_authority(target)
}

/// Whether a byte may be in a target: a visible character, or a byte above ASCII because many clients send those and
/// all servers accept them. `#` is not permitted, because servers cut off a fragment at different places.
pub(crate) fn in_target(byte: u8) -> bool {
    byte > 0x20 && byte != 0x7f && byte != b'#'
}

/// Splits `http://host:port/path?query` into scheme, authority and the rest.
pub(crate) fn absolute(target: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    if target.first() == Some(&b'/') {
        return None;
    }
    let (scheme, rest) = split_before(target, |byte| !byte.is_ascii_alphanumeric())?;
    let rest = rest.strip_prefix(b"://")?;
    if !scheme.first()?.is_ascii_alphabetic() {
        return None;
    }
    let ends = |byte| matches!(byte, b'/' | b'?');
    let (authority, path) = split_before(rest, ends).unwrap_or((rest, b""));
    Some((scheme, authority, path))
}

/// The number of digits of the largest port.
const PORT_DIGITS: usize = 5;

/// Whether `authority` is empty, a host, or a host and a port (RFC 3986 section 3.2), without a user name. Servers find
/// different hosts in everything else, and policies depend on the host.
pub(crate) fn is_authority(authority: &[u8]) -> bool {
    let in_address = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    let (host, port) = match authority.strip_prefix(b"[") {
        Some(literal) => match split_before(literal, |byte| !in_address(byte)) {
            Some((address, [b']', port @ ..])) if !address.is_empty() => (address, port),
            _ => return false,
        },
        None => match split_before(authority, |byte| byte == b':').unwrap_or((authority, b"")) {
            (name, _) if !is_name(name) => return false,
            name_and_port => name_and_port,
        },
    };
    match port {
        [] => true,
        [b':', port @ ..] => {
            !host.is_empty() && port.len() <= PORT_DIGITS && port.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// Whether `name` is the name of a host (RFC 3986 section 3.2.2), without commas, which would make it a list.
fn is_name(name: &[u8]) -> bool {
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        let good = match byte {
            b'%' => [bytes.next(), bytes.next()]
                .iter()
                .all(|digit| digit.is_some_and(u8::is_ascii_hexdigit)),
            _ => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(byte),
        };
        if !good {
            return false;
        }
    }
    true
}

/// Removes the default port of the scheme.
pub(crate) fn without_port<'a>(authority: &'a [u8], scheme: &[u8]) -> &'a [u8] {
    let port: &[u8] = if scheme.eq_ignore_ascii_case(b"https") { b":443" } else { b":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}
