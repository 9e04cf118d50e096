//! The first bytes of a connection, read for detection.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::timeout;

use crate::detect::{DETECT_TIMEOUT, Detected, detect};
use crate::hello::{ClientHello, Hello};

/// The most bytes read before detection decides: a whole TLS ClientHello (one record of 16 KiB and
/// its header) or the head of most requests.
pub const MAX_FIRST: usize = 16 * 1024 + 5;

/// What is read at a time; a ClientHello with a post-quantum key share fits.
const CHUNK: usize = 2048;

/// Appends what the stream yields next to `bytes`, up to [`MAX_FIRST`] in all; 0 means the end of
/// the stream, or that the bound is reached. Holds no memory while nothing has arrived. Can be dropped
/// and called again.
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
    poll_fn(|cx| {
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut space = ReadBuf::uninit(&mut chunk[..room]);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut space))?;
        bytes.extend_from_slice(space.filled());
        Poll::Ready(Ok(space.filled().len()))
    })
    .await
}

/// Reads until the protocol is clear or the stream ends, which makes what is undecided opaque.
/// [`Detected::NeedMore`] when [`DETECT_TIMEOUT`] has passed since the call. Can be dropped and called
/// again: what was read stays in `bytes`.
///
/// # Errors
/// What the stream reports: what came before a reset is nobody's to act on.
pub async fn detect_first<S>(stream: &mut S, bytes: &mut Vec<u8>) -> io::Result<Detected>
where
    S: AsyncRead + Unpin,
{
    let clear = async {
        loop {
            match detect(bytes) {
                Detected::NeedMore if read_first(stream, bytes).await? == 0 => {
                    return Ok(Detected::Opaque);
                }
                Detected::NeedMore => {}
                decided => return Ok(decided),
            }
        }
    };
    timeout(DETECT_TIMEOUT, clear).await.unwrap_or(Ok(Detected::NeedMore))
}

/// Reads the rest of a ClientHello. None if it cannot be read, or is not whole within
/// [`DETECT_TIMEOUT`]: it goes on as it is all the same.
///
/// # Errors
/// What the stream reports.
pub async fn hello_first<S>(stream: &mut S, bytes: &mut Vec<u8>) -> io::Result<Option<ClientHello>>
where
    S: AsyncRead + Unpin,
{
    let whole = async {
        loop {
            match Hello::read(bytes) {
                Hello::Read(hello) => return Ok(Some(hello)),
                Hello::Unreadable => return Ok(None),
                Hello::NeedMore if read_first(stream, bytes).await? == 0 => return Ok(None),
                Hello::NeedMore => {}
            }
        }
    };
    timeout(DETECT_TIMEOUT, whole).await.unwrap_or(Ok(None))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

    /// Yields some bytes, then fails as a socket does that was reset.
    fn broken(bytes: &[u8]) -> impl AsyncRead + Unpin + use<> {
        io::Cursor::new(bytes.to_vec()).chain(Reset)
    }

    struct Reset;

    impl AsyncRead for Reset {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _cx: &mut std::task::Context<'_>,
            _out: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    #[tokio::test]
    async fn a_reset_while_detecting_is_no_end() {
        for first in [&b"GE"[..], b"\x16\x03"] {
            let error = detect_first(&mut broken(first), &mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        let hello = b"\x16\x03\x01\x02\x00\x01";
        let error = hello_first(&mut broken(hello), &mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_decides_and_a_pause_does_not() {
        let detected = detect_first(&mut &b"GET"[..], &mut Vec::new()).await.unwrap();
        assert_eq!(detected, Detected::Opaque);
        let (mut client, mut server) = tokio::io::duplex(64);
        client.write_all(b"GET / HT").await.unwrap();
        let mut first = Vec::new();
        let detected = detect_first(&mut server, &mut first).await.unwrap();
        assert_eq!((detected, &first[..]), (Detected::NeedMore, &b"GET / HT"[..]));
    }
}
