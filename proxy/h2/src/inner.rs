//! The state of a connection that its driver and its streams share, and how streams end in it.
//!
//! The code of one connection touches another connection only where streams are linked, and only in this order: the
//! near connection is borrowed and calls a method of the far one. These methods are [`Inner::credit`] and those whose
//! names begin with `far_`. They call no third connection. So no two borrows can conflict.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "windows and counts have bounds that frames are checked against"
)]

use std::cell::{Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::Waker;

use leno_hpack::{Decoder, Encoder};
use tokio::time::Instant;

use crate::code::Code;
use crate::error::{Abuse, ConnError, Reset, ResetBy, count};
use crate::frame::{self, MAX_31};
use crate::limits::Limits;
use crate::live;
use crate::out::Out;
use crate::recv::Reading;
use crate::repeat::Repeats;
use crate::settings::{DEFAULT_WINDOW, PeerSettings};
use crate::slot::{Far, Key, Progress, Slot, Streams, Then};
use crate::tolerance::Tolerance;

/// How many streams that we have reset are remembered, because frames for them may still arrive and must be ignored.
/// By default, slightly fewer streams may be open at once.
const REMEMBERED_RESETS: usize = 256;

/// How many frames without content are tolerated for each frame with content. An ordinary receiver answers a DATA
/// frame with at most three: WINDOW_UPDATE for the stream, WINDOW_UPDATE for the connection, and a PING.
pub(crate) const EMPTY_PER_USEFUL: u32 = 4;

/// The state that a connection's driver and its streams share.
pub(crate) type SharedConn = Rc<Guarded>;

/// The state of a connection. If a panic unwinds through a change of it, the connection ends:
/// half-changed state, such as the encoder's table, would corrupt every stream of the connection.
pub(crate) struct Guarded(RefCell<Inner>);

/// A mutable borrow of the state, during which the state changes.
pub(crate) struct Change<'a> {
    inner: RefMut<'a, Inner>,
    /// Whether a panic was already unwinding when the change began. A destructor then makes the change, which has
    /// nothing to do with the panic.
    panicking: bool,
}

impl Guarded {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(RefCell::new(inner))
    }

    pub(crate) fn borrow(&self) -> Ref<'_, Inner> {
        self.0.borrow()
    }

    #[inline]
    pub(crate) fn borrow_mut(&self) -> Change<'_> {
        Change { inner: self.0.borrow_mut(), panicking: std::thread::panicking() }
    }
}

impl Deref for Change<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Change<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.inner.half_changed = true;
            self.inner.wake_driver();
        }
    }
}

/// The stages of a connection's end.
///
/// ```text
/// Open ──drain()──► Announced ──PING answered, linger passed, or GOAWAY received──► Draining ──no stream──► Closed
///   └── drain() of a client, or GOAWAY received ─────────────────────────────────────▲
/// any of these ── an error, or the end of the byte stream ──► Closed
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// New streams are accepted.
    Open,
    /// GOAWAY with the largest identifier was sent. New streams are still accepted.
    Announced,
    /// New streams are refused. Open streams continue.
    Draining,
    /// The connection has ended.
    Closed,
}

/// The whole state of a connection except its byte stream.
pub(crate) struct Inner {
    pub(crate) client: bool,
    pub(crate) limits: Rc<Limits>,
    pub(crate) out: Out,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    /// Field sections that were received before.
    pub(crate) repeats: Repeats,
    pub(crate) streams: Streams,
    pub(crate) peer: PeerSettings,
    pub(crate) reading: Reading,
    pub(crate) phase: Phase,
    /// Why the connection ended. `None` before that, or if it ended without an error.
    pub(crate) error: Option<ConnError>,

    /// How many bytes this side may still send, over all streams.
    pub(crate) send_window: i64,
    /// How many bytes the peer may still send, over all streams.
    pub(crate) recv_window: i64,
    /// How many bytes of DATA were received and not yet passed on.
    pub(crate) held: usize,
    /// Whether the window is not renewed because too many bytes are held.
    pub(crate) withheld: bool,
    /// The number of streams that have the larger window.
    pub(crate) grown: u32,
    /// The number of streams that the last check found stalled. It decreases when such a stream ends.
    pub(crate) stalled: u32,
    /// Since when DATA has been waiting for the peer to renew the connection's window.
    pub(crate) starved_since: Option<Instant>,
    /// How many bytes of replies were queued since the queue was last empty.
    pub(crate) replies: usize,
    /// Streams with queued DATA and an open window of their own.
    pub(crate) ring: VecDeque<Key>,
    /// The number of streams that have not ended.
    pub(crate) open: u32,

