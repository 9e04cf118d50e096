//! Runs the application of an instance: waits for its dependencies, runs its init commands, then its process.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::pin::Pin;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Instant;

use leno_resources::RestartPolicy;
use leno_supervise::{Backoff, Condemned, RestartRules, StopStage, after, describe, keep_running};
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};

use super::{InstanceChange, InstanceResources, InstanceTask};
use crate::credentials;
use crate::error::{Error, Result};
use crate::isolation::Isolation;
use crate::output::LineOrigin;
use crate::process::{Event, ProcessCommand};

/// What explains why the application's process ended. It is kept across restarts.
#[derive(Debug, Default)]
pub(super) struct ApplicationState {
    /// Names the process that must be ended because its liveness probe fails.
    pub(super) condemned: watch::Sender<Option<Condemned>>,
    /// Why the liveness probe fails.
    pub(super) reason: RefCell<Option<String>>,
    /// How many processes the kernel had killed for exceeding the memory limit when the application last ended. If there
    /// are more at its next end, the limit was the cause.
    killed: Cell<u64>,
}

impl InstanceTask {
    /// Waits for the instance's dependencies, runs its init commands and then the application, until the instance
    /// is stopped.
    pub(super) async fn application(&self, place: &InstanceResources) {
        let Self { mesh, instance, .. } = self;
        let name = instance.name.to_string();
        let origin = mesh.output.origin(&instance.label, &name, &instance.workload);
        if !self.dependencies().await {
            return;
        }
        for number in 0..instance.launch.init.len() {
            if !self.initialise(place, &origin, number).await {
                return;
            }
        }
        match &instance.launch.cron {
            Some(timetable) => self.keep_schedule(place, timetable).await,
            None => self.keep_application(place, &origin).await,
        }
    }

    /// Waits until the workloads that this one depends on satisfy its conditions; false if the instance is stopped
    /// before that.
    async fn dependencies(&self) -> bool {
        let (mut stages, mut stop) = (self.mesh.stages.subscribe(), self.stop.clone());
        let wanted = &self.instance.launch.depends_on;
        let mut reported = None;
        loop {
            let missing = {
                let stages = stages.borrow_and_update();
                let mut missing = wanted.iter().filter(|(key, condition)| {
                    !stages.get(key).is_some_and(|stage| stage.has_reached(**condition))
                });
                missing.next().map(|((namespace, name), condition)| {
                    let own = *self.instance.name.namespace == **namespace;
                    let name = if own { name.clone() } else { format!("{namespace}/{name}") };
                    format!("waits for {name} to be {condition}")
                })
            };
            let Some(missing) = missing else { return true };
            if reported.as_ref() != Some(&missing) {
                self.report(InstanceChange::Starting(missing.clone())).await;
                reported = Some(missing);
            }
            tokio::select! {
                changed = stages.changed() => if changed.is_err() { return false },
                _ = stop.wait_for(|now| *now >= StopStage::Applications) => return false,
            }
        }
    }

    /// Runs an init command, and repeats it until it succeeds unless the restart policy is `Never`. Returns true once it
    /// has succeeded, and false if the instance is stopped before that.
    async fn initialise(
        &self,
        place: &InstanceResources,
        origin: &LineOrigin,
        number: usize,
    ) -> bool {
        let launch = &self.instance.launch;
        let command = &launch.init[number];
        let restart = match launch.restart {
            RestartPolicy::Never => RestartPolicy::Never,
            RestartPolicy::Always | RestartPolicy::OnFailure => RestartPolicy::OnFailure,
        };
        let rules = RestartRules { restart, ..self.rules(watch::channel(None).1) };
        let (events, mut happened) = mpsc::unbounded_channel();
        let process = self.supervise((place, origin), command, rules, events);
        let what = format!("init command {} of {}", number + 1, launch.init.len());
        let reports = async {
            while let Some(event) = happened.recv().await {
                self.init_event(event, &what, &command.join(" "), origin).await;
            }
        };
        match tokio::join!(process, reports).0 {
            Some(status) if status.success() => true,
            Some(_) => {
                self.stopped().await;
                false
            }
            None => false,
        }
    }

    async fn init_event(&self, event: Event, what: &str, command: &str, origin: &LineOrigin) {
        let label = &self.instance.label;
        let last_line = || origin.last_line();
        match event {
            Event::Started(_) => {
                self.report(InstanceChange::Starting(format!("runs {what}: {command}"))).await
            }
            Event::Ended(status, wait) => {
                let how = format!("{what} {}", describe(status));
                self.say(&format!("{label}: {how}; restarting it {}", after(wait)));
                self.report(InstanceChange::Ended { how, last_line: last_line(), wait }).await;
            }
            Event::Over(status) if status.success() => {}
            Event::Over(status) => {
                let how = format!("{what} {}", describe(status));
                self.say(&format!("{label}: {how}; it is not restarted"));
                self.report(InstanceChange::Over { how, last_line: last_line(), completed: false })
                    .await;
            }
            Event::Failed(error, wait) => self.cannot_start(&error, last_line(), wait).await,
            Event::Stopping => self.report(InstanceChange::Stopping).await,
            Event::Stopped => {}
        }
    }

