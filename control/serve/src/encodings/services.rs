//! Encodes one service: its routes and policy, its endpoints, and the changes of its endpoints.
//!
//! ```text
//!   version "F.E":  F  everything except endpoints, one for each set of routes that clients get
//!                   E  endpoints:  E1 --step--> E2 --step--> E3, the newest, which is also kept whole
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use leno_types::mesh::Service;
use leno_wire::Bytes;
use leno_wire::encode::{self, EndpointsUpdate};

use super::{EncodedResource, version_of};
use crate::metrics::Metrics;

/// Most steps of one service that are kept. A stream that is further behind gets all endpoints. Even a slow stream
/// gets the newest version with each message, so it is only this far behind after seconds without a message.
const MAX_STEPS: usize = 64;
/// Most encodings of one service: one for each version that proxies have. If there are more, all are dropped, and
/// encoded again when a stream needs them.
const MAX_ENCODED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ServiceVersions {
    /// The service without endpoints, once for each set of routes that clients get.
    fronts: Vec<BareService>,
    endpoints: Option<EndpointsLog>,
    /// For each version that a proxy may have (empty for none), the resource that updates it to the newest
    /// version.
    encoded: Vec<(String, EncodedResource)>,
}

/// A service without its endpoints.
#[derive(Debug)]
struct BareService {
    /// The value from the index. It is kept so that its pointer identifies this entry.
    service: Arc<Service>,
    version: String,
    bytes: Bytes,
}

/// The newest endpoints of a service, and the steps that have led to them.
#[derive(Debug)]
struct EndpointsLog {
    /// The service with the newest endpoints.
    service: Arc<Service>,
    version: String,
    /// All endpoints, encoded.
    all: Bytes,
    /// Each step with the version from which it starts, oldest first. The last step leads to `version`.
    steps: VecDeque<(String, Bytes)>,
}

impl ServiceVersions {
    /// The resource that updates a proxy to `service` from the version that it has. `None` if it has that version
    /// already.
    pub(super) fn changed(
        &mut self,
        (name, service): (&str, &Arc<Service>),
        held: Option<&str>,
        metrics: &Metrics,
    ) -> Option<EncodedResource> {
        self.follow(service);
        let front = self.front(service);
        let endpoints = self.endpoints.as_ref()?;
        let front = &self.fronts[front];
        let version = format!("{}.{}", front.version, endpoints.version);
        if held == Some(&*version) {
            return None;
        }
        let held = held.unwrap_or_default();
        let mut encoded = self.encoded.iter();
        let known = encoded.find(|(from, to)| from == held && *to.version == *version);
        if let Some((_, known)) = known {
            return Some(known.clone());
        }
        metrics.encodings.increment();
        let (held_front, held_endpoints) = held.split_once('.').unwrap_or_default();
        let has_front = held_front == front.version;
        let steps = endpoints.since(held_endpoints);
        let update = match &steps {
            _ if held_endpoints == endpoints.version => EndpointsUpdate::None,
            Some(steps) => EndpointsUpdate::Delta(held_endpoints, steps),
            None => EndpointsUpdate::All(&endpoints.all),
        };
        let any = encode::service_update((!has_front).then_some(&*front.bytes), update);
        // The addresses are sent only together with the front part of the service, not with endpoints alone.
        let ips = if has_front { [].as_slice() } else { service.vips.as_slice() };
        let made = EncodedResource::of(name, version.into(), any, ips);
        if self.encoded.len() == MAX_ENCODED {
            self.encoded.clear();
        }
        self.encoded.push((held.to_owned(), made.clone()));
        Some(made)
    }

    /// Advances to the endpoints of `service`, which is the same or newer.
    fn follow(&mut self, service: &Arc<Service>) {
        if self.endpoints.as_ref().is_some_and(|log| log.is_of(service)) {
            return;
        }
        self.encoded.clear();
        match &mut self.endpoints {
            Some(log) => log.follow(service),
            None => self.endpoints = Some(EndpointsLog::new(service)),
        }
    }

    /// The index in `fronts` of this service without its endpoints.
    fn front(&mut self, service: &Arc<Service>) -> usize {
        let known = self.fronts.iter().position(|front| Arc::ptr_eq(&front.service, service));
        known.unwrap_or_else(|| {
            // Drops entries that the index has replaced. Only this list still refers to them.
            self.fronts.retain(|front| Arc::strong_count(&front.service) > 1);
            let bytes = encode::front(service);
            let version = version_of(&bytes);
            self.fronts.push(BareService { service: Arc::clone(service), version, bytes });
            self.fronts.len() - 1
        })
    }
}

impl EndpointsLog {
    fn new(service: &Arc<Service>) -> Self {
        let all = encode::endpoints(service);
        let (version, steps) = (version_of(&all), VecDeque::new());
        Self { service: Arc::clone(service), version, all, steps }
    }

    /// Whether these are the endpoints of `service`.
    fn is_of(&self, service: &Service) -> bool {
        let (ours, theirs) = (&self.service.ports, &service.ports);
        let same = |(a, b): (&leno_types::mesh::ServicePort, &leno_types::mesh::ServicePort)| {
            a.port == b.port && Arc::ptr_eq(&a.endpoints, &b.endpoints)
        };
        ours.len() == theirs.len() && ours.iter().zip(theirs).all(same)
    }

    fn follow(&mut self, service: &Arc<Service>) {
        let mut next = Self::new(service);
        if next.version == self.version {
            // The content is equal, so the encodings are still valid.
            self.service = next.service;
            return;
        }
        if let Some(step) = encode::endpoints_step(&self.service, service) {
            next.steps = std::mem::take(&mut self.steps);
            next.steps.push_back((std::mem::take(&mut self.version), step));
        }
        // Steps are only useful as long as they are smaller than the whole list of endpoints.
        let mut kept: usize = next.steps.iter().map(|(_, step)| step.len()).sum();
        while kept > next.all.len() || next.steps.len() > MAX_STEPS {
            let Some((_, step)) = next.steps.pop_front() else { break };
            kept -= step.len();
        }
        *self = next;
    }

    /// The steps from a version to the newest one; `None` if not all of them are kept.
    fn since(&self, version: &str) -> Option<Vec<Bytes>> {
        // The last step from that version is used, because a service may have had the same endpoints more than
        // once.
        let first = self.steps.iter().rposition(|(from, _)| from == version)?;
        Some(self.steps.range(first..).map(|(_, step)| step.clone()).collect())
    }
}
