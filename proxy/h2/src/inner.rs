//! The state of a connection that its driver and its streams share, and how streams end in it.
//!
//! Two connections touch each other only where streams are linked, and only in this order: a
//! method named `far_*` is called by the other connection while that one is borrowed, and calls
//! nobody further. So no two borrows can meet.

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

/// Streams that we have reset, of which frames may still be under way: those are ignored. As many
/// as may be open at a time.
const REMEMBERED_RESETS: usize = 256;

/// Frames that carry nothing which are forgiven for one that does: a WINDOW_UPDATE of both levels
/// for each frame of DATA, and a PING.
pub(crate) const EMPTY_PER_USEFUL: u32 = 4;

/// Shared by a connection's driver and its streams.
pub(crate) type Shared = Rc<Guarded>;

/// The state of a connection, which ends if a panic passes through a change of it: what is half
/// changed, such as the encoder's table, would corrupt every stream of the connection.
pub(crate) struct Guarded(RefCell<Inner>);

/// The state while it is being changed.
pub(crate) struct Change<'a> {
    inner: RefMut<'a, Inner>,
    /// The change was begun by a drop during a panic that had nothing to do with it.
    panicking: bool,
}

impl Guarded {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(RefCell::new(inner))
    }

    pub(crate) fn borrow(&self) -> Ref<'_, Inner> {
        self.0.borrow()
    }

    pub(crate) fn borrow_mut(&self) -> Change<'_> {
        Change { inner: self.0.borrow_mut(), panicking: std::thread::panicking() }
    }
}

impl Deref for Change<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.inner.half_changed = true;
            self.inner.wake_driver();
        }
    }
}

/// How far the end of a connection has got.
///
/// ```text
/// Open ──drain()──► Announced ──PING answered, or linger──► Draining ──no stream──► Closed
///   └───────────────client; or GOAWAY received──────────────▲
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// New streams are taken.
    Open,
    /// GOAWAY with the largest identifier was sent: new streams are still taken.
    Announced,
    /// No new streams; those that are there go on.
    Draining,
    /// Nothing goes on.
    Closed,
}

/// Everything about a connection but its byte stream.
pub(crate) struct Inner {
    pub(crate) client: bool,
    pub(crate) limits: Rc<Limits>,
    pub(crate) out: Out,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    /// Sections that have come before.
    pub(crate) repeats: Repeats,
    pub(crate) streams: Streams,
    pub(crate) peer: PeerSettings,
    pub(crate) reading: Reading,
    pub(crate) phase: Phase,
    /// Why it ended, once it has.
    pub(crate) error: Option<ConnError>,

    /// What we may still send, over all streams.
    pub(crate) send_window: i64,
    /// What the other side may still send, over all streams.
    pub(crate) recv_window: i64,
    /// Bytes of DATA received and not passed on.
    pub(crate) held: usize,
    /// The window is not renewed, because too much is held.
    pub(crate) withheld: bool,
    /// Streams that have the larger window.
    pub(crate) grown: u32,
    /// Streams that the last look found stalled; fewer if some have ended since.
    pub(crate) stalled: u32,
    /// Since when DATA waits for the other side to renew the connection's window.
    pub(crate) starved_since: Option<Instant>,
    /// Bytes of replies queued since the queue was last empty.
    pub(crate) replies: usize,
    /// Streams that have DATA queued, and a window of their own for it.
    pub(crate) ring: VecDeque<Key>,
    /// Streams that are not over.
    pub(crate) open: u32,

    /// The largest identifier of a stream that the other side opened.
    pub(crate) last_peer_id: u32,
    /// Which of the 64 identifiers up to that were opened and not skipped.
    pub(crate) opened_ids: u64,
    pub(crate) next_id: u32,
    pub(crate) reset_ids: VecDeque<u32>,
    pub(crate) resets: Tolerance,
    pub(crate) stream_errors: Tolerance,
    pub(crate) empty_frames: Tolerance,

