//! Futures that serve requests, one after another, for all connections of a worker.
//!
//! ```text
//! idle connection: its task, some hundred bytes
//!        │ a request begins                    ┌─ free handlers ─┐
//!        ├──────────── borrows ────────────────┤                 │
//! busy connection: its task polls the handler  │                 │
//!        └──────────── gives back ─────────────┴─────────────────┘
//! ```
//!
//! Serving a request needs some kilobytes of state. A connection has this state only while a request is in progress.
//! The state is neither allocated nor moved for each request.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// How many free handlers a worker keeps after a burst. Further ones are dropped after their request.
const KEPT: usize = 256;

/// The request handlers of one worker. The task of a connection borrows one for each request and polls it as a part of
/// itself, so the request ends when the task ends.
pub struct Handlers<J, R> {
    free: RefCell<Vec<Handler<J, R>>>,
    /// The lowest number of free handlers since the last sweep.
    spare: Cell<usize>,
    /// Creates a handler.
    make: Box<dyn Fn() -> Handler<J, R>>,
}

struct Handler<J, R> {
    desk: Rc<Desk<J, R>>,
    /// The handler's future. It never ends: between two requests it waits for a job in `desk`.
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// The place where a handler finds its next job and puts the outcome.
struct Desk<J, R> {
    job: Cell<Option<J>>,
    outcome: Cell<Option<R>>,
}

impl<J: 'static, R: 'static> Handlers<J, R> {
    /// Starts without handlers. Each new handler runs `serve` for its jobs.
    ///
    /// `serve` is not a function pointer to an async function, because the resulting future has some kilobytes and
    /// would be moved for each job.
    pub fn new(serve: impl AsyncFn(J) -> R + Copy + 'static) -> Self {
        let make = move || {
            let desk = Rc::new(Desk { job: Cell::new(None), outcome: Cell::new(None) });
            let own = Rc::clone(&desk);
            let future = Box::pin(async move {
                loop {
                    // No waker is needed: the handler is polled when there is a job.
                    let next = poll_fn(|_| own.job.take().map_or(Poll::Pending, Poll::Ready));
                    let outcome = serve(next.await).await;
                    own.outcome.set(Some(outcome));
                }
            });
            Handler { desk, future }
        };
        Self { free: RefCell::default(), spare: Cell::new(0), make: Box::new(make) }
    }

    /// Runs the job with a free handler, or a new one. If this future is dropped before its end, the job ends, and its
    /// handler is not used again.
    pub async fn serve(&self, job: J) -> R {
        let free = self.free.borrow_mut().pop();
        let mut handler = match free {
            Some(handler) => {
                self.spare.set(self.spare.get().min(self.free.borrow().len()));
                handler
            }
            None => (self.make)(),
        };
        handler.desk.job.set(Some(job));
        let outcome = poll_fn(|cx| {
            // The future never ends; after its job it waits for the next.
            let _waits = handler.future.as_mut().poll(cx);
            handler.desk.outcome.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let mut free = self.free.borrow_mut();
        if free.len() < KEPT {
            free.push(handler);
        }
        outcome
    }

    /// Drops the handlers that were not needed since the last call. Must be called every few seconds.
    pub fn sweep(&self) {
        let mut free = self.free.borrow_mut();
        let spare = self.spare.get().min(free.len());
        free.drain(..spare);
        self.spare.set(free.len());
    }

    /// The number of free handlers.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

impl<J, R> std::fmt::Debug for Handlers<J, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handlers").field("free", &self.free.borrow().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Job = (u32, Option<oneshot::Receiver<u32>>);

    async fn serve((number, more): Job) -> u32 {
        match more {
            Some(more) => number + more.await.unwrap_or(0),
            None => number,
        }
    }

    #[tokio::test]
    async fn requests_one_after_the_other_share_a_handler() {
        let handlers = Handlers::new(serve);
        for number in 0..10 {
            assert_eq!(handlers.serve((number, None)).await, number);
            assert_eq!(handlers.free(), 1);
        }
    }

    #[tokio::test]
    async fn concurrent_requests_have_their_own_handlers_which_a_sweep_drops() {
        let handlers = Handlers::new(serve);
        let (go, wait) = oneshot::channel();
        let slow = handlers.serve((1, Some(wait)));
        let quick = async {
            let quick = handlers.serve((2, None)).await;
            go.send(40).unwrap();
            quick
        };
        assert_eq!(tokio::join!(slow, quick), (41, 2));
        assert_eq!(handlers.free(), 2);
        handlers.sweep();
        assert_eq!(handlers.free(), 2, "both were needed since the last sweep");
        handlers.serve((3, None)).await;
        handlers.sweep();
        assert_eq!(handlers.free(), 1);
    }

    #[tokio::test]
    async fn a_cancelled_request_ends_its_handler() {
        let handlers = Handlers::new(serve);
        let (held, wait) = oneshot::channel();
        let mut given_up = Box::pin(handlers.serve((1, Some(wait))));
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(given_up.as_mut().poll(context).is_pending());
        drop(given_up);
        assert!(held.is_closed(), "the variables of the job were dropped");
        assert_eq!((handlers.free(), handlers.serve((7, None)).await), (0, 7));
    }
}
