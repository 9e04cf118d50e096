//! Heads as they appear to code that does not depend on the version of HTTP.

use leno_hpack::{Block, Field, Fields, Token};

use super::{Header, Known, RequestHead, ResponseHead, Version, absolute, split_once, tokens};

/// A request's head with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a>(Request<'a>);

#[derive(Debug, Clone, Copy)]
enum Request<'a> {
    Http1(&'a RequestHead, &'a [u8]),
    /// A field section that satisfies RFC 9113 section 8.3.1, and the method that it represents in HTTP/1.
    Http2(&'a Block, &'a [u8]),
}

impl<'a> RequestView<'a> {
    pub(crate) fn of_http1(head: &'a RequestHead, bytes: &'a [u8]) -> Self {
        Self(Request::Http1(head, bytes))
    }

    /// `method` is the method that the request would have in HTTP/1.
    pub(crate) fn of_http2(block: &'a Block, method: &'a [u8]) -> Self {
        Self(Request::Http2(block, method))
    }

    /// The method, for example `GET`. An extended CONNECT (RFC 8441) is presented as the equivalent `GET` with
    /// `Upgrade`, so that one policy applies to both.
    pub fn method(&self) -> &'a str {
        text(match self.0 {
            Request::Http1(head, bytes) => head.method.of(bytes),
            Request::Http2(_, method) => method,
        })
    }

    /// Whether the request opens a tunnel, which is a CONNECT that is not extended (RFC 8441).
    pub fn is_connect(&self) -> bool {
        match self.0 {
            Request::Http1(head, _) => head.is_connect,
            Request::Http2(block, method) => {
                method == b"CONNECT" && block.find(Token::PROTOCOL).is_none()
            }
        }
    }

    /// The target as sent: a path with its query, a whole URI, `*`, or the host and port of a CONNECT. It may contain
    /// bytes above 0x7f.
    pub fn target(&self) -> &'a [u8] {
        match self.0 {
            Request::Http1(head, bytes) => head.target.of(bytes),
            Request::Http2(block, _) => {
                let path = block.find(Token::PATH);
                path.or_else(|| block.find(Token::AUTHORITY)).unwrap_or_default()
            }
        }
    }

    /// The target's path as sent, without its query and without decoding. For the target `*` the result is `*`. A
    /// CONNECT has no path, and the result is `*` as well.
    pub fn path(&self) -> &'a [u8] {
        self.path_and_query().0
    }

    /// The part of the target after the first `?`.
    pub fn query(&self) -> Option<&'a [u8]> {
        self.path_and_query().1
    }

    /// The host that the request names, `host` or `host:port`: the target's authority, or else the Host header (RFC
    /// 9112 section 3.2.2, RFC 9113 section 8.3.1). Empty if the client sent none.
    pub fn authority(&self) -> &'a str {
        text(match self.0 {
            Request::Http1(head, bytes) if head.is_connect => head.target.of(bytes),
            Request::Http1(head, bytes) => match absolute(head.target.of(bytes)) {
                Some((_, authority, _)) => authority,
                None => head.meaning.host.map_or(&b""[..], |host| host.of(bytes)),
            },
            Request::Http2(block, _) => {
                let authority = block.find(Token::AUTHORITY);
                authority.or_else(|| block.find(Token::HOST)).unwrap_or_default()
            }
        })
    }

    /// The HTTP version of the request.
    pub fn version(&self) -> Version {
        match self.0 {
            Request::Http1(head, _) => head.version,
            Request::Http2(..) => Version::Http2,
        }
    }

    /// The first header with this name, in upper or lower case, without white space around its value. `host` is found
    /// in HTTP/2, too.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        if let Request::Http2(block, _) = self.0
            && name.eq_ignore_ascii_case("host")
        {
            return block.find(Token::AUTHORITY).or_else(|| block.find(Token::HOST));
        }
        match self.0 {
            Request::Http1(head, bytes) => find_line(&head.headers, bytes, name),
            Request::Http2(block, _) => find_field(block, name),
        }
    }

    /// The values of all headers with this name, in upper or lower case.
    pub(crate) fn values(
        &self,
        name: &'static str,
    ) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        values(self.headers(), name)
    }

    /// The headers whose names `is_wanted` accepts, and that are forwarded to the server. Headers that the client's
    /// `Connection` names are not forwarded (RFC 9110 section 7.6.1).
    pub fn forwarded(
        &self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let ends_here = |name: &str| {
            let mut options = self.values("connection").flat_map(tokens);
            options.any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
        };
        let wanted = self.headers().filter(move |(name, _)| is_wanted(name));
        wanted.filter(move |(name, _)| !ends_here(name))
    }

    /// All headers in the order sent, without the pseudo-headers of HTTP/2.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + Clone + use<'a> {
        match self.0 {
            Request::Http1(head, bytes) => Headers::Http1(head.headers.iter(), bytes),
            Request::Http2(block, _) => Headers::Http2(block.iter()),
        }
    }

    /// Headers that may be about traces, which is decided by the beginning of their names: `traceparent`, `tracestate`,
    /// `b3`, `x-b3-*` and a few others. This is cheaper than examining all headers.
    pub fn trace_headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let (lines, fields) = match self.0 {
            Request::Http1(head, bytes) => (Some((head.headers.iter(), bytes)), None),
            Request::Http2(block, _) => (None, Some(block.iter())),
        };
        let lines = lines.into_iter().flat_map(|(headers, bytes)| {
            let others = headers.filter(|header| header.known == Known::Other);
            others.map(move |header| (header.name.of(bytes), header.value.of(bytes)))
        });
        let fields = fields.into_iter().flatten().filter(|field| {
            matches!(field.token(), Token::NONE | Token::TRACEPARENT | Token::TRACESTATE)
        });
        let all = lines.chain(fields.map(|field| (field.name(), field.value())));
        all.filter(|(name, _)| may_be_of_trace(name)).map(|(name, value)| (text(name), value))
    }

    fn path_and_query(&self) -> (&'a [u8], Option<&'a [u8]>) {
        if self.is_connect() {
            return (b"*", None);
        }
        let target = self.target();
        let rest = match absolute(target) {
            Some((_, _, rest)) => rest,
            None => target,
        };
        let (path, query) = match split_once(rest, b'?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        (if path.is_empty() { b"/" } else { path }, query)
    }
}

