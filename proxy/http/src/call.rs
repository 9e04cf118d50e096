//! A request on a stream of an HTTP/2 connection.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "pieces and bytes of a body that are in memory"
)]

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_h2::{
    Head, Piece, Request, Reset, Stream, has_reserved, is_identity_field, is_mesh_field,
    remove_reserved,
};
use leno_hpack::{Block, Token};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::edit::{Edits, HeaderLine, INTERNAL, edit_block};
use crate::exchange::Exchange;
use crate::failure::{Cause, Failure, Party, reset_code};
use crate::grpc;
use crate::head::{HeadError, RequestHead, RequestView, is_authority, is_host_and_port};
use crate::now;
use crate::translate::Carried;

/// How much later than the client's own deadline the proxy ends the call. The client enforces its deadline itself, and
/// should see the same result with and without a mesh. The proxy only ends calls that clients leave open.
const DEADLINE_GRACE: Duration = Duration::from_millis(100);

/// The header with which a client's proxy tells the server's proxy that an operator watches this request (a tap). Its
/// value is the request's mark: a number by which the events of both proxies are joined.
const TAP_MARK: &[u8] = b"leno-tap";

/// How many bytes of a request's body are held for a retry until the response begins: as many as a stream may queue
/// anyway, and more than most calls send.
const HELD_BYTES: usize = 64 * 1024;

/// One request of an HTTP/2 client, and the stream on which it is answered. Dropping it before it was answered resets
/// the stream with CANCEL.
#[derive(Debug)]
pub struct Call {
    head: Head,
    /// The stream. `None` once the connections relay the rest themselves, and in a copy whose response was not chosen.
    stream: Option<Stream>,
    /// If this is a copy of the call: where the client's stream is kept, which all copies share, until the response of
    /// one of them is chosen for the client.
    aside: Option<Rc<RefCell<Option<Stream>>>>,
    /// The value of the internal header `leno-h1` (see `translate::carried`), if the client is another proxy and has
    /// sent it.
    carried: Option<SmallVec<[u8; 32]>>,
    /// The mark that the client's proxy has added because it taps the request.
    tap_mark: Option<NonZeroU64>,
    /// The parts of the body that were read so far, which are held for a retry.
    held: SmallVec<[Piece; 4]>,
    held_bytes: usize,
    /// The trailers, once the end of the body was read.
    trailers: Option<Head>,
    /// Whether all of the body was read.
    ended: bool,
    /// Whether parts of the body were read that are no longer held, or will not be held.
    used: bool,
    /// The deadline, which comes from `grpc-timeout`.
    deadline: Option<Instant>,
    grpc: bool,
    /// Whether the client is another proxy of the mesh.
    is_mesh: bool,
}

/// The next part of a request's body.
pub(crate) enum BodyPart {
    Data(Piece),
    /// The end of the body. The trailers are in [`Call::trailers`].
    End,
}

impl Call {
    /// A request of a client that is not trusted, for example an application.
    pub fn new(request: Request) -> Self {
        Self::with(request, false)
    }

    /// A request of another proxy of the mesh, whose identity was checked. Such a request may contain the details of an
    /// HTTP/1 request.
    pub fn from_mesh(request: Request) -> Self {
        Self::with(request, true)
    }

    fn with(Request { mut head, stream, .. }: Request, is_mesh: bool) -> Self {
        let internal = take_internal(&mut head);
        let mut tap_mark = None;
        if has_reserved(&head, is_mesh_field) {
            tap_mark = tap_mark_of(&head).filter(|_| is_mesh);
            remove_reserved(&mut head, is_mesh_field);
        }
        let grpc = grpc::has_grpc(&head);
        let timeout = head.find(Token::GRPC_TIMEOUT).filter(|_| grpc).and_then(grpc::grpc_timeout);
        Self {
            deadline: timeout
                .and_then(|timeout| now().checked_add(timeout.saturating_add(DEADLINE_GRACE))),
            head,
            stream: Some(stream),
            aside: None,
            carried: internal.filter(|_| is_mesh),
            tap_mark,
            held: SmallVec::new(),
            held_bytes: 0,
            trailers: None,
            ended: false,
            used: false,
            grpc,
            is_mesh,
        }
    }

