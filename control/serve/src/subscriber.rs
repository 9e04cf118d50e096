//! The subscriptions of one stream, and what was sent on it. The connection itself is not part of this.
//!
//! ```text
//!   request ──► asked: subject -> answer ──► due ──► flush: resolve, compare ──► at most one batch
//!   mailbox ──────────────────────────────────┘                  │
//!                              held: resource -> version, as the proxy has it
//! ```
//!
//! Nothing is queued. A flush compares what the proxy has with the present content of the index, so any number of
//! changes between two flushes causes only one response.

mod addresses;

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_types::{Identity, InstanceName};
use leno_wire::{
    ADDRESS_TYPE, AUTHORIZATION_FEATURE, Bytes, MAX_SUBSCRIPTIONS, RECONNECT_TYPE,
    SERVER_POLICY_TYPE, TRUST_BUNDLE_TYPE, USED_SERVICES_TYPE, encode, proto,
};

use tokio::time::Instant;

use crate::encodings::ResourceValue;
use crate::state::PlaneState;
use crate::subscriptions::Mailbox;
use crate::trust::TrustRecord;
use crate::unenforced::UnenforcedRecord;

use addresses::AddressSubscriptions;

/// The subscriptions of one stream. They end when this is dropped.
pub(crate) struct Subscriber {
    stream: StreamKey,
    addresses: AddressSubscriptions,
    policy: Policy,
    trust: TrustSubscription,
    /// Whether the proxy waits for the list of services that workloads of its identity use.
    uses_due: bool,
    /// Whether the proxy must be asked to reconnect.
    reconnect_due: bool,
    /// Whether the proxy waits for the answer to a request, and not just for changes.
    urgent: bool,
    /// When the oldest change was received that was not sent yet.
    since: Option<Instant>,
}

/// The stream's instance and identity, and the state that answers come from.
pub(crate) struct StreamKey {
    state: Arc<PlaneState>,
    instance: InstanceName,
    identity: Identity,
    mailbox: Arc<Mailbox>,
}

/// The content of one response.
#[derive(Debug, Default)]
pub(crate) struct ResponseBatch {
    pub(crate) type_url: &'static str,
    /// Encoded resources, whose bytes are shared with other streams.
    pub(crate) resources: Vec<Bytes>,
    pub(crate) removed: Vec<String>,
}

/// How many names of a request were rejected because of [`MAX_SUBSCRIPTIONS`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusedNames {
    pub(crate) refused: u64,
}

/// The longest name of a resource in bytes: a service with its namespace and port, or an instance, has some 330.
const MAX_NAME: usize = 512;

/// Notes that a name is to be answered as removed. Returns whether it is: a client that reads no responses may not have
/// names collected without an end.
fn answer_absent(gone: &mut BTreeSet<String>, name: String) -> bool {
    let has_room = name.len() <= MAX_NAME && gone.len() < MAX_SUBSCRIPTIONS;
    if has_room {
        gone.insert(name);
    }
    has_room
}

#[derive(Default)]
struct Policy {
    /// Whether the first request of this type was handled.
    begun: bool,
    /// Whether the proxy is subscribed.
    asked: bool,
    /// The version that the proxy has.
    held: Option<Arc<str>>,
    /// Whether the proxy was informed that its workload has no policy.
    absent: bool,
    /// Whether the present policy has to be compared with that version.
    due: bool,
    /// Whether the proxy supports authorization policies.
    authorizes: bool,
    /// Records the policies that the proxy was sent and does not enforce.
    unenforced: Option<UnenforcedRecord>,
    /// The names in requests that are not the proxy's own workload.
    gone: BTreeSet<String>,
}

/// The subscription to the trust bundle, which is the same for all streams.
struct TrustSubscription {
    /// Whether the proxy is subscribed.
    asked: bool,
    /// Whether the present bundle has to be compared with the version in `held`.
    due: bool,
    /// The version of the bundle that was sent.
    held: Option<Arc<str>>,
    /// Records which bundle the proxy uses.
    record: TrustRecord,
}

impl Subscriber {
    pub(crate) fn new(state: Arc<PlaneState>, instance: InstanceName, identity: Identity) -> Self {
        let record = state.record_trust(&instance);
        Self {
            stream: StreamKey { state, instance, identity, mailbox: Arc::default() },
            addresses: AddressSubscriptions::default(),
            policy: Policy::default(),
            trust: TrustSubscription { asked: false, due: false, held: None, record },
            uses_due: false,
            reconnect_due: false,
            urgent: false,
            since: None,
        }
    }

