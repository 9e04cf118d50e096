//! Keeps the roots and the secret paths in the webhooks' configurations up to date, while this replica leads. The
//! API server verifies the webhooks' certificate with these roots, and proves its identity by calling these paths.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use data_encoding::BASE64;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use leno_identity::Authority;
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Reflection, Resource, WatchReport, WatchSelection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};
use crate::roots::changes;

/// The name of the configuration of the webhook that injects proxies into pods.
pub const INJECTOR: &str = "leno-injector";
/// The name of the configuration of the webhook that validates objects.
pub const VALIDATOR: &str = "leno-validator";

/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);

/// Keeps two things in the webhooks' configurations up to date: the roots with which the API server verifies the
/// control plane's certificate, and the secret paths by which the API server proves its identity. It creates no
/// configuration; without a configuration, the API server calls no webhook.
pub struct WebhookReconciler {
    client: Client,
    authority: Arc<Authority>,
    /// The secret paths of the two webhooks.
    inject: String,
    validate: String,
    /// Hashes roots.
    hashes: RandomState,
    /// The hash of the roots that all configurations have. While some configuration has other roots, a different
    /// value.
    settled: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
}

/// The configurations, by name, as JSON.
struct Observed<'a> {
    own: &'a WebhookReconciler,
    injector: Reflection<(), Value>,
    validator: Reflection<(), Value>,
}

impl WebhookReconciler {
    /// Creates the reconciler, which writes the roots that the authority has at each moment. The paths are those
    /// of the injecting and of the validating webhook.
    #[must_use]
    pub fn new(
        client: Client,
        authority: Arc<Authority>,
        (inject, validate): (String, String),
    ) -> Self {
        let [settled, written, failed] = std::array::from_fn(|_| AtomicU64::new(0));
        let hashes = RandomState::new();
        Self { client, authority, inject, validate, hashes, settled, written, failed }
    }

    /// Whether the API server verifies the webhooks with the authority's current roots, as far as this replica has
    /// observed while it led. True if there is no configuration, because the API server then calls no webhook.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) == self.hashes.hash_one(self.bundle())
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        while_leading(leads, || Observed::new(self)).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the roots in webhook configurations were corrected, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("webhook_roots_total", help), &results);
    }

    /// The roots as PEM, encoded in base64.
    fn bundle(&self) -> String {
        BASE64.encode(self.authority.trust().roots_pem().as_bytes())
    }

    /// Writes a patch. Returns the configuration that is stored afterwards.
    async fn write<K>(&self, name: &str, patch: &Value) -> Option<Value>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let failure = match timeout(ANSWER, api.patch(name, &params, &patch)).await {
            Ok(Ok(stored)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                tracing::info!(name, "the roots and the path of the webhook were corrected");
                return Some(as_json(&stored));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(name, failure, "cannot correct the roots of the webhook; retrying");
        None
    }
}

impl<'a> Observed<'a> {
    fn new(own: &'a WebhookReconciler) -> Self {
        Self { own, injector: Reflection::default(), validator: Reflection::default() }
    }

    fn injector_patch(&self) -> Option<Value> {
        patch(self.injector.values().get(&())?, &self.own.bundle(), &self.own.inject)
    }

    fn validator_patch(&self) -> Option<Value> {
        patch(self.validator.values().get(&())?, &self.own.bundle(), &self.own.validate)
    }
}