    /// The largest identifier of a stream that the peer opened.
    pub(crate) last_peer_id: u32,
    /// Which of the client's last 64 identifiers up to `last_peer_id` were opened and not skipped. The lowest bit is
    /// for `last_peer_id`, the next one for the identifier before it, which is smaller by two.
    pub(crate) opened_ids: u64,
    /// The identifier of the next stream that this side opens.
    pub(crate) next_id: u32,
    /// The identifiers of streams that this side has reset, the latest last.
    pub(crate) reset_ids: VecDeque<u32>,
    /// Bounds how often the client resets streams.
    pub(crate) resets: Tolerance,
    /// Bounds how often the peer causes resets by this side.
    pub(crate) stream_errors: Tolerance,
    /// Bounds how many frames without content the peer sends.
    pub(crate) empty_frames: Tolerance,

    /// Requests that wait for `accept`.
    pub(crate) accepted: VecDeque<Key>,
    pub(crate) accept_waker: Option<Waker>,
    /// Whether the connection's user has dropped it. The connection then ends with its last stream.
    pub(crate) unused: bool,
    /// Tasks that wait until a stream can be opened, in order, each with its ticket.
    pub(crate) openers: VecDeque<(u64, Waker)>,
    pub(crate) next_ticket: u64,
    /// Tasks that wait for the server's first SETTINGS. At most one per request that the worker has
    /// accepted.
    pub(crate) settling: Vec<Waker>,

    /// Wakes the driver's task. `None` before its first poll and after its end.
    pub(crate) driver: Option<Waker>,
    /// Whether the driver is running or scheduled to run.
    pub(crate) driver_woken: bool,
    /// The number of reads that returned bytes.
    pub(crate) heard: u64,
    /// Whether bytes were written since the clock's last check.
    pub(crate) moved: bool,
    /// Whether the frames just read have woken other tasks, which may have something to write.
    pub(crate) notified: bool,
    /// Whether a panic unwound through a change of this state. The driver then ends the connection.
    pub(crate) half_changed: bool,
}

impl Inner {
    pub(crate) fn new(client: bool, limits: Rc<Limits>) -> Self {
        let next_id = if client { 1 } else { 2 };
        live::change(client, |open| open.connections += 1);
        Self {
            client,
            out: Out::default(),
            decoder: Decoder::new(limits.table_bytes as usize),
            encoder: Encoder::new(limits.encoder_table_bytes as usize),
            repeats: Repeats::default(),
            streams: Streams::default(),
            peer: PeerSettings::default(),
            reading: Reading::default(),
            phase: Phase::Open,
            error: None,
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(limits.connection_window()),
            held: 0,
            withheld: false,
            grown: 0,
            stalled: 0,
            starved_since: None,
            replies: 0,
            ring: VecDeque::new(),
            open: 0,
            last_peer_id: 0,
            opened_ids: 0,
            next_id,
            reset_ids: VecDeque::new(),
            resets: Tolerance::new(limits.resets),
            stream_errors: Tolerance::new(limits.resets),
            empty_frames: Tolerance::new(limits.empty_frames),
            accepted: VecDeque::new(),
            accept_waker: None,
            unused: false,
            openers: VecDeque::new(),
            settling: Vec::new(),
            next_ticket: 0,
            driver: None,
            driver_woken: false,
            heard: 0,
            moved: true,
            notified: false,
            half_changed: false,
            limits,
        }
    }

    /// Makes sure that the driver will run.
    pub(crate) fn wake_driver(&mut self) {
        if !self.driver_woken
            && let Some(driver) = &self.driver
        {
            self.driver_woken = true;
            driver.wake_by_ref();
        }
    }

    /// Queues a control frame.
    pub(crate) fn put(&mut self, frame: &[u8]) {
        self.out.put(frame);
        self.wake_driver();
    }

    /// Queues a reply to a frame. A peer that causes replies and does not read them is
    /// disconnected.
    pub(crate) fn reply(&mut self, frame: &[u8]) -> Result<(), ConnError> {
        self.replies = if self.out.is_empty() { 0 } else { self.replies } + frame.len();
        if self.replies > self.limits.reply_bytes {
            return Err(ConnError::abused(
                Abuse::UnreadReplies,
                "the peer does not read the replies that it causes",
            ));
        }
        self.put(frame);
        Ok(())
    }

    /// Counts a frame without content.
    pub(crate) fn empty_frame(&mut self, abuse: Abuse) -> Result<(), ConnError> {
        if self.empty_frames.take() {
            return Ok(());
        }
        Err(ConnError::abused(abuse, "the peer sent too many frames without content"))
    }

