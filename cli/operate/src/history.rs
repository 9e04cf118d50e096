//! Queries the history of a cluster's mesh from its observer, with the user's own rights.

use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use leno_charts::{OBSERVER_ACCOUNT, OBSERVER_POD};
use leno_dashboard::visible_namespaces::{AUDIENCE, PORT};
use leno_kube::api::PostParams;
use leno_kube::{Api, Client, RequiredRight};
use leno_observe::admin::AdminReply;
use tokio::sync::Mutex;

use crate::pod_admin::{PodAdminClient, PodName};
use crate::{ClusterTarget, Error, connect, namespaces, unmet};

/// How long a token is used before a new one is requested. The tokens of some kubeconfig plugins are valid for a
/// quarter of an hour.
const TOKEN_AGE: Duration = Duration::from_secs(300);
/// The lifetime of a token that [`ClusterHistory::made`] requests: the shortest that Kubernetes permits.
const TOKEN_SECONDS: i64 = 600;

/// Queries the observer of a cluster.
pub struct ClusterHistory {
    target: ClusterTarget,
    client: Client,
    pod: PodName,
    token: Mutex<Option<(String, Instant)>>,
}

impl ClusterHistory {
    /// A client of the observer in the namespace `system`. Sends no request yet.
    ///
    /// # Errors
    /// No cluster is selected, or its configuration cannot be used.
    pub async fn new(target: &ClusterTarget, system: &str) -> Result<Self, Error> {
        let (target, client) = (target.pinned(), connect(target).await?);
        let pod = PodName { namespace: system.to_owned(), name: OBSERVER_POD.to_owned() };
        Ok(Self { target, client, pod, token: Mutex::default() })
    }

    /// Requests a path, including its query, of the observer's HTTP interface.
    ///
    /// # Errors
    /// There is no observer, it does not answer, or the user may not reach it.
    pub async fn ask(&self, path: &str) -> Result<AdminReply, Error> {
        let reach = PodAdminClient::new(self.client.clone()).with_token(self.token().await?);
        match reach.get_from(&self.pod, PORT, path).await {
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.why(error).await),
        }
    }

    /// Checks that a namespace exists, and that the user may see it.
    ///
    /// # Errors
    /// If the namespace does not exist, or the user may not see it.
    pub async fn may_see(&self, namespace: &str) -> Result<(), Error> {
        let need = RequiredRight::new("create", "", "pods/portforward").inside(Some(namespace));
        if let Some(lack) = unmet(&self.client, vec![need]).await?.pop() {
            let (what, said) =
                (format!("read the history of {namespace}"), format!("{lack} is forbidden"));
            return Err(Error::Forbidden { what, said });
        }
        namespaces::check(&self.client, namespace).await
    }

    /// The user's own token. If the user has a certificate instead of a token, a token of the observer's service
    /// account is created; with that, the observer shows everything that it can see itself.
    async fn token(&self) -> Result<String, Error> {
        let mut kept = self.token.lock().await;
        if let Some((token, since)) = &*kept
            && since.elapsed() < TOKEN_AGE
        {
            return Ok(token.clone());
        }
        let ClusterTarget { kubeconfig, context } = &self.target;
        let token = match leno_kube::bearer(kubeconfig.as_deref(), context.as_deref()).await? {
            Some(token) => token,
            None => self.made().await?,
        };
        *kept = Some((token.clone(), Instant::now()));
        Ok(token)
    }

    async fn made(&self) -> Result<String, Error> {
        let system = &self.pod.namespace;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), system);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let what = format!("create a token of service account {system}/{OBSERVER_ACCOUNT}");
        let how = PostParams::default();
        let made = match accounts.create_token_request(OBSERVER_ACCOUNT, &how, &request).await {
            Err(leno_kube::Error::Api(status)) if status.code == 404 => {
                return Err(Error::NoObserver(system.clone()));
            }
            made => made.map_err(Error::api(what))?,
        };
        Ok(made.status.and_then(|status| status.token).unwrap_or_default())
    }

    /// The error for an observer that was not reached. If there is no observer, the error says so.
    async fn why(&self, error: Error) -> Error {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.pod.namespace);
        match pods.get_opt(&self.pod.name).await {
            Ok(None) => Error::NoObserver(self.pod.namespace.clone()),
            // The first error describes what failed.
            Ok(Some(_)) | Err(_) => error,
        }
    }
}
