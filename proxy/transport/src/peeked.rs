//! Bytes that are read before it is known which reader they are for.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_types::Protocol;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, timeout};

use crate::detect::{Opening, Speaker, Verdict, Waits, judge};
use crate::{Io, Presence};

/// The most bytes read before detection decides: a whole TLS ClientHello (one record of 16 KiB and
/// its header) or the head of most requests.
pub const MAX_PEEKED: usize = 16 * 1024 + 5;

/// What is read at a time; a ClientHello with a post-quantum key share fits.
const CHUNK: usize = 2048;

/// A connection and the bytes that were read from it to learn what it carries.
///
/// It is not a stream itself: the reader that is chosen (the HTTP engine, TLS, the relay) takes it
/// apart and begins with the bytes. Holds no memory for bytes while nothing has come.
#[derive(Debug)]
pub struct Peeked<S> {
    stream: S,
    bytes: Vec<u8>,
    /// The other end sends no more.
    ended: bool,
    /// It was found to read on after its end.
    stays: bool,
    /// When the first byte, or the end, was read.
    spoke_at: Option<Instant>,
}

impl<S> From<S> for Peeked<S> {
    fn from(stream: S) -> Self {
        Self { stream, bytes: Vec::new(), ended: false, stays: false, spoke_at: None }
    }
}

impl<S> Peeked<S> {
    /// A connection from which `bytes` were read already.
    pub fn with_bytes(stream: S, bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::from(stream) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the first `count` bytes, which were passed on.
    pub fn consume(&mut self, count: usize) {
        self.bytes.drain(..count);
    }

    /// The connection behind the bytes.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The same, to write to it.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The bytes and the connection behind them.
    pub fn into_parts(self) -> (Vec<u8>, S) {
        (self.bytes, self.stream)
    }
}

impl<S: Io> Peeked<S> {
    /// Ends the connection with a reset.
    pub fn reset(mut self) {
        self.stream.reset_on_drop();
    }

    /// Ready when the client at the other end has left without a byte, or its connection broke, while a
    /// server is connected to for it. What it sends meanwhile is read and kept, up to [`MAX_PEEKED`]. A
    /// client that sends something and leaves wants it to arrive, as it does without a proxy.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while !self.ended && self.bytes.len() < MAX_PEEKED {
            if let Err(error) = ready!(self.poll_peek(cx)) {
                return Poll::Ready(error);
            }
        }
        // The kernel is asked once: a client that reads on is served.
        if self.ended
            && self.bytes.is_empty()
            && !std::mem::replace(&mut self.stays, true)
            && self.stream.presence() == Presence::Left
        {
            return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> Peeked<S> {
    /// Appends what the connection yields next, up to [`MAX_PEEKED`] in all; 0 is the end of the
    /// stream, or the bound.
    ///
    /// # Errors
    /// What the connection reports.
    pub async fn peek(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_peek(cx)).await
    }

    /// [`Self::peek`] as a step of a future.
    pub fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = MAX_PEEKED.saturating_sub(self.bytes.len()).min(CHUNK);
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut chunk = [const { MaybeUninit::uninit() }; CHUNK];
        let mut space = ReadBuf::uninit(&mut chunk);
        let mut space = space.take(room);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut space))?;
        let read = space.filled();
        self.bytes.extend_from_slice(read);
        self.ended |= read.is_empty();
        self.spoke_at.get_or_insert_with(Instant::now);
        Poll::Ready(Ok(read.len()))
    }

    /// Waits for the first byte, or the end, within `longest`; false if the other end is silent.
    ///
    /// # Errors
    /// What the connection reports.
    pub async fn speaks(&mut self, longest: Duration) -> io::Result<bool> {
        if self.spoke_at.is_some() {
            return Ok(true);
        }
        match timeout(longest, self.peek()).await {
            Ok(read) => read.map(|_| true),
            Err(_silent) => Ok(false),
        }
    }

    /// Reads until [`judge`] has decided what the client at the other end speaks. Can be dropped and
    /// called again: what was read is kept, and the time since the first byte counts on.
    ///
    /// # Errors
    /// What the connection reports: bytes before a reset are not acted on.
    pub async fn detect(&mut self, expected: Protocol, waits: &Waits) -> io::Result<Verdict> {
        let began = Instant::now();
        loop {
            let opening = Opening {
                speaker: Speaker::Client,
                bytes: &self.bytes,
                ended: self.ended,
                elapsed: self.spoke_at.unwrap_or(began).elapsed(),
            };
            match judge(expected, waits, opening) {
                Verdict::Wait(left) => {
                    // When the time is over, the next verdict takes it into account.
                    timeout(left, self.peek()).await.unwrap_or(Ok(0))?;
                }
                verdict => return Ok(verdict),
            }
        }
    }
}

