//! What the observer takes in: the status that `leno up` writes, and the counts of the proxies.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::SystemTime;

use leno_dashboard::api::{ControlPlane, State, Unready};
use leno_dashboard::history::{Mark, MarkKind};
use leno_dashboard::hub::{Hub, TICK};
use leno_observe::stat::{Instance, Scrape};
use serde::Deserialize;
use tokio::time::MissedTickBehavior;

use crate::admin::Admin;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::stat;
use crate::status::{Edit, Phase, Trouble};

/// The part of a [`Status`](crate::status::Status) that is observed. What applications may hold secret, their
/// environment, is not read.
#[derive(Debug, Deserialize)]
struct Observed {
    mesh: String,
    controller: Option<i32>,
    needs_controller: bool,
    refused_edit: Option<String>,
    edits: Vec<Edit>,
    instances: Vec<ObservedInstance>,
}

#[derive(Debug, Deserialize)]
struct ObservedInstance {
    namespace: String,
    workload: String,
    name: String,
    addresses: Vec<IpAddr>,
    meshed: bool,
    phase: Phase,
    ready: bool,
    restarts: u32,
    trouble: Trouble,
}

/// Takes in what happens until the future is dropped.
pub(super) async fn watch(layout: &Layout, hub: &Hub) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut before: Option<Scrape> = None;
    let mut restarts = None;
    let mut failed = false;
    loop {
        ticks.tick().await;
        let taken = tick(layout, hub, &mut before, &mut restarts).await;
        if let Err(error) = &taken
            && !failed
        {
            eprintln!("{}; trying again until it works", error.chain());
        }
        failed = taken.is_err();
    }
}

/// How often each instance was started again, by namespace and name; `None` before the first look.
type Restarts = Option<HashMap<(String, String), u32>>;

async fn tick(
    layout: &Layout,
    hub: &Hub,
    before: &mut Option<Scrape>,
    restarts: &mut Restarts,
) -> Result<()> {
    let observed = read(layout)?;
    let instances = observed.instances.iter().map(|one| {
        let instance = Instance {
            namespace: one.namespace.clone(),
            workload: one.workload.clone(),
            name: one.name.clone(),
            meshed: one.meshed,
            ready: one.settled(),
        };
        (instance, one.addresses.first().copied())
    });
    let mut now = stat::ask(&observed.mesh, instances, Admin::here).await;
    let growth = before.as_ref().map(|before| {
        now.remember(before);
        now.growth(before)
    });
    *before = Some(now);
    let mut marks: Vec<Mark> = observed.edits.iter().map(mark).collect();
    marks.extend(restarted(&observed.instances, restarts));
    let mut state = state(&observed);
    if let Some(growth) = &growth {
        state.silent.clone_from(&growth.silent);
        state.detached.clone_from(&growth.detached);
    }
    let path = layout.history();
    hub.take(growth.as_ref(), state, marks).attempt(|| format!("cannot write {}", path.display()))
}

fn read(layout: &Layout) -> Result<Observed> {
    let path = layout.status();
    let text = std::fs::read(&path).attempt(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).map_err(|source| Error::Damaged { path, source })
}

fn state(observed: &Observed) -> State {
    let control_plane = match (observed.needs_controller, observed.controller) {
        (false, _) => ControlPlane::NotNeeded,
        (true, Some(_)) => ControlPlane::Running,
        (true, None) => ControlPlane::Away,
    };
    let unready = observed.instances.iter().filter(|one| !one.settled()).map(|one| Unready {
        namespace: one.namespace.clone(),
        workload: one.workload.clone(),
        instance: one.name.clone(),
        reason: one.reason(),
    });
    State {
        control_plane,
        unready: unready.collect(),
        refused_edit: observed.refused_edit.clone(),
        ..State::default()
    }
}

impl ObservedInstance {
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

fn mark(edit: &Edit) -> Mark {
    let kind = if edit.refused { MarkKind::Refused } else { MarkKind::Documents };
    Mark { at_ms: edit.at_unix_ms, kind, lines: edit.lines.clone() }
}

/// The instances that were started again since the last look, as one change.
fn restarted(instances: &[ObservedInstance], restarts: &mut Restarts) -> Option<Mark> {
    let key = |one: &ObservedInstance| (one.namespace.clone(), one.name.clone());
    let now = instances.iter().map(|one| (key(one), one.restarts)).collect();
    let before = restarts.replace(now)?;
    let again = |one: &&ObservedInstance| {
        before.get(&key(one)).is_some_and(|before| one.restarts > *before)
    };
    let line = |one: &ObservedInstance| {
        let how = one.trouble.ended.as_deref().unwrap_or("it ended");
        format!("{}/{} was started again: {how}", one.namespace, one.name)
    };
    let lines: Vec<String> = instances.iter().filter(again).map(line).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    (!lines.is_empty()).then_some(Mark { at_ms, kind: MarkKind::Instance, lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(restarts: u32) -> ObservedInstance {
        ObservedInstance {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            name: "web-0".to_owned(),
            addresses: Vec::new(),
            meshed: true,
            phase: Phase::Waiting,
            ready: false,
            restarts,
            trouble: Trouble {
                ended: Some("exited with 3".to_owned()),
                last_line: "no database".to_owned(),
                ..Trouble::default()
            },
        }
    }

    #[test]
    fn a_restart_is_a_change_once() {
        let mut restarts = None;
        assert_eq!(restarted(&[instance(2)], &mut restarts), None, "of before the first look");
        let mark = restarted(&[instance(3)], &mut restarts).unwrap();
        assert_eq!(mark.lines, ["shop/web-0 was started again: exited with 3"]);
        assert_eq!(restarted(&[instance(3)], &mut restarts), None);
    }

    #[test]
    fn an_instance_without_traffic_has_its_reason() {
        assert_eq!(instance(0).reason(), "waiting, exited with 3, last line: no database");
    }
}
