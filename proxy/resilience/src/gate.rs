//! Limits how many requests are in flight and how many may wait.
#![expect(clippy::arithmetic_side_effects, reason = "a count of requests in progress")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Limits the number of requests in flight, with a queue of limited length before it. Requests are admitted in the
/// order in which they arrive.
///
/// ```text
/// enter ──(below the limit)────────► Permit ──drop──► the first in the queue gets a permit
///   └──(room in the queue)──► waits ──┘
///   └──(queue full)──► Full
/// ```
#[derive(Debug)]
pub struct Gate {
    limit: Cell<u32>,
    under_way: Cell<u32>,
    max_waiting: Cell<u32>,
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

/// Permission for one request in flight. Dropping it admits the next request.
#[derive(Debug)]
pub struct Permit {
    gate: Rc<Gate>,
}

/// The error that the limit is reached and the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[derive(Debug, Default)]
struct Waiter {
    /// Whether the request has its permit. It counts as in flight from then on, even before its task is polled.
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    /// A gate with at most `limit` requests in flight and `max_waiting` requests in the queue.
    #[must_use]
    pub fn new(limit: u32, max_waiting: u32) -> Rc<Self> {
        Rc::new(Self {
            limit: Cell::new(limit),
            under_way: Cell::new(0),
            max_waiting: Cell::new(max_waiting),
            waiting: RefCell::default(),
        })
    }

    /// Changes the limits. Requests that are already in flight or in the queue remain.
    pub fn set(&self, limit: u32, max_waiting: u32) {
        self.limit.set(limit);
        self.max_waiting.set(max_waiting);
        self.admit();
    }

    /// Whether there is no limit.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.limit.get() == u32::MAX
    }

    /// The number of requests in flight.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.under_way.get()
    }

    /// The number of requests in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Returns a permit at once. `None` if the limit is reached or other requests wait.
    #[must_use]
    pub fn try_enter(self: &Rc<Self>) -> Option<Permit> {
        let free = self.under_way.get() < self.limit.get() && self.waiting.borrow().is_empty();
        free.then(|| self.take())
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`Full`], without waiting.
    pub async fn enter(self: &Rc<Self>) -> Result<Permit, Full> {
        if let Some(permit) = self.try_enter() {
            return Ok(permit);
        }
        if self.waiting.borrow().len() >= self.max_waiting.get() as usize {
            return Err(Full);
        }
        let waiter = Rc::new(Waiter::default());
        self.waiting.borrow_mut().push_back(Rc::clone(&waiter));
        Ok(Waiting { gate: self, waiter: Some(waiter) }.await)
    }

    fn take(self: &Rc<Self>) -> Permit {
        self.under_way.set(self.under_way.get() + 1);
        Permit { gate: Rc::clone(self) }
    }

    /// Grants permits to waiting requests while the limit allows.
    fn admit(&self) {
        while self.under_way.get() < self.limit.get() {
            let Some(waiter) = self.waiting.borrow_mut().pop_front() else { return };
            self.under_way.set(self.under_way.get() + 1);
            waiter.granted.set(true);
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }

    fn leave(&self) {
        self.under_way.set(self.under_way.get() - 1);
        self.admit();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

/// A waiting request. `waiter` is `None` once it has its permit.
struct Waiting<'a> {
    gate: &'a Rc<Gate>,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Waiting<'_> {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let Some(waiter) = self.waiter.take_if(|waiter| waiter.granted.get()) else {
            if let Some(waiter) = &self.waiter {
                waiter.waker.replace(Some(cx.waker().clone()));
            }
            return Poll::Pending;
        };
        drop(waiter);
        Poll::Ready(Permit { gate: Rc::clone(self.gate) })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.granted.get() {
            self.gate.leave();
        } else {
            self.gate.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiter));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_get_permits_then_wait_then_are_refused() {
        let gate = Gate::new(2, 1);
        let (one, two) = (gate.try_enter().unwrap(), gate.try_enter().unwrap());
        assert!(gate.try_enter().is_none());
        let mut third = pin!(gate.enter());
        assert!(poll(third.as_mut()).is_pending());
        let mut fourth = pin!(gate.enter());
        assert!(matches!(poll(fourth.as_mut()), Poll::Ready(Err(Full))));
        drop(one);
        assert!(gate.try_enter().is_none(), "the one that waited has the place");
        let Poll::Ready(Ok(third)) = poll(third.as_mut()) else { panic!("no place") };
        assert_eq!((gate.under_way(), gate.waiting()), (2, 0));
        drop((two, third));
        assert_eq!(gate.under_way(), 0);
    }

    #[test]
    fn a_dropped_waiter_leaves_the_queue() {
        let gate = Gate::new(1, 5);
        let one = gate.try_enter().unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(gate.enter())).collect();
        for one in &mut waiting {
            assert!(poll(one.as_mut()).is_pending());
        }
        drop(waiting.remove(1));
        assert_eq!(gate.waiting(), 2);
        drop(one);
        // The first waiter was granted the permit, and is dropped before it notices.
        drop(waiting.remove(0));
        let Poll::Ready(Ok(last)) = poll(waiting[0].as_mut()) else { panic!("no place") };
        drop(last);
        assert_eq!((gate.under_way(), gate.waiting()), (0, 0));
    }

    #[test]
    fn a_higher_limit_admits_waiting_requests() {
        let gate = Gate::new(0, 2);
        let mut one = pin!(gate.enter());
        assert!(poll(one.as_mut()).is_pending());
        gate.set(1, 0);
        assert!(poll(one.as_mut()).is_ready());
        let mut two = pin!(gate.enter());
        assert!(poll(two.as_mut()).is_ready());
    }
}
