//! Edits of HTTP/1 heads. Heads are forwarded as received, except for the edits that are planned here: those that HTTP
//! requires of each hop (a proxy between two connections), and those that the caller wants.

use smallvec::SmallVec;

use crate::head::{
    Connection, Header, Headers, Known, Meaning, RequestHead, ResponseHead, Transfer, Upgrade,
    Version, is_text, is_token, tokens, trim,
};

mod block;

pub(crate) use block::{INTERNAL, add_trace, edit_block, edit_fields, ends_at_hop};

/// A complete header line, created once and sent many times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLine {
    /// The name, `: `, the value and CRLF.
    line: Box<[u8]>,
    /// The name in lower case, which an HTTP/2 field needs; `None` if the name in the line is already in lower case.
    lower_name: Option<Box<[u8]>>,
    name_length: usize,
}

/// The `traceparent` header of W3C Trace Context. A proxy that traces creates one for almost every request, so it is
/// stored without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceLine([u8; TRACE_LINE.len()]);

const TRACE_NAME: &[u8] = b"traceparent";
/// The line, with room for a value of version 00.
const TRACE_LINE: &[u8; 70] =
    b"traceparent: .......................................................\r\n";
/// The position of the value in the line.
const TRACE_VALUE: std::ops::Range<usize> = 13..68;

impl TraceLine {
    /// The line with this value, which must be text.
    pub fn new(value: &[u8; 55]) -> Self {
        let mut line = *TRACE_LINE;
        if let Some(there) = line.get_mut(TRACE_VALUE) {
            there.copy_from_slice(value);
        }
        Self(line)
    }

    fn value(&self) -> &[u8] {
        self.0.get(TRACE_VALUE).unwrap_or_default()
    }
}

/// Headers that frame a message or control a connection. No edit may change them.
const FRAMING: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// The header cannot be set: it contains a forbidden byte, or it is a header that only the engine may set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the header `{name}` cannot be set: it frames messages, or holds a forbidden character")]
pub struct InvalidHeader {
    name: String,
}

impl HeaderLine {
    /// A line `name: value` with its line end.
    pub fn new(name: &str, value: &[u8]) -> Result<Self, InvalidHeader> {
        let value = trim(value);
        let framing = FRAMING.iter().any(|other| name.eq_ignore_ascii_case(other));
        if !is_token(name.as_bytes()) || framing || !value.iter().all(|byte| is_text(*byte)) {
            return Err(InvalidHeader { name: name.to_owned() });
        }
        let line = [name.as_bytes(), b": ", value, b"\r\n"].concat().into_boxed_slice();
        let has_upper = name.bytes().any(|byte| byte.is_ascii_uppercase());
        let lower_name = has_upper.then(|| name.to_ascii_lowercase().into_bytes().into());
        Ok(Self { line, lower_name, name_length: name.len() })
    }

    /// A line for each pair that is valid as a header; other pairs are skipped.
    pub fn all(pairs: Vec<(&str, String)>) -> Vec<Self> {
        let line = |(name, value): (&str, String)| Self::new(name, value.as_bytes()).ok();
        pairs.into_iter().filter_map(line).collect()
    }

    /// The name as given.
    pub fn name(&self) -> &str {
        std::str::from_utf8(self.name_bytes()).unwrap_or_default()
    }

    fn name_bytes(&self) -> &[u8] {
        self.line.get(..self.name_length).unwrap_or_default()
    }

    pub(crate) fn lower_name(&self) -> &[u8] {
        self.lower_name.as_deref().unwrap_or_else(|| self.name_bytes())
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        let behind_name = self.line.get(self.name_length..).unwrap_or_default();
        let value = behind_name.strip_prefix(b": ").and_then(|rest| rest.strip_suffix(b"\r\n"));
        value.unwrap_or_default()
    }

    /// The whole line, with CRLF.
    pub fn as_bytes(&self) -> &[u8] {
        &self.line
    }
}