/// Waits until one of two ends speaks, ends or breaks, within `longest`; `None` if both are silent. A
/// client that has spoken before is the first one.
pub async fn first_to_speak<C, S>(
    client: &mut Peeked<C>,
    server: &mut Peeked<S>,
    longest: Duration,
) -> Option<(Speaker, io::Result<usize>)>
where
    C: AsyncRead + Unpin,
    S: AsyncRead + Unpin,
{
    if client.spoke_at.is_some() {
        return Some((Speaker::Client, Ok(client.bytes.len())));
    }
    let first = poll_fn(|cx| {
        if let Poll::Ready(read) = client.poll_peek(cx) {
            return Poll::Ready((Speaker::Client, read));
        }
        server.poll_peek(cx).map(|read| (Speaker::Server, read))
    });
    timeout(longest, first).await.ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn reading_ends_at_the_bound_and_loses_nothing() {
        let (mut client, server) = duplex(2 * MAX_PEEKED);
        let sent: Vec<u8> = (0..MAX_PEEKED + 7).map(|i| (i % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        drop(client);
        let mut server = Peeked::from(server);
        while server.peek().await.unwrap() > 0 {}
        assert_eq!(server.bytes().len(), MAX_PEEKED);
        server.consume(2);
        let (mut read, mut server) = server.into_parts();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, sent[2..]);
    }

    /// Yields some bytes, then fails as a socket does that was reset.
    fn broken(bytes: &[u8]) -> Peeked<impl AsyncRead + Unpin + use<>> {
        Peeked::from(io::Cursor::new(bytes.to_vec()).chain(Reset))
    }

    struct Reset;

    impl AsyncRead for Reset {
        fn poll_read(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            _out: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    #[tokio::test]
    async fn a_reset_while_detecting_is_no_end() {
        for first in [&b"GE"[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01"] {
            let detected = broken(first).detect(Protocol::Detect, &Waits::OUTBOUND).await;
            assert_eq!(detected.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_decides_and_a_pause_decides_when_it_is_long() {
        let mut ended = Peeked::from(&b"GET"[..]);
        let detected = ended.detect(Protocol::Detect, &Waits::OUTBOUND).await.unwrap();
        assert_eq!(detected, Verdict::Opaque);
        let (mut client, server) = duplex(64);
        client.write_all(b"GET / HT").await.unwrap();
        let mut server = Peeked::from(server);
        let began = Instant::now();
        let detected = server.detect(Protocol::Detect, &Waits::OUTBOUND).await.unwrap();
        assert_eq!((detected, server.bytes()), (Verdict::Undecided, &b"GET / HT"[..]));
        assert_eq!(began.elapsed(), Waits::OUTBOUND.protocol);
        // The time was counted from the first byte on, and more time changes nothing.
        let again = server.detect(Protocol::Detect, &Waits::OUTBOUND).await.unwrap();
        assert_eq!(again, Verdict::Undecided);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_with_the_wait_for_the_first_byte() {
        let (client, server) = duplex(64);
        let (other, silent) = duplex(64);
        let (mut server, mut silent) = (Peeked::from(server), Peeked::from(silent));
        let began = Instant::now();
        let detected = server.detect(Protocol::Detect, &Waits::DENIED).await.unwrap();
        assert_eq!((detected, began.elapsed()), (Verdict::Silent, Waits::DENIED.first_byte));
        assert!(!server.speaks(Duration::from_millis(1)).await.unwrap());
        let longest = Duration::from_secs(1);
        assert!(first_to_speak(&mut server, &mut silent, longest).await.is_none());
        drop(other);
        let first = first_to_speak(&mut server, &mut silent, longest).await;
        assert!(matches!(first, Some((Speaker::Server, Ok(0)))), "{first:?}");
        drop(client);
        assert!(server.speaks(Duration::ZERO).await.unwrap());
    }
}
