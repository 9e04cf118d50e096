//! Runs a workload at the times of its schedule.
//!
//! ```text
//! scheduled ──(the time has come)──► run: started ─► ended ──► scheduled
//!     │                                  ▲  └─ failed, `restart: on-failure`: started again after a wait
//!     └─ too late: skipped               └─ another run is under way: start beside it, after it, or replace it
//! ```

use std::cell::RefCell;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::jiff::{Timestamp, Zoned};
use leno_resources::{ConcurrencyPolicy, RestartPolicy};
use leno_supervise::{RestartRules, StopStage, after, keep_running};
use tokio::sync::watch;

use super::application::{ApplicationState, how_it_ended};
use super::{InstanceChange, InstanceResources, InstanceTask};
use crate::plan::Timetable;
use crate::process::Event;
use crate::status::{Schedule, ScheduledRun};

/// Longest wait before the clock is read again. The clock may be set, and it advances while the machine sleeps.
const CLOCK: Duration = Duration::from_secs(10);
/// Most runs of one instance at the same time. With `Allow`, runs that hang would otherwise fill the machine.
const MAX_RUNS: usize = 10;

/// Decides which times of a schedule are due. Each time is due once.
struct ScheduleClock<'a> {
    timetable: &'a Timetable,
    /// Times up to this one have been handled.
    over: Timestamp,
}

/// What to do about the latest scheduled time that has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScheduledAction {
    /// No scheduled time has passed.
    Nothing,
    /// A run begins.
    Begins(Timestamp),
    /// A run begins and replaces the runs under way.
    Replaces(Timestamp),
    /// A run begins when the run under way has ended.
    Waits,
    /// The run is skipped, for this reason.
    LeftOut(Timestamp, String),
}

impl ScheduleClock<'_> {
    fn zoned(&self, time: Timestamp) -> Zoned {
        time.to_zoned(self.timetable.zone.clone())
    }

    /// The first scheduled time after `now` that is not handled yet.
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let cron = &self.timetable.cron;
        let next = cron.schedule.after(&self.zoned(now.max(self.over)));
        next.filter(|_| !cron.suspend).map(|next| next.timestamp())
    }

    /// What to do at `now` while `running` runs are under way. If several times have passed because the machine slept,
    /// only the last one counts.
    fn due(&self, now: Timestamp, running: usize) -> ScheduledAction {
        let cron = &self.timetable.cron;
        let last = cron.schedule.until(&self.zoned(now)).map(|last| last.timestamp());
        let Some(time) = last.filter(|last| *last > self.over && !cron.suspend) else {
            return ScheduledAction::Nothing;
        };
        let late = (now.as_second() - time.as_second()).max(0);
        match (cron.starting_deadline_seconds, cron.concurrency_policy) {
            (Some(most), _) if late > i64::from(most) => ScheduledAction::LeftOut(
                time,
                format!("it is {late} s late, and startingDeadlineSeconds is {most}"),
            ),
            _ if running == 0 => ScheduledAction::Begins(time),
            (_, ConcurrencyPolicy::Forbid) => ScheduledAction::Waits,
            (_, ConcurrencyPolicy::Replace) => ScheduledAction::Replaces(time),
            (_, ConcurrencyPolicy::Allow) if running >= MAX_RUNS => {
                ScheduledAction::LeftOut(time, format!("{running} other runs have not ended"))
            }
            (_, ConcurrencyPolicy::Allow) => ScheduledAction::Begins(time),
        }
    }

    /// Formats a time in the time zone of the schedule.
    fn shown(&self, time: Timestamp) -> String {
        self.zoned(time).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }
}

/// The runs that are under way.
#[derive(Default)]
struct ScheduledRuns<'a> {
    running: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    ends: Vec<watch::Sender<StopStage>>,
}

impl<'a> ScheduledRuns<'a> {
    fn begin(&mut self, end: watch::Sender<StopStage>, run: impl Future<Output = ()> + 'a) {
        self.ends.retain(|end| !end.is_closed());
        self.ends.push(end);
        self.running.push(Box::pin(run));
    }

