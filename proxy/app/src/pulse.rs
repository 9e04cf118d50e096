//! Detects from another thread that a worker stalls, and measures its CPU use.
//!
//! ```text
//!  asked ──► came round ──► asked ...
//!    └─────► has used the CPU for a second, or slept for long, without coming round: it stalls
//! ```
//! A worker is asked to complete one turn of its event loop. A worker that does so has come round. A worker that does
//! not is judged by the CPU time that it uses, and not by the time that passes, so that a worker that waits for a CPU
//! on a busy machine is not mistaken for a stalled one. A thread cannot be killed, and its connections cannot be
//! moved. So a stalled worker keeps its connections, gets the lowest priority if it uses much CPU time, and continues
//! if it recovers.

#![expect(unsafe_code, reason = "setpriority(2) has no safe wrapper")]

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leno_handover::{AsyncChannel, MemberReport};
use nix::libc;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use tokio::sync::Notify;

/// How often the supervisor learns that this process does not hang.
const BEAT: Duration = Duration::from_secs(1);
/// How often a worker is asked to complete a turn. This is not more frequent, because it wakes two threads.
const ASK: Duration = Duration::from_secs(1);
/// How often a worker that has not completed its turn at once is checked.
const LOOK: Duration = Duration::from_millis(250);
/// How much CPU time a worker may use in one turn. A turn runs some sixty tasks, each of which yields after some
/// hundred reads, so it takes milliseconds. Without optimizations, handshakes make that a second.
const LONGEST_TURN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });
/// At how many checks in a row a worker may be found asleep although it was woken. Then it is in a system call that
/// does not return.
const SLEEPING_LOOKS: u32 = 20;
/// How much CPU time a sleeping worker uses at most between these checks. A worker that waits for a CPU gets more than
/// that, because the checking thread gets a CPU, too.
const SLEEPING: Duration = Duration::from_millis(1);
/// The number of checks after which a stalled worker that uses CPU time gets the lowest priority. It then has only a
/// small share of a CPU that other threads need.
const LOOKS_UNTIL_LAST: u32 = 40;
/// The lowest priority (`nice`).
const LAST: libc::c_int = 19;

/// The state that a worker shares with the thread that watches it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Notified to ask the worker to complete a turn.
    asked: Notify,
    /// How many times the worker has come round.
    turns: AtomicU64,
    /// The kernel's id of the worker's thread, once it runs.
    thread: OnceLock<i32>,
}

/// A worker that has stalled, and the turn in which it has stalled.
#[derive(Debug)]
pub(crate) struct Stalled {
    worker: Arc<Pulse>,
    turns: u64,
}

/// The worker's turns and CPU time when it was asked to complete a turn, and how many checks have found since that it
/// had not.
#[derive(Clone, Copy, Debug)]
struct PulseQuery {
    turns: u64,
    cpu: Duration,
    looks: u32,
}

impl Pulse {
    /// Records that the calling thread is the worker's.
    pub(crate) fn begin(&self) {
        let _once = self.thread.set(gettid().as_raw());
    }

    /// Waits until the worker is asked to complete a turn.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Called when the worker has completed a turn.
    pub(crate) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// The CPU time that the worker has used.
    pub(crate) fn cpu(&self) -> Duration {
        self.thread.get().map(|thread| cpu_of(*thread)).unwrap_or_default()
    }

    /// Records in which turn the worker stalls.
    pub(crate) fn stalled(self: &Arc<Self>) -> Stalled {
        Stalled { turns: self.turns.load(Ordering::Relaxed), worker: Arc::clone(self) }
    }

    fn ask(&self) -> PulseQuery {
        let turns = self.turns.load(Ordering::Relaxed);
        self.asked.notify_one();
        PulseQuery { turns, cpu: self.cpu(), looks: 0 }
    }

    /// Returns when the worker stalls. Cancel safe.
    pub(crate) async fn until_it_stalls(&self) {
        let mut asked = self.ask();
        loop {
            tokio::time::sleep(if asked.looks == 0 { ASK } else { LOOK }).await;
            if self.turns.load(Ordering::Relaxed) != asked.turns {
                asked = self.ask();
                continue;
            }
            asked.looks = asked.looks.saturating_add(1);
            if stalls(self.cpu().saturating_sub(asked.cpu), asked.looks) {
                return;
            }
        }
    }

    /// Returns when a stalled worker has completed its turn. Cancel safe.
    pub(crate) async fn until_it_comes_round(&self) {
        let asked = self.ask();
        let (mut looks, mut is_last) = (0_u32, false);
        while self.turns.load(Ordering::Relaxed) == asked.turns {
            // An unprivileged process cannot raise a priority again, so a worker that only sleeps keeps its priority.
            let used = self.cpu().saturating_sub(asked.cpu);
            if looks >= LOOKS_UNTIL_LAST && used >= LONGEST_TURN && !is_last {
                self.be_last();
                is_last = true;
            }
            looks = looks.saturating_add(1);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives the worker's thread the lowest priority.
    fn be_last(&self) {
        let Some(Ok(thread)) = self.thread.get().map(|thread| libc::id_t::try_from(*thread)) else {
            return;
        };
        // SAFETY: the function takes numbers and touches no memory.
        if unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, LAST) } != 0 {
            let error = std::io::Error::last_os_error();
            tracing::warn!(%error, "cannot lower the priority of a stalled worker");
        }
    }
}

