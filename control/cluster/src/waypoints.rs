//! Waypoints: for each Gateway of the class `leno-waypoint` keeps a Deployment of proxies with a Service and a
//! service account, while this replica leads.
//!
//! ```text
//!  Gateway shop/edge ──► ServiceAccount, Deployment, Service shop/edge, owned by it ──► its status
//! ```
//! The Gateway owns the objects, so that they are deleted with it. An object of the same name that another client
//! has created is not changed. Otherwise the author of a Gateway with the name of an existing service account
//! would get that account's identity.

mod objects;
mod status;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use leno_kube::{
    Api, Client, Event, Reflection, Resource, WatchError, WatchReport, WatchSelection, apply,
    is_status,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};

use objects::{WaypointPlan, WaypointRefusal, plan};
use status::{WaypointState, status};

/// The name of the GatewayClass of waypoints.
pub const WAYPOINT_CLASS: &str = "leno-waypoint";
/// The label on the objects of a Gateway that names the Gateway's class.
const CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The field manager of the written fields.
const FIELD_MANAGER: &str = "leno-controller";
/// Longest wait for all answers about one Gateway.
const ANSWERS: Duration = Duration::from_secs(10);
/// The wait after objects of a Gateway could not be written, for example because the control plane has no right to
/// write them.
const RETRY: Duration = Duration::from_secs(15);
/// The wait after objects of a Gateway were written, in case another client keeps changing them.
const PAUSE: Duration = Duration::from_secs(1);
/// Most Gateways that get a waypoint.
const MOST: usize = 1_000;
/// For how many Gateways objects are written at the same time.
const AT_ONCE: usize = 4;

/// Keeps the objects and the status of each Gateway of the class up to date. Does nothing if the kind is not
/// installed.
pub struct WaypointReconciler {
    client: Client,
    is_wanted: bool,
    /// The spec of a waypoint's pods, without its service account.
    pod: Value,
    hashes: RandomState,
    written: AtomicU64,
    failed: AtomicU64,
    /// How many reports were about Gateways beyond [`MOST`].
    beyond: AtomicU64,
}

impl WaypointReconciler {
    /// Creates the reconciler. `pod` is the spec of a waypoint's pods, without the service account; `None` if
    /// waypoints are disabled.
    #[must_use]
    pub fn new(client: Client, pod: Option<Value>) -> Self {
        let [written, failed, beyond] = std::array::from_fn(|_| AtomicU64::new(0));
        let (is_wanted, pod) = (pod.is_some(), pod.unwrap_or_default());
        Self { client, is_wanted, pod, hashes: RandomState::new(), written, failed, beyond }
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        if !self.is_wanted {
            return;
        }
        while_leading(leads, || Observed::new(self)).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help =
            "Times that the objects or the status of a waypoint's Gateway were written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("waypoint_writes_total", help), &results);
        let help =
            "Reports of Gateways of waypoints that were left out, because there are too many.";
        counts::render(
            text,
            ("waypoint_gateways_left_out_total", help),
            &[("limit", &self.beyond)],
        );
    }

    /// Writes the objects of a Gateway.
    async fn write(
        &self,
        (namespace, name): &Key,
        plan: &WaypointPlan,
    ) -> Result<WrittenObjects, String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let owner = (name.as_str(), plan.uid.as_str());
        let account = put(&accounts, owner, ("ServiceAccount", &plan.account), true).await?;
        let service = put(&services, owner, ("Service", &plan.service), true).await?;
        // The selector of a Deployment cannot be changed, so an apply cannot take over another client's
        // Deployment. So the Deployment need not be created before it is applied.
        let deployment = put(&deployments, owner, ("Deployment", &plan.deployment), false).await?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(WrittenObjects {
            generation: deployment.metadata.generation,
            service: service.metadata.resource_version,
            account: account.metadata.resource_version,
        })
    }

    async fn write_in_time(
        &self,
        key: &Key,
        plan: &WaypointPlan,
    ) -> Result<WrittenObjects, String> {
        let written = timeout(ANSWERS, self.write(key, plan)).await;
        let written = written.unwrap_or_else(|_| Err("the API server did not answer".to_owned()));
        if let Err(failure) = &written {
            self.failed.fetch_add(1, Ordering::Relaxed);
            let (namespace, name) = key;
            tracing::warn!(
                namespace,
                name,
                failure,
                "cannot write the objects of a waypoint; retrying"
            );
        }
        written
    }

    /// Writes a status, only in the version that was read. Returns the stored object.
    async fn write_status(
        &self,
        key: &Key,
        gateway: &DynamicObject,
        status: Value,
    ) -> Option<DynamicObject> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.0, &resource());
        let version = &gateway.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let failure = match timeout(ANSWERS, api.patch_status(&key.1, &parameters, &patch)).await {
            Ok(Ok(stored)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return Some(stored);
            }
            // The object has changed or was deleted, and the watch will report that.
            Ok(Err(error)) if is_status(&error, 409) || is_status(&error, 404) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "the API server did not answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        let (namespace, name) = key;
        tracing::warn!(namespace, name, failure, "cannot write the status of a waypoint; retrying");
        None
    }
}