/// Changes to one head. The default changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Edits<'a> {
    /// The names of headers to leave out, in upper or lower case.
    pub remove: &'a [&'a str],
    /// Headers that replace all headers of the same name.
    pub set: &'a [HeaderLine],
    /// Headers that are added to those of the same name.
    pub add: &'a [HeaderLine],
    /// The trace context for the next hop, which replaces the received one.
    pub trace: Option<&'a TraceLine>,
    /// A target that replaces the request's. It must not contain spaces or control characters.
    pub target: Option<&'a [u8]>,
    /// Whether to keep the mesh's own headers (`leno-*`), which are otherwise removed. Only for a response from a proxy
    /// of the mesh, whose identity was checked.
    pub keep_mesh: bool,
    /// Whether to remove the headers that tell an application who its client is (`x-forwarded-client-cert`,
    /// `l5d-client-id`), because the client has written them itself.
    pub remove_identity: bool,
}

impl Edits<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.remove.is_empty()
            && self.set.is_empty()
            && self.add.is_empty()
            && self.trace.is_none()
            && self.target.is_none()
    }

    /// Whether this only adds lines to a head. `has_trace` returns whether the head contains a `traceparent`.
    fn only_adds(&self, has_trace: impl FnOnce() -> bool) -> bool {
        self.remove.is_empty()
            && self.set.is_empty()
            && self.target.is_none()
            && (self.trace.is_none() || !has_trace())
    }

    pub(crate) fn removes(&self, name: &[u8]) -> bool {
        self.remove.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
            || self.set.iter().any(|line| name.eq_ignore_ascii_case(line.name_bytes()))
            || self.trace.is_some() && name.eq_ignore_ascii_case(TRACE_NAME)
    }
}

/// A piece of an edited head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Received bytes, as a range counted from the message's start.
    Received(u16, u16),
    /// New bytes in place of received ones, or in addition to them.
    Given(&'a [u8]),
}

/// How a head is written: first the pieces, then the received bytes from `resume` on, directly followed by the body.
/// The plan of an unchanged head has no pieces and resumes at 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan<'a> {
    pub(crate) pieces: SmallVec<[Piece<'a>; 8]>,
    pub(crate) resume: usize,
}

impl<'a> Plan<'a> {
    /// The plan for a request to a server whose connection stays open, even if the client asks to close its own.
    pub(crate) fn request(head: &RequestHead, bytes: &[u8], edits: &Edits<'a>) -> Self {
        let upgrade = head.upgrade();
        let wanted = Connection {
            keep_alive: head.version == Version::Http10,
            upgrade,
            te: head.meaning.connection.te && trailers_wanted(&head.headers, bytes),
            ..Connection::default()
        };
        let hop = Hop::new(&head.meaning, wanted, upgrade).with_reserved(edits);
        let mut planner = Planner::new(bytes);
        if let Some(target) = edits.target {
            planner.replace(head.target.start as usize, head.target.end as usize, target);
        }
        planner.plan((&head.headers, head.len()), &hop, edits)
    }

    /// The plan for a final response, or for a `101`.
    pub(crate) fn response(
        head: &ResponseHead,
        bytes: &[u8],
        edits: &Edits<'a>,
        to: ToClient,
    ) -> Self {
        // A 426 must name the protocol to upgrade to (RFC 9110 section 15.5.22). In other responses an offer to upgrade
        // concerns only this hop, unless the client has asked for it.
        let wanted_protocol = to.wants_upgrade && head.meaning.upgrade == Upgrade::Other;
        let keep_upgrade = wanted_protocol || head.status == 426;
        let wanted = Connection {
            close: !to.keep,
            keep_alive: to.keep && !to.tunnel && head.version.min(to.version) == Version::Http10,
            upgrade: head.meaning.connection.upgrade && keep_upgrade,
            ..Connection::default()
        };
        let hop = Hop::new(&head.meaning, wanted, keep_upgrade)
            .without_framing(head.is_unframed() || to.tunnel)
            .with_reserved(edits);
        Planner::new(bytes).plan((&head.headers, head.len()), &hop, edits)
    }

