//! What the API server checks the webhooks' certificates by, kept while this replica leads.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use data_encoding::BASE64;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts;

/// The configuration of the webhook that puts proxies into pods.
pub const INJECTOR: &str = "leno-injector";
/// The configuration of the webhook that judges objects.
pub const VALIDATOR: &str = "leno-validator";

/// How often the configurations are looked at: whoever applies them anew takes the roots out, and until
/// they are back no pod can be made.
const LOOK: Duration = Duration::from_secs(3);
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);

/// Sees to it that the API server trusts the webhooks. It makes no configuration: without one there is
/// no webhook.
pub struct Webhooks {
    client: Client,
    /// The roots, PEM in base64.
    bundle: String,
    written: AtomicU64,
    failed: AtomicU64,
}

impl Webhooks {
    /// Of these roots, in PEM.
    #[must_use]
    pub fn new(client: Client, roots_pem: &str) -> Self {
        let bundle = BASE64.encode(roots_pem.as_bytes());
        Self { client, bundle, written: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Writes while `leads` says so, until its sender ends.
    pub async fn run(&self, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            self.keep::<MutatingWebhookConfiguration>(INJECTOR).await;
            self.keep::<ValidatingWebhookConfiguration>(VALIDATOR).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the roots of webhooks were put right, by the result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("webhook_roots_total", help), &results);
    }

    async fn keep<K>(&self, name: &str)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let done = timeout(ANSWER * 2, self.put_right(&api, name)).await;
        let failure = match done {
            Ok(Ok(false)) => return,
            Ok(Ok(true)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                tracing::info!(name, "the roots of the webhook were put right");
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(name, failure, "the roots of the webhook cannot be put right; trying again");
    }

    /// Whether there was something to put right.
    async fn put_right<K>(&self, api: &Api<K>, name: &str) -> Result<bool, kube::Error>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let Some(found) = api.get_opt(name).await? else { return Ok(false) };
        let found = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
        let Some(patch) = patch(&found, &self.bundle) else { return Ok(false) };
        api.patch(name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
        Ok(true)
    }
}

/// What has to be changed in a configuration for its webhooks to have these roots; nothing where they
/// have. Of the list, entries are changed by their names, and nothing else in them.
fn patch(found: &Value, bundle: &str) -> Option<Value> {
    let hooks = found["webhooks"].as_array()?;
    let wrong = hooks.iter().filter(|hook| hook["clientConfig"]["caBundle"] != bundle);
    let right = |hook: &Value| json!({"name": hook["name"], "clientConfig": {"caBundle": bundle}});
    let changed: Vec<Value> = wrong.map(right).collect();
    (!changed.is_empty()).then(|| json!({"webhooks": changed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_with_other_roots_are_changed() {
        let hook = |name: &str, bundle: Value| json!({"name": name, "clientConfig": {"service": {"name": "s"}, "caBundle": bundle}});
        let found = json!({"webhooks": [hook("a", json!("eA==")), hook("b", Value::Null)]});
        let expected = json!({"webhooks": [{"name": "b", "clientConfig": {"caBundle": "eA=="}}]});
        assert_eq!(patch(&found, "eA=="), Some(expected));
        assert_eq!(patch(&json!({"webhooks": [hook("a", json!("eA=="))]}), "eA=="), None);
        assert_eq!(patch(&json!({}), "eA=="), None);
    }
}
