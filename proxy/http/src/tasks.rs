//! Tasks that serve requests or connections, one after another.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use leno_transport::spawn_contained;

/// How many free tasks a worker (a thread of the proxy) keeps after a burst. Each takes some kilobytes. Further tasks
/// end after their request.
const KEPT: usize = 256;

/// The tasks of one worker that serve HTTP/2 requests or connections. A task that has served its request waits for
/// another one. Creating a task would cost more than most of its work: its memory must be allocated, and everything
/// that it holds must be moved into it.
pub struct Tasks<J> {
    free: RefCell<Vec<Rc<Seat<J>>>>,
    /// The lowest number of free tasks since the last sweep.
    spare: Cell<usize>,
}

/// The place where a free task waits for its next request.
struct Seat<J> {
    job: Cell<Option<J>>,
    waker: RefCell<Option<Waker>>,
    /// Whether the task must end.
    dismissed: Cell<bool>,
}

impl<J: 'static> Tasks<J> {
    /// Starts without tasks.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { free: RefCell::default(), spare: Cell::new(0) })
    }

    /// Runs `serve` with `job` in a task. All calls must pass the same `serve`, because a task keeps the `serve` with
    /// which it was created.
    pub fn run(self: &Rc<Self>, job: J, serve: impl AsyncFn(J) + 'static) {
        let free = self.free.borrow_mut().pop();
        if let Some(seat) = free {
            self.spare.set(self.spare.get().min(self.free.borrow().len()));
            seat.job.set(Some(job));
            seat.wake();
            return;
        }
        let tasks = Rc::downgrade(self);
        spawn_contained(async move {
            let mut next = Some(job);
            let seat = Rc::new(Seat::new());
            while let Some(job) = next {
                serve(job).await;
                next = seat.wait(&tasks).await;
            }
        });
    }

    /// Ends the tasks that were not needed since the last call. Must be called every few seconds.
    pub fn sweep(&self) {
        let mut free = self.free.borrow_mut();
        let spare = self.spare.get().min(free.len());
        for seat in free.drain(..spare) {
            seat.dismiss();
        }
        self.spare.set(free.len());
    }

    /// The number of tasks that wait for a request.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

impl<J> Seat<J> {
    fn new() -> Self {
        Self { job: Cell::new(None), waker: RefCell::new(None), dismissed: Cell::new(false) }
    }

    /// The next job; `None` if there is no room in the free list, or the task was dismissed.
    async fn wait(self: &Rc<Self>, tasks: &Weak<Tasks<J>>) -> Option<J> {
        {
            let tasks = tasks.upgrade()?;
            let mut free = tasks.free.borrow_mut();
            if free.len() >= KEPT {
                return None;
            }
            free.push(Rc::clone(self));
        }
        poll_fn(|cx| {
            if let Some(job) = self.job.take() {
                return Poll::Ready(Some(job));
            }
            if self.dismissed.get() {
                return Poll::Ready(None);
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn dismiss(&self) {
        self.dismissed.set(true);
        self.wake();
    }

    /// Wakes the task. Before its first wait a task has no waker and needs none, because it looks for a job by itself.
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Ends the free tasks, because they can get no more jobs.
impl<J> Drop for Tasks<J> {
    fn drop(&mut self) {
        for seat in self.free.get_mut().drain(..) {
            seat.dismiss();
        }
    }
}

impl<J> std::fmt::Debug for Tasks<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("free", &self.free.borrow().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::yield_now;

    use super::*;

    type Job = (u32, Option<oneshot::Receiver<()>>, mpsc::UnboundedSender<(u32, tokio::task::Id)>);

    async fn serve((number, wait, said): Job) {
        if let Some(wait) = wait {
            wait.await.unwrap();
        }
        said.send((number, tokio::task::id())).unwrap();
    }

    fn run(test: impl AsyncFnOnce(Rc<Tasks<Job>>)) {
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async { test(Tasks::new()).await });
    }

    #[test]
    fn requests_one_after_another_are_served_by_one_task() {
        run(async |tasks| {
            let (said, mut heard) = mpsc::unbounded_channel();
            let mut ids = Vec::new();
            for number in 0..10 {
                tasks.run((number, None, said.clone()), serve);
                let (same, id) = heard.recv().await.unwrap();
                assert_eq!(same, number);
                ids.push(id);
                yield_now().await;
            }
            ids.dedup();
            assert_eq!((ids.len(), tasks.free()), (1, 1));
        });
    }

    #[test]
    fn a_request_that_waits_does_not_block_others() {
        run(async |tasks| {
            let (said, mut heard) = mpsc::unbounded_channel();
            let (go, wait) = oneshot::channel();
            tasks.run((0, Some(wait), said.clone()), serve);
            tasks.run((1, None, said.clone()), serve);
            assert_eq!(heard.recv().await.unwrap().0, 1);
            go.send(()).unwrap();
            assert_eq!(heard.recv().await.unwrap().0, 0);
        });
    }

    #[test]
    fn tasks_that_are_not_needed_end() {
        run(async |tasks| {
            let (said, mut heard) = mpsc::unbounded_channel();
            for number in 0..10 {
                tasks.run((number, None, said.clone()), serve);
            }
            for _ in 0..10 {
                heard.recv().await.unwrap();
            }
            yield_now().await;
            assert_eq!(tasks.free(), 10);
            tasks.sweep();
            assert_eq!(tasks.free(), 10, "all were needed since the last sweep");
            tasks.run((0, None, said.clone()), serve);
            heard.recv().await.unwrap();
            yield_now().await;
            tasks.sweep();
            assert_eq!(tasks.free(), 1);
            tasks.sweep();
            tasks.sweep();
            assert_eq!(tasks.free(), 0);
        });
    }
}