impl Stalled {
    /// Whether the worker's thread still exists and has not completed the turn since.
    pub(crate) fn still_stalls(&self) -> bool {
        let is_there = self.worker.thread.get().is_some_and(|thread| clock_of(*thread).is_some());
        is_there && self.worker.turns.load(Ordering::Relaxed) == self.turns
    }
}

/// Reports each second that the calling thread completes its turns, as long as `goes_on` returns true. Without these
/// reports, the supervisor considers the process hung.
pub(crate) async fn beat(
    supervisor: impl Deref<Target = AsyncChannel>,
    goes_on: impl Fn() -> bool,
) -> Infallible {
    loop {
        if goes_on() {
            // The message may be lost: a supervisor that does not read has a full queue, and one that has ended needs
            // no message.
            let _unread = supervisor.send(&MemberReport::ALIVE, &[]);
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// Whether a worker stalls if it has not completed its turn after this many checks, and has used this much CPU time
/// meanwhile.
fn stalls(cpu: Duration, looks: u32) -> bool {
    cpu >= LONGEST_TURN || (looks >= SLEEPING_LOOKS && cpu < SLEEPING)
}

/// The CPU time that a thread of this process has used; zero if it has ended.
fn cpu_of(thread: i32) -> Duration {
    clock_of(thread).unwrap_or_default()
}

/// The CPU time of a thread; `None` if the thread has ended.
fn clock_of(thread: i32) -> Option<Duration> {
    // CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED, with which pthread_getcpuclockid(3) builds the id of a thread's clock.
    const OF_THREAD: i32 = 4 | 2;
    let clock = ClockId::from_raw((!thread << 3) | OF_THREAD);
    clock_gettime(clock).map(Duration::from).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// A limit for waits, which is longer than any machine needs.
    const LIMIT: Duration = Duration::from_secs(600);

    /// Behaves like a worker's runtime, on a thread of its own: first runs `busy`, then comes round whenever it is
    /// asked, until `end` is set.
    fn worker(
        pulse: &Arc<Pulse>,
        end: &Arc<AtomicBool>,
        busy: impl FnOnce() + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let (pulse, end) = (Arc::clone(pulse), Arc::clone(end));
        thread::spawn(move || {
            pulse.begin();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                busy();
                while !end.load(Ordering::Relaxed) {
                    pulse.asked().await;
                    pulse.turn();
                }
            });
        })
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_worker_that_uses_the_cpu_without_coming_round_stalls_until_it_comes_round() {
        let (pulse, end) = (Arc::<Pulse>::default(), Arc::<AtomicBool>::default());
        let spins = Arc::new(AtomicBool::new(true));
        let spinning = Arc::clone(&spins);
        let thread = worker(&pulse, &end, move || {
            while spinning.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        runtime().block_on(async {
            tokio::time::timeout(LIMIT, pulse.until_it_stalls()).await.expect("it spins");
            assert!(pulse.cpu() >= LONGEST_TURN);
            let stalled = pulse.stalled();
            assert!(stalled.still_stalls());
            pulse.be_last();
            spins.store(false, Ordering::Relaxed);
            tokio::time::timeout(LIMIT, pulse.until_it_comes_round()).await.expect("it goes on");
            assert!(!stalled.still_stalls(), "it is counted for ever");
            end.store(true, Ordering::Relaxed);
            pulse.ask();
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_worker_whose_thread_has_ended_stalls_no_more() {
        let pulse = Arc::<Pulse>::default();
        let of_thread = Arc::clone(&pulse);
        let stalled = thread::spawn(move || {
            of_thread.begin();
            let stalled = of_thread.stalled();
            assert!(stalled.still_stalls());
            stalled
        });
        let stalled = stalled.join().unwrap();
        // The kernel may still list the thread after it was joined.
        while stalled.still_stalls() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_worker_that_is_idle_does_not_stall() {
        let (pulse, end) = (Arc::<Pulse>::default(), Arc::<AtomicBool>::default());
        let thread = worker(&pulse, &end, || {});
        runtime().block_on(async {
            let looks = ASK + LOOK * (SLEEPING_LOOKS + 4);
            let stalled = tokio::time::timeout(looks, pulse.until_it_stalls()).await;
            assert!(stalled.is_err(), "it comes round each time that it is asked");
            end.store(true, Ordering::Relaxed);
            pulse.ask();
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_worker_that_waits_for_a_cpu_does_not_stall() {
        let ms = Duration::from_millis;
        let little = LONGEST_TURN.saturating_sub(ms(1));
        assert!(!stalls(little, 1000), "it gets a thirtieth of a CPU");
        assert!(!stalls(ms(20), SLEEPING_LOOKS));
        assert!(!stalls(Duration::ZERO, SLEEPING_LOOKS - 1));
        assert!(stalls(Duration::ZERO, SLEEPING_LOOKS));
        assert!(stalls(LONGEST_TURN, 2));
    }
}
