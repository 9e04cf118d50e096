//! Writes the status of routes, while this replica leads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use leno_index::{Change, Index};
use leno_resources::gateway::RouteStatus;
use leno_resources::{Kind, Object, ObjectKey};
use leno_serve::State;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::counts;

/// Whose the written fields are, for the API server.
const FIELD_MANAGER: &str = "leno-controller";
/// How long changes are gathered before routes are judged anew: a rollout changes many things at once,
/// and people read a status after this.
const GATHER: Duration = Duration::from_millis(100);
/// Writes at once.
const AT_ONCE: usize = 8;
/// Longest wait for the answer to a write: an API server that is well has answered long before.
const ANSWER: Duration = Duration::from_secs(10);
/// Pause before writes that failed are tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// Routes judged at one look into the index, which takes no change meanwhile.
const JUDGED: usize = 256;

/// Keeps what routes say of themselves and writes what the mesh says of them.
pub struct RouteStatuses {
    client: Client,
    /// The routes as last read, with the version that a status replaces.
    routes: Mutex<BTreeMap<ObjectKey, Route>>,
    /// Something has changed that a status may depend on.
    changed: Notify,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    conflicts: AtomicU64,
    failed: AtomicU64,
}

/// A route, and why it is not understood where it is not.
#[derive(Clone)]
struct Route {
    object: Object,
    misread: Option<String>,
    /// Whether the API server has refused the status: it will do so again, until the route is another.
    refused: bool,
}

/// A status to be written.
struct Due {
    key: ObjectKey,
    api_version: String,
    /// What it replaces.
    version: String,
    status: RouteStatus,
}

impl RouteStatuses {
    /// Knows no route yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, routes: Mutex::default(), changed: Notify::new(), counts: Counts::default() }
    }

    /// Takes note of changes. To be called before they are applied to the state, and followed by
    /// [`changed`](Self::changed) after it where it says so.
    #[must_use]
    pub fn note(&self, changes: &[Change]) -> bool {
        let mut concerned = false;
        let mut routes = self.routes();
        for change in changes {
            let kind = match change {
                Change::Upsert(object) => object.key().kind,
                Change::Delete(key) => key.kind,
            };
            let is_route = Kind::ROUTES.contains(&kind);
            concerned |= is_route || matches!(kind, Kind::Service | Kind::ReferenceGrant);
            match change {
                Change::Upsert(object) if is_route => {
                    let route = Route { object: object.clone(), misread: None, refused: false };
                    routes.insert(object.key(), route);
                }
                Change::Delete(key) if is_route => {
                    routes.remove(key);
                }
                _ => {}
            }
        }
        concerned
    }

    /// Takes note of routes that are not understood, each with the reason.
    pub fn misread(&self, misread: impl IntoIterator<Item = (Object, String)>) {
        let mut routes = self.routes();
        for (object, reason) in misread {
            let route = Route { object, misread: Some(reason), refused: false };
            routes.insert(route.object.key(), route);
        }
        drop(routes);
        self.changed();
    }

    /// Says that what was noted is in the state now.
    pub fn changed(&self) {
        self.changed.notify_one();
    }

    /// Writes while `leads` says so, until its sender ends: then nobody says who leads any more.
    pub async fn run(&self, state: &State, mut leads: watch::Receiver<bool>) {
        loop {
            if leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            // A new leader judges everything: nobody knows what the last one has left undone.
            loop {
                let due = self.due(state);
                let left = self.write(due, &leads).await;
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep(PAUSE), if left => {}
                    ended = leads.wait_for(|leads| !*leads) => match ended {
                        Ok(_) => break,
                        Err(_) => return,
                    },
                }
                tokio::time::sleep(GATHER).await;
            }
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let Counts { written, conflicts, failed } = &self.counts;
        let help = "Statuses of routes written, by result.";
        let results = [("written", written), ("conflict", conflicts), ("failed", failed)];
        counts::render(text, ("status_writes_total", help), &results);
    }

    fn due(&self, state: &State) -> Vec<Due> {
        let now = Time(Timestamp::now());
        let routes = self.routes();
        let routes_due = routes.values().filter(|route| !route.refused).cloned();
        let routes_due: Vec<Route> = routes_due.collect();
        drop(routes);
        let judge = |index: &Index, some: &[Route]| -> Vec<Due> {
            some.iter().filter_map(|route| due(index, route, &now)).collect()
        };
        routes_due.chunks(JUDGED).flat_map(|some| state.look(|index| judge(index, some))).collect()
    }

    /// Whether some are left to be tried again.
    async fn write(&self, due: Vec<Due>, leads: &watch::Receiver<bool>) -> bool {
        let writes = due.into_iter().map(|due| async move {
            if !*leads.borrow() {
                return false;
            }
            self.write_one(due).await
        });
        let written = stream::iter(writes).buffer_unordered(AT_ONCE);
        written.fold(false, |left, again| async move { left || again }).await
    }

    async fn write_one(&self, due: Due) -> bool {
        let Due { key, api_version, version, status } = due;
        let (group, api) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, api, key.kind.as_str());
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        // The list has one owner for the API server, so that it is replaced as a whole, and only in the
        // version that was read: what others have added meanwhile is not lost.
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let patch = Patch::Merge(&patch);
        let write = api.patch_status(&key.name, &params, &patch);
        let Ok(written) = timeout(ANSWER, write).await else {
            count(&self.counts.failed);
            tracing::warn!(route = %key, "no answer to the status in {ANSWER:?}; trying again");
            return true;
        };
        match written {
            Ok(_) => {
                count(&self.counts.written);
                tracing::info!(route = %key, "status written");
                false
            }
            // Its newest version, or its end, is on its way to us.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                count(&self.counts.conflicts);
                false
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                count(&self.counts.failed);
                let reason = &status.message;
                tracing::warn!(route = %key, reason, "the status is refused; it waits for the route to change");
                self.refuse(&key, &version);
                false
            }
            Err(error) => {
                count(&self.counts.failed);
                let error: &dyn std::error::Error = &error;
                tracing::warn!(route = %key, error, "the status cannot be written; trying again");
                true
            }
        }
    }

    /// Notes that the status of this version of a route is not to be written again.
    fn refuse(&self, key: &ObjectKey, version: &str) {
        if let Some(route) = self.routes().get_mut(key) {
            let read = written(&route.object)
                .and_then(|(_, metadata)| metadata.resource_version.as_deref());
            route.refused = read == Some(version);
        }
    }

    fn routes(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Route>> {
        // Whole entries only: what a panic left behind is still sound.
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status that a route should have, where it has another.
fn due(index: &Index, Route { object, misread, .. }: &Route, now: &Time) -> Option<Due> {
    let status = match misread {
        None => leno_status::status(index, object, now)?,
        Some(reason) => leno_status::refused(object, reason, now)?,
    };
    let (api_version, metadata) = written(object)?;
    Some(Due {
        key: object.key(),
        api_version: api_version.clone(),
        version: metadata.resource_version.clone()?,
        status,
    })
}

fn written(route: &Object) -> Option<(&String, &ObjectMeta)> {
    match route {
        Object::HttpRoute(route) => Some((&route.api_version, &route.metadata)),
        Object::GrpcRoute(route) => Some((&route.api_version, &route.metadata)),
        Object::TlsRoute(route) => Some((&route.api_version, &route.metadata)),
        Object::TcpRoute(route) => Some((&route.api_version, &route.metadata)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