/// Applies an object, unless one of this name exists that does not belong to the Gateway. With `is_made_first`,
/// the object is first created, so that an object that another client creates at the same moment is not taken
/// over.
async fn put<K>(
    api: &Api<K>,
    (name, uid): (&str, &str),
    (kind, document): (&str, &Value),
    is_made_first: bool,
) -> Result<K, String>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let failed = |error: leno_kube::Error| format!("{kind} {name}: {error}");
    let there = match api.get_opt(name).await.map_err(failed)? {
        None if is_made_first => {
            let made = serde_json::from_value(objects::first(document));
            let made = made.map_err(|error| format!("{kind} {name}: {error}"))?;
            let parameters = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            Some(api.create(&parameters, &made).await.map_err(failed)?)
        }
        there => there,
    };
    let mut document = document.clone();
    if let Some(there) = there {
        let owners = there.meta().owner_references.iter().flatten();
        if !owners.into_iter().any(|owner| owner.uid == uid) {
            return Err(format!(
                "there is a {kind} {name} that does not belong to this Gateway: rename one of them, or delete it"
            ));
        }
        // The apply is only valid for the version that was read.
        document["metadata"]["resourceVersion"] = json!(there.meta().resource_version);
    }
    apply(api, FIELD_MANAGER, name, &document).await.map_err(failed)
}

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "Gateway");
    ApiResource::from_gvk_with_plural(&kind, "gateways")
}

/// The namespace and name of a Gateway, which its objects share.
type Key = (String, String);

/// The versions of a Gateway's objects that were written or reported.
#[derive(Clone, Debug, PartialEq)]
struct WrittenObjects {
    /// The generation of the Deployment's spec.
    generation: Option<i64>,
    /// The versions of the Service and of the service account.
    service: Option<String>,
    account: Option<String>,
}

/// The result of writing the objects of a Gateway.
struct Outcome {
    /// The hash of the objects that were written.
    plan: u64,
    written: Result<WrittenObjects, String>,
    at: Instant,
}

/// A Gateway of the class.
#[derive(Debug)]
struct Waypoint {
    gateway: DynamicObject,
    /// The hash of the objects that the Gateway needs, or why it cannot become a waypoint.
    plan: Result<u64, WaypointRefusal>,
}

impl Waypoint {
    fn new(own: &WaypointReconciler, gateway: DynamicObject) -> Self {
        let plan = plan(&gateway, &own.pod).map(|plan| own.hashes.hash_one(plan.text()));
        Self { gateway, plan }
    }
}

/// The fields of a Deployment that are kept in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeploymentState {
    generation: Option<i64>,
    available: i32,
}

/// The fields of a Service that are kept in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServiceState {
    version: Option<String>,
    addresses: Vec<String>,
}

/// The Gateways of the class and their objects, by namespace and name.
struct Observed<'a> {
    own: &'a WaypointReconciler,
    gateways: Reflection<Key, Waypoint>,
    deployments: Reflection<Key, DeploymentState>,
    services: Reflection<Key, ServiceState>,
    /// The versions of service accounts.
    accounts: Reflection<Key, Option<String>>,
    outcomes: BTreeMap<Key, Outcome>,
}

/// A report of one of the watches.
enum Observation {
    Gateway(WatchReport<Box<DynamicObject>>),
    Deployment(WatchReport<(Key, DeploymentState)>),
    Service(WatchReport<(Key, ServiceState)>),
    Account(WatchReport<(Key, Option<String>)>),
}

fn reduced_deployment(one: Deployment) -> (Key, DeploymentState) {
    let available = one.status.as_ref().and_then(|status| status.available_replicas);
    let generation = one.metadata.generation;
    (key(&one), DeploymentState { generation, available: available.unwrap_or(0) })
}

