//! A queue of limited length, in which the spans or log records of a worker wait for a task of the same thread that
//! exports them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use leno_tap::{AccessRecord, TraceSpan};

/// The largest number of bytes of all items in a queue, by [`Weigh`]. An item has at most the head of a request, so
/// several fit.
const MAX_BYTES: usize = 4 << 20;

/// An item whose memory can be estimated.
pub trait Weigh {
    /// The approximate number of bytes that the item takes, in memory and in a message.
    fn bytes(&self) -> usize;
}

impl Weigh for TraceSpan {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }
}

impl Weigh for AccessRecord {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }
}

/// Items that wait to be exported. It belongs to one thread, so there is no lock.
pub struct Queue<T> {
    items: RefCell<VecDeque<T>>,
    bytes: Cell<usize>,
    most: usize,
    /// The waker of the exporter, and for how many items it waits.
    waiting: RefCell<Option<(usize, Waker)>>,
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("most", &self.most).finish_non_exhaustive()
    }
}

impl<T: Weigh> Queue<T> {
    /// A queue of at most this many items.
    pub(crate) fn new(most: usize) -> Self {
        let (items, bytes) = (RefCell::default(), Cell::new(0));
        Self { items, bytes, most, waiting: RefCell::default() }
    }

    /// Appends an item. `false` means that the queue is full and the item was dropped.
    #[must_use]
    pub(crate) fn push(&self, item: T) -> bool {
        let mut items = self.items.borrow_mut();
        let bytes = self.bytes.get().saturating_add(item.bytes());
        if items.len() >= self.most || bytes > MAX_BYTES {
            return false;
        }
        self.bytes.set(bytes);
        items.push_back(item);
        let count = items.len();
        drop(items);
        if let Some((_, waker)) = self.waiting.borrow_mut().take_if(|(wanted, _)| count >= *wanted)
        {
            waker.wake();
        }
        true
    }

    /// Waits until `count` items are queued. Only one task may wait at a time.
    pub async fn wait_for(&self, count: usize) {
        poll_fn(|cx| {
            if self.items.borrow().len() >= count {
                return Poll::Ready(());
            }
            self.waiting.replace(Some((count, cx.waker().clone())));
            Poll::Pending
        })
        .await;
    }

    /// Takes the oldest items: at most `most`, with about `most_bytes` at most, but at least one if there is any.
    pub fn take(&self, most: usize, most_bytes: usize) -> Vec<T> {
        let mut items = self.items.borrow_mut();
        let mut taken = Vec::new();
        let mut bytes = 0_usize;
        while taken.len() < most
            && let Some(next) = items.front().map(T::bytes)
            && (taken.is_empty() || bytes.saturating_add(next) <= most_bytes)
        {
            bytes = bytes.saturating_add(next);
            taken.extend(items.pop_front());
        }
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        taken
    }
}
