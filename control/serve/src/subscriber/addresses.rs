//! The subscriptions of one stream to services and workloads.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use leno_types::ServiceName;
use leno_types::mesh::{Resolution, Subject};
use leno_wire::{ADDRESS_TYPE, MAX_SUBSCRIPTIONS, names, proto};

use super::{MAX_NAME, RefusedNames, ResponseBatch, StreamKey, answer_absent};
use crate::encodings::{MAX_RESOURCE, ResourceValue};

/// A batch ends once its resources have this many bytes. So a proxy that fetches many resources can start with the
/// first ones, and no message comes near the limit of the protocol.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct AddressSubscriptions {
    /// Whether the first request of this type was handled.
    begun: bool,
    /// The namespace or waypoint for which the answers so far were resolved.
    client: Option<Arc<str>>,
    /// Whether the proxy has reconnected, so that its resources must be compared with its subscriptions.
    resumed: bool,
    asked: HashMap<Subject, Subscription>,
    /// The resources that the proxy has, by name.
    held: HashMap<Arc<str>, HeldResource>,
    /// The subjects that must be answered.
    due: HashSet<Subject>,
    /// The resources to send in the next batches, by name.
    pending: BTreeMap<Arc<str>, ResourceValue>,
    /// Names to report as removed once `pending` is empty.
    gone: BTreeSet<String>,
}

/// One subject that the proxy has subscribed to.
#[derive(Default)]
struct Subscription {
    answer: LastAnswer,
    /// Whether the workload uses the subject. Otherwise the proxy has only prefetched it.
    used: bool,
    /// The service for which a use was recorded because of this subscription.
    counted: Option<ServiceName>,
}

/// The last answer to a subject.
#[derive(Default)]
enum LastAnswer {
    #[default]
    None,
    /// The name of the resource that was sent.
    Resource(Arc<str>),
    Absent,
}

/// A resource that the proxy has or will be sent.
#[derive(Default)]
struct HeldResource {
    /// The version that was sent; `None` before the resource was sent.
    version: Option<Arc<str>>,
    /// How many subjects lead to it. At 0, the resource is removed.
    subjects: usize,
}

impl AddressSubscriptions {
    pub(super) fn take(
        &mut self,
        request: proto::DeltaDiscoveryRequest,
        stream: &StreamKey,
    ) -> RefusedNames {
        if !std::mem::replace(&mut self.begun, true) {
            let is_short =
                |(name, version): &(String, String)| name.len().max(version.len()) <= MAX_NAME;
            let versions = request.initial_resource_versions.into_iter().filter(is_short);
            let versions = versions.take(MAX_SUBSCRIPTIONS);
            let holding = |(name, version): (String, String)| {
                (name.into(), HeldResource { version: Some(version.into()), subjects: 0 })
            };
            self.held = versions.map(holding).collect();
            self.resumed = !self.held.is_empty();
        }
        let unsubscribed = request.resource_names_unsubscribe;
        let ended: Vec<Subject> =
            unsubscribed.iter().filter_map(|name| self.unsubscribe(name, stream)).collect();
        let namespace = &*stream.instance.namespace;
        stream.state.subscriptions.remove(&stream.mailbox, namespace, ended.iter());
        let mut taken = RefusedNames::default();
        let mut added = Vec::new();
        let used = request.resource_names_subscribe.into_iter().map(|name| (name, true));
        let prefetched = request.resource_names_prefetch.into_iter().map(|name| (name, false));
        for (name, used) in used.chain(prefetched) {
            let Some(subject) = names::subject(&name) else {
                taken.refused += u64::from(!answer_absent(&mut self.gone, name));
                continue;
            };
            if let Some(known) = self.asked.get_mut(&subject) {
                known.used |= used;
                if matches!(known.answer, LastAnswer::Absent) {
                    known.answer = LastAnswer::None;
                }
            } else if self.asked.len() < MAX_SUBSCRIPTIONS {
                self.asked.insert(subject.clone(), Subscription { used, ..Default::default() });
                added.push(subject.clone());
            } else {
                taken.refused += 1;
                answer_absent(&mut self.gone, name);
                continue;
            }
            self.due.insert(subject);
        }
        let held = self.asked.len() - added.len();
        let subscriptions = &stream.state.subscriptions;
        let within = subscriptions.add(&stream.mailbox, (namespace, held), added.iter());
        for subject in added.drain(within..) {
            // The subject is answered like a name that does not exist, so the proxy asks again later.
            taken.refused += 1;
            self.asked.remove(&subject);
            self.due.remove(&subject);
            answer_absent(&mut self.gone, names::of_subject(&subject));
        }
        taken
    }

    /// Ends a subscription. If no other subject leads to the same resource, the resource is forgotten. The proxy
    /// drops it as well, and gets it again with its next request.
    fn unsubscribe(&mut self, name: &str, stream: &StreamKey) -> Option<Subject> {
        let subject = names::subject(name)?;
        let ended = self.asked.remove(&subject)?;
        self.due.remove(&subject);
        self.gone.remove(name);
        ended.uncount(stream);
        if let LastAnswer::Resource(name) = ended.answer {
            self.release(&name);
        }
        Some(subject)
    }