fn reduced_service(one: Service) -> (Key, ServiceState) {
    let key = key(&one);
    let addresses = one.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    (key, ServiceState { version: one.metadata.resource_version, addresses })
}

fn reduced_account(one: ServiceAccount) -> (Key, Option<String>) {
    (key(&one), one.metadata.resource_version)
}

impl<'a> Observed<'a> {
    fn new(own: &'a WaypointReconciler) -> Self {
        let (gateways, deployments) = (Reflection::default(), Reflection::default());
        let (services, accounts) = (Reflection::default(), Reflection::default());
        Self { own, gateways, deployments, services, accounts, outcomes: BTreeMap::new() }
    }

    fn is_complete(&self) -> bool {
        let objects = self.deployments.is_complete() && self.services.is_complete();
        self.gateways.is_complete() && objects && self.accounts.is_complete()
    }

    /// The Gateways whose objects have to be written, and the earliest time for each.
    fn due(&self) -> Vec<(Key, u64, Option<Instant>)> {
        if !self.is_complete() {
            return Vec::new();
        }
        let due = |(key, waypoint): (&Key, &Waypoint)| {
            let hash = *waypoint.plan.as_ref().ok()?;
            let wait = match self.outcomes.get(key).filter(|outcome| outcome.plan == hash) {
                None => None,
                Some(Outcome { written: Err(_), at, .. }) => Some(*at + RETRY),
                Some(Outcome { written: Ok(written), at, .. }) => {
                    if self.there(key) == *written {
                        return None;
                    }
                    Some(*at + PAUSE)
                }
            };
            Some((key.clone(), hash, wait))
        };
        self.gateways.values().iter().filter_map(due).collect()
    }

    /// The objects of a Gateway, as the watches have reported them.
    fn there(&self, key: &Key) -> WrittenObjects {
        let deployment = self.deployments.values().get(key);
        let service = self.services.values().get(key);
        WrittenObjects {
            generation: deployment.and_then(|one| one.generation),
            service: service.and_then(|one| one.version.clone()),
            account: self.accounts.values().get(key).cloned().flatten(),
        }
    }

    /// The statuses that have to be written, each with its Gateway.
    fn statuses(&self) -> Vec<(Key, Value)> {
        if !self.is_complete() {
            return Vec::new();
        }
        let now = Timestamp::now().to_string();
        let due = |(key, waypoint): (&Key, &Waypoint)| {
            let state = match (&waypoint.plan, self.outcomes.get(key)) {
                (Err(refusal), _) => WaypointState::Refused(refusal.clone()),
                (Ok(_), None) => WaypointState::Pending,
                (Ok(_), Some(Outcome { written: Err(failure), .. })) => {
                    WaypointState::Failed(failure.clone())
                }
                (Ok(_), Some(_)) => {
                    let available =
                        self.deployments.values().get(key).map_or(0, |one| one.available);
                    let service = self.services.values().get(key);
                    let addresses = service.map(|one| one.addresses.clone()).unwrap_or_default();
                    WaypointState::Running { available, addresses }
                }
            };
            Some((key.clone(), status(&waypoint.gateway, &state, &now)?))
        };
        self.gateways.values().iter().filter_map(due).collect()
    }

