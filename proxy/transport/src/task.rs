//! Tasks in which a panic ends only the task.
//!
//! ```text
//! panic ─► hook ─┬─ in a contained task: counted, logged; the task's drops run, tokio ends it
//!                └─ anywhere else: logged; the process is aborted
//! ```
//!
//! A contained task serves one connection or one request. Everything that it holds is released when it is dropped, so
//! its end by a panic is like its end by a broken connection. State that it shares with other tasks, and that a panic
//! may have left half changed, is not used any more: see `leno_h2`, where a connection ends if a panic interrupted a
//! change of it.
//!
//! Nothing restarts other tasks, such as the loops that accept connections. A worker without them would run but serve
//! nothing, so the process ends and is started again.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::JoinHandle;

use crate::clock::PollTurn;
use crate::domain;

/// How many panics of a thread or domain are all logged. Later ones are logged each time their number has doubled,
/// because clients may be able to cause panics and must not fill the log.
const LOGGED: u64 = 16;

thread_local! {
    /// Whether a contained task is being polled.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Spawns a contained task on the current thread.
pub fn spawn_contained(future: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    domain::spawn(Contained { future: Some(future) })
}

/// How many contained tasks have panicked: those of the current task's domain, or those of the thread's own.
#[must_use]
pub fn panics() -> u64 {
    match domain::current() {
        Some(domain) => domain.panics.get(),
        None => PANICS.get(),
    }
}

/// Counts a panic for the current domain or thread. Returns how many there are.
fn count_panic() -> u64 {
    let count = panics().saturating_add(1);
    match domain::current() {
        Some(domain) => domain.panics.set(count),
        None => PANICS.set(count),
    }
    count
}

/// What the panic hook should do about a panic on the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicVerdict {
    /// The panic ends its task.
    EndTask {
        /// Whether this panic should be logged. Only some of many are.
        log: bool,
    },
    /// The panic must end the process.
    EndProcess,
}

/// Classifies a panic on the calling thread, and counts it if a contained task ends. The hook must call this once for
/// each panic.
#[must_use]
pub fn judge_panic() -> PanicVerdict {
    // Access to the thread-local value fails only while the thread ends, when no task runs.
    if !CONTAINED.try_with(Cell::get).unwrap_or(false) {
        return PanicVerdict::EndProcess;
    }
    let count = count_panic();
    PanicVerdict::EndTask { log: count <= LOGGED || count.is_power_of_two() }
}

/// Panics if the environment variable `LENO_TEST_PANIC` is `point=subject`. Tests use this to see what a panic ends. It
/// does nothing in release builds.
#[inline]
#[cfg_attr(debug_assertions, expect(clippy::panic, reason = "a test asks for it"))]
pub fn test_panic(point: &str, subject: &[u8]) {
    #[cfg(debug_assertions)]
    {
        static WANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let wanted = WANTED.get_or_init(|| std::env::var("LENO_TEST_PANIC").ok());
        let wanted = wanted.as_deref().and_then(|wanted| wanted.split_once('='));
        if wanted.is_some_and(|(at, of)| at == point && of.as_bytes() == subject) {
            panic!("LENO_TEST_PANIC asks for this panic at {point}");
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = (point, subject);
}

pin_project! {
    // The future; `None` once it has completed, so that it is dropped while the task is still contained.
    struct Contained<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future<Output = ()>> Future for Contained<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let _inside = Inside { outer: CONTAINED.replace(true), _turn: PollTurn::begin() };
        let mut future = self.project().future;
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let polled = running.poll(cx);
        if polled.is_ready() {
            future.set(None);
        }
        polled
    }
}

/// Marks the thread as being inside a contained task until it is dropped.
struct Inside {
    outer: bool,
    _turn: PollTurn,
}

impl Drop for Inside {
    fn drop(&mut self) {
        CONTAINED.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot;
    use tokio::task::spawn_local;

    use super::*;

    /// Calls [`judge_panic`] when it is dropped, as the panic hook would at that point.
    struct Judged(Option<oneshot::Sender<PanicVerdict>>);

    impl Drop for Judged {
        fn drop(&mut self) {
            if let Some(report) = self.0.take() {
                report.send(judge_panic()).unwrap();
            }
        }
    }

    #[test]
    fn a_panic_ends_only_its_task_if_the_task_is_contained() {
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            assert_eq!(judge_panic(), PanicVerdict::EndProcess);
            let plain = spawn_local(async { judge_panic() });
            let (report, dropped) = oneshot::channel();
            let held = Judged(Some(report));
            let contained = spawn_contained(async {
                let _held = held;
                tokio::task::yield_now().await;
                for count in 1..=40 {
                    let log = count <= LOGGED || count == 32;
                    assert_eq!(judge_panic(), PanicVerdict::EndTask { log }, "{count}");
                }
            });
            assert_eq!(plain.await.unwrap(), PanicVerdict::EndProcess);
            contained.await.unwrap();
            // The task's variables were dropped while the task still counted as contained.
            assert_eq!(dropped.await.unwrap(), PanicVerdict::EndTask { log: false });
            assert_eq!(panics(), 41);
            assert_eq!(judge_panic(), PanicVerdict::EndProcess);
        });
    }

    #[test]
    fn after_a_panic_the_thread_is_no_longer_marked_as_contained() {
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let ended = spawn_contained(async { panic!("wanted by this test") }).await;
            assert!(ended.unwrap_err().is_panic());
            assert_eq!(judge_panic(), PanicVerdict::EndProcess);
        });
    }
}
