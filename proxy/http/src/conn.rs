//! One HTTP/1 connection, on either side.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "bounded waits after the present time, and counts of bytes and requests"
)]

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use leno_transport::budget;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use crate::Io;
use crate::alarm::Alarm;
use crate::answer::Answer;
use crate::body::BodyWalker;
use crate::departure::DepartureChecks;
use crate::failure::{Cause, Failure, Party, Report};
use crate::head::{RequestHead, Version};
use crate::limits::Limits;
use crate::now;
use crate::pool::Buffer;
use crate::received::Received;

/// The cause in the answer that is sent in place of an answer whose headers do not fit into the largest buffer.
const ANSWER_TOO_LARGE: &str = "answer-too-large";

/// A connection to a client or to a server. It holds a buffer only while it has bytes to store.
#[derive(Debug)]
pub struct Conn<S> {
    pub(crate) io: S,
    pub(crate) received: Received,
    pub(crate) alarm: Alarm,
    /// Whether the other side has ended its stream.
    pub(crate) read_closed: bool,
    /// The checks whether the client has left. `None` until the first check.
    pub(crate) departure: Option<Box<DepartureChecks>>,
    /// Whether some bytes of an unfinished message were dropped, so that the rest cannot be read as a message.
    pub(crate) lost: bool,
    /// Whether the client has declared that its last request is the last on this connection (RFC 9112 section 9.6), and
    /// this request has been received completely.
    pub(crate) last: bool,
    /// The number of completed exchanges.
    pub(crate) exchanges: u64,
}

impl<S: Io> Conn<S> {
    /// A connection from which nothing was read yet.
    pub fn new(io: S) -> Self {
        Self::with_received(io, &[])
    }

    /// A connection from which `bytes` (256 KiB at most) were read already, to detect its protocol.
    pub fn with_received(io: S, bytes: &[u8]) -> Self {
        Self {
            io,
            received: Received::with_bytes(bytes),
            alarm: Alarm::default(),
            read_closed: false,
            departure: None,
            lost: false,
            last: false,
            exchanges: 0,
        }
    }

    /// The underlying stream.
    pub fn io(&self) -> &S {
        &self.io
    }

    /// The underlying stream, mutable.
    pub fn io_mut(&mut self) -> &mut S {
        &mut self.io
    }

    /// The bytes that were received and not yet used. Until an exchange begins, they begin with the head of its
    /// request.
    pub fn received(&self) -> &[u8] {
        self.received.bytes()
    }

    /// The number of exchanges that were completed on this connection.
    pub fn exchanges(&self) -> u64 {
        self.exchanges
    }

    /// Waits for the next request. Returns `None` if the client has ended its stream or was idle for too long. A
    /// request that begins while the memory budget of this thread ([`budget`]) is used up fails with
    /// [`Cause::MemoryBudget`].
    pub async fn read_request(&mut self, limits: &Limits) -> Result<Option<RequestHead>, Failure> {
        let never = pin!(std::future::pending());
        if !self.request_begins(limits.idle, never, &mut false).await {
            return Ok(None);
        }
        let mut head = RequestHead::default();
        Ok(self.read_head(&mut head, limits).await?.then_some(head))
    }

