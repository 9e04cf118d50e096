//! One thread of load: its schedule, its backlog and its connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::clock::Clock;
use super::connection::Connection;
use super::plan::{ClusterTarget, Pace, Plan, Stop};
use super::record::{BACKLOG_FULL, LoadTally, UNSENT};
use crate::usage::cpu_of_this_thread;

/// The largest number of requests of a thread that are due and not sent: one minute at twice the rate that one proxy
/// can serve. Requests beyond it count as errors.
const MAX_BACKLOG: usize = 2_000_000;
/// How long after the end of the load the backlog is still served; requests that are left then count as errors.
const BACKLOG_GRACE: Duration = Duration::from_secs(2);
/// The time limit for opening a connection before the first request.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
/// The time limits of the priming requests, which are sent before the load.
const PRIME_LIMITS: PrimeLimits =
    PrimeLimits { each: Duration::from_secs(2), all: Duration::from_secs(10) };

/// One thread's part of a plan.
#[derive(Clone, Copy)]
pub(super) struct LoadShare {
    /// The time between two requests of this thread; `None` for a closed loop.
    interval: Option<Duration>,
    /// By how much the schedule of this thread is shifted, so that threads do not send at the same moment.
    phase: Duration,
    connections: usize,
    /// The number of the first connection, counted over all threads.
    first_connection: usize,
    /// The earliest start of the load, which is the same for all threads.
    not_before: Instant,
}

impl LoadShare {
    /// Part `nth` of `threads`, whose schedules interleave.
    pub(super) fn of(plan: &Plan, (nth, threads): (usize, usize), not_before: Instant) -> Self {
        let whole = plan.rate().map(|rate| Duration::from_secs_f64(1.0 / rate));
        let connections =
            plan.connections / threads + usize::from(nth < plan.connections % threads);
        LoadShare {
            interval: whole.map(|i| i * u32::try_from(threads).unwrap_or(u32::MAX)),
            phase: whole.unwrap_or_default() * u32::try_from(nth).unwrap_or(u32::MAX),
            connections,
            first_connection: plan.connections / threads * nth,
            not_before,
        }
    }

    /// The same share for plan `nth` of `of` plans: its schedule is shifted, so that the plans do not all send at the
    /// same moment.
    pub(super) fn later(self, nth: usize, of: usize) -> Self {
        let part = nth as f64 / of as f64;
        let phase = self.phase + self.interval.unwrap_or_default().mul_f64(part);
        LoadShare { phase, ..self }
    }
}

/// The state that the schedule and the connections of one thread share.
struct Desk {
    /// The moments at which requests were due that no connection was free for, the earliest first.
    backlog: RefCell<VecDeque<Instant>>,
    /// Idle connections. The one that has been idle longest is used next, so that all are used.
    free: RefCell<VecDeque<usize>>,
    /// For each connection, the moment at which its next request was due.
    jobs: RefCell<Vec<Option<Instant>>>,
    /// For each connection, wakes its task when a request is handed to it, or when the schedule ends.
    bells: Vec<Notify>,
    /// Whether the schedule has ended. A connection that has no request then ends.
    ended: Cell<bool>,
    /// Requests that are due from this moment on are measured. Those before it are the warm-up.
    measure_from: Cell<Instant>,
    /// Requests that are due from this moment on are not measured.
    measure_to: Cell<Instant>,
    /// Ends the load early.
    stop: Stop,
    pace: Pace,
    /// Chooses the pauses of a closed loop.
    random: RefCell<fastrand::Rng>,
    tally: RefCell<LoadTally>,
}

impl Desk {
    /// A request is due: hands it to a free connection, or else appends it to the backlog.
    fn due(&self, when: Instant) {
        let mut tally = self.tally.borrow_mut();
        if let Some(connection) = self.free.borrow_mut().pop_front() {
            tally.lag.saturating_record(micros(when.elapsed()));
            self.jobs.borrow_mut()[connection] = Some(when);
            self.bells[connection].notify_one();
            return;
        }
        let mut backlog = self.backlog.borrow_mut();
        if backlog.len() >= MAX_BACKLOG {
            tally.requests += 1;
            tally.error(BACKLOG_FULL);
            return;
        }
        backlog.push_back(when);
        tally.backlog_max = tally.backlog_max.max(backlog.len());
    }

