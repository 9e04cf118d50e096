//! Records which services the workloads of an identity use, for proxies that start later.
//!
//! Replicas of one workload share a service account and call the same services. A new proxy fetches these services
//! before its workload uses them. So the first call does not have to wait, and succeeds even if the control plane
//! is unavailable at that time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_types::{Identity, ServiceName};
use leno_wire::MAX_PREFETCH;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Most identities whose uses are recorded: as many as there may be streams.
const MAX_IDENTITIES: usize = crate::stream_slots::MAX_STREAMS;
/// How long a use is kept after the end of the last stream. A workload may be restarted, or scaled to zero
/// overnight.
const KEPT: Duration = Duration::from_hours(24);

/// The services in use, by the identity of the workload that uses them.
#[derive(Debug, Default)]
pub(crate) struct ServiceUses(Mutex<HashMap<Identity, HashMap<ServiceName, ServiceUse>>>);

#[derive(Debug)]
struct ServiceUse {
    /// How many open streams use the service.
    streams: usize,
    /// When a stream last began or ended its use.
    last: Instant,
}

impl ServiceUses {
    /// Records that a stream of `identity` has subscribed to a service because its workload used it.
    pub(crate) fn begin(&self, identity: &Identity, service: &ServiceName, metrics: &Metrics) {
        let mut uses = self.uses();
        let now = Instant::now();
        if !uses.contains_key(identity) && uses.len() >= MAX_IDENTITIES {
            uses.retain(|_, services| services.values().any(|one| one.is_kept(now)));
            if uses.len() >= MAX_IDENTITIES {
                metrics.prefetch_cut.increment();
                return;
            }
        }
        let services = uses.entry(identity.clone()).or_default();
        if !services.contains_key(service) && services.len() >= MAX_PREFETCH {
            services.retain(|_, one| one.streams > 0);
            if services.len() >= MAX_PREFETCH {
                metrics.prefetch_cut.increment();
                return;
            }
        }
        let one = services.entry(service.clone()).or_insert(ServiceUse { streams: 0, last: now });
        one.streams += 1;
        one.last = now;
    }

    /// Records that a stream no longer uses a service.
    pub(crate) fn end(&self, identity: &Identity, service: &ServiceName) {
        let mut uses = self.uses();
        let one = uses.get_mut(identity).and_then(|services| services.get_mut(service));
        if let Some(one) = one {
            // The count is 0 if `begin` did not record the use because of a bound.
            one.streams = one.streams.saturating_sub(1);
            one.last = Instant::now();
        }
    }

    /// The services that workloads of an identity use, sorted by name, at most [`MAX_PREFETCH`].
    pub(crate) fn of(&self, identity: &Identity) -> Vec<ServiceName> {
        let now = Instant::now();
        let mut uses = self.uses();
        let Some(services) = uses.get_mut(identity) else { return Vec::new() };
        services.retain(|_, one| one.is_kept(now));
        let mut names: Vec<_> = services.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Poisoning is ignored, because changes under the lock are complete even after a panic.
    fn uses(&self) -> MutexGuard<'_, HashMap<Identity, HashMap<ServiceName, ServiceUse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceUse {
    fn is_kept(&self, now: Instant) -> bool {
        self.streams > 0 || now.duration_since(self.last) < KEPT
    }
}

#[cfg(test)]
mod tests {
    use leno_types::TrustDomain;

    use super::*;

    fn web() -> Identity {
        Identity::new(TrustDomain::default(), "shop", "web").unwrap()
    }

    fn service(number: usize) -> ServiceName {
        ServiceName::new("books", &format!("s{number:03}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_use_is_kept_for_a_day_after_its_last_stream() {
        let (uses, metrics) = (ServiceUses::default(), Metrics::default());
        uses.begin(&web(), &service(1), &metrics);
        uses.begin(&web(), &service(2), &metrics);
        uses.begin(&web(), &service(2), &metrics);
        uses.end(&web(), &service(1));
        uses.end(&web(), &service(2));
        let other = Identity::new(TrustDomain::default(), "shop", "db").unwrap();
        assert_eq!(uses.of(&web()), [service(1), service(2)]);
        assert_eq!(uses.of(&other), []);
        tokio::time::advance(KEPT).await;
        assert_eq!(uses.of(&web()), [service(2)], "a stream still has it");
    }

    #[test]
    fn a_use_beyond_the_bound_replaces_one_that_has_ended() {
        let (uses, metrics) = (ServiceUses::default(), Metrics::default());
        for number in 0..=MAX_PREFETCH {
            uses.begin(&web(), &service(number), &metrics);
        }
        assert_eq!(uses.of(&web()).len(), MAX_PREFETCH);
        assert_eq!(metrics.prefetch_cut.get(), 1);
        uses.end(&web(), &service(0));
        uses.begin(&web(), &service(MAX_PREFETCH), &metrics);
        let now = uses.of(&web());
        assert!(!now.contains(&service(0)) && now.contains(&service(MAX_PREFETCH)));
    }
}