impl Reconciler for Observed<'_> {
    /// The webhook's name and a report of its configuration; `None` if the authority has changed its roots.
    type Observation = Option<(&'static str, WatchReport<Value>)>;

    fn watches(&self) -> BoxStream<'static, Self::Observation> {
        let injector = follow::<MutatingWebhookConfiguration>(&self.own.client, INJECTOR);
        let validator = follow::<ValidatingWebhookConfiguration>(&self.own.client, VALIDATOR);
        let both = stream::select(injector, validator).map(Some);
        stream::select(both, changes(&self.own.authority).map(|()| None)).boxed()
    }

    fn observe(&mut self, observation: Self::Observation) {
        let Some((name, report)) = observation else { return };
        let reflection = if name == INJECTOR { &mut self.injector } else { &mut self.validator };
        match report {
            WatchReport::Event(event) => reflection.take(event, |found| ((), Some(found))),
            WatchReport::Resumed => {}
            WatchReport::Failed(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(name, error, "cannot watch the webhook; retrying");
            }
        }
    }

    fn is_due(&self) -> bool {
        let wanted = self.own.hashes.hash_one(self.own.bundle());
        let is_due = self.injector_patch().is_some() || self.validator_patch().is_some();
        let is_known = self.injector.is_complete() && self.validator.is_complete();
        let settled = if is_known && !is_due { wanted } else { !wanted };
        self.own.settled.store(settled, Ordering::Relaxed);
        is_due
    }

    async fn reconcile(&mut self) -> bool {
        let mut all = true;
        if let Some(patch) = self.injector_patch() {
            match self.own.write::<MutatingWebhookConfiguration>(INJECTOR, &patch).await {
                Some(stored) => self.injector.insert((), stored),
                None => all = false,
            }
        }
        if let Some(patch) = self.validator_patch() {
            match self.own.write::<ValidatingWebhookConfiguration>(VALIDATOR, &patch).await {
                Some(stored) => self.validator.insert((), stored),
                None => all = false,
            }
        }
        all
    }
}

/// Watches one configuration.
fn follow<K>(
    client: &Client,
    name: &'static str,
) -> BoxStream<'static, (&'static str, WatchReport<Value>)>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    let reports = leno_kube::watch(api, WatchSelection::named(name));
    reports.map(move |report| (name, report.map(|found| as_json(&found)))).boxed()
}

fn as_json(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("an object of Kubernetes is JSON")
}

/// The patch that gives the webhooks in a configuration these roots and this path; `None` if all have both. The
/// patch selects entries of the list by their names, and changes nothing else in them.
fn patch(found: &Value, bundle: &str, path: &str) -> Option<Value> {
    let hooks = found["webhooks"].as_array()?;
    let changed = hooks.iter().filter_map(|hook| {
        let mut client = json!({});
        let given = &hook["clientConfig"];
        if given["caBundle"] != bundle {
            client["caBundle"] = json!(bundle);
        }
        if given["service"]["path"] != path {
            client["service"] = given["service"].clone();
            client["service"]["path"] = json!(path);
        }
        let differs = client.as_object().is_some_and(|fields| !fields.is_empty());
        differs.then(|| json!({"name": hook["name"], "clientConfig": client}))
    });
    let changed: Vec<Value> = changed.collect();
    (!changed.is_empty()).then(|| json!({"webhooks": changed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(name: &str, bundle: Value, path: &str) -> Value {
        let service = json!({"name": "s", "namespace": "n", "path": path});
        json!({"name": name, "clientConfig": {"service": service, "caBundle": bundle}})
    }

    #[test]
    fn only_webhooks_with_other_roots_are_changed() {
        let right = hook("a", json!("eA=="), "/inject");
        let found = json!({"webhooks": [right, hook("b", Value::Null, "/inject")]});
        let expected = json!({"webhooks": [{"name": "b", "clientConfig": {"caBundle": "eA=="}}]});
        assert_eq!(patch(&found, "eA==", "/inject"), Some(expected));
        assert_eq!(patch(&json!({"webhooks": [right]}), "eA==", "/inject"), None);
        assert_eq!(patch(&json!({}), "eA==", "/inject"), None);
    }

    #[test]
    fn the_path_that_proves_who_calls_comes_back_after_an_upgrade() {
        let found = json!({"webhooks": [hook("v", json!("eA=="), "/validate")]});
        let service = json!({"name": "s", "namespace": "n", "path": "/validate/secret"});
        let expected = json!({"webhooks": [{"name": "v", "clientConfig": {"service": service}}]});
        assert_eq!(patch(&found, "eA==", "/validate/secret"), Some(expected));
        let right = json!({"webhooks": [hook("v", json!("eA=="), "/validate/secret")]});
        assert_eq!(patch(&right, "eA==", "/validate/secret"), None);
    }
}