    fn observe_gateway(&mut self, event: Event<Box<DynamicObject>>) {
        let own = self.own;
        let kept = self.gateways.values();
        let (number, known) = match &event {
            Event::InitApply(gateway) | Event::Apply(gateway) => {
                (kept.len(), kept.contains_key(&key(&**gateway)))
            }
            _ => (0, true),
        };
        self.gateways.take(event, |gateway| {
            let key = key(&*gateway);
            let is_ours = gateway.data["spec"]["gatewayClassName"] == WAYPOINT_CLASS
                && gateway.metadata.deletion_timestamp.is_none();
            let is_beyond = is_ours && !known && number >= MOST;
            if is_beyond {
                own.beyond.fetch_add(1, Ordering::Relaxed);
                let (namespace, name) = &key;
                tracing::warn!(
                    namespace,
                    name,
                    "not created as a waypoint, because there are {MOST} others"
                );
            }
            (key, (is_ours && !is_beyond).then(|| Waypoint::new(own, *gateway)))
        });
        let Self { gateways, outcomes, .. } = self;
        outcomes.retain(|key, _| gateways.values().contains_key(key));
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    fn watches(&self) -> BoxStream<'static, Observation> {
        let client = || self.own.client.clone();
        let gateways: Api<DynamicObject> = Api::all_with(client(), &resource());
        let ours = || WatchSelection::labelled(CLASS_LABEL, WAYPOINT_CLASS);
        let gateways = leno_kube::watch(gateways, WatchSelection::default());
        let gateways = gateways.map(|report| Observation::Gateway(report.map(Box::new)));
        let deployments = leno_kube::watch(Api::all(client()), ours());
        let deployments =
            deployments.map(|report| Observation::Deployment(report.map(reduced_deployment)));
        let services = leno_kube::watch(Api::all(client()), ours());
        let services = services.map(|report| Observation::Service(report.map(reduced_service)));
        let accounts = leno_kube::watch(Api::all(client()), ours());
        let accounts = accounts.map(|report| Observation::Account(report.map(reduced_account)));
        let objects = stream::select(stream::select(deployments, services), accounts);
        stream::select(gateways, objects).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        let error = match observation {
            Observation::Gateway(WatchReport::Event(event)) => return self.observe_gateway(event),
            Observation::Deployment(WatchReport::Event(event)) => {
                return self.deployments.take(event, |(key, state)| (key, Some(state)));
            }
            Observation::Service(WatchReport::Event(event)) => {
                return self.services.take(event, |(key, state)| (key, Some(state)));
            }
            Observation::Account(WatchReport::Event(event)) => {
                return self.accounts.take(event, |(key, version)| (key, Some(version)));
            }
            // This error means that the kind is not installed.
            Observation::Gateway(WatchReport::Failed(
                WatchError::InitialListFailed(error) | WatchError::WatchStartFailed(error),
            )) if is_status(&error, 404) => return,
            Observation::Gateway(WatchReport::Failed(error))
            | Observation::Deployment(WatchReport::Failed(error))
            | Observation::Service(WatchReport::Failed(error))
            | Observation::Account(WatchReport::Failed(error)) => error,
            Observation::Gateway(WatchReport::Resumed)
            | Observation::Deployment(WatchReport::Resumed)
            | Observation::Service(WatchReport::Resumed)
            | Observation::Account(WatchReport::Resumed) => return,
        };
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "cannot watch waypoints; retrying");
    }

    fn is_due(&self) -> bool {
        !self.due().is_empty() || !self.statuses().is_empty()
    }

    fn not_before(&self) -> Option<Instant> {
        if !self.statuses().is_empty() {
            return None;
        }
        // `None` if one of the Gateways can be written now. Otherwise each has failed or was written lately, and
        // has to wait.
        let waits: Option<Vec<Instant>> = self.due().into_iter().map(|(.., wait)| wait).collect();
        waits?.into_iter().min()
    }

    async fn reconcile(&mut self) -> bool {
        let (own, now) = (self.own, Instant::now());
        let due = self.due().into_iter().filter(|(.., wait)| wait.is_none_or(|wait| wait <= now));
        let gateways = self.gateways.values();
        let planned = due.filter_map(|(key, hash, _)| {
            let plan = plan(&gateways.get(&key)?.gateway, &own.pod).ok()?;
            Some((key, plan, hash))
        });
        let writes = planned.map(|(key, plan, hash)| async move {
            let written = own.write_in_time(&key, &plan).await;
            (key, hash, written)
        });
        let outcomes: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        for (key, plan, written) in outcomes {
            if let Ok(written) = &written {
                // Recorded now, because the watches report it later.
                let before = self.deployments.values().get(&key).copied().unwrap_or_default();
                let state = DeploymentState { generation: written.generation, ..before };
                self.deployments.insert(key.clone(), state);
                let before = self.services.values().get(&key).cloned().unwrap_or_default();
                let state = ServiceState { version: written.service.clone(), ..before };
                self.services.insert(key.clone(), state);
                self.accounts.insert(key.clone(), written.account.clone());
            }
            self.outcomes.insert(key, Outcome { plan, written, at: Instant::now() });
        }
        let mut all = true;
        for (key, status) in self.statuses() {
            let Some(waypoint) = self.gateways.values().get(&key) else { continue };
            match own.write_status(&key, &waypoint.gateway, status).await {
                Some(stored) => self.gateways.insert(key, Waypoint::new(own, stored)),
                None => all = false,
            }
        }
        all
    }
}

fn key<K: Resource>(object: &K) -> Key {
    let metadata = object.meta();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&metadata.namespace), text(&metadata.name))
}
