//! Evidence about workloads that the counts of their clients do not have: what the kernel counts of control groups and
//! connections, names that are looked up in vain, certificates, and instances that are unlike the others.

mod outliers;
mod pressure;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use leno_dashboard::api::{Sign, SignKind};
use leno_dashboard::hub::TICK;
use leno_observe::stat::{Growth, InstanceGrowth};

use super::Observed;
use pressure::Throttled;
use wire::Wire;

/// The time that is judged at once.
const SPAN: Duration = Duration::from_secs(30);
/// Observations of that time.
const TICKS: usize = (SPAN.as_secs() / TICK.as_secs()) as usize;
/// How long a sign is remembered after it was seen last.
const KEPT_MS: u64 = 60 * 60 * 1000;
/// Most signs that are remembered, those seen last.
const MAX_SIGNS: usize = 256;

/// A kind, a namespace, a workload, and what else it is about.
type Key = (SignKind, String, String, String);

/// The signs of a mesh.
#[derive(Default)]
pub(super) struct Signs {
    all: HashMap<Key, Sign>,
    /// The last observations, the oldest first.
    seen: VecDeque<Observation>,
}

/// What was observed at one time. The first two are sums since a beginning.
#[derive(Default)]
struct Observation {
    throttled: Throttled,
    wire: Wire,
    instances: Vec<InstanceGrowth>,
}

impl Signs {
    /// Takes in an observation.
    pub(super) async fn look(&mut self, observed: &Observed, growth: &Growth, now_ms: u64) {
        let now = Observation {
            throttled: Throttled::read(&observed.instances),
            wire: Wire::read(observed).await,
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
        found.extend(outliers::signs(self.seen.iter().map(|one| &one.instances)));
        found.extend(expired(observed, growth));
        for sign in found {
            let key =
                (sign.kind, sign.namespace.clone(), sign.workload.clone(), sign.subject.clone());
            self.all.insert(key, Sign { at_ms: now_ms, ..sign });
        }
        self.forget(now_ms);
    }

    /// All of them, the newest last.
    pub(super) fn all(&self) -> Vec<Sign> {
        let mut all: Vec<Sign> = self.all.values().cloned().collect();
        all.sort_by(|a, b| (a.at_ms, a.kind, &a.line).cmp(&(b.at_ms, b.kind, &b.line)));
        all
    }

    fn forget(&mut self, now_ms: u64) {
        self.all.retain(|_, sign| sign.at_ms.saturating_add(KEPT_MS) > now_ms);
        let beyond = self.all.len().saturating_sub(MAX_SIGNS);
        for sign in self.all().into_iter().take(beyond) {
            self.all.remove(&(sign.kind, sign.namespace, sign.workload, sign.subject));
        }
    }
}

/// A sign that is seen now.
fn sign(
    kind: SignKind,
    (namespace, workload): (&str, &str),
    subject: String,
    line: String,
) -> Sign {
    let (namespace, workload) = (namespace.to_owned(), workload.to_owned());
    Sign { kind, namespace, workload, subject, at_ms: 0, line }
}

fn expired(observed: &Observed, growth: &Growth) -> Vec<Sign> {
    let of = |one: &&super::ObservedInstance| {
        growth
            .expired
            .iter()
            .any(|(namespace, name)| (namespace, name) == (&one.namespace, &one.name))
    };
    let line = |one: &super::ObservedInstance| {
        let line = format!("the certificate of {} has expired, and was not renewed", one.name);
        let subject = format!("{}/{}", one.namespace, one.name);
        sign(SignKind::Expired, (&one.namespace, &one.workload), subject, line)
    };
    observed.instances.iter().filter(of).map(line).collect()
}
