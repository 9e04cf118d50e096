//! What one stream subscribed to and what it was sent: pure state, no connection.
//!
//! ```text
//!   request ──► Subscriber ──► dirty? ──► flush(view) ──► at most one batch
//!   change  ──►    │
//!                  └ held: name -> version, as the proxy has it
//! ```
//!
//! Nothing is queued: a flush compares what the proxy holds with what the index has *then*, so any
//! number of changes between two flushes costs one response.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use leno_types::InstanceName;
use leno_types::mesh::Subject;
use leno_wire::{ADDRESS_TYPE, MAX_SUBSCRIPTIONS, SERVER_POLICY_TYPE, names, proto};

use crate::state::{Encoded, Touched, View};

/// A batch is closed once it has this many bytes of resources, so that a proxy with much to fetch
/// begins with the first part and no message nears the bound of the wire.
const BATCH_BYTES: usize = 1 << 20;

/// The subscriptions of one stream.
pub(crate) struct Subscriber {
    instance: InstanceName,
    addresses: Addresses,
    policy: Policy,
}

/// What one response says.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) type_url: &'static str,
    pub(crate) resources: Vec<Arc<Encoded>>,
    pub(crate) removed: Vec<String>,
}

/// What a request's names came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Names not subscribed for the bound [`MAX_SUBSCRIPTIONS`].
    pub(crate) refused: u64,
}

#[derive(Default)]
struct Addresses {
    /// The first request of the type has been taken.
    begun: bool,
    wildcard: bool,
    asked: HashMap<Subject, Answer>,
    /// Names and versions, as the proxy has them.
    held: HashMap<String, Arc<str>>,
    /// Subjects to answer.
    due: BTreeSet<Subject>,
    /// Resources to send with the next batches, by name.
    pending: BTreeMap<String, Arc<Encoded>>,
    /// Names to be said to be gone once `pending` is empty.
    gone: BTreeSet<String>,
    /// Everything asked for is to be compared anew.
    stale: bool,
}

/// What was said last of an address.
enum Answer {
    None,
    /// The name of the resource.
    Known(String),
    Absent,
}

#[derive(Default)]
struct Policy {
    begun: bool,
    asked: bool,
    held: Option<Arc<str>>,
    /// The proxy was told that there is none.
    absent: bool,
    due: bool,
    /// Names asked for that are not this proxy's own.
    gone: BTreeSet<String>,
}

impl Subscriber {
    pub(crate) fn new(instance: InstanceName) -> Self {
        Self { instance, addresses: Addresses::default(), policy: Policy::default() }
    }

    /// Takes a request's names; a type that is not known has none.
    pub(crate) fn take(&mut self, request: proto::DeltaDiscoveryRequest) -> Taken {
        match request.type_url.as_str() {
            ADDRESS_TYPE => self.addresses.take(request, &self.instance.namespace),
            SERVER_POLICY_TYPE => {
                self.policy.take(request, &self.instance.to_string());
                Taken::default()
            }
            _ => Taken::default(),
        }
    }

    /// Notes a change of the index; whether it concerns this stream.
    pub(crate) fn touch(&mut self, touched: &Touched) -> bool {
        let Self { instance, addresses, policy } = self;
        let policy_touched = policy.asked && touched.policies.contains(instance);
        policy.due |= policy_touched;
        let addresses_touched = addresses.concerns(touched, &instance.namespace);
        addresses.stale |= addresses_touched;
        policy_touched || addresses_touched
    }

    /// Compares everything at the next flush, after changes that are no longer known one by one.
    pub(crate) fn touch_all(&mut self) {
        self.policy.due |= self.policy.asked;
        self.addresses.stale = true;
    }

    /// Whether a flush may have something to send.
    pub(crate) fn is_dirty(&self) -> bool {
        let Self { addresses, policy, .. } = self;
        policy.due
            || !policy.gone.is_empty()
            || addresses.stale
            || !addresses.due.is_empty()
            || !addresses.pending.is_empty()
            || !addresses.gone.is_empty()
    }

    /// Whether the proxy waits for an answer, rather than for news.
    pub(crate) fn is_urgent(&self) -> bool {
        !self.addresses.due.is_empty()
    }

    /// The next batch, none where the proxy has everything.
    pub(crate) fn flush(&mut self, view: &View<'_>) -> Option<Batch> {
        // First what the proxy needs to serve at all.
        self.policy.flush(&self.instance, view).or_else(|| {
            self.addresses.compare(&self.instance.namespace, view);
            self.addresses.batch()
        })
    }
}

impl Addresses {
    fn take(&mut self, request: proto::DeltaDiscoveryRequest, own: &str) -> Taken {
        if !std::mem::replace(&mut self.begun, true) {
            // Held names that nothing asks for any more are found by the comparison.
            let versions = request.initial_resource_versions.into_iter();
            self.held =
                versions.take(MAX_SUBSCRIPTIONS).map(|(name, v)| (name, v.into())).collect();
            self.stale |= !self.held.is_empty();
        }
        for name in request.resource_names_unsubscribe {
            match names::subject(&name) {
                Some(subject) => self.drop_subject(&subject, own),
                None => self.stale |= name == names::WILDCARD && std::mem::take(&mut self.wildcard),
            }
        }
        let mut taken = Taken::default();
        for name in request.resource_names_subscribe {
            match names::subject(&name) {
                Some(subject)
                    if self.asked.contains_key(&subject)
                        || self.asked.len() < MAX_SUBSCRIPTIONS =>
                {
                    self.asked.insert(subject.clone(), Answer::None);
                    self.due.insert(subject);
                }
                Some(_) => {
                    taken.refused += 1;
                    self.gone.insert(name);
                }
                None if name == names::WILDCARD => {
                    self.wildcard = true;
                    self.stale = true;
                }
                None => drop(self.gone.insert(name)),
            }
        }
        taken
    }

