//! The bytes of a connection between two workloads of one process, in memory.
//!
//! ```text
//!  thread of the client            thread of the server
//!  Tls ── PipeEnd ══ two directions of at most 64 KiB ══ PipeEnd ── Tls
//!   └────────── socket, handshake, nothing more ────────────────────┘
//! ```
//! The two ends first make a TLS connection over the network, which proves their identities and that they may
//! communicate. It stays open while they use the pipe, and when it ends, the pipe ends ([`crate::tls`]). Each direction
//! changes from TLS to the pipe once its writer knows that the other end has taken the pipe. The writer tells the
//! reader after how many bytes of TLS the bytes of the pipe follow.
//!
//! The memory of a direction is charged to the workload that writes to it.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use leno_transport::RELAY_BUFFER;
use leno_transport::budget::{self, Charge};
use tokio::io::ReadBuf;

use crate::binding::Binding;

/// The largest number of bytes that wait in one direction for their reader. One read returns as many.
const MOST: usize = RELAY_BUFFER;
/// The largest number of bytes that wait in one direction while the writer's memory is short. A TLS record has as many.
const MOST_SHORT: usize = 16 * 1024;
/// The largest amount of memory that an empty direction keeps. It suffices for a small request.
const KEPT: usize = 1024;
/// A writer that was charged for more than this is woken once the reader has read all of it, to reduce its charge.
const LARGE: usize = 16 * 1024;

/// The pipes that clients offer to servers of this process, by the binding of the connection, which only its two ends
/// can derive. There is one entry for each connection whose server has not taken the offer, so the limits on
/// connections bound their number.
static OFFERS: LazyLock<Mutex<HashMap<Binding, PipeEnd>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// See [`made_in_process`].
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// How many connections this thread has opened, as their client, that changed to a pipe, since it started.
#[must_use]
pub fn made_in_process() -> u64 {
    MADE.get()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeEnding {
    /// The writer has shut the direction down.
    Closed,
    /// The writer was dropped without shutting the direction down. It may have reported a reason.
    Cut(Option<u8>),
    /// The writer was reset. Unread bytes are lost.
    Reset,
}

/// One direction of a pipe.
#[derive(Debug, Default)]
struct PipeDirection {
    bytes: VecDeque<u8>,
    /// How many bytes of TLS precede the bytes of the pipe. `None`: the writer still uses TLS.
    begins_after: Option<u64>,
    ending: Option<PipeEnding>,
    /// Whether the end that writes to this direction was dropped, or the pipe was cut.
    gone: bool,
    reader: Option<Waker>,
    /// The task that waits for room to write.
    writer: Option<Waker>,
}

#[derive(Debug, Default)]
struct PipeState {
    /// Whether the server has taken its end.
    taken: bool,
    to_server: PipeDirection,
    to_client: PipeDirection,
}

/// One end of a pipe. Dropping it cuts both directions. It must be dropped before the socket, so that the other end
/// learns how the pipe ended before it sees the socket end.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    state: Arc<Mutex<PipeState>>,
    side: Side,
    /// Set at the client's end: the binding under which the pipe was offered.
    offer: Option<Binding>,
    /// The report that the other end gets when this end is dropped without closing ([`crate::cut`]).
    report: Option<u8>,
    /// Whether dropping this end is a reset.
    reset: bool,
    /// The charge for the direction to which this end writes, and the bytes that it covers.
    charge: Option<(usize, Charge)>,
}

/// Cuts a pipe, without being one of its ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct PipeCutter(Weak<Mutex<PipeState>>);

/// Offers a pipe to the server at the other end of the connection with this binding. Returns the client's end.
pub(crate) fn offer(binding: Binding) -> PipeEnd {
    let state = Arc::<Mutex<PipeState>>::default();
    let end = |side, offer| PipeEnd {
        state: Arc::clone(&state),
        side,
        offer,
        report: None,
        reset: false,
        charge: None,
    };
    let replaced = offers().insert(binding, end(Side::Server, None));
    // There cannot be another connection with the same binding, because it is derived from a secret.
    drop(replaced);
    end(Side::Client, Some(binding))
}

