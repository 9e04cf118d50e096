//! Follows the objects that route or authorize requests, to record when they change.
//!
//! For each object, a digest is kept, by which changes are detected; a change is recorded as a line such as
//! `HTTPRoute shop/cart changed`. For policies and services, their selectors are kept as well. If the API server
//! does not serve a kind, it is asked again every minute.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use leno_dashboard::policies::{Labels, MatchedPolicies, PolicyDocument, SelectableObjects};
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leno_kube::{Api, Client, Event, Reflection, WatchReport, WatchSelection, watch};
use leno_resources::Kind;

use crate::scrape::NamedPod;

/// The kinds that are followed.
const KINDS: [Kind; 9] = [
    Kind::Service,
    Kind::HttpRoute,
    Kind::GrpcRoute,
    Kind::TlsRoute,
    Kind::TcpRoute,
    Kind::BackendTlsPolicy,
    Kind::AuthorizationPolicy,
    Kind::RateLimitPolicy,
    Kind::TrafficPolicy,
];
/// The wait before the API server is asked again for a kind that it does not serve.
const ABSENT: Duration = Duration::from_secs(60);
/// Most lines that wait for the next observation. A mark has fewer.
const MAX_LINES: usize = 100;
/// Most objects of a kind that are followed.
const MAX_OBJECTS: usize = 50_000;
/// Most labels in the selector of a service.
const MAX_LABELS: usize = 64;

/// The changes of objects since the last observation, and the selectors of policies and services.
#[derive(Debug, Default)]
pub(crate) struct ObjectEdits {
    lines: Mutex<Vec<String>>,
    /// The objects of each kind, in the order of [`KINDS`].
    known: [Mutex<FollowedObjects>; KINDS.len()],
    /// How many times the API server has reported an object that is not followed because there are too many.
    beyond: AtomicU64,
    /// How many times the API server has reported an object.
    version: AtomicU64,
}

/// The objects of a kind, by namespace and name.
type FollowedObjects = Reflection<(String, String), FollowedObject>;

/// The part of an object that is kept.
#[derive(Debug)]
struct FollowedObject {
    digest: u64,
    selects: ObjectSelector,
}

#[derive(Debug)]
enum ObjectSelector {
    Policy(Arc<PolicyDocument>),
    /// The selector of a service.
    Service(Arc<Labels>),
    Nothing,
}

impl ObjectEdits {
    /// Follows all kinds until the future is dropped.
    pub(crate) async fn follow(self: Arc<Self>, client: Client) {
        let all = KINDS.iter().zip(&self.known);
        join_all(all.map(|(kind, known)| self.follow_kind(&client, *kind, known))).await;
    }