    /// Returns when one run has ended.
    async fn one_ended(&mut self) {
        if self.running.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends all runs, each within its grace period, or at once if `stop` demands that.
    async fn end(&mut self, mut stop: watch::Receiver<StopStage>) {
        let mut level = StopStage::Applications;
        while !self.running.is_empty() {
            for end in &self.ends {
                end.send_modify(|now| *now = (*now).max(level));
            }
            tokio::select! {
                () = self.one_ended() => {}
                // If the sender is dropped, the mesh has ended.
                further = stop.wait_for(|now| *now > level) => {
                    level = further.map_or(StopStage::Now, |further| *further);
                }
            }
        }
    }
}

impl InstanceTask {
    /// Starts runs by the schedule, until the instance is stopped and all runs have ended.
    pub(super) async fn keep_schedule(&self, place: &InstanceResources, timetable: &Timetable) {
        let label = &self.instance.label;
        let mut clock = ScheduleClock { timetable, over: Timestamp::now() };
        let watched = ApplicationState::default();
        let suspended = timetable.cron.suspend;
        let state = RefCell::new(Schedule { suspended, ..Schedule::default() });
        let mut stop = self.stop.clone();
        let mut runs = ScheduledRuns::default();
        while *stop.borrow() < StopStage::Applications {
            match clock.due(Timestamp::now(), runs.running.len()) {
                ScheduledAction::Nothing | ScheduledAction::Waits => {}
                due @ (ScheduledAction::Begins(time) | ScheduledAction::Replaces(time)) => {
                    clock.over = time;
                    if matches!(due, ScheduledAction::Replaces(_)) {
                        let time = clock.shown(time);
                        self.say(&format!("{label}: the run of {time} replaces the one before it"));
                        runs.end(self.stop.clone()).await;
                    }
                    let end = watch::channel(StopStage::No).0;
                    runs.begin(end.clone(), self.one_run(place, (&watched, &state), end));
                }
                ScheduledAction::LeftOut(time, why) => {
                    clock.over = time;
                    self.say(&format!(
                        "{label}: the run of {} is skipped: {why}",
                        clock.shown(time)
                    ));
                }
            }
            let next = clock.next(Timestamp::now());
            state.borrow_mut().next_unix_ms = next.map(Timestamp::as_millisecond);
            self.report_schedule(&state).await;
            tokio::select! {
                () = tokio::time::sleep(until(next)) => {}
                () = runs.one_ended() => {}
                _ = stop.wait_for(|now| *now >= StopStage::Applications) => {}
            }
        }
        self.report(InstanceChange::Stopping).await;
        runs.end(stop).await;
    }

    /// Makes one run, with its restarts, until it has ended for good or `end` ends it.
    async fn one_run(
        &self,
        place: &InstanceResources,
        (watched, state): (&ApplicationState, &RefCell<Schedule>),
        end: watch::Sender<StopStage>,
    ) {
        let (instance, label) = (&self.instance, &self.instance.label);
        // Each run has its own origin, so that its last line is not taken from another run.
        let name = instance.name.to_string();
        let origin = self.mesh.output.origin(label, &name, &instance.workload);
        let started_unix_ms = Timestamp::now().as_millisecond();
        state.borrow_mut().begins(started_unix_ms);
        self.report_schedule(state).await;
        let rules = self.rules(watch::channel(None).1);
        let again = rules.restart == RestartPolicy::OnFailure;
        let restart = if again { RestartPolicy::OnFailure } else { RestartPolicy::Never };
        let mut how = None;
        let start =
            || self.task(place, &instance.launch.command)?.start(&self.mesh.output, &origin);
        let until = (end.subscribe(), StopStage::Applications);
        let ended =
            keep_running(start, RestartRules { restart, ..rules }, until, |event| match event {
                Event::Ended(status, wait) => {
                    let ended = how_it_ended(status, place, watched);
                    self.say(&format!("{label}: a run {ended}; restarting it {}", after(wait)));
                }
                Event::Over(status) => how = Some(how_it_ended(status, place, watched)),
                Event::Failed(error, wait) if again => {
                    self.complain(&error);
                    self.say(&format!("{label}: retrying {}", after(wait)));
                }
                // A run that cannot be started counts as failed.
                Event::Failed(error, _) => {
                    how = Some(error.chain());
                    end.send_replace(StopStage::Applications);
                }
                Event::Started(_) | Event::Stopping | Event::Stopped => {}
            });
        let succeeded = ended.await.is_some_and(|status| status.success());
        // `how` is `None` if the run was replaced, or ended with the instance.
        let run = how.map(|how| ScheduledRun {
            started_unix_ms,
            ended_unix_ms: Timestamp::now().as_millisecond(),
            succeeded,
            last_line: if succeeded { String::new() } else { origin.last_line() },
            how,
        });
        if let Some(ScheduledRun { succeeded: false, how, .. }) = &run {
            self.say(&format!("{label}: a run failed: {how}"));
        }
        state.borrow_mut().ended(run);
        self.report_schedule(state).await;
    }

