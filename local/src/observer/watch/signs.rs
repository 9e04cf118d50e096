//! Evidence about workloads that does not come from the metrics of their clients: kernel counters of control groups and
//! connections, failed lookups, certificates, and instances that differ from the others.

mod pressure;
mod wire;

use std::collections::VecDeque;
use std::time::Duration;

use leno_dashboard::api::Sign;
use leno_dashboard::hub::TICK;
use leno_dashboard::{Signs as SeenSigns, outliers};
use leno_observe::metrics::Sample;
use leno_observe::stat::{InstanceGrowth, MeshGrowth};

use super::ObservedStatus;
use pressure::Throttled;
use wire::CounterPage;

/// The length of the recent time in which signs are looked for.
const SPAN: Duration = Duration::from_secs(30);
/// The number of observations in [`SPAN`].
const TICKS: usize = (SPAN.as_secs() / TICK.as_secs()) as usize;

/// Collects evidence, called signs, about the workloads of a mesh.
#[derive(Default)]
pub(super) struct MeshSigns {
    all: SeenSigns,
    /// The last observations, the oldest first.
    seen: VecDeque<Observation>,
}

/// The counters at one time, and the findings of that time. The first two fields are cumulative counters.
#[derive(Default)]
struct Observation {
    throttled: Throttled,
    wire: CounterPage,
    instances: Vec<InstanceGrowth>,
}

impl MeshSigns {
    /// Adds an observation; `samples` are the metrics of `leno up` itself.
    pub(super) fn look(
        &mut self,
        (observed, samples): (&ObservedStatus, &[Sample]),
        growth: &MeshGrowth,
        now_ms: u64,
    ) {
        let now = Observation {
            throttled: Throttled::read(&observed.instances),
            wire: CounterPage::of(samples),
            instances: growth.instances.clone(),
        };
        let mut found = Vec::new();
        if let Some(before) = self.seen.front() {
            let span = TICK * u32::try_from(self.seen.len()).unwrap_or(u32::MAX);
            found.extend(now.throttled.signs(&before.throttled, &observed.instances, span));
            found.extend(now.wire.signs(&before.wire, observed));
        }
        self.seen.push_back(now);
        if self.seen.len() > TICKS {
            self.seen.pop_front();
        }
        found.extend(outliers(self.seen.iter().map(|one| &one.instances)));
        found.extend(expired(observed, growth));
        self.all.take(found, now_ms);
    }

    /// All signs, the newest last.
    pub(super) fn all(&self) -> Vec<Sign> {
        self.all.all()
    }
}

fn expired(observed: &ObservedStatus, growth: &MeshGrowth) -> Vec<Sign> {
    let of = |one: &&super::ObservedInstance| {
        growth
            .expired
            .iter()
            .any(|(namespace, name)| (namespace, name) == (&one.namespace, &one.name))
    };
    let sign =
        |one: &super::ObservedInstance| Sign::expired((&one.namespace, &one.workload), &one.name);
    observed.instances.iter().filter(of).map(sign).collect()
}