    pub(crate) fn wake_accept(&mut self) {
        if let Some(waker) = self.accept_waker.take() {
            self.notified = true;
            waker.wake();
        }
    }

    /// Resets one stream because the peer broke a rule in it.
    pub(crate) fn stream_error(
        &mut self,
        id: u32,
        code: Code,
        abuse: Option<Abuse>,
    ) -> Result<(), ConnError> {
        if let Some(abuse) = abuse {
            count(abuse);
        }
        self.remember_reset(id);
        self.reply(&frame::rst_stream(id, code))?;
        if let Some(key) = self.streams.key(id) {
            self.end_stream(key, Reset { code, by: ResetBy::Us, unprocessed: false });
        }
        if self.stream_errors.take() {
            return Ok(());
        }
        Err(ConnError::abused(Abuse::StreamErrors, "the peer caused too many stream errors"))
    }

    /// Refuses a stream because memory is short. This does not count as a stream error, of which too many end a
    /// connection, since the connection's other streams should continue.
    pub(crate) fn refuse_for_memory(&mut self, id: u32) -> Result<(), ConnError> {
        count(Abuse::MemoryBudget);
        self.remember_reset(id);
        self.reply(&frame::rst_stream(id, Code::REFUSED_STREAM))
    }

    /// Resets a stream on behalf of its user.
    pub(crate) fn reset(&mut self, key: Key, code: Code) {
        if self.rst(key, code) {
            self.end_stream(key, Reset { code, by: ResetBy::Us, unprocessed: false });
        }
    }

    /// Sends RST_STREAM, unless the stream is over. Returns whether it did.
    pub(crate) fn rst(&mut self, key: Key, code: Code) -> bool {
        let Some(slot) = self.streams.get(key).filter(|slot| !slot.is_over()) else { return false };
        let id = slot.id;
        self.remember_reset(id);
        self.put(&frame::rst_stream(id, code));
        true
    }

    fn remember_reset(&mut self, id: u32) {
        if self.reset_ids.len() == REMEMBERED_RESETS {
            self.reset_ids.pop_front();
        }
        self.reset_ids.push_back(id);
    }

    /// Marks a stream as ended early, and ends the stream that is linked to it.
    pub(crate) fn end_stream(&mut self, key: Key, reset: Reset) {
        let Some(far) = self.end_here(key, reset) else { return };
        let code = match reset.by {
            ResetBy::Connection if self.client => Code::INTERNAL_ERROR,
            ResetBy::Connection => Code::CANCEL,
            // The server is not at fault, so the stream to it is only cancelled.
            ResetBy::Us if !self.client => Code::CANCEL,
            ResetBy::Us if reset.is_stall() => reset.code,
            // The server's message is malformed.
            ResetBy::Us if reset.code == Code::PROTOCOL_ERROR => reset.code,
            ResetBy::Us => Code::INTERNAL_ERROR,
            ResetBy::Peer => reset.code.without_mesh(),
        };
        far.conn.borrow_mut().far_reset(far.key, code);
    }

    /// Resets this stream because the linked stream ended early.
    pub(crate) fn far_reset(&mut self, key: Key, code: Code) {
        if self.rst(key, code) {
            self.end_here(key, Reset { code, by: ResetBy::Us, unprocessed: false });
        }
    }

    /// Ends a stream early on this connection. Returns the linked stream, if there is one.
    fn end_here(&mut self, key: Key, reset: Reset) -> Option<Far> {
        self.streams.get_mut(key).filter(|slot| !slot.is_over())?;
        self.drop_content(key, reset)
    }

    /// Ends a stream and drops the bytes that it holds, even if both directions are complete and only the reader has
    /// not finished. Returns the linked stream, if there is one.
    pub(crate) fn drop_content(&mut self, key: Key, reset: Reset) -> Option<Far> {
        let slot = self.streams.get_mut(key)?;
        slot.reset = Some(reset);
        slot.queue.clear();
        slot.queued = 0;
        slot.then = Then::More;
        let held = std::mem::take(&mut slot.held);
        let far = slot.far.take();
        if reset.code != Code::NO_ERROR || reset.by == ResetBy::Us {
            // Bytes of the body are lost here. If the direction stayed `Ended`, the reader would take the cut body
            // for a complete one.
            if !slot.data.is_empty() {
                slot.recv = Progress::Body;
            }
            slot.data.clear();
        }
        self.held -= held;
        self.renew_connection();
        self.settle(key);
        far
    }

