//! The end of a removal that was given up, said while this replica leads.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Error};
use leno_resources::REMOVAL_ANNOTATION;
use leno_serve::State;
use leno_types::Removal;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::webhooks::INJECTOR;

/// How often it is looked, while a removal is under way.
const LOOK: Duration = Duration::from_secs(3);
/// Longest wait for all answers of the API server at one look.
const ANSWERS: Duration = Duration::from_secs(10);

/// Sees to it that a mesh that was installed anew, after its removal was begun and not finished, is not
/// half removed: without mTLS, and nobody would say so.
///
/// A removal takes the webhooks away before it says its first step. So where a step holds and they are
/// there, somebody has installed the mesh since, and wants it to stay.
pub struct Stays {
    client: Client,
    /// The control plane's own, which says how far the removal has gone.
    namespace: String,
}

impl Stays {
    /// Of the mesh whose control plane is in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Looks, and writes, while `leads` says so, until its sender ends.
    pub async fn run(&self, state: &State, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            // In this order: webhooks of before the removal are gone when its first step is known.
            let step = state.look(leno_index::Index::removal);
            if step > Removal::None {
                let failure = match timeout(ANSWERS, self.unsay_if_installed()).await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_elapsed) => Some("no answer".to_owned()),
                };
                if let Some(failure) = failure {
                    tracing::warn!(failure, "it is not known whether the mesh stays; trying again");
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn unsay_if_installed(&self) -> Result<(), Error> {
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        if webhooks.get_opt(INJECTOR).await?.is_none() {
            return Ok(());
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let patch = json!({"metadata": {"annotations": {REMOVAL_ANNOTATION: null}}});
        namespaces.patch(&self.namespace, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        tracing::warn!("the mesh was installed anew while it was being removed: it stays");
        Ok(())
    }
}
