//! Checks whether a cluster can have an installation, and whether its installation is healthy.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Right};
use serde::Serialize;

use leno_resources::{Kind, REMOVAL_ANNOTATION};
use leno_types::Removal;

use crate::leaving::{INJECTOR, is_injected, notes};
use crate::objects::is_absent;
use crate::removal::CONTROLLER;
use crate::uncaptured::captures;
use crate::{Error, installed, lacking};

mod platform;
mod replicas;

/// Oldest Kubernetes version, `1.<this>`: since then it has v1 of the APIs that the mesh uses.
const OLDEST_MINOR: u32 = 26;
/// Oldest Kubernetes version that enables native sidecars by default (KEP-753).
const NATIVE_SIDECARS: u32 = 29;
/// The rights that an installation needs: verb, group, resource.
const RIGHTS: [Right; 11] = [
    ("create", "", "namespaces"),
    ("create", "", "resourcequotas"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("create", "apps", "daemonsets"),
    ("create", "apps", "deployments"),
    ("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("create", "rbac.authorization.k8s.io", "roles"),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("create", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
];

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the check.
    pub subject: String,
    /// The result.
    pub level: Level,
    /// The result in words, with a remedy if there is a problem.
    pub text: String,
}

/// The level of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Good,
    /// A part of the mesh will not work.
    Warning,
    /// The mesh will not work.
    Bad,
    /// The check could not be made.
    Unknown,
}

impl Level {
    /// Whether a user can proceed. An unknown result counts as bad.
    #[must_use]
    pub const fn is_well(self) -> bool {
        matches!(self, Self::Good | Self::Warning)
    }
}

impl Finding {
    fn new(subject: impl Into<String>, level: Level, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), level, text: text.into() }
    }
}

/// Checks whether Leno can be installed.
///
/// # Errors
/// The API server does not answer.
pub async fn before(client: &Client, namespace: &str) -> Result<Vec<Finding>, Error> {
    let mut found = vec![version(client).await?];
    for right in lacking(client, &RIGHTS).await? {
        let text = "not allowed: install as an administrator of the cluster";
        found.push(Finding::new(right, Level::Bad, text));
    }
    if found.len() == 1 {
        found.push(Finding::new("rights", Level::Good, "enough to install"));
    }
    found.push(gateway_api(client).await?);
    let there = installed(client, namespace).await?;
    let told = there.as_ref().and_then(|there| there.told().ok());
    match platform::platform(client, namespace, told.as_ref()).await {
        Ok(particular) => found.extend(particular),
        Err(error) => found.push(known("platform", Err(error))?),
    }
    found.push(match there {
        None => Finding::new("installation", Level::Good, format!("none in {namespace} yet")),
        Some(there) => Finding::new(
            "installation",
            Level::Warning,
            format!(
                "{} is in {namespace} already: `leno upgrade` keeps its settings",
                there.version
            ),
        ),
    });
    Ok(found)
}

/// Checks whether the installation is healthy.
///
/// # Errors
/// The API server does not answer.
pub async fn after(client: &Client, namespace: &str) -> Result<Vec<Finding>, Error> {
    let mut found = vec![version(client).await?];
    let Some(there) = installed(client, namespace).await? else {
        let text = format!("none in {namespace}: leno install | kubectl apply --server-side -f -");
        found.push(Finding::new("installation", Level::Bad, text));
        return Ok(found);
    };
    found.push(if there.version == env!("CARGO_PKG_VERSION") {
        Finding::new("installation", Level::Good, format!("{} in {namespace}", there.version))
    } else {
        let text = format!(
            "{} in {namespace}, this is leno {}: leno upgrade | kubectl apply --server-side -f -",
            there.version,
            env!("CARGO_PKG_VERSION")
        );
        Finding::new("installation", Level::Warning, text)
    });
    let (step, said) = removal(client, namespace).await?;
    found.extend(said);
    found.push(known("Gateway API", gateway_api(client).await)?);
    found.push(known("control plane", controller(client, namespace).await)?);
    match replicas::replicas(client, namespace).await {
        Ok(said) => found.extend(said),
        Err(error) => found.push(known("kinds of objects", Err(error))?),
    }
    found.push(known("node agents", agents(client, namespace).await)?);
    found.extend(pods(client, step).await);
    Ok(found)
}

/// Turns the error for a missing right into a finding that names the right.
fn known(subject: &str, found: Result<Finding, Error>) -> Result<Finding, Error> {
    match found {
        Err(error) if error.is_forbidden() => {
            let text = format!("unknown: {}", error.said());
            Ok(Finding::new(subject, Level::Unknown, text))
        }
        found => found,
    }
}