    /// If the stream is over, wakes its tasks, no longer counts it as open, and frees the slot unless a handle still
    /// exists.
    pub(crate) fn settle(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key).filter(|slot| slot.is_over()) else { return };
        slot.wake_recv();
        slot.wake_send();
        self.notified = true;
        if std::mem::take(&mut slot.counted) {
            let clean = slot.reset.is_none();
            self.grown -= u32::from(std::mem::take(&mut slot.grown));
            self.open -= 1;
            live::change(self.client, |open| open.streams -= 1);
            if clean {
                self.resets.give(1);
                self.stream_errors.give(1);
            }
            self.wake_opener();
            if self.open == 0 && (self.phase >= Phase::Draining || self.unused) {
                self.wake_driver();
            }
        }
        self.free(key);
    }

    /// Frees a stream that is over and has no handle.
    fn free(&mut self, key: Key) {
        let done = |slot: &&mut Slot| slot.is_over() && !slot.handle;
        let Some(slot) = self.streams.get_mut(key).filter(done) else { return };
        let held = std::mem::take(&mut slot.held);
        let far = slot.far.take();
        self.streams.remove(key);
        self.held -= held;
        self.renew_connection();
        drop(far);
    }

    /// Called when the server at the far end of the link has sent its whole response and wants no more of the request.
    /// Delivers the rest of the response on this stream, then resets the stream with NO_ERROR.
    pub(crate) fn far_finish(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        if slot.send == Progress::Ended {
            self.far_reset(key, Code::NO_ERROR);
        } else {
            slot.close_after = true;
        }
    }

    /// Called when the stream's user has dropped its handle.
    pub(crate) fn drop_handle(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        slot.handle = false;
        slot.recv_waker = None;
        slot.send_waker = None;
        if slot.is_over() {
            return self.free(key);
        }
        let sending_done = slot.send == Progress::Ended || !matches!(slot.then, Then::More);
        if sending_done && slot.recv == Progress::Ended {
            // Both directions are complete. The driver still sends the queued bytes.
            return;
        }
        if !sending_done {
            return self.reset(key, Code::CANCEL);
        }
        // Everything to send is sent or queued. Only the rest of the received message is not wanted any more.
        if self.client {
            self.reset(key, Code::CANCEL);
        } else if slot.send == Progress::Ended {
            // RFC 9113 section 8.1: the response is complete, so the rest of the request is not
            // needed.
            self.reset(key, Code::NO_ERROR);
        } else {
            slot.close_after = true;
        }
    }

    /// Notes that `count` received bytes of a stream were passed on. Sends a WINDOW_UPDATE for the stream once half
    /// of its window can be renewed. The first one also enlarges the window ([`Limits::grown_window`]), unless too
    /// many streams have a large one.
    pub(crate) fn credit(&mut self, key: Key, count: usize) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        let count = count.min(slot.held);
        slot.held -= count;
        slot.taken = slot.taken.saturating_add(count);
        self.held -= count;
        if slot.recv != Progress::Ended && slot.reset.is_none() {
            let limits = &self.limits;
            let window = if slot.grown { limits.grown_window() } else { limits.stream_window() };
            let mut credit = i64::from(window) - slot.recv_window - slot.held as i64;
            if credit >= i64::from(window / 2) {
                if !slot.grown && self.grown < limits.grown_streams {
                    slot.grown = true;
                    self.grown += 1;
                    credit += i64::from(limits.grown_window() - window);
                }
                slot.recv_window += credit;
                self.put(&frame::window_update(key.id, credit as u32));
            }
        }
        self.renew_connection();
    }

    /// Gives the peer credit for the whole connection once half of its window is used. Bytes that are still held count
    /// as used, too, so that no stream waits for the reader of another. There is no credit while all streams together
    /// hold more than [`Limits::held_bytes`].
    pub(crate) fn renew_connection(&mut self) {
        let window = i64::from(self.limits.connection_window());
        let credit = window - self.recv_window;
        if credit < window / 2 || self.error.is_some() {
            return;
        }
        if self.held >= self.limits.held_bytes {
            if !std::mem::replace(&mut self.withheld, true) {
                count(Abuse::HeldBytes);
            }
            return;
        }
        self.withheld = false;
        self.recv_window += credit;
        self.put(&frame::window_update(0, credit as u32));
    }

    /// Whether a stream may be opened, and if not, why.
    pub(crate) fn can_open(&self) -> Result<(), crate::OpenError> {
        use crate::OpenError::{Closed, Full};
        let limit = self.peer.concurrent.min(self.limits.opened_streams);
        if self.phase != Phase::Open || self.next_id > MAX_31 || !self.client {
            Err(Closed)
        } else if self.open >= limit {
            Err(Full)
        } else {
            Ok(())
        }
    }

    /// Wakes the next task that waits to open a stream.
    pub(crate) fn wake_opener(&mut self) {
        if self.openers.is_empty() || self.can_open() == Err(crate::OpenError::Full) {
            return;
        }
        if let Some((_, waker)) = self.openers.pop_front() {
            waker.wake();
        }
    }

    /// Wakes all tasks that wait to open a stream or for the peer's SETTINGS.
    pub(crate) fn wake_all_openers(&mut self) {
        let openers = self.openers.drain(..).map(|(_, waker)| waker);
        openers.chain(self.settling.drain(..)).for_each(Waker::wake);
    }

    /// Whether the peer's SETTINGS have arrived, or the connection has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.reading.has_settings() || self.phase == Phase::Closed
    }

    /// Ends the connection and all its streams. A stream whose head was not written is marked as
    /// unprocessed.
    pub(crate) fn close(&mut self, error: Option<ConnError>) {
        if self.phase == Phase::Closed {
            return;
        }
        self.phase = Phase::Closed;
        let code = error.as_ref().map_or(Code::NO_ERROR, |error| error.code);
        self.error = error;
        let written = self.out.written();
        for place in 0..self.streams.places() {
            let Some(key) = self.streams.at(place) else { continue };
            let Some(slot) = self.streams.get(key).filter(|slot| !slot.is_over()) else { continue };
            let unprocessed = self.client && slot.head_at >= written;
            self.end_stream(key, Reset { code, by: ResetBy::Connection, unprocessed });
        }
        // Requests that were not accepted will never have a user.
        while let Some(key) = self.accepted.pop_front() {
            self.drop_handle(key);
        }
        self.ring.clear();
        self.wake_accept();
        self.wake_all_openers();
    }

    /// The largest payload of a DATA frame to the peer.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.peer.frame_bytes.min(self.limits.frame_bytes.max(16_384)) as usize
    }

    /// Starts a graceful end.
    pub(crate) fn drain(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        if self.client {
            self.phase = Phase::Draining;
            self.wake_all_openers();
        } else {
            // RFC 9113 section 6.8: requests that the client sent before it saw the GOAWAY are
            // still accepted. The reply to the PING proves that the client has seen it.
            self.phase = Phase::Announced;
            self.put(&frame::goaway(MAX_31, Code::NO_ERROR));
            self.put(&frame::ping(false, DRAIN_PING));
        }
        self.wake_driver();
    }

    /// Sends the final GOAWAY, because the peer has seen the first one or had enough time for it.
    pub(crate) fn drain_for_good(&mut self) {
        if self.phase == Phase::Announced {
            self.phase = Phase::Draining;
            let last = self.last_peer_id;
            self.put(&frame::goaway(last, Code::NO_ERROR));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let left = u64::from(self.open);
        live::change(self.client, |open| {
            open.connections -= 1;
            open.streams -= left;
        });
    }
}

