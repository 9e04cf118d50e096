//! The bytes of a connection between two workloads of one process, in memory.
//!
//! ```text
//!  thread of the client            thread of the server
//!  Tls ── PipeEnd ══ two directions of at most 64 KiB ══ PipeEnd ── Tls
//!   └────────── socket, handshake, nothing more ────────────────────┘
//! ```
//! Both ends have made a TLS connection over the network before, which says who they are and whether they may talk. It
//! stays open while they use the pipe, and the end of it is the end of the pipe ([`crate::tls`]). A direction begins to
//! use the pipe when its writer knows that the other end has it, after some bytes of TLS, which the reader counts.
//!
//! What a direction holds is charged to the workload that has written it.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use leno_transport::RELAY_BUFFER;
use leno_transport::budget::{self, Charge};
use tokio::io::ReadBuf;

use crate::binding::Binding;

/// Most bytes of a direction that wait for their reader: as many as one read takes.
const MOST: usize = RELAY_BUFFER;
/// The same while the writer's memory is short: as many as a record of TLS has.
const MOST_SHORT: usize = 16 * 1024;
/// Memory that an empty direction keeps: that of a small request.
const KEPT: usize = 1024;
/// A writer that has been charged more than this is woken to give it back once the reader has all of it.
const LARGE: usize = 16 * 1024;

/// The pipes that clients offer to servers of this process, by a name that only the two ends of a connection can derive.
/// There is one for each connection whose server has not taken the offer; the threads' limits on connections bound them.
static OFFERS: LazyLock<Mutex<HashMap<Binding, PipeEnd>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The connections that clients of this thread have made and that went on in memory.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// The connections that this thread has made and that went on in memory, since it began.
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
    /// Its writer has shut it down.
    Closed,
    /// Its writer was dropped before it had shut it down, perhaps after it had reported a reason.
    Cut(Option<u8>),
    /// Its writer was reset. What was not read is lost.
    Reset,
}

/// From one end to the other.
#[derive(Debug, Default)]
struct PipeDirection {
    bytes: VecDeque<u8>,
    /// How many bytes of TLS come before those. `None`: the writer still uses TLS.
    begins_after: Option<u64>,
    ending: Option<PipeEnding>,
    /// The end that writes it was dropped.
    gone: bool,
    reader: Option<Waker>,
    /// Waits for room.
    writer: Option<Waker>,
}

#[derive(Debug, Default)]
struct PipeState {
    /// The server has its end.
    taken: bool,
    to_server: PipeDirection,
    to_client: PipeDirection,
}

/// One end. Dropped, it cuts both directions; it must be dropped before the socket.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    state: Arc<Mutex<PipeState>>,
    side: Side,
    /// The offer that the client's end has made.
    offer: Option<Binding>,
    report: Option<u8>,
    reset: bool,
    /// What the direction that it writes holds.
    charge: Option<(usize, Charge)>,
}

/// Ends a pipe without being one of its ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct PipeCutter(Weak<Mutex<PipeState>>);

/// Offers a pipe to the server at the other end of the connection with this name. Returns the client's end.
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
    // Another connection of the same name cannot be: it is a hash of a secret.
    drop(replaced);
    end(Side::Client, Some(binding))
}

/// Takes the pipe that the client of the connection with this name has offered. `None` if the client is in another process.
pub(crate) fn take(binding: &Binding) -> Option<PipeEnd> {
    let end = offers().remove(binding)?;
    let mut state = end.state();
    state.taken = true;
    // Nothing was written to TLS yet.
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
    /// The direction that this side writes, and the one that it reads.
    fn of(&mut self, side: Side) -> (&mut PipeDirection, &mut PipeDirection) {
        match side {
            Side::Client => (&mut self.to_server, &mut self.to_client),
            Side::Server => (&mut self.to_client, &mut self.to_server),
        }
    }
}

impl PipeDirection {
    /// Ends it, unless it has. Returns the tasks to wake.
    fn end(&mut self, ending: PipeEnding) -> [Option<Waker>; 2] {
        self.ending.get_or_insert(ending);
        [self.reader.take(), self.writer.take()]
    }

    /// Makes room for `n` more bytes. Doubles the capacity, so that few of many small writes allocate.
    fn reserve(&mut self, n: usize) {
        let needed = self.bytes.len().saturating_add(n);
        if needed > self.bytes.capacity() {
            let size = needed.checked_next_power_of_two().unwrap_or(needed);
            self.bytes.reserve_exact(size.saturating_sub(self.bytes.len()));
        }
    }

    /// Frees what is not needed once there are no more bytes. Returns whether that was much.
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
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends the pipe together with both ends.
    pub(crate) fn cutter(&self) -> PipeCutter {
        PipeCutter(Arc::downgrade(&self.state))
    }

    /// Whether the server has its end.
    pub(crate) fn is_taken(&self) -> bool {
        self.state().taken
    }

    /// Whether the other end was dropped, or both were cut.
    pub(crate) fn is_over(&self) -> bool {
        let mut state = self.state();
        let (_, read) = state.of(self.side);
        read.gone
    }

    /// What this end writes from now on goes through the pipe, after `before` bytes of TLS.
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

    /// Whether what this end reads comes through the pipe, after the `before` bytes of TLS that it has read. If not, the
    /// caller's task is woken when it begins to.
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

    /// The same, without a task to wake.
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

    /// Reads bytes; what is returned is how the direction has ended, once all of them were read.
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
        // Not for each read: the writer fills a half at a time.
        let mut writer = None;
        if read.bytes.len() <= MOST.div_euclid(2) {
            writer = read.writer.take();
        }
        if was_large && writer.is_none() {
            // It is not waiting for room, and has its task settle the charge.
            let (written, _) = state.of(self.side);
            writer = written.reader.take();
        }
        drop(state);
        self.charge(held);
        wake(writer);
        Poll::Ready(None)
    }

    /// Writes as much as there is room for.
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

    /// Ends the direction that this end writes, in order.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let (written, _) = state.of(self.side);
        let woken = written.end(PipeEnding::Closed);
        drop(state);
        woken.into_iter().for_each(wake);
    }

    /// What the other end is to learn when this one is dropped.
    pub(crate) fn report(&mut self, report: u8) {
        self.report = Some(report);
    }

    /// Has the drop of this end be a reset.
    pub(crate) fn reset_on_drop(&mut self) {
        self.reset = true;
    }

    /// Charges this workload what the direction that it writes holds.
    fn charge(&mut self, held: usize) {
        match &self.charge {
            Some((charged, _)) if *charged == held => {}
            None if held == 0 => {}
            _ => {
                // The next one first would count both.
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
        // No task reads this direction any more. Its writer learns of that by the other one.
        read.bytes = VecDeque::new();
        let others = read.end(PipeEnding::Cut(None));
        drop(state);
        woken.into_iter().chain(others).for_each(wake);
        if let Some(binding) = self.offer.filter(|_| !taken) {
            // Its drop has to lock the state, which no one holds who waits for this lock.
            let offered = offers().remove(&binding);
            drop(offered);
        }
    }
}

impl PipeCutter {
    /// Cuts both directions. What was not read is lost.
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
