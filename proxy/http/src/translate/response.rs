//! Translates heads of responses.

use leno_h2::Head;
use leno_hpack::{Block, Token};

use super::carried::{begin, push_names, push_word};
use super::lines::Lines;
use super::request::{content_length, put_length};
use super::{Carried, push_headers};
use crate::answer::reason;
use crate::edit::{Edits, INTERNAL, edit_block, ends_at_hop};
use crate::head::{Framing, HeadError, ResponseHead, Transfer, Version};
use crate::writer::Rendered;

/// The fields of an HTTP/1 response, as HTTP/2. The status `101` becomes `200`. With `carry`, the HTTP/1 details are
/// added in the internal header ([`Carried`]), because the client is a proxy of the mesh and its own client speaks
/// HTTP/1.
pub(crate) fn to_h2(
    head: &ResponseHead,
    bytes: &[u8],
    edits: &Edits<'_>,
    carry: bool,
) -> Result<Head, HeadError> {
    match head.meaning.transfer {
        _ if head.is_unframed() => {}
        Transfer::CodedChunked => return Err(HeadError::TransferCoding),
        Transfer::Malformed => return Err(HeadError::TransferEncoding),
        Transfer::Absent | Transfer::Chunked => {}
    }
    let mut block = Head::new();
    let switched = head.status == 101;
    let status = if switched { 200 } else { head.status };
    block.push(b":status", &digits(status));
    push_headers(&mut block, (&head.headers, &head.meaning), bytes, edits);
    if head.is_unframed() {
        block.remove_all(b"content-length");
    }
    if !head.is_interim() || switched {
        edit_block(&mut block, edits);
    }
    if carry {
        let (mut value, title_case) = begin(head.version, &head.headers, bytes);
        if switched {
            value.push(b'u');
        }
        push_names(&mut value, title_case, &head.headers, bytes);
        let phrase = head.reason.of(bytes);
        if phrase != reason(head.status).as_bytes() {
            push_word(&mut value, b"r=", phrase);
        }
        block.push(INTERNAL, &value);
    }
    Ok(block)
}

/// The three digits of a status.
#[expect(clippy::arithmetic_side_effects, reason = "a digit is less than ten")]
fn digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)
}

/// Facts on which the HTTP/1 head of a response depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToH1<'a> {
    pub(crate) status: u16,
    /// The client's version.
    pub(crate) version: Version,
    /// Whether the client's connection stays open, provided that the body has a length or is chunked.
    pub(crate) keep: bool,
    /// Whether the request's method was HEAD.
    pub(crate) to_head: bool,
    /// Whether there is no body.
    pub(crate) empty: bool,
    /// The value of the internal header in which another proxy of the mesh has added HTTP/1 details.
    pub(crate) carried: Option<&'a [u8]>,
}

/// An HTTP/2 response as HTTP/1.
#[derive(Debug)]
pub(crate) struct Http1Response {
    pub(crate) head: Rendered,
    pub(crate) framing: Framing,
    /// Whether the client's connection stays open.
    pub(crate) keep: bool,
}

/// The head of an HTTP/2 response, interim or final, as HTTP/1.
pub(crate) fn to_h1(block: &Block, to: ToH1<'_>) -> Result<Http1Response, HeadError> {
    let carried = to.carried.and_then(Carried::parse);
    let interim = to.status < 200;
    let length = content_length(block, interim || to.status == 204)?;
    let framing = match length {
        _ if to.to_head || interim || matches!(to.status, 204 | 304) => Framing::None,
        Some(0) => Framing::None,
        Some(_) if to.empty => return Err(HeadError::LengthConflict),
        Some(length) => Framing::Length(length),
        None if to.empty => Framing::None,
        None if to.version == Version::Http10 => Framing::UntilClose,
        None => Framing::Chunked,
    };
    let keep = to.keep && framing != Framing::UntilClose;
    let old = carried.is_some_and(|carried| carried.version == Version::Http10)
        && framing != Framing::Chunked;
    let mut lines = Lines::new(block, to.carried.map_or(0, <[u8]>::len), carried);
    put_status(&mut lines, to.status, old);
    put_fields(&mut lines, block)?;
    match (framing, length) {
        (Framing::Chunked, _) => lines.line(b"transfer-encoding", b"chunked"),
        (_, Some(length)) => put_length(&mut lines, length),
        (Framing::None, None) if !to.to_head && !interim && !matches!(to.status, 204 | 304) => {
            put_length(&mut lines, 0);
        }
        _ => {}
    }
    if !interim && !keep {
        lines.line(b"connection", b"close");
    } else if !interim && (old || to.version == Version::Http10) {
        lines.line(b"connection", b"keep-alive");
    }
    Ok(Http1Response { head: lines.finish()?, framing, keep })
}

/// The `101` response, made from the response to an extended CONNECT. `accept` is the Sec-WebSocket-Accept that a
/// WebSocket client expects, in case the server has not sent one.
pub(crate) fn to_switch(
    block: &Block,
    protocol: &[u8],
    accept: Option<&[u8]>,
    carried: Option<&[u8]>,
) -> Result<Rendered, HeadError> {
    let more = carried.map_or(0, <[u8]>::len);
    let mut lines =
        Lines::new(block, more.saturating_add(protocol.len()), carried.and_then(Carried::parse));
    put_status(&mut lines, 101, false);
    lines.line(b"upgrade", protocol);
    lines.line(b"connection", b"Upgrade");
    put_fields(&mut lines, block)?;
    if let Some(accept) = accept.filter(|_| block.position(b"sec-websocket-accept").is_none()) {
        lines.line(b"sec-websocket-accept", accept);
    }
    lines.finish()
}

fn put_status(lines: &mut Lines<'_>, status: u16, old: bool) {
    let phrase = lines.carried.and_then(|carried| carried.reason);
    lines.put(if old { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    lines.put(&digits(status));
    lines.put(b" ");
    lines.put(phrase.unwrap_or(reason(status).as_bytes()));
    lines.put(b"\r\n");
}

fn put_fields(lines: &mut Lines<'_>, block: &Block) -> Result<(), HeadError> {
    for field in block.iter().filter(|field| !field.is_pseudo()) {
        match field.token() {
            Token::CONTENT_LENGTH => {}
            Token::TRANSFER_ENCODING => return Err(HeadError::TransferEncoding),
            _ if ends_at_hop(field.name()) => {}
            _ => lines.field(&field)?,
        }
    }
    Ok(())
}
