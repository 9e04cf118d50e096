//! What is known of one instance while it lives.

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

/// An instance that lives, or is ending.
pub(super) struct InstanceHandle {
    /// As it was started, but for its group, which may change.
    pub(super) instance: PlannedInstance,
    pub(super) task: JoinHandle<()>,
    pub(super) phase: InstancePhase,
    pub(super) application_ended: bool,
    pub(super) restarts: u32,
    pub(super) pid: Option<i32>,
    /// When that process was started, in milliseconds since 1970.
    pub(super) started_unix_ms: Option<i64>,
    /// Which of its ports are open in one family alone.
    pub(super) families: OneFamily,
    /// Which of its ports are closed.
    pub(super) closed: Vec<u16>,
    pub(super) trouble: ApplicationTrouble,
    /// What its schedule has done and will do.
    pub(super) schedule: Option<Schedule>,
    pub(super) proxy_restarts: u32,
    /// How its proxy ended the last time.
    pub(super) proxy_ended: Option<String>,
    /// Where its proxy runs.
    pub(super) proxy: Option<ProxyProcess>,
    /// Why the proxy that is to serve it next does not do so yet.
    pub(super) proxy_waits: Option<String>,
    pub(super) capture: Option<String>,
    pub(super) surroundings: ProcessSurroundings,
    /// It ends because of an edit, to be started again as the plan says by then, or not.
    pub(super) ending: bool,
    stop: watch::Sender<StopStage>,
    /// Which process is to be its proxy.
    proxy_wanted: watch::Sender<ProxySettings>,
    /// Its application has run before.
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

    /// Whether it takes traffic.
    pub(super) fn ready(&self) -> bool {
        let serves = self.phase == InstancePhase::Running && self.trouble.reason.is_none();
        serves && self.proxy_ready && !self.ending
    }

    /// Whether nothing more is waited for: it takes traffic, has done what it was for, or has a schedule.
    pub(super) fn settled(&self) -> bool {
        self.ready() || (self.phase.is_settled() && !self.ending)
    }

    /// Whether its application has been started.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// Has the node proxy of another group serve it, or a proxy of its own, while it runs.
    pub(super) fn go_to(&mut self, group: Option<String>) {
        self.instance.launch.group.clone_from(&group);
        self.proxy_wanted.send_modify(|wanted| wanted.group = group);
    }

    /// Has it promoted as an edit of its documents says, while it runs.
    pub(super) fn promote_after(&mut self, rules: PromotionRules) {
        let replace =
            |wanted: &mut ProxySettings| std::mem::replace(&mut wanted.promotion, rules) != rules;
        self.proxy_wanted.send_if_modified(replace);
    }

    /// Has the next process of its proxy take over, while it runs.
    pub(super) fn renew_proxy(&mut self, revision: u64) {
        self.proxy_wanted.send_modify(|wanted| wanted.revision = revision);
    }

    /// Where its end is told from.
    pub(super) fn stop(&self) -> watch::Sender<StopStage> {
        self.stop.clone()
    }

    /// Takes in what it reports.
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
                // Of the schedule, which has no process of its own.
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
                // Its proxy served it to the end.
                if self.ending {
                    raise(&self.stop, StopStage::All);
                }
            }
            InstanceChange::Gone => {}
        }
    }

    /// Its process has started, whether or not it comes to listen.
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

    /// Waits for its next start, after an end that may have been the same before.
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

/// Goes at least as far as `level`.
pub(super) fn raise(stop: &watch::Sender<StopStage>, level: StopStage) {
    stop.send_modify(|now| *now = (*now).max(level));
}
