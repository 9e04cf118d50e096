//! Bytes that the proxy reads before it decides which protocol parser reads them.

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

/// How many bytes are read before detection decides: a complete TLS ClientHello (one record of 16 KiB and its header),
/// or the head of most requests.
pub const MAX_PEEKED: usize = 16 * 1024 + 5;

/// How many bytes are read at a time. They are enough for a ClientHello with a post-quantum key share.
const CHUNK: usize = 2048;

/// A connection and the bytes that were read from it to detect its protocol.
///
/// A `Peeked` is not a stream itself: the chosen reader (the HTTP engine, TLS or the relay) takes it apart and begins
/// with these bytes. A `Peeked` holds no memory for bytes until some arrive.
#[derive(Debug)]
pub struct Peeked<S> {
    stream: S,
    bytes: Vec<u8>,
    /// Whether the other end has ended its stream.
    ended: bool,
    /// Whether the kernel was already queried if the client still has its socket, after the client ended its stream.
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
    /// A connection from which `bytes` were already read.
    pub fn with_bytes(stream: S, bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::from(stream) }
    }

    /// The bytes that were read and not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes the first `count` bytes, because they were passed on.
    pub fn consume(&mut self, count: usize) {
        self.bytes.drain(..count);
    }

    /// The connection that the bytes were read from.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// [`Self::stream`], mutably.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// The bytes, and the connection that they were read from.
    pub fn into_parts(self) -> (Vec<u8>, S) {
        (self.bytes, self.stream)
    }
}

impl<S: Io> Peeked<S> {
    /// Ends the connection with a reset.
    pub fn reset(mut self) {
        self.stream.reset_on_drop();
    }

    /// Ready if the client leaves without having sent a byte, or if its connection breaks, while the proxy connects to
    /// a server for it. Bytes that the client sends meanwhile are read and stored, up to [`MAX_PEEKED`]. If a client
    /// sends something and leaves, its bytes are still delivered, as they are without a proxy.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while !self.ended && self.bytes.len() < MAX_PEEKED {
            if let Err(error) = ready!(self.poll_peek(cx)) {
                return Poll::Ready(error);
            }
        }
        // The kernel is queried only once, when the client ends its stream. If the client still holds the connection
        // then, it waits for a response and is served.
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
    /// Appends the next bytes of the connection, up to [`MAX_PEEKED`] in all. Returns 0 at the end of the stream or at
    /// this limit.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn peek(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_peek(cx)).await
    }

    /// [`Self::peek`] as a poll function.
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

    /// Waits up to `longest` for the first byte or the end. Returns false if the other end stays silent.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn speaks(&mut self, longest: Duration) -> io::Result<bool> {
        if self.spoke_at.is_some() {
            return Ok(true);
        }
        match timeout(longest, self.peek()).await {
            Ok(read) => read.map(|_| true),
            Err(_silent) => Ok(false),
        }
    }

    /// Reads until [`judge`] has decided which protocol the client speaks. The future can be dropped, and this method
    /// called again: the bytes that were read are kept, and the time since the first byte continues to count.
    ///
    /// # Errors
    /// The error of the connection. Bytes before a reset are not used.
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
                    // If the time has passed, `judge` is called once more and takes that into account.
                    timeout(left, self.peek()).await.unwrap_or(Ok(0))?;
                }
                verdict => return Ok(verdict),
            }
        }
    }
}

/// Waits until one of the two ends sends, ends or breaks, for up to `longest`; `None` if both stay silent. If the
/// client has sent bytes before, it counts as the first to send.
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

    /// A stream that yields some bytes, then fails like a socket that was reset.
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
    async fn a_reset_during_detection_is_an_error_and_not_an_end() {
        for first in [&b"GE"[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01"] {
            let detected = broken(first).detect(Protocol::Detect, &Waits::OUTBOUND).await;
            assert_eq!(detected.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_of_stream_or_a_long_pause_decides_the_detection() {
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
        // The time counts from the first byte, so a second call decides at once.
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