    /// The lines about changes since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.lines))
    }

    /// A number that increases with each report of an object.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// How many times an object was not followed because there are too many.
    pub(crate) fn beyond(&self) -> u64 {
        self.beyond.load(Ordering::Relaxed)
    }

    /// The policies, matched with these pods: which workloads each policy selects. `system` is the control plane's
    /// namespace. With many policies and pods this takes long, but it does not delay the following of objects.
    pub(crate) fn policies(&self, pods: &[NamedPod], system: &str) -> MatchedPolicies {
        let (mut documents, mut services) = (Vec::new(), Vec::new());
        for known in &self.known {
            for (name, object) in lock(known).values() {
                match &object.selects {
                    ObjectSelector::Policy(document) => documents.push(document.clone()),
                    ObjectSelector::Service(selector) => {
                        services.push((name.clone(), selector.clone()))
                    }
                    ObjectSelector::Nothing => {}
                }
            }
        }
        let mut of = SelectableObjects { system: Some(system), ..SelectableObjects::default() };
        let mut last = None;
        for (workload, pod) in pods.iter().filter(|(_, pod)| pod.meshed && !pod.ending) {
            // The pods are sorted by name, so that pods of the same workload are next to each other.
            let this = (&pod.namespace, workload, Arc::as_ptr(&pod.labels));
            if last.replace(this) != Some(this) {
                of.add((pod.namespace.clone(), workload.to_string()), &pod.labels);
            }
        }
        of.services = services.iter().map(|(name, selector)| (name.clone(), &**selector)).collect();
        MatchedPolicies::of(documents.iter().map(|document| &**document), &of)
    }

    async fn follow_kind(&self, client: &Client, kind: Kind, known: &Mutex<FollowedObjects>) {
        let resource = loop {
            if let Some(served) = served(client, kind).await {
                break served;
            }
            tokio::time::sleep(ABSENT).await;
        };
        let selection = WatchSelection { longest_wait: ABSENT, ..WatchSelection::default() };
        let mut reports =
            pin!(watch(Api::<DynamicObject>::all_with(client.clone(), &resource), selection));
        while let Some(report) = reports.next().await {
            match report {
                WatchReport::Event(event) => self.event(kind, &mut lock(known), event),
                WatchReport::Failed(error) => {
                    let error = leno_program::chain(&error);
                    tracing::debug!(
                        kind = kind.as_str(),
                        error,
                        "cannot watch its changes; retrying"
                    );
                }
                WatchReport::Resumed => {}
            }
        }
    }

    fn event(&self, kind: Kind, known: &mut FollowedObjects, event: Event<DynamicObject>) {
        self.version.fetch_add(1, Ordering::Relaxed);
        let key = |object: &DynamicObject| {
            let name = |name: &Option<String>| name.clone().unwrap_or_default();
            (name(&object.metadata.namespace), name(&object.metadata.name))
        };
        if let Event::InitApply(object) | Event::Apply(object) = &event
            && known.values().len() >= MAX_OBJECTS
            && !known.values().contains_key(&key(object))
        {
            self.beyond.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Objects in the first list have not changed.
        let was_complete = known.is_complete();
        let change = match &event {
            Event::InitApply(object) | Event::Apply(object) if was_complete => {
                match known.values().get(&key(object)) {
                    None => Some((key(object), "added")),
                    Some(before) if before.digest != digest(object) => {
                        Some((key(object), "changed"))
                    }
                    Some(_) => None,
                }
            }
            Event::Delete(object) => Some((key(object), "removed")),
            _ => None,
        };
        let is_list = was_complete && matches!(event, Event::InitDone);
        let before: Vec<_> = known.values().keys().filter(|_| is_list).cloned().collect();
        known.take(event, |object| {
            let (key, digest) = (key(&object), digest(&object));
            let selects = ObjectSelector::of(kind, (&key.0, &key.1), &object.data["spec"]);
            (key, Some(FollowedObject { digest, selects }))
        });
        if let Some((key, what)) = change {
            self.push(kind, &key, what);
        }
        // If the objects were listed again, those that the list did not contain were removed meanwhile.
        for key in before {
            if !known.values().contains_key(&key) {
                self.push(kind, &key, "removed");
            }
        }
    }

    fn push(&self, kind: Kind, (namespace, name): &(String, String), what: &str) {
        let mut lines = lock(&self.lines);
        if lines.len() < MAX_LINES {
            lines.push(format!("{} {namespace}/{name} {what}", kind.as_str()));
        }
    }
}