/// The payload of the PING in a drain.
pub(crate) const DRAIN_PING: [u8; 8] = *b"leno/end";

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;
    use crate::head::Head;

    fn request() -> Head {
        [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")]
            .into_iter()
            .collect()
    }

    /// A panic while the connection is being changed ends the connection. A panic in a task that
    /// only owns a stream ends that stream alone.
    #[test]
    fn a_panic_within_a_change_ends_the_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let limits = Rc::new(Limits::default());
            let (near, far) = tokio::io::duplex(1 << 16);
            let (mut accept, server) = crate::server(far, &[], &limits);
            let (client, driver) = crate::client(near, &limits);
            let (server, driver) = (spawn_local(server.run()), spawn_local(driver.run()));
            let beside = client.open(&request(), true).unwrap();
            let within = client.open(&request(), true).unwrap();
            let mut other = client.open(&request(), true).unwrap();
            let mut answered = Vec::new();
            for _ in 0..3 {
                answered.push(accept.accept().await.unwrap());
            }
            let panicked = spawn_local(async move {
                let _beside = beside;
                yield_now().await;
                panic!("wanted by this test");
            });
            assert!(panicked.await.unwrap_err().is_panic());
            assert!(client.is_open() && other.reset_reason().is_none());
            let panicked = spawn_local(async move {
                let _half_changed = within.conn.borrow_mut();
                panic!("wanted by this test");
            });
            assert!(panicked.await.unwrap_err().is_panic());
            assert_eq!(
                driver.await.unwrap().unwrap_err().what,
                "a task of this connection panicked"
            );
            assert_eq!(other.head().await.unwrap_err().by, ResetBy::Connection);
            assert!(!client.is_open());
            // The server saw that the connection broke, and did not receive an incomplete frame.
            assert!(server.await.unwrap().unwrap_err().io.is_some());
        });
    }
}