/// A response's head with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct ResponseView<'a>(Response<'a>);

#[derive(Debug, Clone, Copy)]
enum Response<'a> {
    Http1(&'a ResponseHead, &'a [u8]),
    /// A field section that satisfies RFC 9113 section 8.3.2, and its status.
    Http2(&'a Block, u16),
}

impl<'a> ResponseView<'a> {
    pub(crate) fn of_http1(head: &'a ResponseHead, bytes: &'a [u8]) -> Self {
        Self(Response::Http1(head, bytes))
    }

    pub(crate) fn of_http2(block: &'a Block, status: u16) -> Self {
        Self(Response::Http2(block, status))
    }

    /// The status code, 100 to 999.
    pub fn status(&self) -> u16 {
        match self.0 {
            Response::Http1(head, _) => head.status,
            Response::Http2(_, status) => status,
        }
    }

    /// The reason phrase as sent; empty for HTTP/2, which has none.
    pub fn reason(&self) -> &'a [u8] {
        match self.0 {
            Response::Http1(head, bytes) => head.reason.of(bytes),
            Response::Http2(..) => b"",
        }
    }

    /// The HTTP version of the response.
    pub fn version(&self) -> Version {
        match self.0 {
            Response::Http1(head, _) => head.version,
            Response::Http2(..) => Version::Http2,
        }
    }

    /// The first header with this name, in upper or lower case, without white space around its value.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        match self.0 {
            Response::Http1(head, bytes) => find_line(&head.headers, bytes, name),
            Response::Http2(block, _) => find_field(block, name),
        }
    }

    /// The values of all headers with this name, in upper or lower case.
    pub(crate) fn values(
        &self,
        name: &'static str,
    ) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        values(self.headers(), name)
    }

    /// All headers in the order sent, without the pseudo-headers of HTTP/2.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + Clone + use<'a> {
        match self.0 {
            Response::Http1(head, bytes) => Headers::Http1(head.headers.iter(), bytes),
            Response::Http2(block, _) => Headers::Http2(block.iter()),
        }
    }
}

#[derive(Clone)]
enum Headers<'a> {
    Http1(std::slice::Iter<'a, Header>, &'a [u8]),
    Http2(Fields<'a>),
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Http1(headers, bytes) => {
                let header = headers.next()?;
                Some((text(header.name.of(bytes)), header.value.of(bytes)))
            }
            Self::Http2(fields) => {
                let field = fields.find(|field| !field.is_pseudo())?;
                Some((text(field.name()), field.value()))
            }
        }
    }
}

/// The value of the first of these header lines with this name.
fn find_line<'a>(headers: &[Header], bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let named = |header: &&Header| header.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
    headers.iter().find(named).map(|header| header.value.of(bytes))
}

/// The value of the first field with this name, except pseudo-headers.
fn find_field<'a>(block: &'a Block, name: &str) -> Option<&'a [u8]> {
    let named = |field: &Field<'_>| field.name().eq_ignore_ascii_case(name.as_bytes());
    let found = block.iter().find(|field| named(field) && !field.is_pseudo());
    found.map(|field| field.value())
}

fn values<'a, H: Iterator<Item = (&'a str, &'a [u8])> + Clone>(
    headers: H,
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a, H> {
    let named =
        move |(given, value): (&str, &'a [u8])| given.eq_ignore_ascii_case(name).then_some(value);
    headers.filter_map(named)
}

fn may_be_of_trace(name: &[u8]) -> bool {
    matches!(
        name,
        [b't' | b'T', b'r' | b'R', ..]
            | [b'b' | b'B', b'3']
            | [b'x' | b'X', b'-', b'b' | b'B', b'3', ..]
    )
}

/// Bytes that were checked to be ASCII, as text.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