    /// Requests for `accept`.
    pub(crate) accepted: VecDeque<Key>,
    pub(crate) accept_waker: Option<Waker>,
    /// The user of the connection is gone: it ends with its last stream.
    pub(crate) unused: bool,
    pub(crate) openers: VecDeque<(u64, Waker)>,
    pub(crate) next_ticket: u64,
    /// Who waits for the server's first SETTINGS; as many as requests that the worker has taken.
    pub(crate) settling: Vec<Waker>,

    pub(crate) driver: Option<Waker>,
    /// The driver is running, or will.
    pub(crate) driver_woken: bool,
    /// Reads that found something.
    pub(crate) heard: u64,
    /// Bytes were written since the clock's last look.
    pub(crate) moved: bool,
    /// Tasks were woken by what was read: they may have something to write.
    pub(crate) notified: bool,
    /// A panic passed through a change. The driver ends the connection.
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

    /// Makes sure that the driver runs after this.
    pub(crate) fn wake_driver(&mut self) {
        if !self.driver_woken
            && let Some(driver) = &self.driver
        {
            self.driver_woken = true;
            driver.wake_by_ref();
        }
    }

    /// Queues a frame of ours.
    pub(crate) fn put(&mut self, frame: &[u8]) {
        self.out.put(frame);
        self.wake_driver();
    }

    /// Queues an answer to a frame. A peer that makes us answer and does not read the answers is
    /// cut off.
    pub(crate) fn reply(&mut self, frame: &[u8]) -> Result<(), ConnError> {
        self.replies = if self.out.is_empty() { 0 } else { self.replies } + frame.len();
        if self.replies > self.limits.reply_bytes {
            return Err(ConnError::abused(Abuse::UnreadReplies, "replies are not read"));
        }
        self.put(frame);
        Ok(())
    }

    /// A frame that carries nothing.
    pub(crate) fn empty_frame(&mut self, abuse: Abuse) -> Result<(), ConnError> {
        if self.empty_frames.take() {
            return Ok(());
        }
        Err(ConnError::abused(abuse, "too many frames that carry nothing"))
    }

    pub(crate) fn wake_accept(&mut self) {
        if let Some(waker) = self.accept_waker.take() {
            self.notified = true;
            waker.wake();
        }
    }

