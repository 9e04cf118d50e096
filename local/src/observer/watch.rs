//! The input of the observer: the status that `leno up` writes, and the metrics of the proxies.

mod policies;
mod signs;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use leno_dashboard::api::{ControlPlane, MeshState, Unready};
use leno_dashboard::history::{Mark, MarkKind};
use leno_dashboard::hub::{Hub, TICK};
use leno_dashboard::visible_namespaces::VisibleNamespaces;
use leno_dashboard::{ProcessEnds, Restarts};
use leno_observe::flows::FlowCounts;
use leno_observe::metrics::{self, Sample};
use leno_observe::stat::{MeshGrowth, Scrape, StatInstance};
use leno_program::note;
use serde::Deserialize;
use tokio::time::MissedTickBehavior;

use crate::admin::Admin;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::listening;
use crate::stat;
use crate::status::{ApplicationTrouble, FileEdit, InstancePhase};
use policies::PolicyReader;
use signs::MeshSigns;

/// How often the state of the mesh is read between two observations.
const LOOK: Duration = Duration::from_secs(1);
/// Reads of the state from one observation to the next.
const LOOKS: u64 = TICK.as_secs() / LOOK.as_secs();

/// The fields of a [`MeshStatus`](crate::status::MeshStatus) that the observer reads. The environment of
/// applications is not read, because it may contain secrets.
#[derive(Debug, Deserialize)]
struct ObservedStatus {
    mesh: String,
    controller: Option<i32>,
    gateway: IpAddr,
    needs_controller: bool,
    refused_edit: Option<String>,
    edits: Vec<FileEdit>,
    instances: Vec<ObservedInstance>,
}

#[derive(Debug, Deserialize)]
struct ObservedInstance {
    namespace: String,
    workload: String,
    name: String,
    addresses: Vec<IpAddr>,
    meshed: bool,
    phase: InstancePhase,
    ready: bool,
    restarts: u32,
    #[serde(default)]
    closed_ports: Vec<u16>,
    trouble: ApplicationTrouble,
    proxy_restarts: u32,
    proxy_ended: Option<String>,
    surroundings: ObservedGroups,
}

/// The control groups of an instance.
#[derive(Debug, Default, Deserialize)]
struct ObservedGroups {
    cgroup: PathBuf,
    limits: Vec<PathBuf>,
}

/// What the observer keeps from one read of the state to the next.
#[derive(Default)]
struct LastLook {
    /// The proxies' counters at the last observation.
    before: Option<Scrape>,
    restarts: Counts,
    proxies: Restarts,
    applications: Restarts,
    signs: MeshSigns,
    policies: PolicyReader,
    /// The state at the last read.
    state: MeshState,
    /// The modification time of the status file from which `state` was read.
    written: Option<SystemTime>,
}

/// Observes the mesh until the future is dropped.
pub(super) async fn watch(layout: &Layout, hub: &Hub) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut memory = LastLook::default();
    // If the mesh has just started, everything that its proxies have counted by the first observation is new. If
    // the mesh was observed before, part of these counts is already in the history and cannot be told apart from
    // the rest.
    let mut look = 0;
    if hub.overview(&VisibleNamespaces::All).from_ms.is_none() {
        memory.before = Some(Scrape::beginning(layout.mesh(), Instant::now()));
        look = 1;
    }
    let mut failed = false;
    loop {
        looks.tick().await;
        let taken = match look % LOOKS {
            0 => observe(layout, hub, &mut memory).await,
            _ => glance(layout, hub, &mut memory),
        };
        look += 1;
        if let Err(error) = &taken
            && !failed
        {
            note!("{}; retrying until it succeeds", error.chain());
        }
        failed = taken.is_err();
    }
}

/// How many times each instance was restarted, by namespace and name; `None` before the first read.
type Counts = Option<HashMap<(String, String), u32>>;

/// Reads only the state of the mesh, and only if its file was written since the last read.
fn glance(layout: &Layout, hub: &Hub, memory: &mut LastLook) -> Result<()> {
    let written = written(layout)?;
    if memory.written == Some(written) {
        return Ok(());
    }
    let observed = read(layout)?;
    memory.written = Some(written);
    let seen = &memory.state;
    let (silent, detached) = (seen.silent.clone(), seen.detached.clone());
    let state = MeshState { silent, detached, ..state(&observed) };
    take(layout, hub, memory, (&observed, None, state))
}

