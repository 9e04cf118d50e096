//! Translates heads of requests.

use leno_h2::Head;
use leno_hpack::{Block, Token};

use super::carried::{begin, push_names, push_word};
use super::lines::Lines;
use super::{Carried, push_headers, websocket};
use crate::edit::{Edits, INTERNAL, add_trace, edit_fields, ends_at_hop};
use crate::head::{
    Framing, HeadError, Known, RequestHead, Version, absolute, decimal, in_target, in_token,
    is_authority, is_host_and_port, is_token, tokens, without_port,
};
use crate::writer::Rendered;

/// Facts about the server on which the translation of an HTTP/1 request depends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ToH2 {
    /// Whether the server is a proxy of the mesh.
    pub(crate) mesh: bool,
    /// Whether the server accepts extended CONNECT, so that an upgrade can be requested.
    pub(crate) connect: bool,
}

/// The fields of an HTTP/1 request, and whether its stream must stay open for the bytes that follow, because the
/// request is a CONNECT or has become an extended one.
pub(crate) fn to_h2(
    head: &RequestHead,
    bytes: &[u8],
    edits: &Edits<'_>,
    to: ToH2,
) -> Result<(Head, bool), HeadError> {
    let mut block = Head::new();
    let method = head.method.of(bytes);
    let target = head.target.of(bytes);
    let (scheme, authority, path) = match absolute(target) {
        _ if head.is_connect => (&b""[..], Some(target), &b""[..]),
        Some((scheme, authority, path)) => (scheme, Some(authority), path),
        None => (&b"http"[..], None, target),
    };
    // Servers outside of the mesh do not accept `*` as the path of a CONNECT (RFC 9113 section 8.3.1), and a body
    // before the other protocol cannot be expressed in HTTP/2. In these cases the request is sent without the upgrade,
    // and its meaning stays the same (RFC 9110 section 7.8).
    let is_asterisk = path == b"*" || path.is_empty() && method == b"OPTIONS";
    let connect = to.mesh || to.connect && !is_asterisk;
    let upgrade = if connect && head.upgrade() && head.framing() == Framing::None {
        protocol(head, bytes)
    } else {
        None
    };
    let host = head.meaning.host.map(|host| host.of(bytes));
    let authority = authority.or(host).filter(|authority| !authority.is_empty());
    block.push(b":method", if upgrade.is_some() { b"CONNECT" } else { method });
    // RFC 9113 section 8.5: a CONNECT has neither scheme nor path.
    if !head.is_connect {
        push_lower_pseudo(&mut block, b":scheme", scheme);
    }
    if let Some(authority) = authority {
        block.push(b":authority", authority);
    }
    match path {
        _ if head.is_connect => {}
        [] if method == b"OPTIONS" => block.push(b":path", b"*"),
        [] => block.push(b":path", b"/"),
        [b'?', ..] => block.push(b":path", &[b"/", path].concat()),
        _ => block.push(b":path", path),
    }
    if let Some(protocol) = upgrade {
        block.push(b":protocol", protocol);
    }
    push_headers(&mut block, (&head.headers, &head.meaning), bytes, edits);
    if upgrade.is_some() || head.is_connect {
        // The server would take `content-length` for the length of the bytes in the other protocol.
        block.remove_all(b"content-length");
    }
    if upgrade.is_some() && !to.mesh && block.find(Token::PROTOCOL) == Some(b"websocket") {
        block.remove_all(b"sec-websocket-key");
    }
    edit_fields(&mut block, edits);
    if to.mesh {
        let (mut value, title_case) = begin(head.version, &head.headers, bytes);
        let is_absolute = absolute(target).is_some() && !head.is_connect;
        if is_absolute {
            value.push(b'a');
        }
        if is_absolute && !path.starts_with(b"/") {
            value.push(b'e');
        }
        if upgrade.is_some() && head.meaning.length.is_some() {
            value.push(b'z');
        }
        match host {
            None => value.push(b'n'),
            Some(host) if Some(host) != authority => push_word(&mut value, b"h=", host),
            Some(_) => {}
        }
        if upgrade.is_some() && method != b"GET" {
            push_word(&mut value, b"m=", method);
        }
        push_names(&mut value, title_case, &head.headers, bytes);
        block.push(INTERNAL, &value);
    }
    add_trace(&mut block, edits);
    Ok((block, upgrade.is_some() || head.is_connect))
}

/// The first protocol in `Upgrade`.
fn protocol<'b>(head: &RequestHead, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let header = head.headers.iter().find(|header| header.known == Known::Upgrade)?;
    tokens(header.value.of(bytes)).next().filter(|protocol| is_protocol(protocol))
}