    /// The other side broke the rules of one stream.
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
        Err(ConnError::abused(Abuse::StreamErrors, "too many streams that had to be reset"))
    }

    /// Refuses a stream for want of memory. It does not count towards the stream errors that end
    /// a connection, since the streams it has are to go on.
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

    /// Sends RST_STREAM if the other side needs to be told.
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

    /// Marks a stream as ended early, and the linked one with it.
    pub(crate) fn end_stream(&mut self, key: Key, reset: Reset) {
        let Some(far) = self.end_here(key, reset) else { return };
        let code = match reset.by {
            ResetBy::Connection if self.client => Code::INTERNAL_ERROR,
            ResetBy::Connection => Code::CANCEL,
            // What we had to reset was the other side's fault, not the linked one's.
            ResetBy::Us if !self.client => Code::CANCEL,
            ResetBy::Us if reset.is_stall() => reset.code,
            ResetBy::Us => Code::INTERNAL_ERROR,
            ResetBy::Peer => reset.code,
        };
        far.conn.borrow_mut().far_reset(far.key, code);
    }

    /// The linked stream ended early: so does this one.
    pub(crate) fn far_reset(&mut self, key: Key, code: Code) {
        if self.rst(key, code) {
            self.end_here(key, Reset { code, by: ResetBy::Us, unprocessed: false });
        }
    }

    /// The part of an early end that concerns this connection; the linked stream, if there is one.
    fn end_here(&mut self, key: Key, reset: Reset) -> Option<Far> {
        self.streams.get_mut(key).filter(|slot| !slot.is_over())?;
        self.drop_content(key, reset)
    }

    /// Ends a stream and drops what it holds, also where only its reader has not finished; the
    /// linked stream, if there is one.
    pub(crate) fn drop_content(&mut self, key: Key, reset: Reset) -> Option<Far> {
        let slot = self.streams.get_mut(key)?;
        slot.reset = Some(reset);
        slot.queue.clear();
        slot.queued = 0;
        slot.then = Then::More;
        let held = std::mem::take(&mut slot.held);
        let far = slot.far.take();
        if reset.code != Code::NO_ERROR || reset.by == ResetBy::Us {
            // What is dropped must not look like a body that came to its end.
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

    /// Does what is due when a stream may be over.
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

    /// Frees a stream that is over and that nobody has.
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

    /// The other side wants no more of a linked stream, of which it has sent everything: what is
    /// under way in this direction is delivered, then the rest is called off.
    pub(crate) fn far_finish(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        if slot.send == Progress::Ended {
            self.far_reset(key, Code::NO_ERROR);
        } else {
            slot.close_after = true;
        }
    }

    /// The user of a stream is gone.
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
            // What is queued still goes out.
            return;
        }
        if !sending_done {
            return self.reset(key, Code::CANCEL);
        }
        // What is received has no reader.
        if self.client {
            self.reset(key, Code::CANCEL);
        } else if slot.send == Progress::Ended {
            // RFC 9113 section 8.1: the response is complete, the rest of the request not needed.
            self.reset(key, Code::NO_ERROR);
        } else {
            slot.close_after = true;
        }
    }

    /// Gives credit for `count` bytes of a stream that were passed on.
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

    /// Gives credit for the whole connection once half of its window is used, also for bytes
    /// that are held, so that no stream waits for another one's reader; unless all streams together hold
    /// more than they may.
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

    /// Whether a stream may be opened.
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

    /// Wakes the next who waits to open a stream.
    pub(crate) fn wake_opener(&mut self) {
        if self.openers.is_empty() || self.can_open() == Err(crate::OpenError::Full) {
            return;
        }
        if let Some((_, waker)) = self.openers.pop_front() {
            waker.wake();
        }
    }

    /// Wakes all who wait to open a stream, or for SETTINGS that are here now or come no more.
    pub(crate) fn wake_all_openers(&mut self) {
        let openers = self.openers.drain(..).map(|(_, waker)| waker);
        openers.chain(self.settling.drain(..)).for_each(Waker::wake);
    }

    /// Whether the other side's SETTINGS are here, or come no more.
    pub(crate) fn is_settled(&self) -> bool {
        self.reading.has_settings() || self.phase == Phase::Closed
    }

    /// Ends everything. Streams whose head never left are marked as unprocessed.
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
        // Requests that nobody has accepted never get a user.
        while let Some(key) = self.accepted.pop_front() {
            self.drop_handle(key);
        }
        self.ring.clear();
        self.wake_accept();
        self.wake_all_openers();
    }

    /// A piece of the largest size that one DATA frame may have.
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
            // RFC 9113 section 6.8: requests under way to us are still taken. The PING tells when
            // the other side has seen it.
            self.phase = Phase::Announced;
            self.put(&frame::goaway(MAX_31, Code::NO_ERROR));
            self.put(&frame::ping(false, DRAIN_PING));
        }
        self.wake_driver();
    }

    /// The other side has seen the announcement.
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

/// What the PING of a drain carries.
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

    /// A panic while the connection is being changed ends it; one beside it ends its stream alone.
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
            assert_eq!(driver.await.unwrap().unwrap_err().what, "a task panicked");
            assert_eq!(other.head().await.unwrap_err().by, ResetBy::Connection);
            assert!(!client.is_open());
            // The server saw a connection that broke, and no frame that was half written.
            assert!(server.await.unwrap().unwrap_err().io.is_some());
        });
    }
}
