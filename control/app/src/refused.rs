//! Logs and counts the endpoints that the index ignores.

use std::collections::BTreeMap;

use leno_index::{EndpointRefusal, RefusedEndpoints};
use leno_program::Family;
use leno_serve::PlaneState;
use leno_types::ServiceName;

/// Most services that are logged for one update of the cluster. The total number is logged as well.
const MAX_LOGGED: usize = 16;

/// What was logged last, so that it is not logged again with every update.
#[derive(Debug, Default)]
pub(crate) struct RefusedLog(BTreeMap<ServiceName, RefusedEndpoints>);

impl RefusedLog {
    /// Logs endpoints that are ignored now and were not ignored before.
    pub(crate) fn update(&mut self, state: &PlaneState) {
        let now = state.look(|index| {
            let refused = index.refused_endpoints();
            (*refused != self.0).then(|| refused.clone())
        });
        let Some(now) = now else { return };
        let mut new = 0;
        for (service, refused) in &now {
            let Some(first) = refused.first.first() else { continue };
            let known = self.0.get(service).is_some_and(|before| before.first == refused.first);
            if known {
                continue;
            }
            new += 1;
            if new <= MAX_LOGGED {
                let endpoints: usize = refused.counts.values().sum();
                let (address, reason) = (first.address, first.reason);
                tracing::warn!(%service, endpoints, %address, %reason, "endpoints are ignored");
            }
        }
        if new > MAX_LOGGED {
            tracing::warn!(services = new, "endpoints of so many services are ignored");
        }
        self.0 = now;
    }
}

/// Appends the number of ignored endpoints, as Prometheus text.
pub(crate) fn render(state: &PlaneState, text: &mut String) {
    const REASONS: [EndpointRefusal; 7] = [
        EndpointRefusal::ForeignTarget,
        EndpointRefusal::NotOfTarget,
        EndpointRefusal::UnknownTarget,
        EndpointRefusal::ForeignAddress,
        EndpointRefusal::ServiceAddress,
        EndpointRefusal::NodeAddress,
        EndpointRefusal::ReservedAddress,
    ];
    let counts = state.look(|index| {
        let mut counts: BTreeMap<EndpointRefusal, usize> = BTreeMap::new();
        for (reason, count) in index.refused_endpoints().values().flat_map(|one| &one.counts) {
            *counts.entry(*reason).or_default() += count;
        }
        counts
    });
    let help = "Endpoints that are ignored, by reason.";
    let mut family = Family::gauge(text, "leno_control_refused_endpoints", help);
    for reason in REASONS {
        let count = counts.get(&reason).copied().unwrap_or_default();
        family.sample(&[("reason", reason.as_str())], count);
    }
}