/// Reads the state of the mesh, and what its proxies have counted since the last time.
async fn observe(layout: &Layout, hub: &Hub, memory: &mut LastLook) -> Result<()> {
    memory.written = Some(written(layout)?);
    let observed = read(layout)?;
    let instances = observed.instances.iter().map(|one| {
        let instance = StatInstance {
            namespace: one.namespace.clone(),
            workload: one.workload.clone(),
            name: one.name.clone(),
            meshed: one.meshed,
            ready: one.settled(),
            // The history does not depend on the kind of proxy.
            proxy: None,
        };
        (instance, one.addresses.first().copied())
    });
    let mut now = stat::ask(&observed.mesh, instances, Admin::here, None).await;
    let growth = memory.before.as_ref().map(|before| {
        now.remember(before);
        now.growth(before)
    });
    hub.take_proxies(now.proxies());
    if let Some(policies) = memory.policies.look(layout) {
        hub.take_policies(policies);
    }
    memory.before = Some(now);
    let accounts = accounts(&observed).await;
    let mut state = state(&observed);
    if let Some(growth) = &growth {
        let samples = accounts.as_deref().unwrap_or_default();
        memory.signs.look((&observed, samples), growth, now_ms());
        // A proxy that is still starting does not answer, which is not a fault.
        let starting = |line: &str| {
            observed.instances.iter().any(|one| one.is_starting() && one.is_named_in(line))
        };
        state.silent = growth.silent.iter().filter(|line| !starting(line)).cloned().collect();
        state.detached.clone_from(&growth.detached);
    }
    let flows = accounts.map(|samples| FlowCounts::of(&samples));
    hub.take_flows(vec![("leno up".to_owned(), flows)]);
    take(layout, hub, memory, (&observed, growth.as_ref(), state))
}

/// The metrics of `leno up` itself, which include flows and lookups, or the reason why they cannot be read.
async fn accounts(observed: &ObservedStatus) -> std::result::Result<Vec<Sample>, String> {
    let page = Admin::accounts(observed.gateway).get("/metrics").await;
    page.map(|reply| metrics::parse(&reply.body)).map_err(|error| error.chain())
}

fn take(
    layout: &Layout,
    hub: &Hub,
    memory: &mut LastLook,
    (observed, growth, mut state): (&ObservedStatus, Option<&MeshGrowth>, MeshState),
) -> Result<()> {
    let instances = || observed.instances.iter();
    memory.proxies.look(instances().map(ObservedInstance::proxy_ends), now_ms());
    memory.applications.look(instances().map(ObservedInstance::application_ends), now_ms());
    state.restarted = memory.proxies.all();
    state.ended = memory.applications.all();
    state.signs = memory.signs.all();
    let mut marks: Vec<Mark> = observed.edits.iter().map(mark).collect();
    marks.extend(restarted(&observed.instances, &mut memory.restarts));
    memory.state = state.clone();
    let path = layout.history();
    hub.take(growth, state, marks).attempt(|| format!("cannot write {}", path.display()))
}

fn written(layout: &Layout) -> Result<SystemTime> {
    let path = layout.status();
    let written = std::fs::metadata(&path).and_then(|status| status.modified());
    written.attempt(|| format!("cannot read {}", path.display()))
}

fn read(layout: &Layout) -> Result<ObservedStatus> {
    let path = layout.status();
    let text = std::fs::read(&path).attempt(|| format!("cannot read {}", path.display()))?;
    let remedy = || "remove it; `leno up` writes it again".to_owned();
    serde_json::from_slice(&text).map_err(|source| Error::Damaged {
        path,
        remedy: remedy(),
        source,
    })
}

fn state(observed: &ObservedStatus) -> MeshState {
    let control_plane = match (observed.needs_controller, observed.controller) {
        (false, _) => ControlPlane::NotNeeded,
        (true, Some(_)) => ControlPlane::Running,
        (true, None) => ControlPlane::Away,
    };
    let unready = observed.instances.iter().filter(|one| !one.settled());
    MeshState {
        control_plane,
        unready: unready.map(|one| observed.unready(one, one.reason())).collect(),
        deaf: deaf(observed),
        refused_edit: observed.refused_edit.clone(),
        ..MeshState::default()
    }
}

/// The running instances that do not listen on all ports that they declare.
fn deaf(observed: &ObservedStatus) -> Vec<Unready> {
    let is_deaf = |one: &&ObservedInstance| {
        one.phase == InstancePhase::Running && !one.closed_ports.is_empty()
    };
    let reason = |one: &ObservedInstance| {
        format!("does not listen on {}", listening::shown(&one.closed_ports))
    };
    let deaf = observed.instances.iter().filter(is_deaf);
    deaf.map(|one| observed.unready(one, reason(one))).collect()
}

impl ObservedStatus {
    fn unready(&self, one: &ObservedInstance, reason: String) -> Unready {
        let same = |other: &&ObservedInstance| {
            (&other.namespace, &other.workload) == (&one.namespace, &one.workload)
        };
        Unready {
            namespace: one.namespace.clone(),
            workload: one.workload.clone(),
            instance: one.name.clone(),
            reason,
            of: u32::try_from(self.instances.iter().filter(same).count()).unwrap_or(u32::MAX),
            starting: one.is_starting(),
        }
    }
}