/// Takes the pipe that the client of the connection with this binding has offered. `None` if the client is in another
/// process.
pub(crate) fn take(binding: &Binding) -> Option<PipeEnd> {
    let end = offers().remove(binding)?;
    let mut state = end.state();
    state.taken = true;
    // The server has written nothing to TLS yet.
    state.to_client.begins_after = Some(0);
    let reader = state.to_client.reader.take();
    drop(state);
    wake(reader);
    Some(end)
}

fn offers() -> MutexGuard<'static, HashMap<Binding, PipeEnd>> {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Keeps the waker of the caller's task.
fn register(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

impl PipeState {
    /// The direction to which this side writes, and the direction from which it reads.
    fn of(&mut self, side: Side) -> (&mut PipeDirection, &mut PipeDirection) {
        match side {
            Side::Client => (&mut self.to_server, &mut self.to_client),
            Side::Server => (&mut self.to_client, &mut self.to_server),
        }
    }
}

impl PipeDirection {
    /// Ends the direction, unless it has ended. Returns the tasks to wake.
    fn end(&mut self, ending: PipeEnding) -> [Option<Waker>; 2] {
        self.ending.get_or_insert(ending);
        [self.reader.take(), self.writer.take()]
    }

    /// Makes room for `n` more bytes. Doubles the capacity, so that few small writes need an allocation.
    fn reserve(&mut self, n: usize) {
        let needed = self.bytes.len().saturating_add(n);
        if needed > self.bytes.capacity() {
            let size = needed.checked_next_power_of_two().unwrap_or(needed);
            self.bytes.reserve_exact(size.saturating_sub(self.bytes.len()));
        }
    }

    /// Frees unneeded memory if no bytes are left. Returns whether the direction was large.
    fn give_back(&mut self) -> bool {
        let held = self.bytes.capacity();
        if self.bytes.is_empty() && held > KEPT {
            self.bytes = VecDeque::new();
        }
        self.bytes.is_empty() && held > LARGE
    }
}

impl PipeEnd {
    fn state(&self) -> MutexGuard<'_, PipeState> {
        // No code panics while this is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle that cuts both directions.
    pub(crate) fn cutter(&self) -> PipeCutter {
        PipeCutter(Arc::downgrade(&self.state))
    }

    /// Whether the server has taken its end.
    pub(crate) fn is_taken(&self) -> bool {
        self.state().taken
    }

    /// Whether the other end was dropped, or both directions were cut.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.state();
        let (_, read) = state.of(self.side);
        read.gone
    }

    /// From now on, this end writes to the pipe, after it has written `before` bytes to TLS.
    pub(crate) fn begin_writing(&self, before: u64) {
        let mut state = self.state();
        let (written, _) = state.of(self.side);
        if written.begins_after.is_none() {
            written.begins_after = Some(before);
            let reader = written.reader.take();
            drop(state);
            wake(reader);
            MADE.set(MADE.get().saturating_add(1));
        }
    }

    /// Whether the next bytes for this end come through the pipe, given that it has read `before` bytes from TLS. If
    /// the other end still uses TLS, the caller's task is woken when that changes.
    pub(crate) fn reads(&self, before: u64, cx: &Context<'_>) -> bool {
        let mut state = self.state();
        let (_, read) = state.of(self.side);
        match read.begins_after {
            Some(begins_after) => begins_after == before,
            None => {
                register(&mut read.reader, cx);
                false
            }
        }
    }

    /// Like [`Self::reads`], but without a task to wake.
    pub(crate) fn begins_after(&self, before: u64) -> bool {
        let mut state = self.state();
        let (_, read) = state.of(self.side);
        read.begins_after == Some(before)
    }

    /// Ready when a read may return something.
    pub(crate) fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let (written, read) = state.of(self.side);
        let held = written.bytes.capacity();
        let ready = match read.bytes.is_empty() && read.ending.is_none() {
            true => {
                register(&mut read.reader, cx);
                Poll::Pending
            }
            false => Poll::Ready(()),
        };
        drop(state);
        self.charge(held);
        ready
    }

    /// Reads bytes and returns `None`. Once all were read, returns how the direction has ended.
    pub(crate) fn poll_read(
        &mut self,
        cx: &Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Option<PipeEnding>> {
        let mut state = self.state();
        let (written, read) = state.of(self.side);
        let held = written.bytes.capacity();
        if read.bytes.is_empty() {
            let ended = match read.ending {
                Some(ending) => Poll::Ready(Some(ending)),
                None => {
                    register(&mut read.reader, cx);
                    Poll::Pending
                }
            };
            drop(state);
            self.charge(held);
            return ended;
        }
        let (first, second) = read.bytes.as_slices();
        let mut n = 0_usize;
        for bytes in [first, second] {
            let room = bytes.len().min(out.remaining());
            let (now, _) = bytes.split_at(room);
            out.put_slice(now);
            n = n.saturating_add(now.len());
        }
        read.bytes.drain(..n);
        let was_large = read.give_back();
        // The writer is not woken for each read, but once half of the room is free.
        let mut writer = None;
        if read.bytes.len() <= MOST.div_euclid(2) {
            writer = read.writer.take();
        }
        if was_large && writer.is_none() {
            // The writer does not wait for room. Its task is woken, so that it reduces its charge.
            let (written, _) = state.of(self.side);
            writer = written.reader.take();
        }
        drop(state);
        self.charge(held);
        wake(writer);
        Poll::Ready(None)
    }

    /// Writes as many bytes as there is room for.
    pub(crate) fn poll_write(
        &mut self,
        cx: &Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let most = if budget::is_short() { MOST_SHORT } else { MOST };
        let mut state = self.state();
        let (written, read) = state.of(self.side);
        if written.ending.is_some() || read.gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = most.saturating_sub(written.bytes.len());
        let wanted = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        let n = wanted.min(room);
        if n == 0 && wanted > 0 {
            register(&mut written.writer, cx);
            return Poll::Pending;
        }
        written.reserve(n);
        let mut left = n;
        for slice in slices {
            let (now, _) = slice.split_at(slice.len().min(left));
            written.bytes.extend(now);
            left = left.saturating_sub(now.len());
        }
        let held = written.bytes.capacity();
        let reader = written.reader.take();
        drop(state);
        self.charge(held);
        wake(reader);
        Poll::Ready(Ok(n))
    }

    /// Shuts down the direction to which this end writes.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let (written, _) = state.of(self.side);
        let woken = written.end(PipeEnding::Closed);
        drop(state);
        woken.into_iter().for_each(wake);
    }

    /// Sets the report that the other end gets when this end is dropped.
    pub(crate) fn report(&mut self, report: u8) {
        self.report = Some(report);
    }

    /// Makes dropping this end a reset.
    pub(crate) fn reset_on_drop(&mut self) {
        self.reset = true;
    }

    /// Charges this workload for the bytes held by the direction to which it writes.
    fn charge(&mut self, held: usize) {
        match &self.charge {
            Some((charged, _)) if *charged == held => {}
            None if held == 0 => {}
            _ => {
                // The old charge is dropped first; otherwise both would count for a moment.
                self.charge = None;
                self.charge = (held > 0).then(|| (held, Charge::new(held)));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        [&state.to_server, &state.to_client]
            .iter()
            .all(|direction| direction.bytes.capacity() <= KEPT)
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.state();
        let taken = state.taken;
        let (written, read) = state.of(self.side);
        if self.reset {
            written.bytes = VecDeque::new();
            written.ending = Some(PipeEnding::Reset);
        }
        written.gone = true;
        let woken = written.end(PipeEnding::Cut(self.report));
        // This end reads from that direction no more. The other end, which writes to it, is woken, and finds `gone` set
        // in the direction from which it reads.
        read.bytes = VecDeque::new();
        let others = read.end(PipeEnding::Cut(None));
        drop(state);
        woken.into_iter().chain(others).for_each(wake);
        if let Some(binding) = self.offer.filter(|_| !taken) {
            // Dropping the offered end locks the state, so the lock of the offers must not be held then.
            let offered = offers().remove(&binding);
            drop(offered);
        }
    }
}

impl PipeCutter {
    /// Cuts both directions. Unread bytes are lost.
    pub(crate) fn cut(&self) {
        let Some(state) = self.0.upgrade() else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let PipeState { to_server, to_client, .. } = &mut *state;
        let [woken, others] = [to_server, to_client].map(|direction| {
            direction.bytes = VecDeque::new();
            direction.ending = Some(PipeEnding::Cut(None));
            direction.gone = true;
            direction.end(PipeEnding::Cut(None))
        });
        drop(state);
        woken.into_iter().chain(others).for_each(wake);
    }
}

#[cfg(test)]
pub(crate) fn is_offered(binding: &Binding) -> bool {
    offers().contains_key(binding)
}