    /// The mailbox in which changes of subscribed subjects arrive.
    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.stream.mailbox)
    }

    /// Handles the names in a request. An unknown type is ignored.
    pub(crate) fn take(&mut self, request: proto::DeltaDiscoveryRequest) -> RefusedNames {
        let Self { stream, addresses, policy, .. } = self;
        if let Some(node) = &request.node {
            let is_known = |feature: &String| feature == AUTHORIZATION_FEATURE;
            policy.authorizes = node.features.iter().any(is_known);
        }
        let taken = match request.type_url.as_str() {
            ADDRESS_TYPE => addresses.take(request, stream),
            SERVER_POLICY_TYPE => {
                let mut request = request;
                let issuers = std::mem::take(&mut request.unknown_key_issuers);
                stream.state.report_unknown_keys(&stream.instance, issuers);
                policy.take(request, stream);
                RefusedNames::default()
            }
            TRUST_BUNDLE_TYPE => {
                self.trust.take(request, stream);
                RefusedNames::default()
            }
            USED_SERVICES_TYPE => {
                self.uses_due |= !request.resource_names_subscribe.is_empty();
                RefusedNames::default()
            }
            _ => RefusedNames::default(),
        };
        self.urgent |= self.addresses.is_due() || self.uses_due;
        self.forget_since();
        taken
    }

    /// Handles the changes in the mailbox. Returns whether anything has to be compared.
    pub(crate) fn collect(&mut self) -> bool {
        let changes = self.stream.mailbox.take();
        self.since = self.since.or(changes.since);
        self.policy.due |= changes.policy && self.policy.asked;
        self.trust.due |= changes.trust && self.trust.asked;
        self.addresses.collect(changes.subjects);
        self.forget_since();
        self.is_dirty()
    }

    /// Resets `since` if nothing is left to send, for example after the end of a subscription. Otherwise the next
    /// recorded delay would include an old change.
    fn forget_since(&mut self) {
        if !self.is_dirty() {
            self.since = None;
        }
    }

    /// Makes the next batch ask the proxy to reconnect.
    pub(crate) fn reconnect(&mut self) {
        self.reconnect_due = true;
    }

    /// Whether a flush may have something to send.
    pub(crate) fn is_dirty(&self) -> bool {
        let Self { addresses, policy, trust, uses_due, reconnect_due, .. } = self;
        let is_due = *reconnect_due || policy.due || trust.due || *uses_due;
        is_due || !policy.gone.is_empty() || addresses.is_dirty()
    }

    /// Whether the proxy waits for the answer to a request, and not just for changes.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// When the oldest of the changes was received that were sent since the last call. `None` while something is left
    /// to send.
    pub(crate) fn sent_since(&mut self) -> Option<Instant> {
        if self.is_dirty() { None } else { self.since.take() }
    }

    /// The next batch to send; `None` if the proxy is up to date.
    pub(crate) fn flush(&mut self) -> Option<ResponseBatch> {
        self.collect();
        let Self { stream, addresses, policy, trust, uses_due, reconnect_due, urgent, .. } = self;
        if std::mem::take(reconnect_due) {
            return Some(ResponseBatch { type_url: RECONNECT_TYPE, ..ResponseBatch::default() });
        }
        if let Some(batch) = trust.flush(stream) {
            return Some(batch);
        }
        // The proxy first gets what it needs in order to serve at all, and then what leads to further subscriptions.
        if let Some(batch) = policy.flush(stream) {
            return Some(batch);
        }
        if std::mem::take(uses_due) {
            return Some(stream.uses());
        }
        *urgent = false;
        addresses.compare(stream);
        addresses.batch(stream)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.addresses.end(&self.stream);
        if self.policy.asked {
            let StreamKey { state, instance, mailbox, .. } = &self.stream;
            state.subscriptions.remove_policy(mailbox, instance);
        }
        if self.trust.asked {
            let StreamKey { state, mailbox, .. } = &self.stream;
            state.subscriptions.remove_trust(mailbox);
        }
    }
}