impl ObservedInstance {
    /// Whether the instance takes no traffic only because it was just started.
    fn is_starting(&self) -> bool {
        self.phase == InstancePhase::Starting && self.trouble == ApplicationTrouble::default()
    }

    /// Whether this line about a proxy is about the proxy of this instance.
    fn is_named_in(&self, line: &str) -> bool {
        let rest = line.strip_prefix(&*self.namespace).and_then(|rest| rest.strip_prefix('/'));
        let rest = rest.and_then(|rest| rest.strip_prefix(&*self.name));
        rest.is_some_and(|rest| rest.starts_with(':'))
    }

    /// How many times its proxy has ended.
    fn proxy_ends(&self) -> ProcessEnds {
        self.ends(self.proxy_restarts, self.proxy_ended.clone())
    }

    /// How many times its application has ended without having completed its task.
    fn application_ends(&self) -> ProcessEnds {
        match self.phase {
            InstancePhase::Completed | InstancePhase::Scheduled => self.ends(0, None),
            _ => self.ends(self.trouble.times, self.trouble.ended.clone()),
        }
    }

    fn ends(&self, times: u32, ended: Option<String>) -> ProcessEnds {
        let (namespace, workload) = (self.namespace.clone(), self.workload.clone());
        ProcessEnds { namespace, workload, instance: self.name.clone(), times, ended }
    }

    fn settled(&self) -> bool {
        self.ready || self.phase.is_settled()
    }

    fn reason(&self) -> String {
        let trouble = &self.trouble;
        let mut parts = vec![self.phase.as_str().to_owned()];
        parts.extend(trouble.reason.clone());
        parts.extend(trouble.ended.clone());
        if !trouble.last_line.is_empty() {
            parts.push(format!("last line: {}", trouble.last_line));
        }
        parts.join(", ")
    }
}

fn mark(edit: &FileEdit) -> Mark {
    let kind = if edit.refused { MarkKind::Refused } else { MarkKind::Documents };
    Mark { at_ms: edit.at_unix_ms, kind, lines: edit.lines.clone() }
}

/// A mark in the history for the instances that were restarted since the last read.
fn restarted(instances: &[ObservedInstance], restarts: &mut Counts) -> Option<Mark> {
    let key = |one: &ObservedInstance| (one.namespace.clone(), one.name.clone());
    let now = instances.iter().map(|one| (key(one), one.restarts)).collect();
    let before = restarts.replace(now)?;
    let again = |one: &&ObservedInstance| {
        before.get(&key(one)).is_some_and(|before| one.restarts > *before)
    };
    let line = |one: &ObservedInstance| {
        let how = one.trouble.ended.as_deref().unwrap_or("it ended");
        format!("{}/{} was restarted: {how}", one.namespace, one.name)
    };
    let lines: Vec<String> = instances.iter().filter(again).map(line).collect();
    let at_ms = now_ms();
    (!lines.is_empty()).then_some(Mark { at_ms, kind: MarkKind::Instance, lines })
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn instance(restarts: u32) -> ObservedInstance {
        ObservedInstance {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            name: "web-0".to_owned(),
            addresses: Vec::new(),
            meshed: true,
            phase: InstancePhase::Waiting,
            ready: false,
            restarts,
            closed_ports: Vec::new(),
            trouble: ApplicationTrouble {
                ended: Some("exited with 3".to_owned()),
                last_line: "no database".to_owned(),
                ..ApplicationTrouble::default()
            },
            proxy_restarts: 0,
            proxy_ended: None,
            surroundings: ObservedGroups::default(),
        }
    }

    #[test]
    fn a_restart_is_a_change_once() {
        let mut restarts = None;
        assert_eq!(restarted(&[instance(2)], &mut restarts), None, "of before the first look");
        let mark = restarted(&[instance(3)], &mut restarts).unwrap();
        assert_eq!(mark.lines, ["shop/web-0 was restarted: exited with 3"]);
        assert_eq!(restarted(&[instance(3)], &mut restarts), None);
    }

    #[test]
    fn an_application_that_has_done_its_work_has_not_ended_by_itself() {
        let ends = |phase| {
            let mut now = instance(0);
            (now.phase, now.trouble.times) = (phase, 1);
            now.application_ends().times
        };
        assert_eq!(
            (
                ends(InstancePhase::Waiting),
                ends(InstancePhase::Completed),
                ends(InstancePhase::Scheduled)
            ),
            (1, 0, 0)
        );
    }

    #[test]
    fn an_instance_without_traffic_has_its_reason() {
        assert_eq!(instance(0).reason(), "waiting, exited with 3, last line: no database");
    }
}