    /// Waits for the next request of `connection`, and returns when it was due. `None` when the run has ended.
    async fn next(&self, connection: usize) -> Option<Instant> {
        match self.pace {
            Pace::Rate(_) => {}
            Pace::Saturate => return self.at_once(),
            Pace::Think(longest) => {
                let part = self.random.borrow_mut().f64();
                tokio::time::sleep(longest.mul_f64(part)).await;
                return self.at_once();
            }
        }
        loop {
            if let Some(due) = self.jobs.borrow_mut()[connection].take() {
                return Some(due);
            }
            if let Some(due) = self.backlog.borrow_mut().pop_front() {
                return Some(due);
            }
            if self.ended.get() {
                return None;
            }
            self.free.borrow_mut().push_back(connection);
            self.bells[connection].notified().await;
        }
    }

    /// The next request of a closed loop, which is due now.
    fn at_once(&self) -> Option<Instant> {
        let now = Instant::now();
        (!self.is_over(now)).then_some(now)
    }

    /// Whether the load has ended at this moment.
    fn is_over(&self, when: Instant) -> bool {
        when >= self.measure_to.get() || self.stop.is_stopped()
    }

    fn measured(&self, due: Instant) -> bool {
        due >= self.measure_from.get() && due < self.measure_to.get()
    }

    fn end(&self) {
        self.ended.set(true);
        self.bells.iter().for_each(Notify::notify_one);
    }

    /// Counts the requests that were due and never sent as errors, and removes them.
    fn give_up_backlog(&self) {
        let mut tally = self.tally.borrow_mut();
        for due in self.backlog.borrow_mut().drain(..).filter(|due| self.measured(*due)) {
            debug_assert!(due < self.measure_to.get());
            tally.requests += 1;
            tally.error(UNSENT);
        }
    }
}

pub(super) fn run(target: &ClusterTarget, share: LoadShare, stop: &Stop) -> Result<LoadTally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Tasks of a `LocalSet` must be `'static`, so they own the target.
    let target: Rc<ClusterTarget> = Rc::new(target.clone());
    LocalSet::new().block_on(&runtime, drive(target, share, stop.clone()))
}

async fn drive(target: Rc<ClusterTarget>, share: LoadShare, stop: Stop) -> Result<LoadTally> {
    let (plan, now) = (&target.plan, Instant::now());
    let mut slots =
        Connection::all(&target, (share.first_connection, share.connections), plan.streams);
    for slot in &mut slots {
        slot.open(OPEN_LIMIT).await;
    }
    if plan.primed && !plan.new_connection {
        prime(&mut slots, PRIME_LIMITS).await;
    }
    let desk = Rc::new(Desk {
        backlog: RefCell::default(),
        free: RefCell::default(),
        jobs: RefCell::new(vec![None; slots.len()]),
        bells: (0..slots.len()).map(|_| Notify::new()).collect(),
        ended: Cell::new(false),
        measure_from: Cell::new(now),
        measure_to: Cell::new(now),
        stop,
        pace: plan.pace,
        random: RefCell::new(fastrand::Rng::with_seed(share.first_connection as u64)),
        tally: RefCell::new(LoadTally::new()),
    });
    let start = Instant::now().max(share.not_before) + share.phase;
    desk.measure_from.set(start + plan.warm_up);
    desk.measure_to.set(start + plan.warm_up + plan.duration);
    let cpu_start = cpu_of_this_thread()?;
    let tasks: Vec<_> = slots
        .into_iter()
        .enumerate()
        .map(|(i, connection)| tokio::task::spawn_local(serve(Rc::clone(&desk), connection, i)))
        .collect();
    if let Some(interval) = share.interval {
        schedule(&desk, start, interval).await?;
        desk.tally.borrow_mut().busy = busy(cpu_start, start)?;
        wait_for_backlog(&desk).await;
    }
    desk.end();
    for task in tasks {
        task.await?;
    }
    let mut tally = desk.tally.replace(LoadTally::new());
    tally.measured = if share.interval.is_some() && !desk.stop.is_stopped() {
        plan.duration
    } else {
        desk.measure_from.get().elapsed().min(plan.duration)
    };
    Ok(tally)
}