/// Whether a removal was started but not finished, so that traffic is not encrypted. Also returns
/// the step, if it is known.
async fn removal(client: &Client, namespace: &str) -> Result<(Removal, Option<Finding>), Error> {
    const SUBJECT: &str = "removal";
    let notes = match notes(client, namespace).await {
        Ok(notes) => notes,
        Err(error) => return Ok((Removal::None, Some(known(SUBJECT, Err(error))?))),
    };
    // Any text counts: a step that this version does not know is a removal, too.
    let Some(said) = notes.get(REMOVAL_ANNOTATION) else { return Ok((Removal::None, None)) };
    let step = match said.parse() {
        Ok(Removal::None) => return Ok((Removal::None, None)),
        Ok(step) => step,
        Err(_unknown) => {
            let text = format!(
                "at step {said:?}, which leno {} does not know: use the version of leno that began the removal. If no \
                 removal is running, remove the annotation: kubectl annotate namespace {namespace} \
                 {REMOVAL_ANNOTATION}-",
                env!("CARGO_PKG_VERSION")
            );
            return Ok((Removal::None, Some(Finding::new(SUBJECT, Level::Bad, text))));
        }
    };
    let text = match is_injected(client).await {
        Ok(true) => format!(
            "the control plane reverts it, because the mesh was installed again; it is still at step {step}, and \
             continues once the node agents are ready on all nodes: kubectl -n {namespace} logs \
             deployment/{CONTROLLER}"
        ),
        Ok(false) => format!(
            "at step {step}: the mesh is being removed, or the removal was interrupted. If it was, finish it with \
             leno uninstall, or keep the mesh with leno upgrade | kubectl apply --server-side -f -"
        ),
        Err(error) if error.is_forbidden() => format!(
            "at step {step}; it is unknown whether the mesh was installed again meanwhile: {}",
            error.said()
        ),
        Err(error) => return Err(error),
    };
    Ok((step, Some(Finding::new(SUBJECT, Level::Bad, text))))
}

/// Whether the proxies of pods report that the pods are captured; `None` if there are no such pods.
async fn pods(client: &Client, step: Removal) -> Option<Finding> {
    let captures = match captures(client).await {
        Ok(captures) => captures,
        Err(error) => {
            let text = format!("it is unknown whether they are captured: {}", error.said());
            return Some(Finding::new("pods", Level::Unknown, text));
        }
    };
    let gap = captures.gap();
    Some(match (captures.lack(step), gap) {
        (Some(lack), gap) => {
            // Not a defect while the mesh is being removed.
            let level = if step >= Removal::Plaintext { Level::Warning } else { Level::Bad };
            let parts: Vec<String> = [lack].into_iter().chain(gap).collect();
            Finding::new("pods", level, parts.join("; "))
        }
        (None, Some(gap)) => Finding::new("pods", Level::Warning, gap),
        (None, None) if captures.pods == 0 => return None,
        (None, None) => {
            let text = format!("{} with a proxy, all captured", captures.pods);
            Finding::new("pods", Level::Good, text)
        }
    })
}

async fn version(client: &Client) -> Result<Finding, Error> {
    let version = client.apiserver_version().await.map_err(Error::api("get /version"))?;
    let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    let minor: u32 = digits.parse().unwrap_or(0);
    let said = version.git_version;
    Ok(if version.major == "1" && minor < OLDEST_MINOR {
        let text = format!("{said}: 1.{OLDEST_MINOR} or newer is needed");
        Finding::new("Kubernetes", Level::Bad, text)
    } else if version.major == "1" && minor < NATIVE_SIDECARS {
        let text = format!(
            "{said}: without native sidecars (1.{NATIVE_SIDECARS}) Jobs need to end their proxy themselves"
        );
        Finding::new("Kubernetes", Level::Warning, text)
    } else {
        Finding::new("Kubernetes", Level::Good, said)
    })
}

/// Whether the API server has the certificate authority of the control plane's webhook. Without it,
/// no pod is created in namespaces whose pods get a proxy.
///
/// # Errors
/// The API server does not answer.
pub async fn is_trusted(client: &Client) -> Result<bool, Error> {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let found = all.get_opt(INJECTOR).await.map_err(Error::api("get the injector"))?;
    let webhooks = found.and_then(|found| found.webhooks).unwrap_or_default();
    let known = |one: &MutatingWebhook| one.client_config.ca_bundle.is_some();
    Ok(!webhooks.is_empty() && webhooks.iter().all(known))
}