    /// Takes note that the proxy drops a subject, and with it what is at it, unless it is of the
    /// namespace that the proxy keeps: the resource is sent again to whoever asks again.
    fn drop_subject(&mut self, subject: &Subject, own: &str) {
        self.due.remove(subject);
        self.gone.remove(&names::of_subject(subject));
        let Some(Answer::Known(name)) = self.asked.remove(subject) else {
            return;
        };
        let namespace = name.split('/').nth(1);
        if !(self.wildcard && namespace == Some(own)) {
            self.held.remove(&name);
            self.stale = true;
        }
    }

    fn concerns(&self, touched: &Touched, own: &str) -> bool {
        let smaller_in = |subjects: &HashSet<Subject>| {
            if subjects.len() < self.asked.len() {
                subjects.iter().any(|subject| self.asked.contains_key(subject))
            } else {
                self.asked.keys().any(|subject| subjects.contains(subject))
            }
        };
        (self.wildcard && touched.namespaces.contains(own))
            || smaller_in(&touched.subjects)
            || touched.names.iter().any(|name| self.held.contains_key(name))
    }

    /// Finds out what is to be sent.
    fn compare(&mut self, own: &str, view: &View<'_>) {
        if std::mem::take(&mut self.stale) {
            self.due.clear();
            self.pending.clear();
            let mut wanted: HashSet<String> = HashSet::new();
            if self.wildcard {
                for resource in view.prefetch(own) {
                    wanted.insert(resource.name().to_owned());
                    self.want(resource);
                }
            }
            let asked: Vec<Subject> = self.asked.keys().cloned().collect();
            for subject in asked {
                if let Some(name) = self.answer(&subject, own, view) {
                    wanted.insert(name);
                }
            }
            let Self { held, gone, .. } = self;
            held.retain(|name, _| {
                let keep = wanted.contains(name);
                if !keep {
                    gone.insert(name.clone());
                }
                keep
            });
        }
        for subject in std::mem::take(&mut self.due) {
            self.answer(&subject, own, view);
        }
    }

    /// Compares what is told of one subject; the name of its resource.
    fn answer(&mut self, subject: &Subject, own: &str, view: &View<'_>) -> Option<String> {
        let answer = self.asked.get_mut(subject)?;
        let Some(resource) = view.at(subject, own) else {
            if !matches!(answer, Answer::Absent) {
                *answer = Answer::Absent;
                self.gone.insert(names::of_subject(subject));
            }
            return None;
        };
        let name = resource.name().to_owned();
        *answer = Answer::Known(name.clone());
        self.gone.remove(&names::of_subject(subject));
        self.want(resource);
        Some(name)
    }

    fn want(&mut self, resource: Arc<Encoded>) {
        self.gone.remove(resource.name());
        if self.held.get(resource.name()).is_none_or(|held| **held != *resource.version()) {
            self.pending.insert(resource.name().to_owned(), resource);
        }
    }

    fn batch(&mut self) -> Option<Batch> {
        let mut batch = Batch { type_url: ADDRESS_TYPE, ..Batch::default() };
        let mut bytes = 0;
        while bytes < BATCH_BYTES {
            let Some((name, resource)) = self.pending.pop_first() else {
                break;
            };
            bytes += resource.size();
            self.held.insert(name, resource.version().into());
            batch.resources.push(resource);
        }
        if self.pending.is_empty() {
            // Last, so that an address that moves to another resource is never without one.
            batch.removed = std::mem::take(&mut self.gone).into_iter().collect();
        }
        (!batch.resources.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }
}

impl Policy {
    fn take(&mut self, request: proto::DeltaDiscoveryRequest, own: &str) {
        if !std::mem::replace(&mut self.begun, true) {
            let mut versions = request.initial_resource_versions;
            self.held = versions.remove(own).map(Into::into);
        }
        if request.resource_names_unsubscribe.iter().any(|name| name == own) {
            *self = Self { begun: true, ..Self::default() };
        }
        for name in request.resource_names_subscribe {
            if name == own {
                self.asked = true;
                self.due = true;
                self.absent = false;
            } else if self.gone.len() < MAX_SUBSCRIPTIONS {
                // What other workloads enforce is none of this proxy's business.
                self.gone.insert(name);
            }
        }
    }

    fn flush(&mut self, own: &InstanceName, view: &View<'_>) -> Option<Batch> {
        let mut batch = Batch { type_url: SERVER_POLICY_TYPE, ..Batch::default() };
        batch.removed.extend(std::mem::take(&mut self.gone));
        if std::mem::take(&mut self.due) {
            match view.policy(own) {
                Some(policy) if self.held.as_deref() != Some(policy.version()) => {
                    self.held = Some(policy.version().into());
                    self.absent = false;
                    batch.resources.push(policy);
                }
                Some(_) => {}
                None if self.absent => {}
                None => {
                    self.held = None;
                    self.absent = true;
                    batch.removed.push(own.to_string());
                }
            }
        }
        (!batch.resources.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }
}
