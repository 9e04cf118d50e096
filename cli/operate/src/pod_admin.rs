//! Reaches the admin servers of pods through the API server, like `kubectl port-forward`.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use leno_kube::api::Portforwarder;
use leno_kube::{Api, Client};
use leno_observe::admin::{ANSWER_BOUND, AdminReply, send_with};
use leno_types::ports;
use tokio::time::timeout;

use crate::Error;

/// How many proxies are queried at the same time. Each query is a connection to the API server and, through it, to
/// a kubelet. With sixteen at a time, a thousand proxies take seconds, without much load for either.
const AT_ONCE: usize = 16;
/// The time limit for connecting to a pod and for its answer: the admin server's own limit, and as much again for
/// the API server and the kubelet.
const BOUND: Duration = ANSWER_BOUND.saturating_mul(2);

/// Sends requests to the admin servers of a cluster's pods. Needs `get` and `create` on
/// `pods/portforward`.
#[derive(Clone)]
pub struct PodAdminClient {
    client: Client,
    /// The token for servers that require a token.
    token: Option<String>,
}

/// A port-forward that is aborted when dropped. Without this, it would wait for the other end, for minutes if that
/// does not answer.
struct ForwardedPort(Portforwarder);

impl Drop for ForwardedPort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        write!(f, "{namespace}/{name}")
    }
}

impl PodAdminClient {
    /// A client of the pods that uses this client of the API server. Sends no request yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, token: None }
    }

    /// Adds a token for servers that require one (`Authorization: Bearer`).
    #[must_use]
    pub fn with_token(self, token: String) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Fetches a page from a proxy.
    ///
    /// # Errors
    /// The API server does not permit it, or the proxy does not answer in time.
    pub async fn get(&self, pod: &PodName, path: &str) -> Result<AdminReply, Error> {
        self.get_from(pod, ports::ADMIN, path).await
    }

    /// Fetches a page from an admin server that listens on another port than a proxy's.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn get_from(
        &self,
        pod: &PodName,
        port: u16,
        path: &str,
    ) -> Result<AdminReply, Error> {
        self.send_to(pod, port, ("GET", path), "").await
    }

    /// Sends a request without a body to a proxy, with a header instead of a token.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn send_with(
        &self,
        pod: &PodName,
        header: (&str, &str),
        what: (&str, &str),
    ) -> Result<AdminReply, Error> {
        self.exchange((pod, ports::ADMIN), Some(header), what, "").await
    }

    /// Sends a request to an HTTP server on a pod's loopback interface.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn send_to(
        &self,
        pod: &PodName,
        port: u16,
        what: (&str, &str),
        body: &str,
    ) -> Result<AdminReply, Error> {
        let bearer = self.token.as_deref().map(|token| format!("Bearer {token}"));
        let header = bearer.as_deref().map(|value| ("Authorization", value));
        self.exchange((pod, port), header, what, body).await
    }

    async fn exchange(
        &self,
        (pod, port): (&PodName, u16),
        header: Option<(&str, &str)>,
        (method, path): (&str, &str),
        body: &str,
    ) -> Result<AdminReply, Error> {
        let PodName { namespace, name } = pod;
        let what = format!("query {path} of pod {pod}");
        let asked = async {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let way = pods.portforward(name, &[port]).await;
            let mut way = ForwardedPort(way.map_err(Error::api(what.clone()))?);
            let stream = way.0.take_stream(port).expect("a port that was asked for has a stream");
            let refused = way.0.take_error(port);
            match send_with(stream, header, (method, path), body).await {
                Ok(reply) => Ok(reply),
                Err(error) => {
                    // If the kubelet could not connect to the pod, it sends the reason.
                    let said = match refused {
                        Some(said) => timeout(ANSWER_BOUND, said).await.ok().flatten(),
                        None => None,
                    };
                    Err(Error::Pod(what.clone(), said.unwrap_or_else(|| error.to_string())))
                }
            }
        };
        let late = || Error::Late(what.clone(), BOUND.as_secs());
        timeout(BOUND, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Fetches a page from each of many proxies, and yields the result of `read` for each as soon
    /// as the page has arrived, in any order.
    pub async fn each<'a, T>(
        &self,
        pods: impl IntoIterator<Item = &'a PodName>,
        path: &str,
        read: impl Fn(&AdminReply) -> T,
    ) -> Vec<(&'a PodName, Result<T, Error>)> {
        let asked = pods.into_iter().map(async |pod| {
            let reply = self.get(pod, path).await;
            (pod, reply.map(|reply| read(&reply)))
        });
        stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
    }
}