async fn gateway_api(client: &Client) -> Result<Finding, Error> {
    let versions: BTreeSet<&str> =
        Kind::ROUTES.into_iter().flat_map(Kind::api_versions).copied().collect();
    let mut served = Vec::new();
    for version in versions {
        match client.list_api_group_resources(version).await {
            Ok(list) => served.extend(list.resources.into_iter().map(|one| (version, one.kind))),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(Error::Api("list the Gateway API's kinds".to_owned(), error)),
        }
    }
    Ok(of_routes(&served))
}

/// Whether every kind of route is served in a version that the control plane reads. `served` has
/// the `apiVersion` and the kind of what the API server has.
fn of_routes(served: &[(&str, String)]) -> Finding {
    const SUBJECT: &str = "Gateway API";
    let is_served = |route: &Kind| {
        let read = route.api_versions();
        served.iter().any(|(version, kind)| read.contains(version) && kind == route.as_str())
    };
    let (there, missing): (Vec<Kind>, Vec<Kind>) = Kind::ROUTES.into_iter().partition(is_served);
    let names =
        |kinds: &[Kind]| kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
    if missing.is_empty() {
        return Finding::new(SUBJECT, Level::Good, format!("serves {}", names(&there)));
    }
    let text = format!(
        "the API server does not serve {}: the mesh follows such routes once the Gateway API's definitions of them \
         are installed, gateway-api.sigs.k8s.io/guides",
        names(&missing)
    );
    Finding::new(SUBJECT, Level::Warning, text)
}

async fn controller(client: &Client, namespace: &str) -> Result<Finding, Error> {
    let all: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found =
        all.get_opt("leno-controller").await.map_err(Error::api("get the control plane"))?;
    let status = found.and_then(|one| Some((one.spec?.replicas.unwrap_or(1), one.status?)));
    let (wanted, ready) = status
        .map_or((1, 0), |(wanted, status)| (wanted, status.ready_replicas.unwrap_or_default()));
    let text = format!("{ready} of {wanted} ready");
    let look = format!(
        "{text}: kubectl -n {namespace} describe pods -l app.kubernetes.io/name=leno-controller"
    );
    Ok(match ready {
        0 => Finding::new("control plane", Level::Bad, look),
        ready if ready < wanted => Finding::new("control plane", Level::Warning, look),
        _ => Finding::new("control plane", Level::Good, text),
    })
}

async fn agents(client: &Client, namespace: &str) -> Result<Finding, Error> {
    let all: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let found = all.get_opt("leno-agent").await.map_err(Error::api("get the node agents"))?;
    let status = found.and_then(|one| one.status).unwrap_or_default();
    let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
    if wanted > 0 && ready == wanted {
        return Ok(Finding::new("node agents", Level::Good, format!("{ready} of {wanted} nodes")));
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
    let names: Vec<String> =
        nodes.iter().filter_map(|node| node.metadata.name.clone()).take(5).collect();
    let text = format!(
        "{ready} of {wanted} nodes ({}): pods with a proxy do not start on the others; kubectl -n {namespace} \
         describe daemonset leno-agent",
        names.join(", ")
    );
    Ok(Finding::new("node agents", Level::Bad, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(kinds: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        kinds.iter().map(|(version, kind)| (*version, (*kind).to_owned())).collect()
    }

    #[test]
    fn every_kind_of_route_that_is_not_served_is_named() {
        const V1: &str = "gateway.networking.k8s.io/v1";
        let standard = served(&[(V1, "Gateway"), (V1, "HTTPRoute"), (V1, "GRPCRoute")]);
        let finding = of_routes(&standard);
        assert_eq!(finding.level, Level::Warning, "{finding:?}");
        let start = "the API server does not serve TLSRoute, TCPRoute: ";
        assert!(finding.text.starts_with(start), "{finding:?}");

        // Versions that the control plane reads count, others do not.
        let alpha = "gateway.networking.k8s.io/v1alpha2";
        let more = served(&[(alpha, "TLSRoute"), (alpha, "TCPRoute")]);
        let all: Vec<_> = standard.into_iter().chain(more).collect();
        let finding = of_routes(&all);
        assert_eq!(finding.level, Level::Good, "{finding:?}");
        let early = served(&[(alpha, "HTTPRoute"), (alpha, "GRPCRoute")]);
        assert!(of_routes(&early).text.contains(" HTTPRoute, GRPCRoute, "), "{early:?}");
    }
}