    /// Waits up to `longest` for the first byte of a request, or until `leave` is ready, because the proxy drains.
    /// `left` stores whether `leave` was ready, in this call or an earlier one. Returns `false` if no request has
    /// begun.
    ///
    /// Idle connections wait here, so this future must be small.
    pub(crate) async fn request_begins<L: Future<Output = ()>>(
        &mut self,
        longest: Duration,
        mut leave: Pin<&mut L>,
        left: &mut bool,
    ) -> bool {
        let (mut skipped, mut until) = (false, None);
        poll_fn(|cx| {
            let polled = self.poll_begins(longest, (&mut skipped, &mut until), cx);
            if polled.is_ready() {
                return polled;
            }
            *left = *left || leave.as_mut().poll(cx).is_ready();
            if *left { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    fn poll_begins(
        &mut self,
        longest: Duration,
        (skipped, until): (&mut bool, &mut Option<Instant>),
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        while self.skip_empty_line(skipped) {
            if self.read_closed {
                return Poll::Ready(false);
            }
            match self.received.poll_fill(&mut self.io, cx) {
                Poll::Ready(Ok(0)) => self.read_closed = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => {
                    let until = *until.get_or_insert_with(|| now() + longest);
                    return self.alarm.poll_at(until, cx).map(|()| false);
                }
            }
        }
        Poll::Ready(true)
    }

    /// Reads the head of a request that has begun into `head`, which the caller provides because it is too large to be
    /// moved. Returns `false` if the bytes were only the rest of an empty line.
    pub(crate) async fn read_head(
        &mut self,
        head: &mut RequestHead,
        limits: &Limits,
    ) -> Result<bool, Failure> {
        let mut until = None;
        poll_fn(|cx| self.poll_head(head, &mut until, limits, cx)).await
    }

    fn poll_head(
        &mut self,
        head: &mut RequestHead,
        until: &mut Option<Instant>,
        limits: &Limits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Failure>> {
        let refused = |error| Failure::new(Party::Client, Cause::Head(error));
        loop {
            if !budget::admits() {
                return Poll::Ready(Err(Failure::new(Party::Us, Cause::MemoryBudget)));
            }
            if head.parse(self.received.bytes(), limits).map_err(refused)? {
                return Poll::Ready(Ok(true));
            }
            if self.read_closed {
                return Poll::Ready(match self.received.bytes() {
                    [b'\r'] => Ok(false),
                    _ => Err(Failure::new(Party::Client, Cause::Closed)),
                });
            }
            match self.received.poll_fill(&mut self.io, cx) {
                Poll::Ready(Ok(0)) => self.read_closed = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Failure::new(Party::Client, Cause::Broken(error))));
                }
                Poll::Pending => {
                    let until = *until.get_or_insert_with(|| now() + limits.head);
                    ready!(self.alarm.poll_at(until, cx));
                    return Poll::Ready(Err(Failure::new(Party::Client, Cause::HeadTimeout)));
                }
            }
        }
    }

    /// Skips one empty line before a request (RFC 9112 section 2.2), because some clients send one CRLF too many after
    /// a body. Returns whether the received bytes may still be such a line, or whether there are none.
    fn skip_empty_line(&mut self, skipped: &mut bool) -> bool {
        if !*skipped && self.received.bytes().starts_with(b"\r\n") {
            self.received.consume(2);
            *skipped = true;
        }
        match self.received.bytes() {
            [] => true,
            [b'\r'] => !*skipped,
            _ => false,
        }
    }

    /// Ready when the client has left, or its connection broke, while its request waits for a server. Bytes that the
    /// client sends meanwhile are stored as far as there is room. If there is no room, nothing is read and the end of
    /// the stream is not noticed, so the kernel is queried instead.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let gone = |cause| Poll::Ready(Failure::new(Party::Client, cause));
        while !self.read_closed && self.received.has_room() {
            if let Some(checks) = &mut self.departure {
                checks.reads_again();
            }
            match ready!(self.received.poll_fill(&mut self.io, cx)) {
                Ok(0) => self.read_closed = true,
                Ok(_) => {}
                Err(error) => return gone(Cause::Broken(error)),
            }
        }
        let (io, checks) = (&self.io, self.departure.get_or_insert_default());
        ready!(match self.read_closed {
            true => checks.poll_left(|| io.presence(), cx),
            false => checks.poll_left_unread(|| io.presence(), cx),
        });
        gone(Cause::Closed)
    }

    /// Whether the kernel says that the client has left.
    pub(crate) fn has_left(&mut self) -> bool {
        let io = &self.io;
        self.departure.get_or_insert_default().has_left(|| io.presence())
    }

    /// Whether [`Self::has_left`] may return true.
    pub(crate) fn can_tell_departure(&self) -> bool {
        !self.departure.as_ref().is_some_and(|checks| checks.is_unknown())
    }

    /// Sends a response that the proxy generates, to `request` or to bytes that are not a request. Returns whether the
    /// connection can be reused; the response's `Connection` header tells the client the same. Fails if the client does
    /// not read the response in time.
    pub async fn respond(
        &mut self,
        request: Option<&RequestHead>,
        answer: &Answer<'_>,
    ) -> io::Result<bool> {
        self.respond_and(request, answer, true).await
    }

    /// Like [`respond`](Self::respond). The client may send another request only if `keep` is true.
    pub(crate) async fn respond_and(
        &mut self,
        request: Option<&RequestHead>,
        answer: &Answer<'_>,
        keep: bool,
    ) -> io::Result<bool> {
        // Bytes that follow a CONNECT may already be meant for the tunnel, and must not be parsed as a request.
        let kept =
            request.filter(|head| keep && head.keep_alive() && !head.is_connect && !self.lost);
        let used = kept.and_then(|request| self.whole_request(request));
        let to_head = request.is_some_and(|request| request.is_head);
        let connection = match (used, request.map(RequestHead::version)) {
            (None, _) => "Connection: close\r\n",
            (Some(_), Some(Version::Http10)) => "Connection: keep-alive\r\n",
            (Some(_), _) => "",
        };
        let (rendered, rest) = answer
            .render(connection, to_head)
            .or_else(|_| Answer::error(500, ANSWER_TOO_LARGE).render(connection, to_head))
            .map_err(io::Error::other)?;
        self.write_answer(rendered.bytes(), rest).await?;
        if let Some(used) = used {
            self.received.consume(used);
            self.received.settle();
            self.exchanges += 1;
        }
        Ok(used.is_some())
    }

    /// The length of the request with its body, if all of it has been received.
    pub(crate) fn whole_request(&self, request: &RequestHead) -> Option<usize> {
        let mut walker = BodyWalker::new(request.framing());
        let body = self.received.bytes().get(request.len()..)?;
        let length = walker.walk(body).ok()?;
        walker.is_done().then_some(request.len() + length)
    }

    /// Whether a pooled connection to a server may be used for another request. It may if nothing was received while it
    /// was idle, neither bytes nor the end of the stream. This costs no system call unless something was received.
    pub fn is_quiet(&mut self) -> bool {
        self.poll_unquiet(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Ready when a pooled connection can no longer be used; see [`Self::is_quiet`].
    pub fn poll_unquiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.received.is_empty() || self.read_closed || self.lost {
            return Poll::Ready(());
        }
        self.received.poll_fill(&mut self.io, cx).map(|outcome| {
            self.read_closed |= !matches!(outcome, Ok(count) if count > 0);
        })
    }

    /// Closes the connection: ends the stream, and then reads what the client still sends until the client has seen the
    /// end, or a limit is reached. If it were closed at once, the kernel would answer further bytes with a reset, which
    /// can destroy a response that the client has not read yet.
    pub async fn close(mut self, limits: &Limits) {
        if (self.last || self.read_closed)
            && self.received.is_empty()
            && self.io.ends_when_dropped()
        {
            // No more bytes will arrive, so the kernel does not send a reset.
            return;
        }
        let deadline = Instant::now() + limits.linger;
        let mut left = limits.linger_bytes;
        let mut shut = false;
        poll_fn(|cx| {
            if !shut {
                match Pin::new(&mut self.io).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            loop {
                let held = self.received.bytes().len();
                self.received.consume(held);
                match self.received.poll_fill(&mut self.io, cx) {
                    Poll::Ready(Ok(count)) if count > 0 && count <= left => left -= count,
                    Poll::Ready(_) if shut => return Poll::Ready(()),
                    Poll::Ready(_) | Poll::Pending => break,
                }
            }
            self.alarm.poll_at(deadline, cx)
        })
        .await;
    }

    /// Ends the connection in the middle of a message, so that a truncated response is not mistaken for a complete one.
    /// `report` is the cause, for another proxy.
    pub fn abort(mut self, report: Option<Report>) {
        self.io.cut(report.map(Report::number));
    }

    /// The stream, and the bytes that were received and not used.
    pub fn into_parts(mut self) -> (S, Vec<u8>) {
        let received = self.received.bytes().to_vec();
        self.received = Received::new(Buffer::default());
        (self.io, received)
    }
}

/// Writes some bytes as one step of a future. If the stream accepts no bytes, this fails with `WriteZero`.
pub(crate) fn poll_write_some<S: AsyncWrite + Unpin>(
    io: &mut S,
    slices: &[io::IoSlice<'_>],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let written = match slices {
        [only] => ready!(Pin::new(io).poll_write(cx, only)),
        _ => ready!(Pin::new(io).poll_write_vectored(cx, slices)),
    };
    match written {
        Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        other => Poll::Ready(other),
    }
}
