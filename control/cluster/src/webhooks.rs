//! What the API server checks the webhooks' certificates by, kept while this replica leads.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use data_encoding::BASE64;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client, Resource};
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

/// Keeps in the webhooks' configurations the roots that the API server checks our certificate by, and the
/// path by which the API server proves to `/validate` who it is. It creates no configuration: without one
/// there is no webhook.
pub struct WebhookConfigurations {
    client: Client,
    /// The roots, PEM in base64.
    bundle: String,
    /// The path of the webhook that judges objects, with its secret.
    validate: String,
    written: AtomicU64,
    failed: AtomicU64,
}

impl WebhookConfigurations {
    /// Of these roots, in PEM, and this path of the webhook that judges objects.
    #[must_use]
    pub fn new(client: Client, roots_pem: &str, validate: &str) -> Self {
        let bundle = BASE64.encode(roots_pem.as_bytes());
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { client, bundle, validate: validate.to_owned(), written, failed }
    }

    /// Writes while `leads` says so, until its sender ends.
    pub async fn run(&self, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            self.keep::<MutatingWebhookConfiguration>(INJECTOR, None).await;
            self.keep::<ValidatingWebhookConfiguration>(VALIDATOR, Some(&self.validate)).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the roots in webhook configurations were corrected, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("webhook_roots_total", help), &results);
    }

    async fn keep<K>(&self, name: &str, path: Option<&str>)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let done = timeout(ANSWER * 2, self.put_right(&api, name, path)).await;
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
    async fn put_right<K>(
        &self,
        api: &Api<K>,
        name: &str,
        path: Option<&str>,
    ) -> Result<bool, leno_kube::Error>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let Some(found) = api.get_opt(name).await? else { return Ok(false) };
        let found = serde_json::to_value(&found).map_err(leno_kube::Error::SerdeError)?;
        let Some(patch) = patch(&found, &self.bundle, path) else { return Ok(false) };
        api.patch(name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
        Ok(true)
    }
}

/// What has to be changed in a configuration for its webhooks to have these roots, and this path of our
/// service; `None` if they have. Entries of the list are changed by their names, and nothing else in them.
fn patch(found: &Value, bundle: &str, path: Option<&str>) -> Option<Value> {
    let hooks = found["webhooks"].as_array()?;
    let changed = hooks.iter().filter_map(|hook| {
        let mut client = json!({});
        let given = &hook["clientConfig"];
        if given["caBundle"] != bundle {
            client["caBundle"] = json!(bundle);
        }
        if let Some(path) = path.filter(|path| given["service"]["path"] != **path) {
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
        assert_eq!(patch(&found, "eA==", None), Some(expected));
        assert_eq!(patch(&json!({"webhooks": [right]}), "eA==", None), None);
        assert_eq!(patch(&json!({}), "eA==", None), None);
    }

    #[test]
    fn the_path_that_proves_who_calls_comes_back_after_an_upgrade() {
        let found = json!({"webhooks": [hook("v", json!("eA=="), "/validate")]});
        let service = json!({"name": "s", "namespace": "n", "path": "/validate/secret"});
        let expected = json!({"webhooks": [{"name": "v", "clientConfig": {"service": service}}]});
        assert_eq!(patch(&found, "eA==", Some("/validate/secret")), Some(expected));
        let right = json!({"webhooks": [hook("v", json!("eA=="), "/validate/secret")]});
        assert_eq!(patch(&right, "eA==", Some("/validate/secret")), None);
    }
}
