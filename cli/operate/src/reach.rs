//! Admin servers of pods, through the API server: what `kubectl port-forward` does.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use kube::{Api, Client};
use leno_observe::admin::{ANSWER_BOUND, Reply, send_as};
use leno_types::ports;
use tokio::time::timeout;

use crate::Error;

/// Proxies asked at once: each is a connection to the API server and, through it, to a kubelet. Sixteen need
/// seconds for a thousand proxies, and are no load for either.
const AT_ONCE: usize = 16;
/// How long the way to a pod may take, and its answer: an admin server's own bound, and as much again for the
/// API server and the kubelet.
const BOUND: Duration = ANSWER_BOUND.saturating_mul(2);

/// The way to the admin servers of a cluster's pods. Needs `get` and `create` on `pods/portforward`.
#[derive(Clone)]
pub struct Reach {
    client: Client,
    /// What the servers are shown that ask for it.
    token: Option<String>,
}

/// A way that ends with whoever uses it: by itself it would wait for the other end, for minutes where
/// that is silent.
struct Way(Portforwarder);

impl Drop for Way {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Which pod.
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

impl Reach {
    /// Through this client. Nothing is asked yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, token: None }
    }

    /// The same, to servers that ask for a token (`Authorization: Bearer`).
    #[must_use]
    pub fn with_token(self, token: String) -> Self {
        Self { token: Some(token), ..self }
    }

    /// A page of a proxy.
    ///
    /// # Errors
    /// Where the API server does not let us through, or the proxy does not answer in time.
    pub async fn get(&self, pod: &PodName, path: &str) -> Result<Reply, Error> {
        self.get_from(pod, ports::ADMIN, path).await
    }

    /// A page of an admin server on another port than a proxy's.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_from(&self, pod: &PodName, port: u16, path: &str) -> Result<Reply, Error> {
        self.send_to(pod, port, ("GET", path), "").await
    }

    /// Sends something to an HTTP server that a pod has on its loopback.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn send_to(
        &self,
        pod: &PodName,
        port: u16,
        (method, path): (&str, &str),
        body: &str,
    ) -> Result<Reply, Error> {
        let PodName { namespace, name } = pod;
        let what = format!("ask pod {pod} for {path}");
        let asked = async {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let way = pods.portforward(name, &[port]).await;
            let mut way = Way(way.map_err(Error::api(what.clone()))?);
            let stream = way.0.take_stream(port).expect("a port that was asked for has a stream");
            let refused = way.0.take_error(port);
            match send_as(stream, self.token.as_deref(), (method, path), body).await {
                Ok(reply) => Ok(reply),
                Err(error) => {
                    // The kubelet says why, where it has not got through.
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

    /// What `read` makes of a page of each of many proxies, as soon as that is there, in any order.
    pub async fn each<'a, T>(
        &self,
        pods: impl IntoIterator<Item = &'a PodName>,
        path: &str,
        read: impl Fn(&Reply) -> T,
    ) -> Vec<(&'a PodName, Result<T, Error>)> {
        let asked = pods.into_iter().map(async |pod| {
            let reply = self.get(pod, path).await;
            (pod, reply.map(|reply| read(&reply)))
        });
        stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
    }
}