/// Whether this is a name, with or without a version. HTTP/2 in clear text is never requested.
fn is_protocol(protocol: &[u8]) -> bool {
    let fits = |byte: &u8| in_token(*byte) || *byte == b'/';
    !protocol.is_empty()
        && protocol.iter().all(fits)
        && !protocol.eq_ignore_ascii_case(b"h2c")
        && !protocol.eq_ignore_ascii_case(b"h2")
}

fn push_lower_pseudo(block: &mut Block, name: &[u8], value: &[u8]) {
    if value.iter().any(u8::is_ascii_uppercase) {
        block.push(name, &value.to_ascii_lowercase());
    } else {
        block.push(name, value);
    }
}

/// An HTTP/2 request in the form of HTTP/1.
#[derive(Debug)]
pub(crate) struct Http1Request {
    pub(crate) head: Rendered,
    pub(crate) framing: Framing,
    /// Whether the request asks for another protocol, or is a CONNECT.
    pub(crate) upgrade: bool,
    /// The key that was generated because the client sent none.
    pub(crate) websocket_key: Option<[u8; websocket::KEY_BYTES]>,
}

/// The head of an HTTP/2 request in the form of HTTP/1. `empty` says that it has no body. `carried` is the value of the
/// internal header that another proxy of the mesh has added.
pub(crate) fn to_h1(
    block: &Block,
    carried: Option<&[u8]>,
    empty: bool,
) -> Result<Http1Request, HeadError> {
    let pseudo = |token| block.find(token).unwrap_or_default();
    let twice = pseudo(Token::AUTHORITY).len().saturating_mul(2);
    let more = twice.saturating_add(carried.map_or(0, <[u8]>::len));
    let carried = carried.and_then(Carried::parse);
    let protocol = block.find(Token::PROTOCOL);
    let sent_method = pseudo(Token::METHOD);
    let method = match protocol {
        Some(_) => carried.and_then(|carried| carried.method).unwrap_or(b"GET"),
        None => sent_method,
    };
    let tunnel = sent_method == b"CONNECT" && protocol.is_none();
    if tunnel && !is_host_and_port(pseudo(Token::AUTHORITY))
        || !tunnel && method == b"CONNECT"
        || protocol.is_some() && sent_method != b"CONNECT"
    {
        return Err(HeadError::Connect);
    }
    if !is_token(method) {
        return Err(HeadError::RequestLine);
    }
    let length = match protocol {
        Some(_) => carried.filter(|carried| carried.zero_length).map(|_| 0),
        None if tunnel => None,
        None => content_length(block, false)?,
    };
    let framing = match length {
        _ if protocol.is_some() || tunnel => Framing::None,
        Some(0) => Framing::None,
        Some(_) if empty => return Err(HeadError::LengthConflict),
        Some(length) => Framing::Length(length),
        None if empty => Framing::None,
        None => Framing::Chunked,
    };
    let old = carried.is_some_and(|carried| carried.version == Version::Http10)
        && framing != Framing::Chunked;
    let mut lines = Lines::new(block, more, carried);
    lines.put(method);
    lines.put(b" ");
    match tunnel {
        true => lines.put(pseudo(Token::AUTHORITY)),
        false => put_target(&mut lines, block, method)?,
    }
    lines.put(if old { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    put_host(&mut lines, block, old)?;
    let websocket_key = put_fields(&mut lines, block, protocol)?;
    put_connection(&mut lines, block, protocol, old)?;
    let said = carried.is_some() || !matches!(method, b"POST" | b"PUT" | b"PATCH");
    match (framing, length) {
        (Framing::Chunked, _) => lines.line(b"transfer-encoding", b"chunked"),
        (_, Some(length)) => put_length(&mut lines, length),
        (_, None) if !said && protocol.is_none() => put_length(&mut lines, 0),
        _ => {}
    }
    let upgrade = protocol.is_some() || tunnel;
    Ok(Http1Request { head: lines.finish()?, framing, upgrade, websocket_key })
}

pub(super) fn put_length(lines: &mut Lines<'_>, length: u64) {
    lines.name(b"content-length");
    lines.put_number(length);
    lines.put(b"\r\n");
}

/// The length in all `content-length` fields, which must agree.
pub(super) fn content_length(block: &Block, ignored: bool) -> Result<Option<u64>, HeadError> {
    let mut length = None;
    if ignored {
        return Ok(length);
    }
    for digits in block.values(Token::CONTENT_LENGTH) {
        let number = decimal(digits).ok_or(HeadError::LengthMalformed)?;
        if length.replace(number).is_some_and(|before| before != number) {
            return Err(HeadError::LengthConflict);
        }
    }
    Ok(length)
}

fn put_target(lines: &mut Lines<'_>, block: &Block, method: &[u8]) -> Result<(), HeadError> {
    let path = block.find(Token::PATH).unwrap_or_default();
    let is_path = path.first() == Some(&b'/') || path == b"*" && method == b"OPTIONS";
    if !is_path || !path.iter().all(|byte| in_target(*byte)) {
        return Err(HeadError::Target);
    }
    let authority = block.find(Token::AUTHORITY).unwrap_or_default();
    let Some(carried) = lines.carried.filter(|carried| carried.absolute && !authority.is_empty())
    else {
        lines.put(path);
        return Ok(());
    };
    let scheme = block.find(Token::SCHEME).unwrap_or_default();
    if !scheme.iter().all(u8::is_ascii_alphanumeric) || !is_authority(authority) {
        return Err(HeadError::Target);
    }
    lines.put(scheme);
    lines.put(b"://");
    lines.put(authority);
    match path {
        b"*" => {}
        // Other bytes after the slash would become a part of the authority, and the path would not be the one to which
        // policies were applied.
        [b'/', rest @ ..] if carried.no_path && matches!(rest, [] | [b'?', ..]) => lines.put(rest),
        _ => lines.put(path),
    }
    Ok(())
}

fn put_host(lines: &mut Lines<'_>, block: &Block, old: bool) -> Result<(), HeadError> {
    let authority = block.find(Token::AUTHORITY).or_else(|| block.find(Token::HOST));
    let scheme = block.find(Token::SCHEME).unwrap_or_default();
    let known = authority.unwrap_or_default();
    let same =
        |host: &[u8]| without_port(host, scheme).eq_ignore_ascii_case(without_port(known, scheme));
    // Whether the target contains the host to which policies were applied, or there is no host.
    let is_said = |carried: Carried<'_>| carried.absolute || known.is_empty();
    let host = match lines.carried {
        Some(carried) if carried.no_host && old && is_said(carried) => return Ok(()),
        // The original host may differ from the authority only in details that do not matter.
        Some(carried @ Carried { host: Some(host), .. })
            if same(host) || host.is_empty() && is_said(carried) =>
        {
            host
        }
        _ => authority.ok_or(HeadError::HostMissing)?,
    };
    if !is_authority(host) {
        return Err(HeadError::HostMalformed);
    }
    lines.line(b"host", host);
    Ok(())
}

fn put_fields(
    lines: &mut Lines<'_>,
    block: &Block,
    protocol: Option<&[u8]>,
) -> Result<Option<[u8; websocket::KEY_BYTES]>, HeadError> {
    let mut cookies_done = false;
    for field in block.iter().filter(|field| !field.is_pseudo()) {
        match field.token() {
            Token::HOST | Token::CONTENT_LENGTH => {}
            Token::TRANSFER_ENCODING => return Err(HeadError::TransferEncoding),
            Token::COOKIE if std::mem::replace(&mut cookies_done, true) => {}
            Token::COOKIE => put_cookies(lines, block)?,
            Token::TE if !field.value().eq_ignore_ascii_case(b"trailers") => {}
            _ if ends_at_hop(field.name()) => {}
            _ => lines.field(&field)?,
        }
    }
    let websocket = protocol.is_some_and(|name| name.eq_ignore_ascii_case(b"websocket"));
    if !websocket || block.position(b"sec-websocket-key").is_some() {
        return Ok(None);
    }
    let key = websocket::new_key();
    lines.line(b"sec-websocket-key", &key);
    Ok(Some(key))
}

/// Joins the cookie fields into one line (RFC 9113 section 8.2.3).
fn put_cookies(lines: &mut Lines<'_>, block: &Block) -> Result<(), HeadError> {
    let mut first = true;
    for field in block.iter().filter(|field| field.token() == Token::COOKIE) {
        super::lines::check(&field)?;
        if std::mem::replace(&mut first, false) {
            lines.name(b"cookie");
        } else {
            lines.put(b"; ");
        }
        lines.put(field.value());
    }
    lines.put(b"\r\n");
    Ok(())
}

fn put_connection(
    lines: &mut Lines<'_>,
    block: &Block,
    protocol: Option<&[u8]>,
    old: bool,
) -> Result<(), HeadError> {
    let te = block.find(Token::TE).is_some_and(|te| te.eq_ignore_ascii_case(b"trailers"));
    if let Some(protocol) = protocol {
        if !is_protocol(protocol) {
            return Err(HeadError::Connect);
        }
        lines.line(b"connection", if te { b"Upgrade, TE" } else { b"Upgrade" });
        lines.line(b"upgrade", protocol);
    } else if te {
        lines.line(b"connection", b"TE");
    } else if old {
        lines.line(b"connection", b"keep-alive");
    }
    Ok(())
}
