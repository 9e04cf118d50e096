//! HTTP/2 as an attacker writes it: frames and field sections as raw bytes, without any checks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long the proxy may take to respond; much longer than a busy machine needs.
const LIMIT: Duration = Duration::from_secs(20);

/// The preface of an HTTP/2 connection (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The name and the value of a field.
pub(crate) type Field<'a> = (&'a [u8], &'a [u8]);

/// The fields of a valid GET request.
pub(crate) const GET: [Field<'static>; 4] =
    [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];

/// The fields of a valid HEAD request.
pub(crate) const HEAD_ONLY: [Field<'static>; 4] =
    [(b":method", b"HEAD"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];

/// The fields of a valid POST request.
pub(crate) const POST: [Field<'static>; 4] =
    [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")];

/// The first message that a client gets about its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOutcome {
    /// A response with this status.
    Status(u16),
    /// RST_STREAM with this code.
    Reset(u32),
    /// GOAWAY with this code.
    GoAway(u32),
    /// Neither: the proxy closed the connection.
    Ended,
}

/// All bytes that a client sends for one request on stream 1: the preface, SETTINGS, HEADERS and, if there are
/// any, DATA and trailers.
pub(crate) fn request(
    fields: &[Field<'_>],
    body: Option<&[u8]>,
    trailers: &[Field<'_>],
) -> Vec<u8> {
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let end = |last: bool| if last { END_STREAM } else { 0 };
    let only_head = body.is_none() && trailers.is_empty();
    bytes.extend(frame(HEADERS, END_HEADERS | end(only_head), 1, &section(fields)));
    if let Some(body) = body {
        bytes.extend(frame(DATA, end(trailers.is_empty()), 1, body));
    }
    if !trailers.is_empty() {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &section(trailers)));
    }
    bytes
}

/// One frame (RFC 9113 section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a row is short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head[..], payload].concat()
}

/// A field section in which every field is a literal without indexing, with an unchanged name and value (RFC 7541
/// section 6.2.2).
pub(crate) fn section(fields: &[Field<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            integer(&mut bytes, text.len());
            bytes.extend_from_slice(text);
        }
    }
    bytes
}

/// Appends a length as an integer with a 7-bit prefix (RFC 7541 section 5.1), for a string without Huffman coding.
pub(crate) fn integer(bytes: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        bytes.push(value as u8);
        return;
    }
    bytes.push(127);
    value -= 127;
    while value >= 128 {
        bytes.push((value % 128) as u8 | 128);
        value /= 128;
    }
    bytes.push(value as u8);
}

/// Whether a client's bytes are an HTTP/2 connection on which no stream was opened, with only complete frames of
/// stream 0.
pub(crate) fn asks_nothing(bytes: &[u8]) -> bool {
    let Some(mut frames) = bytes.strip_prefix(PREFACE) else { return false };
    while let Some((head, rest)) = frames.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if head[5..] != [0; 4] || rest.len() < length {
            return false;
        }
        frames = &rest[length..];
    }
    frames.is_empty()
}

/// Removes the complete frames from `received`, and returns whether any of them reset a stream.
pub(crate) fn has_reset(received: &mut Vec<u8>) -> bool {
    let mut reset = false;
    while let Some(head) = received.first_chunk::<9>() {
        let end = 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if received.len() < end {
            break;
        }
        reset |= head[3] == RST_STREAM;
        received.drain(..end);
    }
    reset
}

/// Sends `bytes` and reads until stream 1 has a response or a reset, or the connection is closed.
pub(crate) fn ask(proxy: SocketAddr, bytes: &[u8]) -> Result<StreamOutcome> {
    let mut stream = TcpStream::connect_timeout(&proxy, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // Fails if the proxy closes the connection before it has read everything.
    let _ = stream.write_all(bytes);
    loop {
        let mut head = [0_u8; 9];
        if stream.read_exact(&mut head).is_err() {
            return Ok(StreamOutcome::Ended);
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).context("a frame is cut short")?;
        let of = |at: usize| {
            let bytes = payload.get(at..at + 4).context("a frame is too short")?;
            Ok::<u32, anyhow::Error>(u32::from_be_bytes(bytes.try_into()?))
        };
        match head[3] {
            HEADERS => match status(&payload)? {
                100..200 => {}
                status => return Ok(StreamOutcome::Status(status)),
            },
            RST_STREAM => return Ok(StreamOutcome::Reset(of(0)?)),
            GOAWAY if of(4)? != 0 => return Ok(StreamOutcome::GoAway(of(4)?)),
            _ => {}
        }
    }
}

/// The status, which is the first field of a response. It is indexed, or a literal with an indexed name.
fn status(section: &[u8]) -> Result<u16> {
    /// The statuses in the static table, from index 8 on.
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // An update of the table's size may come first.
    let start = section.iter().position(|byte| byte & 0xe0 != 0x20).unwrap_or(section.len());
    match section[start..] {
        [byte @ 0x88..=0x8e, ..] => Ok(INDEXED[usize::from(byte - 0x88)]),
        [0x08 | 0x18 | 0x48, 3, a, b, c, ..] => {
            Ok(std::str::from_utf8(&[a, b, c])?.parse().context("a status in words")?)
        }
        [0x08 | 0x18 | 0x48, coded, ref rest @ ..] if coded & 0x80 != 0 => {
            digits(rest.get(..usize::from(coded & 0x7f)).context("a cut status")?)
        }
        _ => bail!("no status first: {section:02x?}"),
    }
}

/// Decodes three Huffman-coded digits. 0, 1 and 2 have five bits, which are their value; 3 to 9 have six.
fn digits(coded: &[u8]) -> Result<u16> {
    let bits = coded.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
    let mut left = coded.len() * 8;
    let mut value = 0;
    for _ in 0..3 {
        let take = |count: usize| bits >> left.saturating_sub(count);
        let digit = match take(5) & 0x1f {
            low @ 0..=2 => {
                left = left.saturating_sub(5);
                low
            }
            _ => {
                let six = take(6) & 0x3f;
                left = left.saturating_sub(6);
                six.checked_sub(0x16).filter(|digit| (3..=9).contains(digit)).context("no digit")?
            }
        };
        value = value * 10 + digit;
    }
    Ok(u16::try_from(value)?)
}

#[test]
fn a_status_is_read_in_every_form() {
    assert_eq!(status(&[0x88]).unwrap(), 200);
    assert_eq!(status(&[0x20, 0x8c]).unwrap(), 400);
    assert_eq!(status(b"\x08\x03501").unwrap(), 501);
    // The Huffman-coded 302 of RFC 7541 C.6.1.
    assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]).unwrap(), 302);
    // The Huffman-coded 307 of RFC 7541 C.6.2.
    assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]).unwrap(), 307);
}
