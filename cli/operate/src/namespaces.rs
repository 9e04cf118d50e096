//! Checks that a namespace exists, so that a mistyped name is not taken for an empty namespace. Also reads what
//! namespaces set for their pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use leno_kube::api::ListParams;
use leno_kube::core::PartialObjectMeta;
use leno_kube::{Api, Client};
use leno_observe::stat::ProxyProcess;
use leno_resources::{NamespaceMode, share};
use leno_sources::{has_proxy, is_meshed, is_served};
use leno_types::nearest;

use crate::Error;
use crate::objects::paged;

/// Most namespaces with which a mistyped name is compared.
const KNOWN: u32 = 500;

/// Checks that a namespace exists. Succeeds if the user may not find out.
///
/// # Errors
/// [`Error::NoNamespace`] if it does not exist; another error if the API server does not answer.
pub(crate) async fn check(client: &Client, wanted: &str) -> Result<(), Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let found = all.get_opt(wanted).await.map_err(Error::api(format!("get Namespace {wanted}")));
    match found {
        Ok(Some(_)) => Ok(()),
        Ok(None) => {
            // The list is used only for a hint, and the user may lack the right to read it.
            let known = all.list_metadata(&ListParams::default().limit(KNOWN)).await;
            let known = known.map(|list| list.items).unwrap_or_default();
            let known: Vec<String> =
                known.into_iter().filter_map(|one| one.metadata.name).collect();
            Err(none(wanted, known.iter().map(String::as_str)))
        }
        // A user may list the pods of a namespace without the right to get the namespace itself.
        Err(error) if error.is_forbidden() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The group of pods that share a process in node mode, if neither the pods nor their namespace set one.
const DEFAULT_SHARE: &str = "service-account";

/// The prefix of the names of Leno's labels and annotations.
const OWN: &str = "leno.dev/";

/// Leno's labels and annotations of namespaces, by namespace; a label wins over an annotation.
///
/// # Errors
/// The namespaces cannot be listed.
pub async fn namespace_settings(
    client: &Client,
) -> Result<BTreeMap<String, BTreeMap<String, String>>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let list = async |asked: &ListParams| all.list_metadata(asked).await;
    let found = paged(ListParams::default(), usize::MAX, list).await;
    let settings = |one: PartialObjectMeta<Namespace>| {
        let maps = [one.metadata.annotations, one.metadata.labels];
        let own = maps.into_iter().flatten().flatten().filter(|(key, _)| key.starts_with(OWN));
        Some((one.metadata.name?, own.collect()))
    };
    Ok(found.map_err(Error::api("list namespaces"))?.into_iter().filter_map(settings).collect())
}

/// For each namespace, where the proxies of its pods run and which pods share a proxy, as the namespace sets it.
#[derive(Debug, Default)]
pub(crate) struct NamespaceModes(BTreeMap<String, (NamespaceMode, Option<String>)>);

impl NamespaceModes {
    /// Reads one namespace, or all namespaces.
    ///
    /// # Errors
    /// The namespaces cannot be read.
    pub(crate) async fn read(client: &Client, namespace: Option<&str>) -> Result<Self, Error> {
        let all: Api<Namespace> = Api::all(client.clone());
        let found = match namespace {
            Some(name) => {
                let one = all.get_metadata_opt(name).await;
                let one = one.map_err(Error::api(format!("get Namespace {name}")))?;
                one.into_iter().collect()
            }
            None => {
                let list = async |asked: &ListParams| all.list_metadata(asked).await;
                let found = paged(ListParams::default(), usize::MAX, list).await;
                found.map_err(Error::api("list namespaces"))?
            }
        };
        let mode = |one: PartialObjectMeta<Namespace>| {
            let metadata = one.metadata;
            let (labels, annotations) = (metadata.labels.as_ref(), metadata.annotations.as_ref());
            let share = share(labels, annotations).map(str::to_owned);
            Some((metadata.name?, (NamespaceMode::new(labels, annotations), share)))
        };
        Ok(Self(found.into_iter().filter_map(mode).collect()))
    }

    /// Like [`read`](Self::read), for a user who may lack the right to read namespaces. In that case only the
    /// settings of the pods themselves count.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn permitted(client: &Client, namespace: Option<&str>) -> Result<Self, Error> {
        match Self::read(client, namespace).await {
            Err(error) if error.is_forbidden() => Ok(Self::default()),
            read => read,
        }
    }

    /// Whether a pod has its own proxy or is served by a proxy of its node.
    pub(crate) fn has_proxy(&self, pod: &Pod) -> bool {
        has_proxy(pod, self.of(pod).map(|(mode, _)| *mode).unwrap_or_default())
    }

    /// Whether a pod is in node mode, and the agent of its node does not report that a node proxy serves it.
    pub(crate) fn awaits_node_proxy(&self, pod: &Pod) -> bool {
        self.has_proxy(pod) && !is_meshed(pod) && is_served(pod) != Some(true)
    }

    /// Where the proxy of a pod is meant to run; `None` if the pod has no proxy.
    pub(crate) fn proxy(&self, pod: &Pod) -> Option<ProxyProcess> {
        if is_meshed(pod) {
            return Some(ProxyProcess::sidecar());
        }
        let metadata = &pod.metadata;
        let own = share(metadata.labels.as_ref(), metadata.annotations.as_ref());
        let of_namespace = || self.of(pod)?.1.as_deref();
        let share = own.or_else(of_namespace).unwrap_or(DEFAULT_SHARE);
        self.has_proxy(pod).then(|| ProxyProcess::of_share(share))
    }

    fn of(&self, pod: &Pod) -> Option<&(NamespaceMode, Option<String>)> {
        self.0.get(pod.metadata.namespace.as_deref().unwrap_or_default())
    }
}

/// The error for a missing namespace, with the most similar name in `known` as a hint.
pub(crate) fn none<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let hint = match nearest(wanted, known) {
        Some(meant) => format!(": did you mean {meant}?"),
        None => ": `kubectl get namespaces` lists them".to_owned(),
    };
    Error::NoNamespace(wanted.to_owned(), hint)
}