    async fn report_schedule(&self, state: &RefCell<Schedule>) {
        let now = state.borrow().clone();
        self.report(InstanceChange::Scheduled(Box::new(now))).await;
    }
}

/// How long to wait until `next`.
fn until(next: Option<Timestamp>) -> Duration {
    let left = next.map(|next| next.duration_since(Timestamp::now()));
    left.map_or(CLOCK, |left| Duration::try_from(left).unwrap_or_default().min(CLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::tz::TimeZone;
    use leno_resources::Cron;

    fn timetable(policy: ConcurrencyPolicy, deadline: Option<u32>) -> Timetable {
        let cron = Cron {
            schedule: "*/5 * * * *".parse().unwrap(),
            time_zone: None,
            concurrency_policy: policy,
            starting_deadline_seconds: deadline,
            suspend: false,
        };
        Timetable { cron, zone: TimeZone::UTC }
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    fn due(timetable: &Timetable, over: &str, now: &str, running: usize) -> ScheduledAction {
        ScheduleClock { timetable, over: at(over) }.due(at(now), running)
    }

    #[test]
    fn the_last_of_the_times_that_have_passed_counts_once() {
        let every = timetable(ConcurrencyPolicy::Allow, None);
        assert_eq!(due(&every, "00:01:00", "00:04:59", 0), ScheduledAction::Nothing);
        assert_eq!(due(&every, "00:01:00", "00:05:00", 0), ScheduledAction::Begins(at("00:05:00")));
        assert_eq!(due(&every, "00:05:00", "00:05:01", 0), ScheduledAction::Nothing);
        // The machine slept for hours.
        assert_eq!(due(&every, "00:05:00", "03:07:00", 0), ScheduledAction::Begins(at("03:05:00")));
        // The clock was set back.
        assert_eq!(due(&every, "03:05:00", "01:07:00", 0), ScheduledAction::Nothing);
        let clock = ScheduleClock { timetable: &every, over: at("03:05:00") };
        assert_eq!(clock.next(at("01:07:00")), Some(at("03:10:00")));
    }

    #[test]
    fn what_is_too_late_is_left_out() {
        let late = timetable(ConcurrencyPolicy::Allow, Some(10));
        assert_eq!(due(&late, "00:01:00", "00:05:10", 0), ScheduledAction::Begins(at("00:05:00")));
        let why = "it is 11 s late, and startingDeadlineSeconds is 10".to_owned();
        assert_eq!(
            due(&late, "00:01:00", "00:05:11", 0),
            ScheduledAction::LeftOut(at("00:05:00"), why)
        );
    }

    #[test]
    fn overlapping_runs_follow_the_policy() {
        let of = |policy, running| due(&timetable(policy, None), "00:01:00", "00:05:00", running);
        let time = at("00:05:00");
        assert_eq!(of(ConcurrencyPolicy::Allow, 1), ScheduledAction::Begins(time));
        let crowded = ScheduledAction::LeftOut(time, "10 other runs have not ended".to_owned());
        assert_eq!(of(ConcurrencyPolicy::Allow, MAX_RUNS), crowded);
        assert_eq!(of(ConcurrencyPolicy::Forbid, 1), ScheduledAction::Waits);
        assert_eq!(of(ConcurrencyPolicy::Forbid, 0), ScheduledAction::Begins(time));
        assert_eq!(of(ConcurrencyPolicy::Replace, 1), ScheduledAction::Replaces(time));
    }

    #[test]
    fn a_suspended_schedule_has_no_next_time() {
        let mut still = timetable(ConcurrencyPolicy::Allow, None);
        still.cron.suspend = true;
        assert_eq!(due(&still, "00:01:00", "00:05:00", 0), ScheduledAction::Nothing);
        assert_eq!(
            ScheduleClock { timetable: &still, over: at("00:01:00") }.next(at("00:01:00")),
            None
        );
    }
}