    /// Removes the headers that tell an application who its client is, because the client has written them itself.
    #[must_use]
    pub fn without_identity(mut self) -> Self {
        remove_reserved(&mut self.head, is_identity_field);
        self
    }

    /// A view of the head.
    pub fn view(&self) -> RequestView<'_> {
        RequestView::of_http2(&self.head, self.method())
    }

    /// The method that the request would have in HTTP/1.
    fn method(&self) -> &[u8] {
        match self.head.find(Token::METHOD).unwrap_or_default() {
            b"CONNECT" if self.is_extended_connect() => {
                let carried = self.carried().and_then(Carried::parse);
                carried.and_then(|carried| carried.method).unwrap_or(b"GET")
            }
            method => method,
        }
    }

    /// Whether the content type is that of a gRPC call: errors are then gRPC statuses.
    pub fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Whether another proxy of the mesh reports that the original request was HTTP/1.
    pub fn was_http1(&self) -> bool {
        self.carried.is_some()
    }

    /// The mark that another proxy of the mesh added because it taps the request.
    pub fn tap_mark(&self) -> Option<NonZeroU64> {
        self.tap_mark
    }

    /// When an exchange must end, which is a little after the client's `grpc-timeout` has passed.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the client's own `grpc-timeout` has passed.
    pub(crate) fn is_given_up(&self) -> bool {
        let left = self.deadline.map(|at| at.saturating_duration_since(now()));
        left.is_some_and(|left| left <= DEADLINE_GRACE)
    }

    /// Sends a response that the proxy generates. A gRPC call gets a response without a message ("Trailers-Only"),
    /// whose `grpc-status` is derived from the answer's status.
    pub fn respond(mut self, answer: &Answer<'_>) {
        let to_head = self.is_head();
        let Some(stream) = &mut self.stream else { return };
        if self.grpc && answer.cause.is_some() {
            stream.send_head(&answer.grpc_head(), true);
            return;
        }
        let head = answer.head();
        let body = if to_head { Piece::default() } else { answer.h2_body() };
        if stream.send_head(&head, body.is_empty()) && !body.is_empty() {
            stream.send_data(body, true);
        }
    }

    /// Ends the call after an exchange: answers it if the exchange has failed before any part of a response was sent,
    /// and resets it if a response was truncated. The caller should retry first if it can.
    pub fn conclude(self, done: &Exchange) {
        match &done.failure {
            None => {}
            Some(failure) => match failure.status() {
                Some(status) if !done.response_started => {
                    self.respond(&Answer::error(status, failure.cause.label()));
                }
                // A reset, so that a truncated response is not mistaken for a complete one.
                _ => {
                    let code = reset_code(failure, self.is_mesh);
                    if let Some(stream) = self.stream {
                        stream.reset(code);
                    }
                }
            },
        }
    }

    /// Refuses requests that HTTP/2 permits and the mesh does not. A CONNECT must be an extended one (RFC 8441), unless
    /// `connect` permits others. The authority must be a plain host: policies depend on the host, and servers interpret
    /// everything else differently.
    pub(crate) fn check(&self, connect: bool) -> Result<(), HeadError> {
        let hosts = [self.head.find(Token::AUTHORITY), self.head.find(Token::HOST)];
        if self.is_connect() && !connect {
            Err(HeadError::Connect)
        } else if (self.is_connect() && !hosts.into_iter().flatten().all(is_host_and_port))
            || (self.is_asterisk() && self.method() != b"OPTIONS")
        {
            Err(HeadError::Target)
        } else if hosts.into_iter().flatten().all(is_authority) {
            Ok(())
        } else {
            Err(HeadError::HostMalformed)
        }
    }

    /// Whether the target is `*`.
    pub(crate) fn is_asterisk(&self) -> bool {
        self.head.find(Token::PATH) == Some(b"*")
    }

    /// Whether the response has no body because the method is HEAD.
    pub(crate) fn is_head(&self) -> bool {
        self.head.find(Token::METHOD) == Some(b"HEAD")
    }

    /// Whether the request opens a tunnel: a CONNECT that is not extended.
    pub(crate) fn is_connect(&self) -> bool {
        self.head.find(Token::METHOD) == Some(b"CONNECT") && !self.is_extended_connect()
    }

    /// Whether the client is another proxy of the mesh, with a proven identity.
    pub fn is_of_mesh(&self) -> bool {
        self.is_mesh
    }

    /// Whether the request is an extended CONNECT (RFC 8441).
    pub(crate) fn is_extended_connect(&self) -> bool {
        self.head.find(Token::PROTOCOL).is_some()
    }

    /// Ready when the client has reset its request, or its connection has ended.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        match &mut self.stream {
            Some(stream) => poll_gone(stream, cx),
            None => Poll::Pending,
        }
    }

    pub(crate) fn head(&self) -> &Block {
        &self.head
    }

    /// The head, changed by `edits`.
    pub(crate) fn edited_head(&self, edits: &Edits<'_>) -> Head {
        let mut head = self.head.clone();
        edit_block(&mut head, edits);
        head
    }

    pub(crate) fn carried(&self) -> Option<&[u8]> {
        self.carried.as_deref()
    }

    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    /// How the client has ended its stream early, if it has.
    pub(crate) fn reset_reason(&self) -> Option<Reset> {
        self.stream.as_ref().and_then(Stream::reset_reason)
    }

    pub(crate) fn take_stream(&mut self) -> Option<Stream> {
        self.stream.take()
    }

    pub(crate) fn give_stream(&mut self, stream: Option<Stream>) {
        self.stream = stream;
    }

    /// A copy of a call that has been received completely. `aside` contains the client's stream.
    pub(crate) fn copied(&self, aside: &Rc<RefCell<Option<Stream>>>) -> Self {
        Self {
            head: self.head.clone(),
            stream: None,
            aside: Some(Rc::clone(aside)),
            carried: self.carried.clone(),
            tap_mark: self.tap_mark,
            held: self.held.clone(),
            held_bytes: self.held_bytes,
            trailers: self.trailers.clone(),
            ended: true,
            used: false,
            deadline: self.deadline,
            grpc: self.grpc,
            is_mesh: self.is_mesh,
        }
    }

    /// Called when this call's response is chosen for the client. If this is a copy, it takes the client's stream.
    pub(crate) fn claim(&mut self) {
        if let Some(aside) = self.aside.take() {
            self.stream = aside.take();
        }
    }

    /// Whether there is no body, as far as this is known now.
    pub(crate) fn is_empty(&self) -> bool {
        let ended = self.stream.as_ref().is_none_or(Stream::is_ended_without_rest);
        self.held.is_empty() && !self.used && self.trailers.is_none() && (self.ended || ended)
    }

    /// Whether the whole request is still held.
    pub(crate) fn is_replayable(&self) -> bool {
        !self.used && (self.stream.is_some() || self.aside.is_some())
    }

    /// Whether some of the body has arrived. Always true without a stream.
    pub(crate) fn has_begun(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.bytes().0 > 0)
    }

    pub(crate) fn trailers(&self) -> Option<&Head> {
        self.trailers.as_ref()
    }

    /// The next part of the body, after the `at` held pieces that this attempt has already read. Newly read bytes are
    /// held as long as [`HELD_BYTES`] permit. This gives the client flow-control credit for them, so the caller must
    /// first wait until there is room for them.
    pub(crate) fn poll_part(
        &mut self,
        at: &mut usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyPart, Reset>> {
        if let Some(piece) = self.held.get(*at) {
            *at += 1;
            return Poll::Ready(Ok(BodyPart::Data(piece.clone())));
        }
        if self.ended {
            return Poll::Ready(Ok(BodyPart::End));
        }
        let Some(piece) = ready!(self.poll_read(cx))? else {
            return Poll::Ready(Ok(BodyPart::End));
        };
        if self.used || self.held_bytes + piece.len() > HELD_BYTES {
            self.stop_holding(at);
        } else {
            self.held_bytes += piece.len();
            self.held.push(piece.clone());
            *at += 1;
        }
        Poll::Ready(Ok(BodyPart::Data(piece)))
    }

    pub(crate) const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The parts of the body that were read and are held for the relay.
    pub(crate) fn held_pieces(&self) -> &[Piece] {
        &self.held
    }

    /// Whether all of the body was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads and holds one more part of the body, however much is already held. Returns false if the stream has no
    /// more.
    pub(crate) fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.stream.is_none() {
            return Poll::Ready(false);
        }
        // The relay will notice the reset, too.
        self.poll_kept(cx).map(|kept| kept.is_ok())
    }

    /// Reads and holds one more part of the body.
    pub(crate) fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reset>> {
        if let Some(piece) = ready!(self.poll_read(cx))? {
            self.held_bytes += piece.len();
            // Small pieces are joined, because each would occupy a whole chunk of memory.
            let fits = self.held.last_mut().is_some_and(|last| last.try_append(&piece));
            if !fits {
                self.held.push(piece);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Tells the client to send its body.
    pub(crate) fn send_continue(&mut self) {
        if let Some(stream) = &mut self.stream {
            let mut head = Head::default();
            head.push(b":status", b"100");
            // If the stream is over, an attempt to read its body returns the reason.
            let _sent = stream.send_head(&head, false);
        }
    }

    /// Reads the next piece of the body and gives the client credit for it. At the end it reads the trailers.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Reset>> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        let piece = ready!(stream.poll_data(cx))?;
        match &piece {
            Some(piece) => stream.release(piece.len()),
            None => {
                self.ended = true;
                self.trailers = stream.trailers();
            }
        }
        Poll::Ready(Ok(piece))
    }

    /// Called when there will be no retry, because the response has begun or too much is held. Drops only the first
    /// `at` pieces, which were passed on.
    pub(crate) fn stop_holding(&mut self, at: &mut usize) {
        self.used = true;
        self.held.drain(..self.held.len().min(std::mem::take(at)));
    }
}

/// Ready when the client has reset the stream.
pub(crate) fn poll_gone(stream: &mut Stream, cx: &mut Context<'_>) -> Poll<Failure> {
    match stream.poll_closed(cx) {
        Poll::Ready(Some(reset)) => Poll::Ready(Failure::new(Party::Client, Cause::Reset(reset))),
        _ => Poll::Pending,
    }
}

/// The mark in a head, which [`tap_mark_line`] has written.
fn tap_mark_of(head: &Block) -> Option<NonZeroU64> {
    let field = head.field(head.position(TAP_MARK)?)?;
    mark_in(field.value())
}

fn mark_in(value: &[u8]) -> Option<NonZeroU64> {
    let text = std::str::from_utf8(value).ok()?;
    u64::from_str_radix(text, 16).ok().and_then(NonZeroU64::new)
}

impl RequestHead {
    /// The mark that a client has added because it taps the request; the client must be another proxy of the mesh.
    /// `bytes` are those from which the head was parsed.
    pub fn tap_mark(&self, bytes: &[u8]) -> Option<NonZeroU64> {
        // Most requests have no header of the mesh.
        if !self.meaning.mesh {
            return None;
        }
        self.view(bytes).header(std::str::from_utf8(TAP_MARK).ok()?).and_then(mark_in)
    }
}

/// The header that marks a request for the proxy of its server, so that the events of both proxies' taps can be joined.
pub fn tap_mark_line(mark: NonZeroU64) -> Option<HeaderLine> {
    let name = std::str::from_utf8(TAP_MARK).ok()?;
    HeaderLine::new(name, format!("{mark:016x}").as_bytes()).ok()
}

/// Removes the mesh's internal header. Returns its value if the header was present exactly once.
pub(crate) fn take_internal(head: &mut Block) -> Option<SmallVec<[u8; 32]>> {
    let index = head.position(INTERNAL)?;
    let value = head.field(index).map(|field| SmallVec::from_slice(field.value()));
    (head.remove_all(INTERNAL) == 1).then_some(value).flatten()
}