impl ObjectSelector {
    fn of(kind: Kind, name: (&str, &str), spec: &serde_json::Value) -> Self {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        match kind {
            Kind::AuthorizationPolicy
            | Kind::RateLimitPolicy
            | Kind::TrafficPolicy
            | Kind::BackendTlsPolicy => {
                Self::Policy(Arc::new(PolicyDocument::new(kind.as_str(), name, spec)))
            }
            Kind::Service => match spec["selector"].as_object() {
                Some(labels) if !labels.is_empty() => {
                    let labels = labels.iter().take(MAX_LABELS);
                    let labels = labels.map(|(key, value)| (key.clone(), text(value)));
                    Self::Service(Arc::new(labels.collect()))
                }
                // The endpoints of this service are given explicitly, so it selects no pods.
                _ => Self::Nothing,
            },
            _ => Self::Nothing,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Poisoning is ignored, because values are only replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first version of a kind that the API server serves; `None` if it serves none or does not answer.
async fn served(client: &Client, kind: Kind) -> Option<ApiResource> {
    for version in kind.api_versions() {
        let resources = match version.split_once('/') {
            None => client.list_core_api_resources(version).await,
            Some(_) => client.list_api_group_resources(version).await,
        };
        let Ok(resources) = resources else { continue };
        if resources.resources.iter().any(|one| one.kind == kind.as_str()) {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = GroupVersionKind::gvk(group, version, kind.as_str());
            return Some(ApiResource::from_gvk(&kind));
        }
    }
    None
}

/// A digest of the fields that an author of the object sets. It does not include the status, which the mesh
/// writes, nor fields that the API server adds.
fn digest(object: &DynamicObject) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.data["spec"].to_string().hash(&mut hasher);
    for map in [&object.metadata.labels, &object.metadata.annotations].into_iter().flatten() {
        map.hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, timeout: &str) -> DynamicObject {
        serde_json::from_value(serde_json::json!({"apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute", "metadata": {"namespace": "shop", "name": name, "resourceVersion": timeout},
            "spec": {"rules": [{"timeouts": {"request": timeout}}]}, "status": {"parents": []}}))
        .unwrap()
    }

    #[test]
    fn policies_are_matched_with_pods_and_services() {
        use crate::pods::tests::{in_mesh, pod};
        let edits = ObjectEdits::default();
        let add = |kind: Kind, namespace: &str, name: &str, spec: serde_json::Value| {
            let object = serde_json::from_value(
                serde_json::json!({"apiVersion": "x/v1", "kind": kind.as_str(),
                "metadata": {"namespace": namespace, "name": name}, "spec": spec}),
            );
            let nth = KINDS.iter().position(|one| *one == kind).unwrap();
            edits.event(kind, &mut lock(&edits.known[nth]), Event::Apply(object.unwrap()));
        };
        let target = |kind: &str, name: &str| serde_json::json!({"targetRefs": [{"kind": kind, "name": name}]});
        let labels = serde_json::json!({"pod-template-hash": "7d9"});
        add(Kind::Service, "shop", "front", serde_json::json!({"selector": labels}));
        add(Kind::Service, "shop", "given", serde_json::json!({}));
        add(
            Kind::AuthorizationPolicy,
            "shop",
            "own",
            serde_json::json!({"selector": {"matchLabels": labels}}),
        );
        add(Kind::TrafficPolicy, "shop", "front", target("Service", "front"));
        add(Kind::TrafficPolicy, "shop", "given", target("Service", "given"));
        add(Kind::AuthorizationPolicy, "bank", "other", target("Namespace", "bank"));
        add(Kind::HttpRoute, "shop", "route", serde_json::json!({}));
        let status = || serde_json::json!({"phase": "Running"});
        let pods = ["web-a", "web-b"].map(|name| ("web".into(), in_mesh(pod(name, status()))));
        let found = edits.policies(&pods, "leno-system").policies;
        let rows: Vec<_> = found
            .iter()
            .map(|one| format!("{} {} {}", one.kind, one.name, one.selection.workloads.len()))
            .collect();
        assert_eq!(
            rows,
            [
                "AuthorizationPolicy other 0",
                "AuthorizationPolicy own 1",
                "TrafficPolicy front 1",
                "TrafficPolicy given 0"
            ]
        );
        assert!(edits.version() >= 7);
    }

    #[test]
    fn changes_are_told_and_what_was_there_is_none() {
        let edits = ObjectEdits::default();
        let mut known = Reflection::default();
        let mut take = |events: Vec<Event<DynamicObject>>| {
            for event in events {
                edits.event(Kind::HttpRoute, &mut known, event);
            }
            edits.take()
        };
        let list = |objects: &[DynamicObject]| {
            let all = objects.iter().cloned().map(Event::InitApply);
            [Event::Init].into_iter().chain(all).chain([Event::InitDone]).collect::<Vec<_>>()
        };
        let (cart, web) = (object("cart", "1s"), object("web", "1s"));
        assert!(take(list(&[cart.clone(), web.clone()])).is_empty());
        assert_eq!(take(vec![Event::Apply(object("cart", "2s"))]), ["HTTPRoute shop/cart changed"]);
        let mut judged = object("cart", "2s");
        judged.data["status"] = serde_json::json!({"parents": [{}]});
        judged.metadata.resource_version = Some("9".to_owned());
        assert!(take(vec![Event::Apply(judged)]).is_empty(), "the mesh writes the status");
        assert_eq!(take(vec![Event::Apply(object("api", "1s"))]), ["HTTPRoute shop/api added"]);
        assert_eq!(take(vec![Event::Delete(web)]), ["HTTPRoute shop/web removed"]);
        // The watch was interrupted, and the objects are listed again.
        assert_eq!(
            take(list(&[object("cart", "3s")])),
            ["HTTPRoute shop/cart changed", "HTTPRoute shop/api removed"]
        );
    }
}