    /// The plan for an interim response other than `101`. The mesh adds no headers of its own to it.
    pub(crate) fn interim(head: &ResponseHead, bytes: &[u8]) -> Self {
        let edits = Edits::default();
        let hop = Hop::new(&head.meaning, Connection::default(), false)
            .without_framing(true)
            .with_reserved(&edits);
        Planner::new(bytes).plan((&head.headers, head.len()), &hop, &edits)
    }
}

/// Facts about the client on which the head of a response depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToClient {
    /// Whether the client's connection stays open.
    pub(crate) keep: bool,
    /// The client's version.
    pub(crate) version: Version,
    /// Whether the client has asked for another protocol.
    pub(crate) wants_upgrade: bool,
    /// Whether the response opens the tunnel that a CONNECT has requested. The bytes after it then have no framing (RFC
    /// 9110 section 9.3.6).
    pub(crate) tunnel: bool,
}

/// The changes that HTTP requires of a hop (RFC 9110 section 7.6.1).
struct Hop<'m> {
    meaning: &'m Meaning,
    /// The `Connection` line in place of the received ones.
    line: Option<&'static [u8]>,
    /// Whether the received `Connection` lines stay as they are.
    keep_lines: bool,
    /// Whether `Upgrade` stays.
    keep_upgrade: bool,
    /// Whether Content-Length and Transfer-Encoding stay.
    keep_framing: bool,
    /// Whether the mesh's own headers (`leno-*`) stay.
    keep_mesh: bool,
    /// Whether the headers stay that tell an application who its client is.
    keep_identity: bool,
}

impl<'m> Hop<'m> {
    fn new(meaning: &'m Meaning, wanted: Connection, keep_upgrade: bool) -> Self {
        let given = meaning.connection;
        // Connections of HTTP/1.1 stay open by default, and `keep-alive` has no effect on them, so it may be forwarded.
        let may_stay = given.close == wanted.close
            && given.upgrade == wanted.upgrade
            && given.te == wanted.te
            && !given.others
            && (given.keep_alive || !wanted.keep_alive)
            && !(given.keep_alive && wanted.close);
        let keep_lines = may_stay && given.lines > 0;
        let line = if may_stay { None } else { connection_line(wanted) };
        Self {
            meaning,
            line,
            keep_lines,
            keep_upgrade,
            keep_framing: true,
            keep_mesh: true,
            keep_identity: true,
        }
    }

    /// If `unframed`, leaves out Content-Length and Transfer-Encoding.
    fn without_framing(self, unframed: bool) -> Self {
        Self { keep_framing: !unframed, ..self }
    }

    /// Applies what `edits` decide about the headers that only the mesh may set.
    fn with_reserved(self, edits: &Edits<'_>) -> Self {
        Self { keep_mesh: edits.keep_mesh, keep_identity: !edits.remove_identity, ..self }
    }

    fn changes_anything(&self) -> bool {
        let meaning = self.meaning;
        let framed = meaning.length.is_some() || meaning.transfer != Transfer::Absent;
        self.line.is_some()
            || framed && !self.keep_framing
            || meaning.connection.lines > 0 && !self.keep_lines
            || meaning.hop_by_hop
            || meaning.length_repeated
            || meaning.transfer != Transfer::Absent && meaning.length.is_some()
            || meaning.upgrade != Default::default() && !self.keep_upgrade
            || meaning.mesh && !self.keep_mesh
            || meaning.identity && !self.keep_identity
    }
}

fn connection_line(wanted: Connection) -> Option<&'static [u8]> {
    Some(match wanted {
        Connection { close: true, upgrade: true, .. } => b"Connection: close, upgrade\r\n",
        Connection { close: true, .. } => b"Connection: close\r\n",
        Connection { upgrade: true, te: true, .. } => b"Connection: upgrade, TE\r\n",
        Connection { upgrade: true, .. } => b"Connection: upgrade\r\n",
        Connection { te: true, .. } => b"Connection: TE\r\n",
        Connection { keep_alive: true, .. } => b"Connection: keep-alive\r\n",
        _ => return None,
    })
}

fn trailers_wanted(headers: &Headers, bytes: &[u8]) -> bool {
    headers.iter().any(|header| header.known == Known::Te && is_trailers(header, bytes))
}

