//! A bounded queue between the requests of a worker and a task of the same thread that exports them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// What waits to be exported. It belongs to one thread, so there is no lock.
pub struct Queue<T> {
    items: RefCell<VecDeque<T>>,
    most: usize,
    /// The exporter, and how many items it waits for.
    waiting: RefCell<Option<(usize, Waker)>>,
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("most", &self.most).finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    /// A queue of this many items at most.
    pub(crate) fn new(most: usize) -> Self {
        Self { items: RefCell::default(), most, waiting: RefCell::default() }
    }

    /// Appends an item. `false`: the queue is full, and the item is dropped.
    #[must_use]
    pub(crate) fn push(&self, item: T) -> bool {
        let mut items = self.items.borrow_mut();
        if items.len() >= self.most {
            return false;
        }
        items.push_back(item);
        let count = items.len();
        drop(items);
        if let Some((_, waker)) = self.waiting.borrow_mut().take_if(|(wanted, _)| count >= *wanted)
        {
            waker.wake();
        }
        true
    }

    /// Waits until so many items are queued.
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

    /// Takes the oldest items, this many at most.
    pub fn take(&self, most: usize) -> Vec<T> {
        let mut items = self.items.borrow_mut();
        let count = items.len().min(most);
        items.drain(..count).collect()
    }
}