impl TrustSubscription {
    fn take(&mut self, request: proto::DeltaDiscoveryRequest, stream: &StreamKey) {
        if let Some(in_use) = request.trust {
            // The proxy uses another bundle than the published one, so the bundle is sent again. For example, the
            // proxy may have got a certificate that was signed before the change, together with the earlier roots.
            let published = stream.state.wanted_trust();
            if published.is_some_and(|published| published.bundle != in_use.bundle) {
                self.held = None;
                self.due = self.asked;
            }
            self.record.report(in_use);
        }
        if !request.resource_names_subscribe.is_empty() {
            if !std::mem::replace(&mut self.asked, true) {
                stream.state.subscriptions.add_trust(&stream.mailbox);
            }
            self.due = true;
        }
    }

    fn flush(&mut self, stream: &StreamKey) -> Option<ResponseBatch> {
        if !std::mem::take(&mut self.due) {
            return None;
        }
        let published = stream.state.published_trust()?;
        if self.held.as_ref() == Some(&published.version) {
            return None;
        }
        self.held = Some(published.version);
        let resources = vec![published.resource];
        Some(ResponseBatch { type_url: TRUST_BUNDLE_TYPE, resources, removed: Vec::new() })
    }
}

impl StreamKey {
    /// The services that workloads of the same identity use.
    fn uses(&self) -> ResponseBatch {
        let services = self.state.uses.of(&self.identity);
        let resource = proto::Resource {
            name: self.instance.to_string(),
            resource: Some(encode::used_services(services.into_iter())),
            ..Default::default()
        };
        let resources = vec![encode::resource(&resource)];
        ResponseBatch { type_url: USED_SERVICES_TYPE, resources, removed: Vec::new() }
    }
}

impl Policy {
    fn take(&mut self, request: proto::DeltaDiscoveryRequest, stream: &StreamKey) {
        let own = stream.instance.to_string();
        let subscriptions = &stream.state.subscriptions;
        if !std::mem::replace(&mut self.begun, true) {
            let mut versions = request.initial_resource_versions;
            self.held = versions.remove(&own).map(Into::into);
        }
        if request.resource_names_unsubscribe.contains(&own) {
            if self.asked {
                subscriptions.remove_policy(&stream.mailbox, &stream.instance);
            }
            *self = Self { begun: true, authorizes: self.authorizes, ..Self::default() };
        }
        for name in request.resource_names_subscribe {
            if name == own {
                if !std::mem::replace(&mut self.asked, true) {
                    subscriptions.add_policy(&stream.mailbox, &stream.instance);
                }
                self.due = true;
                self.absent = false;
            } else {
                // Answered as removed, because a proxy must not see the policies of other workloads.
                answer_absent(&mut self.gone, name);
            }
        }
    }

    fn flush(&mut self, stream: &StreamKey) -> Option<ResponseBatch> {
        let mut batch = ResponseBatch { type_url: SERVER_POLICY_TYPE, ..ResponseBatch::default() };
        batch.removed.extend(std::mem::take(&mut self.gone));
        if std::mem::take(&mut self.due) {
            let StreamKey { state, instance, .. } = stream;
            let policy = state.server_policy(instance);
            self.unenforced = None;
            if let Some(policy) = policy.as_ref().filter(|_| !self.authorizes)
                && !policy.authorization.is_open()
            {
                let of_proxy = (instance, AUTHORIZATION_FEATURE);
                let policies = policy.authorization.policies.iter();
                let policies = policies
                    .map(|policy| format!("{}/{}", policy.source.namespace, policy.source.name));
                let record = state.unenforced.record(&state.metrics, of_proxy, policies);
                self.unenforced = Some(record);
                state.metrics.authorization_not_enforced.increment();
                tracing::warn!(%instance, "its proxy is of an earlier release and does not enforce its \
                    authorization policies: restart it");
            }
            match policy.map(ResourceValue::Policy) {
                Some(policy) => {
                    let name = policy.name().into();
                    let changed = state.encodings.changed(&name, &policy, self.held.as_deref());
                    if let Some(encoded) = changed {
                        self.held = Some(encoded.version);
                        self.absent = false;
                        batch.resources.push(encoded.bytes);
                    }
                }
                None if self.absent => {}
                None => {
                    self.held = None;
                    self.absent = true;
                    batch.removed.push(instance.to_string());
                }
            }
        }
        (!batch.resources.is_empty() || !batch.removed.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests;