    async fn keep_application(&self, place: &InstanceResources, origin: &LineOrigin) {
        let watched = ApplicationState::default();
        let command = &self.instance.launch.command;
        let rules = self.rules(watched.condemned.subscribe());
        let (events, mut happened) = mpsc::unbounded_channel();
        let process = self.supervise((place, origin), command, rules, events);
        let reports = async {
            // The health check of the running process, or `idle` while none runs.
            let mut following = idle();
            loop {
                let event = tokio::select! {
                    event = happened.recv() => event,
                    () = &mut following => {
                        following = idle();
                        continue;
                    }
                };
                let Some(event) = event else { break };
                following = match event {
                    Event::Started(pid) => Box::pin(self.follow(place, pid, &watched)),
                    _ => idle(),
                };
                self.application_event(event, place, origin, &watched).await;
            }
        };
        if tokio::join!(process, reports).0.is_some() {
            // The application has ended for good. Its instance is kept until the stop, so that it can be inspected.
            self.stopped().await;
        }
    }

    /// Keeps a process running as `rules` say, and sends its events to `events`, which is closed when this future ends.
    /// Returns how the process ended if it is not restarted; `None` if the instance was stopped.
    async fn supervise(
        &self,
        (place, origin): (&InstanceResources, &LineOrigin),
        command: &[String],
        rules: RestartRules,
        events: mpsc::UnboundedSender<Event>,
    ) -> Option<ExitStatus> {
        let start = || self.task(place, command)?.start(&self.mesh.output, origin);
        let until = (self.stop.clone(), StopStage::Applications);
        // Sending cannot fail: the callers drop the receiver only after this future has ended.
        keep_running(start, rules, until, |event| drop(events.send(event))).await
    }

    pub(super) fn rules(&self, condemned: watch::Receiver<Option<Condemned>>) -> RestartRules {
        let launch = &self.instance.launch;
        RestartRules {
            backoff: Backoff::patient(Instant::now()),
            restart: launch.restart,
            signal: launch.stop_signal,
            grace: launch.grace.unwrap_or(self.mesh.grace),
            condemned,
            retired: Rc::default(),
        }
    }

    async fn application_event(
        &self,
        event: Event,
        place: &InstanceResources,
        origin: &LineOrigin,
        watched: &ApplicationState,
    ) {
        let label = &self.instance.label;
        match event {
            Event::Started(pid) => self.report(InstanceChange::Started(pid)).await,
            Event::Ended(status, wait) => {
                let how = how_it_ended(status, place, watched);
                let last_line = origin.last_line();
                self.say(&format!("{label} {how}; restarting it {}", after(wait)));
                self.report(InstanceChange::Ended { how, last_line, wait }).await;
            }
            Event::Over(status) => {
                let how = how_it_ended(status, place, watched);
                let (last_line, completed) = (origin.last_line(), status.success());
                match completed {
                    true => self.say(&format!("{label} has completed")),
                    false => self.say(&format!("{label} {how}; it is not restarted")),
                }
                self.report(InstanceChange::Over { how, last_line, completed }).await;
            }
            Event::Failed(error, wait) => {
                self.cannot_start(&error, origin.last_line(), wait).await;
            }
            Event::Stopping => self.report(InstanceChange::Stopping).await,
            Event::Stopped => {}
        }
    }

    async fn cannot_start(&self, error: &Error, last_line: String, wait: std::time::Duration) {
        self.complain(error);
        self.say(&format!("{}: retrying {}", self.instance.label, after(wait)));
        self.report(InstanceChange::Ended { how: error.chain(), last_line, wait }).await;
    }

    /// A command that runs with the application's environment, user and isolation.
    pub(super) fn task(
        &self,
        place: &InstanceResources,
        command: &[String],
    ) -> Result<ProcessCommand> {
        let instance = &self.instance;
        let launch = &instance.launch;
        let credentials = credentials::of(&launch.account)
            .map_err(|(_, reason)| Error::Refused(format!("cannot start it: {reason}")))?;
        let environment = self.mesh.environment.of_instance(instance, &credentials)?;
        let isolation = Isolation::new(
            &place.app,
            &place.netns,
            place.application_files(),
            &instance.name.name,
        )?
        .within_groups(&place.limited.groups)?
        .with_root(launch.root.as_deref())?
        .with_volumes(&launch.volumes)?;
        Ok(ProcessCommand {
            command: command.iter().map(OsString::from).collect(),
            environment: environment
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            directory: Some(launch.directory.clone()),
            isolation,
            credentials,
            descriptors: Some(self.mesh.descriptors),
            stdin: None,
        })
    }

    /// Returns when the application is to be ended.
    async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // If the sender is dropped, the mesh has ended.
        let _ = stop.wait_for(|now| *now >= StopStage::Applications).await;
    }
}

/// The health check while no process runs: a future that never completes.
fn idle<'a>() -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    Box::pin(std::future::pending())
}

/// Describes how the application ended.
pub(super) fn how_it_ended(
    status: ExitStatus,
    place: &InstanceResources,
    watched: &ApplicationState,
) -> String {
    if let Some(reason) = watched.reason.take() {
        // Kills the descendants of the process, which may hold its ports.
        place.app.signal(Signal::SIGKILL);
        return format!("was not alive ({reason})");
    }
    let before = watched.killed.replace(place.limited.killed());
    match place.limited.memory() {
        Some(limit) if place.limited.killed() > before => {
            format!("{} (over its limit of {limit} of memory)", describe(status))
        }
        _ => describe(status),
    }
}
