//! Domains: groups of tasks that serve one workload on the thread of another workload in the same process.
//!
//! ```text
//! thread of workload A ──┬── its own tasks ─────────────► sockets of A's network namespace
//!                        └── Domain of B ── its tasks ──► sockets of B's namespace, which B's thread lends
//! ```
//! A client in A reaches B in this way without a change of threads. A task that is spawned by a task of a domain
//! belongs to the domain, too, so other code need not know on which thread it runs.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::{AbortHandle, JoinHandle, spawn_local};

use crate::sockets::LentNamespace;

thread_local! {
    /// The domain of the task that is being polled.
    static CURRENT: RefCell<Option<Rc<Domain>>> = const { RefCell::new(None) };
}

/// The number that the next domain gets.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Tasks of the calling thread that use another network namespace than the thread does.
#[derive(Debug)]
pub struct Domain {
    number: u64,
    namespace: LentNamespace,
    tasks: RefCell<Vec<AbortHandle>>,
    /// How many tasks of the domain have panicked.
    pub(crate) panics: Cell<u64>,
    ended: Cell<bool>,
}

impl Domain {
    /// A domain without tasks.
    #[must_use]
    pub fn new(namespace: LentNamespace) -> Rc<Self> {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let (panics, ended) = (Cell::new(0), Cell::new(false));
        Rc::new(Self { number, namespace, tasks: RefCell::default(), panics, ended })
    }

    /// Spawns a task of the domain on the current thread.
    pub fn spawn<F: Future + 'static>(self: &Rc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F::Output: 'static,
    {
        let task = spawn_local(Within { domain: Rc::clone(self), future });
        if self.ended.get() {
            task.abort();
        }
        let mut tasks = self.tasks.borrow_mut();
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task.abort_handle());
        task
    }

    /// Frees the handles of tasks that have ended. If this is not called every few seconds, the list of handles keeps
    /// them in memory.
    pub fn sweep(&self) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.shrink_to_fit();
    }

    /// Aborts all tasks of the domain, and all that are spawned later.
    pub fn end(&self) {
        self.ended.set(true);
        self.tasks.take().iter().for_each(AbortHandle::abort);
    }

    pub(crate) fn namespace(&self) -> &LentNamespace {
        &self.namespace
    }
}

/// Spawns a task on the current thread, in the domain of the current task.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output>
where
    F::Output: 'static,
{
    match current() {
        Some(domain) => domain.spawn(future),
        None => spawn_local(future),
    }
}

/// The domain of the current task. `None`: the task belongs to the thread's own workload.
pub(crate) fn current() -> Option<Rc<Domain>> {
    // This fails only while the thread ends.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// A number that identifies the domain of the current task. `None`: the task belongs to the thread's own workload.
#[must_use]
pub fn domain_number() -> Option<u64> {
    current().map(|domain| domain.number)
}

pin_project! {
    struct Within<F> {
        domain: Rc<Domain>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _inside = Inside(CURRENT.replace(Some(Rc::clone(this.domain))));
        this.future.poll(cx)
    }
}

/// Restores the previous domain when it is dropped.
struct Inside(Option<Rc<Domain>>);

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