    pub(super) fn collect(&mut self, changed: HashSet<Subject>) {
        let Self { asked, due, .. } = self;
        // A subject that was unsubscribed meanwhile needs no answer.
        due.extend(changed.into_iter().filter(|subject| asked.contains_key(subject)));
    }

    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.gone.is_empty()
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.is_due() || !self.pending.is_empty() || self.resumed
    }

    /// Determines which resources must be sent or removed.
    pub(super) fn compare(&mut self, stream: &StreamKey) {
        let client = stream.state.look(|index| index.client_of(&stream.instance));
        if self.client.replace(Arc::clone(&client)).is_some_and(|before| before != client) {
            // The instance has become known, or is no longer a waypoint, so all answers may be different.
            self.due.extend(self.asked.keys().cloned());
        }
        let due = std::mem::take(&mut self.due);
        if !due.is_empty() {
            for (subject, resolution) in stream.state.resolve(due.into_iter(), &client) {
                self.answer(&subject, resolution, stream);
            }
        }
        if std::mem::take(&mut self.resumed) {
            let Self { held, gone, .. } = self;
            held.retain(|name, holding| {
                let is_needed = holding.subjects > 0;
                if !is_needed {
                    gone.insert(name.to_string());
                }
                is_needed
            });
        }
    }

    fn answer(&mut self, subject: &Subject, resolution: Resolution, stream: &StreamKey) {
        let Some(subscription) = self.asked.get_mut(subject) else { return };
        let value = match resolution {
            Resolution::Service(service) => ResourceValue::Service(service),
            Resolution::Workload(workload) => ResourceValue::Workload(workload),
            Resolution::Unknown | Resolution::Pending => {
                subscription.count(None, stream);
                let before = std::mem::replace(&mut subscription.answer, LastAnswer::Absent);
                if !matches!(before, LastAnswer::Absent) {
                    self.gone.insert(names::of_subject(subject));
                }
                self.lead_away(before);
                return;
            }
        };
        let service = match &value {
            ResourceValue::Service(service) => Some(&service.name),
            ResourceValue::Workload(_) | ResourceValue::Policy(_) => None,
        };
        subscription.count(service, stream);
        let name: Arc<str> = value.name().into();
        self.gone.remove(&names::of_subject(subject));
        self.gone.remove(&*name);
        let answer = LastAnswer::Resource(Arc::clone(&name));
        match std::mem::replace(&mut subscription.answer, answer) {
            LastAnswer::Resource(before) if before == name => {}
            before => {
                self.held.entry(Arc::clone(&name)).or_default().subjects += 1;
                self.lead_away(before);
            }
        }
        self.pending.insert(name, value);
    }

    /// Records that a subject no longer leads to `from`. If no other subject leads to that resource, the proxy is
    /// informed that it was removed.
    fn lead_away(&mut self, from: LastAnswer) {
        if let LastAnswer::Resource(name) = from
            && self.release(&name)
        {
            self.gone.insert(name.to_string());
        }
    }

    /// Counts one subject less for a resource. Returns whether the proxy has the resource although no subject
    /// leads to it any more.
    fn release(&mut self, name: &Arc<str>) -> bool {
        let Some(holding) = self.held.get_mut(name) else { return false };
        holding.subjects = holding.subjects.saturating_sub(1);
        if holding.subjects > 0 {
            return false;
        }
        self.pending.remove(name);
        self.held.remove(name).is_some_and(|holding| holding.version.is_some())
    }

    pub(super) fn batch(&mut self, stream: &StreamKey) -> Option<ResponseBatch> {
        let mut batch = ResponseBatch { type_url: ADDRESS_TYPE, ..ResponseBatch::default() };
        let mut bytes = 0;
        while bytes < BATCH_BYTES {
            let Some((name, value)) = self.pending.pop_first() else { break };
            let holding = self.held.entry(Arc::clone(&name)).or_default();
            let held = holding.version.as_deref();
            let Some(encoded) = stream.state.encodings.changed(&name, &value, held) else {
                continue;
            };
            let length = encoded.bytes.len();
            if length > MAX_RESOURCE {
                // If it was sent, the stream would end each time, and the proxy would not get any other changes
                // either.
                stream.state.metrics.resources_too_large.increment();
                let instance = &stream.instance;
                tracing::error!(%instance, name = &*name, length, "a resource is too large to be sent: its \
                                                                   proxy continues with the last version");
                continue;
            }
            if bytes + length > MAX_RESOURCE {
                self.pending.insert(name, value);
                break;
            }
            bytes += length;
            holding.version = Some(encoded.version);
            batch.resources.push(encoded.bytes);
        }
        if self.pending.is_empty() {
            // Removals are sent last, so that an address that moves to another resource is never without one.
            batch.removed = std::mem::take(&mut self.gone).into_iter().collect();
        }
        (!batch.resources.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }

    /// Ends all subscriptions.
    pub(super) fn end(&self, stream: &StreamKey) {
        let namespace = &*stream.instance.namespace;
        stream.state.subscriptions.remove(&stream.mailbox, namespace, self.asked.keys());
        self.asked.values().for_each(|subscription| subscription.uncount(stream));
    }
}

impl Subscription {
    /// Records the subject as a use of the service to which it leads now.
    fn count(&mut self, service: Option<&ServiceName>, stream: &StreamKey) {
        let service = service.filter(|_| self.used);
        if self.counted.as_ref() == service {
            return;
        }
        self.uncount(stream);
        let state = &stream.state;
        if let Some(service) = service {
            state.uses.begin(&stream.identity, service, &state.metrics);
        }
        self.counted = service.cloned();
    }

    fn uncount(&self, stream: &StreamKey) {
        if let Some(service) = &self.counted {
            stream.state.uses.end(&stream.identity, service);
        }
    }
}
