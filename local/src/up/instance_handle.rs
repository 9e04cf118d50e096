//! The state of one instance, from its start to its end, as `leno up` has it from the instance's reports.

use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use leno_supervise::{PromotionRules, StopStage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::instance::{self, InstanceChange, MeshContext, ProxySettings};
use crate::listening::OneFamily;
use crate::plan::PlannedInstance;
use crate::status::{
    ApplicationTrouble, InstancePhase, ProcessSurroundings, ProxyProcess, Schedule,
};

/// An instance that runs or is ending.
pub(super) struct InstanceHandle {
    /// The instance as it was started. Only its group may change while it runs.
    pub(super) instance: PlannedInstance,
    pub(super) task: JoinHandle<()>,
    pub(super) phase: InstancePhase,
    pub(super) application_ended: bool,
    pub(super) restarts: u32,
    pub(super) pid: Option<i32>,
    /// When the process `pid` was started, in milliseconds since 1970.
    pub(super) started_unix_ms: Option<i64>,
    /// Which of its ports are open in only one address family.
    pub(super) families: OneFamily,
    /// Which of its ports are closed.
    pub(super) closed: Vec<u16>,
    pub(super) trouble: ApplicationTrouble,
    /// The last and next runs of its schedule.
    pub(super) schedule: Option<Schedule>,
    pub(super) proxy_restarts: u32,
    /// How its proxy last ended.
    pub(super) proxy_ended: Option<String>,
    /// The process of its proxy.
    pub(super) proxy: Option<ProxyProcess>,
    /// Why the next proxy process does not serve it yet.
    pub(super) proxy_waits: Option<String>,
    pub(super) capture: Option<String>,
    pub(super) surroundings: ProcessSurroundings,
    /// Whether the instance was ended by an edit or a restart, so that it is started again if the plan still has
    /// it.
    pub(super) ending: bool,
    stop: watch::Sender<StopStage>,
    /// Tells the instance which process should be its proxy.
    proxy_wanted: watch::Sender<ProxySettings>,
    /// Whether its application has been started.
    started: bool,
    proxy_ready: bool,
}

impl InstanceHandle {
    /// Starts an instance.
    pub(super) fn start(mesh: &Rc<MeshContext>, instance: &PlannedInstance) -> Self {
        let (stop, stopped) = watch::channel(StopStage::No);
        let (proxy_wanted, wanted) = watch::channel(ProxySettings::of(mesh, instance));
        let life = instance::live(mesh.clone(), instance.clone(), stopped, wanted);
        Self {
            instance: instance.clone(),
            task: tokio::task::spawn_local(life),
            phase: InstancePhase::Starting,
            application_ended: false,
            restarts: 0,
            pid: None,
            started_unix_ms: None,
            families: OneFamily::default(),
            closed: Vec::new(),
            trouble: ApplicationTrouble::default(),
            schedule: None,
            proxy_restarts: 0,
            proxy_ended: None,
            proxy: None,
            proxy_waits: None,
            capture: None,
            surroundings: ProcessSurroundings::default(),
            ending: false,
            stop,
            proxy_wanted,
            started: false,
            proxy_ready: !instance.launch.meshed,
        }
    }

    /// Whether the instance takes traffic.
    pub(super) fn ready(&self) -> bool {
        let serves = self.phase == InstancePhase::Running && self.trouble.reason.is_none();
        serves && self.proxy_ready && !self.ending
    }

    /// Whether there is nothing more to wait for: the instance takes traffic, has completed, or has a schedule.
    pub(super) fn settled(&self) -> bool {
        self.ready() || (self.phase.is_settled() && !self.ending)
    }

    /// Whether its application has been started.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// Moves the instance to the node proxy of another group, or to a sidecar, while it runs.
    pub(super) fn go_to(&mut self, group: Option<String>) {
        self.instance.launch.group.clone_from(&group);
        self.proxy_wanted.send_modify(|wanted| wanted.group = group);
    }

    /// Applies changed promotion rules to the instance while it runs.
    pub(super) fn promote_after(&mut self, rules: PromotionRules) {
        let replace =
            |wanted: &mut ProxySettings| std::mem::replace(&mut wanted.promotion, rules) != rules;
        self.proxy_wanted.send_if_modified(replace);
    }

    /// Makes the next process of the instance's proxy take over, while the instance runs.
    pub(super) fn renew_proxy(&mut self, revision: u64) {
        self.proxy_wanted.send_modify(|wanted| wanted.revision = revision);
    }

    /// The sender that stops the instance.
    pub(super) fn stop(&self) -> watch::Sender<StopStage> {
        self.stop.clone()
    }

    /// Updates this state with a report of the instance.
    pub(super) fn take_in(&mut self, change: InstanceChange) {
        match change {
            InstanceChange::Placed(surroundings, backend) => {
                self.surroundings = *surroundings;
                self.capture = backend.map(|backend| backend.to_string());
                if self.phase == InstancePhase::Failed {
                    self.phase = InstancePhase::Starting;
                    self.trouble.reason = None;
                }
            }
            InstanceChange::Started(pid) => self.has_started(pid),
            InstanceChange::Starting(reason) => {
                self.phase = InstancePhase::Starting;
                self.trouble.next_try_unix_ms = None;
                self.trouble.reason = Some(reason);
            }
            InstanceChange::Running => {
                self.phase = InstancePhase::Running;
                self.trouble.reason = None;
            }
            InstanceChange::Families(families) => self.families = families,
            InstanceChange::Closed(ports) => self.closed = ports,
            InstanceChange::NotReady(reason) => self.trouble.reason = Some(reason),
            InstanceChange::Over { how, last_line, completed } => {
                self.phase =
                    if completed { InstancePhase::Completed } else { InstancePhase::Ended };
                self.pid = None;
                self.trouble = ApplicationTrouble {
                    ended: Some(how),
                    times: 1,
                    last_line,
                    ..ApplicationTrouble::default()
                };
            }
            InstanceChange::Ended { how, last_line, wait } => {
                self.wait_for_next(how, last_line, wait)
            }
            InstanceChange::Scheduled(schedule) => {
                self.started |= schedule.started_unix_ms.is_some();
                // A schedule has no process of its own, so this is when the first run began.
                let now = || Timestamp::now().as_millisecond();
                self.started_unix_ms = self.started_unix_ms.or_else(|| Some(now()));
                self.phase = InstancePhase::Scheduled;
                self.schedule = Some(*schedule);
                self.trouble = ApplicationTrouble::default();
            }
            InstanceChange::Stopping => self.phase = InstancePhase::Stopping,
            InstanceChange::Proxy { ready, restarts, ended } => {
                (self.proxy_ready, self.proxy_restarts) = (ready, restarts);
                self.proxy_ended = ended;
            }
            InstanceChange::ProxyRuns(process) => self.proxy = Some(process),
            InstanceChange::ProxyWaits(why) => self.proxy_waits = why,
            InstanceChange::Failed(reason) => {
                self.phase = InstancePhase::Failed;
                self.trouble.reason = Some(reason);
            }
            InstanceChange::ApplicationEnded => {
                self.application_ended = true;
                // Until now, the instance's proxy was kept so that the application could use it while it ended.
                if self.ending {
                    raise(&self.stop, StopStage::All);
                }
            }
            InstanceChange::Gone => {}
        }
    }

    /// Records that the application's process was started, whether or not it will listen.
    fn has_started(&mut self, pid: i32) {
        self.restarts += u32::from(self.started);
        self.started = true;
        self.phase = InstancePhase::Starting;
        self.pid = Some(pid);
        self.started_unix_ms = Some(Timestamp::now().as_millisecond());
        self.trouble.next_try_unix_ms = None;
        self.trouble.reason = None;
        self.closed = Vec::new();
    }

    /// Records how the application ended and when it will be restarted. Counts the repetitions of the same end.
    fn wait_for_next(&mut self, how: String, last_line: String, wait: Duration) {
        self.phase = InstancePhase::Waiting;
        self.pid = None;
        let again = self.trouble.ended.as_ref() == Some(&how);
        let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        self.trouble = ApplicationTrouble {
            ended: Some(how),
            times: if again { self.trouble.times + 1 } else { 1 },
            next_try_unix_ms: Some(Timestamp::now().as_millisecond().saturating_add(wait)),
            last_line,
            reason: None,
        };
    }
}

/// Raises the stage of stopping to `level`, unless it is already beyond that.
pub(super) fn raise(stop: &watch::Sender<StopStage>, level: StopStage) {
    stop.send_modify(|now| *now = (*now).max(level));
}