#[derive(Clone, Copy)]
struct PrimeLimits {
    each: Duration,
    /// The time limit for all connections of a thread together, which are primed one after the other.
    all: Duration,
}

/// Sends one request on each connection. A failure here is not reported: the first measured request will report it. A
/// request that is still unfinished at the limit is dropped with its connection, so that its response is not mistaken
/// for that of the next request.
async fn prime(slots: &mut [Connection], limits: PrimeLimits) {
    let end = tokio::time::Instant::now() + limits.all;
    for slot in slots {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        if left.is_zero() {
            // The other connections stay open without a priming request.
            break;
        }
        let limit = limits.each.min(left);
        let outcome = tokio::time::timeout(limit, slot.request()).await;
        if !outcome.is_ok_and(|outcome| outcome.result.is_ok()) {
            slot.reset();
            slot.open(limit).await;
        }
    }
}

/// Issues requests as they fall due.
async fn schedule(desk: &Desk, start: Instant, interval: Duration) -> Result<()> {
    let clock = Clock::new()?;
    for nth in 0_u32.. {
        let due = start + interval.saturating_mul(nth);
        if desk.is_over(due) {
            break;
        }
        if due > Instant::now() {
            clock.until(due).await?;
        } else if nth.is_multiple_of(64) {
            // The thread is behind schedule: let the connections work between bursts.
            tokio::task::yield_now().await;
        }
        desk.due(due);
    }
    Ok(())
}

async fn wait_for_backlog(desk: &Desk) {
    let end = tokio::time::Instant::now() + BACKLOG_GRACE;
    while !desk.backlog.borrow().is_empty() && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    desk.give_up_backlog();
}

/// Sends requests on one connection until the run has ended.
async fn serve(desk: Rc<Desk>, mut connection: Connection, nth: usize) {
    while let Some(due) = desk.next(nth).await {
        let outcome = connection.request().await;
        if !desk.measured(due) {
            continue;
        }
        let mut tally = desk.tally.borrow_mut();
        tally.requests += 1;
        tally.body_bytes += outcome.body_bytes;
        match outcome.result {
            Ok(()) => tally.latency.saturating_record(micros(due.elapsed())),
            Err(failure) => tally.error(failure.0),
        }
    }
    desk.tally.borrow_mut().opened += connection.opened();
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// The share of the time since `start` that this thread was on a CPU.
fn busy(cpu_start: Duration, start: Instant) -> Result<f64> {
    let wall = start.elapsed().as_secs_f64().max(1e-6);
    Ok((cpu_of_this_thread()?.saturating_sub(cpu_start).as_secs_f64() / wall).min(1.0))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::plan::{Protocol, target};
    use super::*;

    /// A server that never answers the first connection and answers all others at once.
    async fn serve_all_but_the_first(listener: TcpListener) {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if held.is_empty() {
                held.push(stream);
                continue;
            }
            tokio::task::spawn_local(async move {
                let mut bytes = [0; 4];
                while stream.read_exact(&mut bytes).await.is_ok() {
                    stream.write_all(&bytes).await.unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn a_request_beforehand_that_is_not_answered_leaves_no_connection_behind() {
        let local = LocalSet::new();
        let done = local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            tokio::task::spawn_local(serve_all_but_the_first(listener));
            let plan = Plan {
                protocol: Protocol::Tcp,
                body_size: 4,
                timeout: Duration::from_secs(2),
                ..Plan::new(url, 1.0, Duration::from_secs(1))
            };
            let target = Rc::new(target(&plan).unwrap());
            let mut slots = Connection::all(&target, (0, 2), 1);
            for slot in &mut slots {
                slot.open(OPEN_LIMIT).await;
            }
            let each = Duration::from_millis(100);
            prime(&mut slots, PrimeLimits { each, all: Duration::from_secs(10) }).await;
            for slot in &mut slots {
                assert_eq!(slot.request().await.result, Ok(()));
            }
            let opened: Vec<u64> = slots.iter().map(Connection::opened).collect();
            assert_eq!(opened, [2, 1], "opened again; the other connection is unchanged");
        });
        done.await;
    }
}