fn is_trailers(header: &Header, bytes: &[u8]) -> bool {
    header.value.of(bytes).eq_ignore_ascii_case(b"trailers")
}

struct Planner<'a, 'b> {
    bytes: &'b [u8],
    pieces: SmallVec<[Piece<'a>; 8]>,
    /// Up to which position in the received bytes the plan is complete.
    done: usize,
}

impl<'a, 'b> Planner<'a, 'b> {
    fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, pieces: SmallVec::new(), done: 0 }
    }

    fn keep_to(&mut self, end: usize) {
        if end > self.done {
            self.pieces.push(Piece::Received(self.done as u16, end as u16));
            self.done = end;
        }
    }

    fn drop_range(&mut self, start: usize, end: usize) {
        self.keep_to(start);
        self.done = end;
    }

    fn replace(&mut self, start: usize, end: usize, with: &'a [u8]) {
        self.drop_range(start, end);
        self.pieces.push(Piece::Given(with));
    }

    /// The plan of a head with these headers and this length. If lines are only added, the headers need not be
    /// examined.
    fn plan(
        mut self,
        (headers, length): (&Headers, usize),
        hop: &Hop<'_>,
        edits: &Edits<'a>,
    ) -> Plan<'a> {
        let is_kept = !hop.changes_anything();
        if is_kept && edits.is_empty() {
            return Plan::default();
        }
        let is_trace = |header: &Header| {
            header.known == Known::Other
                && header.name.of(self.bytes).eq_ignore_ascii_case(TRACE_NAME)
        };
        if !(is_kept && edits.only_adds(|| headers.iter().any(is_trace))) {
            self.headers(headers, hop, edits);
        }
        self.finish(length, hop, edits)
    }

    fn headers(&mut self, headers: &Headers, hop: &Hop<'_>, edits: &Edits<'a>) {
        let mut length_seen = false;
        for header in headers {
            let stays = match header.known {
                Known::Connection => hop.keep_lines,
                Known::KeepAlive | Known::ProxyConnection | Known::Http2Settings => false,
                Known::Te => is_trailers(header, self.bytes),
                Known::Upgrade => hop.keep_upgrade,
                Known::ContentLength | Known::TransferEncoding if !hop.keep_framing => false,
                Known::ContentLength => {
                    let first = !std::mem::replace(&mut length_seen, true);
                    first && hop.meaning.transfer == Transfer::Absent
                }
                Known::TransferEncoding | Known::Host | Known::Expect => true,
                Known::Mesh if !hop.keep_mesh => false,
                Known::Identity if !hop.keep_identity => false,
                Known::Mesh | Known::Identity | Known::Other => {
                    !hop.meaning.connection.others || !named(headers, header, self.bytes)
                }
            };
            // The caller cannot remove headers that frame the message.
            let framing = matches!(header.known, Known::ContentLength | Known::TransferEncoding);
            if !stays || !framing && edits.removes(header.name.of(self.bytes)) {
                self.drop_range(header.name.start as usize, header.end as usize);
            }
        }
    }

    /// Adds the new lines after the last header.
    fn finish(mut self, head_length: usize, hop: &Hop<'_>, edits: &Edits<'a>) -> Plan<'a> {
        let end_of_headers = head_length.saturating_sub(b"\r\n".len());
        let added = edits.set.iter().chain(edits.add).map(HeaderLine::as_bytes);
        let trace = edits.trace.map(|line| &line.0[..]);
        let lines = hop.line.into_iter().chain(added).chain(trace);
        for line in lines {
            self.keep_to(end_of_headers);
            self.pieces.push(Piece::Given(line));
        }
        Plan { pieces: self.pieces, resume: self.done }
    }
}

/// Whether a `Connection` header names `header`.
pub(crate) fn named(headers: &Headers, header: &Header, bytes: &[u8]) -> bool {
    let name = header.name.of(bytes);
    headers
        .iter()
        .filter(|other| other.known == Known::Connection)
        .flat_map(|connection| tokens(connection.value.of(bytes)))
        .any(|option| option.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests;
