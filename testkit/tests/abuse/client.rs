//! A client that sends given bytes unchanged, and reads responses with the testkit's own parser.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::http1::{Response, ResponseReader};

/// How long the proxy may take to respond or close; much longer than a busy machine needs.
const LIMIT: Duration = Duration::from_secs(20);
/// The longest row, in bytes, that is also sent byte by byte. Longer rows test sizes, for which it does not matter how
/// they are split.
const MAX_CUT: usize = 4096;

/// How bytes are split into writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// In one write.
    Whole,
    /// Each byte in its own write, and therefore usually in its own segment.
    Bytes,
}

/// Everything that the proxy sent until it closed the connection.
#[derive(Debug)]
pub(crate) struct ClientTranscript {
    pub(crate) responses: Vec<Response>,
    /// Bytes that are not a complete response.
    pub(crate) rest: Vec<u8>,
}

/// Sends `bytes` and reads until the proxy closes the connection itself.
pub(crate) fn to_end(proxy: SocketAddr, bytes: &[u8], cut: Cut) -> Result<ClientTranscript> {
    let mut stream = connect(proxy)?;
    send(&mut stream, bytes, cut);
    let mut rest = Vec::new();
    while read(&mut stream, &mut rest).context("the proxy does not end the connection")? {}
    let mut responses = Vec::new();
    while !rest.is_empty() {
        let (used, response) = ResponseReader::new(false, true).read(&rest)?;
        let Some(response) = response else { break };
        rest.drain(..used);
        responses.push(response);
    }
    Ok(ClientTranscript { responses, rest })
}

/// Sends `bytes`, reads one response for each entry of `is_head` (whether that request was a HEAD), and then
/// closes the connection. Any further byte is an error.
pub(crate) fn statuses(
    proxy: SocketAddr,
    bytes: &[u8],
    is_head: &[bool],
    cut: Cut,
) -> Result<Vec<u16>> {
    let mut stream = connect(proxy)?;
    send(&mut stream, bytes, cut);
    let (mut unread, mut statuses) = (Vec::new(), Vec::new());
    for is_head in is_head {
        let mut reader = ResponseReader::new(*is_head, true);
        let response = loop {
            let (used, response) = reader.read(&unread)?;
            unread.drain(..used);
            if let Some(response) = response {
                break response;
            }
            if !read(&mut stream, &mut unread)? {
                bail!("the connection ended after the answers {statuses:?}");
            }
        };
        statuses.push(response.status);
    }
    stream.shutdown(Shutdown::Write)?;
    while read(&mut stream, &mut unread)? {}
    if !unread.is_empty() {
        bail!("behind the answers: {}", unread.escape_ascii());
    }
    Ok(statuses)
}

fn connect(proxy: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&proxy, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes. Errors are ignored, because the proxy may refuse and close before it has read everything, and only
/// its response counts.
fn send(stream: &mut TcpStream, bytes: &[u8], cut: Cut) {
    let step = if cut == Cut::Bytes && bytes.len() <= MAX_CUT { 1 } else { bytes.len() };
    for piece in bytes.chunks(step) {
        if stream.write_all(piece).is_err() {
            return;
        }
    }
}

/// Reads once; returns false at the end of the connection. A reset counts as the end, because the proxy causes one
/// if it leaves bytes unread.
fn read(stream: &mut TcpStream, into: &mut Vec<u8>) -> Result<bool> {
    let mut piece = [0_u8; 16 * 1024];
    match stream.read(&mut piece) {
        Ok(count) => {
            into.extend_from_slice(&piece[..count]);
            Ok(count > 0)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error.into()),
    }
}
