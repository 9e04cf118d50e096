//! The thread that reads samples, and the counters that it shares.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leno_bpf::Error;
use leno_bpf::flows::{Flows, SamplesAt, monotonic, thread_time};

use super::conversations::Conversations;
use super::rows::Rows;

/// Longest time until samples are read. When there are many samples, the kernel wakes the reader earlier.
const WAIT: Duration = Duration::from_millis(100);
/// How often requests and connections are checked for having expired.
const SWEEP: Duration = Duration::from_secs(1);

/// The counters, and the thread that reads samples, which runs while any workload is sampled.
#[derive(Debug, Default)]
pub(crate) struct WireSampling {
    shared: Arc<SamplingState>,
    sampler: Option<Sampler>,
}

#[derive(Debug, Default)]
struct SamplingState {
    rows: Mutex<Rows>,
    /// How many connections were evicted for new ones, and how many requests for later ones.
    evicted: AtomicU64,
    given_up: AtomicU64,
    /// The CPU time that the threads have used.
    took_ns: AtomicU64,
}

/// The thread that reads samples. It ends when this is dropped.
#[derive(Debug)]
struct Sampler {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl WireSampling {
    /// Continues with the rows that an earlier process has left.
    pub(crate) fn resume(flows: &Flows) -> Result<Self, Error> {
        let rows = Mutex::new(Rows::resume(flows.wire_requests()?));
        let shared = Arc::new(SamplingState { rows, ..SamplingState::default() });
        Ok(Self { shared, sampler: None })
    }

    /// Starts or stops reading samples.
    pub(crate) fn set(&mut self, flows: &Flows, reads: bool) -> Result<(), Error> {
        match (reads, &self.sampler) {
            (false, _) => self.sampler = None,
            (true, Some(_)) => {}
            (true, None) => {
                let sampler = Sampler::start(flows.samples()?, Arc::clone(&self.shared));
                self.sampler = Some(sampler.map_err(|source| Error::Io {
                    action: "start the thread that reads samples".to_owned(),
                    source,
                })?);
            }
        }
        Ok(())
    }

    /// Stores the counters in the kernel that have changed since the last call.
    pub(crate) fn keep(&mut self, flows: &Flows) -> Result<(), Error> {
        self.rows().keep(|key, row| match row {
            Some(row) => flows.set_wire_requests(key, row),
            None => flows.forget_wire_requests(key),
        })
    }

    /// Restarts the thread if it has failed. Takes the lock of the pins if the ring of samples must be created again.
    ///
    /// # Errors
    /// Why it has failed.
    pub(crate) fn revive(&mut self, flows: &Flows) -> Result<(), Error> {
        let failed = self.sampler.as_mut().and_then(Sampler::failure);
        let Some(error) = failed else { return Ok(()) };
        self.sampler = None;
        self.set(flows, true)?;
        Err(error)
    }

    pub(crate) fn rows(&self) -> MutexGuard<'_, Rows> {
        self.shared.lock()
    }

    /// How many connections this process has evicted for new ones.
    pub(crate) fn evicted(&self) -> u64 {
        self.shared.evicted.load(Ordering::Relaxed)
    }

    /// How many requests this process has evicted for later requests of the same connection.
    pub(crate) fn given_up(&self) -> u64 {
        self.shared.given_up.load(Ordering::Relaxed)
    }

    /// The CPU time that reading has used so far.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(self.shared.took_ns.load(Ordering::Relaxed))
    }
}

impl SamplingState {
    /// Poisoning is ignored, because the counters are valid even after a panic.
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    fn start(samples: SamplesAt, shared: Arc<SamplingState>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = thread::Builder::new().name("flow-samples".to_owned());
        let thread = thread.spawn(move || read(&samples, &shared, &until))?;
        Ok(Self { ends, thread: Some(thread) })
    }

    /// Why the thread has ended; `None` if it has not.
    fn failure(&mut self) -> Option<Error> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        Some(match thread.join() {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => Error::Io {
                action: "read samples of payload".to_owned(),
                source: io::Error::other("the thread has ended"),
            },
        })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread ends within `WAIT`. Its error is not needed any more.
            let _ended = thread.join();
        }
    }
}

fn read(samples: &SamplesAt, shared: &SamplingState, ends: &AtomicBool) -> Result<(), Error> {
    let mut reader = samples.open()?;
    let mut talks = Conversations::default();
    let mut lost = samples.counts()?.lost;
    let (mut swept, mut charged) = (monotonic(), Duration::ZERO);
    loop {
        // Reads once more after the end was requested, because the queued samples were taken before that.
        let is_last = ends.load(Ordering::Relaxed);
        let taken = reader.take(if is_last { Duration::ZERO } else { WAIT })?;
        let lost_now = samples.counts()?.lost;
        if lost_now != lost {
            lost = lost_now;
            talks.doubt();
        }
        let now = monotonic();
        let mut rows = shared.lock();
        for sample in &taken {
            talks.take(sample, |pair, exchange| rows.count(pair, exchange));
        }
        let given_up = talks.take_given_up();
        shared.evicted.fetch_add(given_up.talks, Ordering::Relaxed);
        shared.given_up.fetch_add(given_up.requests, Ordering::Relaxed);
        if now.saturating_sub(swept) >= SWEEP {
            swept = now;
            let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            talks.sweep(now_ns, |pair, exchange| rows.count(pair, exchange));
        }
        drop(rows);
        let took = thread_time();
        let more = took.saturating_sub(charged).as_nanos();
        shared.took_ns.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
        charged = took;
        if is_last {
            return Ok(());
        }
    }
}
