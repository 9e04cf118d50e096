//! The objects that route or judge requests, followed for the moments at which they change.
//!
//! Of each object a digest is kept, and of a change the line `HTTPRoute shop/cart changed`. Kinds that the API server does not
//! serve are asked for again every minute.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leno_kube::{Api, Client, Event, Reflection, Report, Selection, watch};
use leno_resources::Kind;

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
/// The wait until a kind that is not served is asked for again.
const ABSENT: Duration = Duration::from_secs(60);
/// Most lines that wait for the next observation; a mark has fewer.
const MAX_LINES: usize = 100;

/// Changes of objects since the last observation.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    lines: Mutex<Vec<String>>,
}

impl Edits {
    /// Follows all kinds until the future is dropped.
    pub(crate) async fn follow(self: Arc<Self>, client: Client) {
        join_all(KINDS.iter().map(|kind| self.follow_kind(&client, *kind))).await;
    }

    /// What changed since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }

    async fn follow_kind(&self, client: &Client, kind: Kind) {
        let resource = loop {
            if let Some(served) = served(client, kind).await {
                break served;
            }
            tokio::time::sleep(ABSENT).await;
        };
        let selection = Selection { longest_wait: ABSENT, ..Selection::default() };
        let mut reports =
            pin!(watch(Api::<DynamicObject>::all_with(client.clone(), &resource), selection));
        let mut known = Reflection::default();
        while let Some(report) = reports.next().await {
            match report {
                Report::Event(event) => self.event(kind, &mut known, event),
                Report::Failed(error) => {
                    let error = leno_program::chain(&error);
                    tracing::debug!(
                        kind = kind.as_str(),
                        error,
                        "its changes cannot be followed; trying again"
                    );
                }
                Report::Resumed => {}
            }
        }
    }

    fn event(
        &self,
        kind: Kind,
        known: &mut Reflection<(String, String), u64>,
        event: Event<DynamicObject>,
    ) {
        let key = |object: &DynamicObject| {
            let name = |name: &Option<String>| name.clone().unwrap_or_default();
            (name(&object.metadata.namespace), name(&object.metadata.name))
        };
        // What is there at the first list has not changed.
        let was_complete = known.is_complete();
        let change = match &event {
            Event::InitApply(object) | Event::Apply(object) if was_complete => {
                match known.values().get(&key(object)) {
                    None => Some((key(object), "added")),
                    Some(before) if *before != digest(object) => Some((key(object), "changed")),
                    Some(_) => None,
                }
            }
            Event::Delete(object) => Some((key(object), "removed")),
            _ => None,
        };
        let before = matches!(event, Event::InitDone).then(|| known.values().clone());
        known.take(event, |object| (key(&object), Some(digest(&object))));
        if let Some((key, what)) = change {
            self.push(kind, &key, what);
        }
        // Of a list that was taken again, what is not in it was removed meanwhile.
        for key in before.filter(|_| was_complete).into_iter().flat_map(|before| before.into_keys())
        {
            if !known.values().contains_key(&key) {
                self.push(kind, &key, "removed");
            }
        }
    }

    fn push(&self, kind: Kind, (namespace, name): &(String, String), what: &str) {
        let mut lines = self.lock();
        if lines.len() < MAX_LINES {
            lines.push(format!("{} {namespace}/{name} {what}", kind.as_str()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        // Whole lines only: what a panic left behind is still sound.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first version of a kind that the API server serves; `None` if it serves none, or does not answer.
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

/// What an author sets of an object: not its status, which the mesh writes, nor what the API server adds.
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
    fn changes_are_told_and_what_was_there_is_none() {
        let edits = Edits::default();
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
        // The watch was cut, and all is listed again.
        assert_eq!(
            take(list(&[object("cart", "3s")])),
            ["HTTPRoute shop/cart changed", "HTTPRoute shop/api removed"]
        );
    }
}
