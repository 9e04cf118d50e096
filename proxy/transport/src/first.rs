//! The first bytes of a connection, read for detection.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::detect::{DETECT_TIMEOUT, Detected, detect};

/// The most bytes read before detection decides: a whole TLS ClientHello (one record of 16 KiB and
/// its header) or the head of most requests.
pub const MAX_FIRST: usize = 16 * 1024 + 5;

/// What is read at a time; a ClientHello with a post-quantum key share fits.
const CHUNK: usize = 2048;

/// Appends what the stream yields next to `bytes`, up to [`MAX_FIRST`] in all; 0 means the end of
/// the stream, or that the bound is reached. No memory is held while nothing has arrived when
/// `bytes` is empty and the stream is a socket: wait for readability first where that matters.
///
/// # Errors
/// What the stream reports.
pub async fn read_first<S>(stream: &mut S, bytes: &mut Vec<u8>) -> io::Result<usize>
where
    S: AsyncRead + Unpin,
{
    let room = MAX_FIRST.saturating_sub(bytes.len()).min(CHUNK);
    if room == 0 {
        return Ok(0);
    }
    bytes.reserve_exact(room);
    stream.take(room as u64).read_buf(bytes).await
}

/// Reads until the protocol is clear, the stream ends or [`DETECT_TIMEOUT`] has passed since the
/// call; what is not clear by then is opaque. Can be dropped and called again: what was read stays
/// in `bytes`.
pub async fn detect_first<S>(stream: &mut S, bytes: &mut Vec<u8>) -> Detected
where
    S: AsyncRead + Unpin,
{
    let clear = async {
        loop {
            match detect(bytes) {
                Detected::NeedMore => match read_first(stream, bytes).await {
                    Ok(0) | Err(_) => return Detected::Opaque,
                    Ok(_) => {}
                },
                decided => return decided,
            }
        }
    };
    timeout(DETECT_TIMEOUT, clear).await.unwrap_or(Detected::Opaque)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn reading_ends_at_the_bound_and_loses_nothing() {
        let (mut client, mut server) = tokio::io::duplex(2 * MAX_FIRST);
        let sent: Vec<u8> = (0..MAX_FIRST + 7).map(|i| (i % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        drop(client);
        let mut first = Vec::new();
        while read_first(&mut server, &mut first).await.unwrap() > 0 {}
        assert_eq!(first.len(), MAX_FIRST);
        server.read_to_end(&mut first).await.unwrap();
        assert_eq!(first, sent);
    }
}
