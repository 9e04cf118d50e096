//! Checks whether Leno can be installed in a cluster, and whether its installation there is healthy.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Node;
use leno_checks::{Check, CheckResult, Level};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Right};

use leno_resources::{Kind, REMOVAL_ANNOTATION};
use leno_types::Removal;

use crate::objects::is_absent;
use crate::proxy_removal::{INJECTOR, is_injected, notes};
use crate::removal::CONTROLLER;
use crate::uncaptured::captures;
use crate::{Error, installed, lacking};

mod platform;
mod replicas;
mod served;

/// The minor number of the oldest supported version of Kubernetes. Since that version, Kubernetes has v1 of the
/// APIs that the mesh uses.
const OLDEST_MINOR: u32 = 26;
/// The minor number of the oldest version of Kubernetes that enables native sidecars by default (KEP-753).
const NATIVE_SIDECARS: u32 = 29;
/// The rights that an installation needs: verb, group, resource.
const RIGHTS: [Right; 14] = [
    ("create", "", "namespaces"),
    ("create", "", "resourcequotas"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("create", "apps", "daemonsets"),
    ("create", "apps", "deployments"),
    ("create", "apps", "statefulsets"),
    ("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("create", "rbac.authorization.k8s.io", "roles"),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("create", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("create", "admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("create", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
];

fn kubernetes() -> Check {
    Check::new("Kubernetes", "Does this version have what the mesh uses?")
}

fn rights(of: impl Into<String>) -> Check {
    Check::new(of, "May you create every kind of object that an installation has?")
}

fn installation() -> Check {
    Check::new("installation", "Is Leno installed, in the version of this program?")
}

fn unfinished_removal() -> Check {
    Check::new("removal", "Was a removal of the mesh begun and not finished?")
}

fn captured_pods() -> Check {
    Check::new("pods", "Is every pod with a proxy captured?")
}

fn served_pods() -> Check {
    Check::new("node mode", "Does a node proxy serve every pod in node mode?")
}

fn gateway() -> Check {
    Check::new("Gateway API", "Does the API server serve every kind of route?")
}

fn control_plane() -> Check {
    Check::new("control plane", "Is every replica ready?")
}

fn history() -> Check {
    Check::new("history", "Does the observer run, if it is installed?")
}

fn node_agents() -> Check {
    Check::new("node agents", "Is one ready on every node?")
}

fn node_proxies() -> Check {
    Check::new("node proxies", "Does a supervisor of node proxies run on every node?")
}

/// Checks whether Leno can be installed.
///
/// # Errors
/// The API server does not answer.
pub async fn before(client: &Client, namespace: &str) -> Result<Vec<CheckResult>, Error> {
    let mut found = vec![version(client).await?];
    for right in lacking(client, &RIGHTS).await? {
        let refused = rights(right).bad("not allowed");
        found.push(refused.remedy("install as an administrator of the cluster"));
    }
    if found.len() == 1 {
        found.push(rights("rights").good("enough to install"));
    }
    found.push(gateway_api(client).await?);
    let there = installed(client, namespace).await?;
    let told = there.as_ref().and_then(|there| there.told().ok());
    match platform::platform(client, namespace, told.as_ref()).await {
        Ok(particular) => found.extend(particular),
        Err(error) => found.push(unless_forbidden(platform::check("platform"), Err(error))?),
    }
    found.push(match there {
        None => installation().good(format!("none in {namespace} yet")),
        Some(there) => installation()
            .warning(format!("{} is in {namespace} already", there.version))
            .remedy("`leno upgrade` keeps its settings"),
    });
    Ok(found)
}

/// Checks whether the installation is healthy.
///
/// # Errors
/// The API server does not answer.
pub async fn after(client: &Client, namespace: &str) -> Result<Vec<CheckResult>, Error> {
    let mut found = vec![version(client).await?];
    let Some(there) = installed(client, namespace).await? else {
        let none = installation().bad(format!("none in {namespace}"));
        found.push(none.remedy("leno install | kubectl apply --server-side -f -"));
        return Ok(found);
    };
    let own = env!("CARGO_PKG_VERSION");
    found.push(if there.version == own {
        installation().good(format!("{own} in {namespace}"))
    } else {
        let text = format!("{} in {namespace}, this is leno {own}", there.version);
        installation().warning(text).remedy("leno upgrade | kubectl apply --server-side -f -")
    });
    let (step, said) = removal(client, namespace).await?;
    found.extend(said);
    found.push(unless_forbidden(gateway(), gateway_api(client).await)?);
    found.push(unless_forbidden(control_plane(), controller(client, namespace).await)?);
    match replicas::replicas(client, namespace).await {
        Ok(said) => found.extend(said),
        Err(error) => found.push(unless_forbidden(replicas::check(), Err(error))?),
    }
    found.push(unless_forbidden(node_agents(), agents(client, namespace).await)?);
    found.push(unless_forbidden(node_proxies(), supervisors(client, namespace).await)?);
    match observer(client, namespace).await {
        Ok(None) => {}
        Ok(Some(finding)) => found.push(finding),
        Err(error) => found.push(unless_forbidden(history(), Err(error))?),
    }
    found.extend(pods(client, step).await);
    if there.told().is_ok_and(|values| values.node.report_served) {
        match served::served(client).await {
            Ok(said) => found.extend(said),
            Err(error) => found.push(unless_forbidden(served_pods(), Err(error))?),
        }
    }
    Ok(found)
}

/// Turns the error for a missing right into a finding that names the right.
fn unless_forbidden(check: Check, found: Result<CheckResult, Error>) -> Result<CheckResult, Error> {
    match found {
        Err(error) if error.is_forbidden() => {
            Ok(check.unknown(format!("unknown: {}", error.said())))
        }
        found => found,
    }
}

/// The step of a removal that was started but not finished, and a finding about it, because traffic is not encrypted
/// meanwhile. There is no finding if there is no such removal. If the step cannot be read, the finding says so, and the
/// step is [`Removal::None`].
async fn removal(
    client: &Client,
    namespace: &str,
) -> Result<(Removal, Option<CheckResult>), Error> {
    let notes = match notes(client, namespace).await {
        Ok(notes) => notes,
        Err(error) => {
            let unknown = unless_forbidden(unfinished_removal(), Err(error))?;
            return Ok((Removal::None, Some(unknown)));
        }
    };
    // Any text means a removal, even a step that this version does not know.
    let Some(said) = notes.get(REMOVAL_ANNOTATION) else { return Ok((Removal::None, None)) };
    let step = match said.parse() {
        Ok(Removal::None) => return Ok((Removal::None, None)),
        Ok(step) => step,
        Err(_unknown) => {
            let text =
                format!("at step {said:?}, which is unknown to leno {}", env!("CARGO_PKG_VERSION"));
            let remedy = format!(
                "use the version of leno that began the removal. If no removal is running, remove the annotation: \
                 kubectl annotate namespace {namespace} {REMOVAL_ANNOTATION}-"
            );
            let finding = unfinished_removal().bad(text).remedy(remedy);
            return Ok((Removal::None, Some(finding)));
        }
    };
    let finding = match is_injected(client).await {
        Ok(true) => unfinished_removal()
            .bad(format!(
                "the control plane reverts it, because the mesh was installed again; it is still at step {step}, and \
                 continues once the node agents are ready on all nodes"
            ))
            .remedy(format!("kubectl -n {namespace} logs deployment/{CONTROLLER}")),
        Ok(false) => unfinished_removal()
            .bad(format!("at step {step}: the mesh is being removed, or the removal was interrupted"))
            .remedy(
                "if it was interrupted, finish it with leno uninstall, or keep the mesh with leno upgrade | kubectl \
                 apply --server-side -f -",
            ),
        Err(error) if error.is_forbidden() => unfinished_removal().bad(format!(
            "at step {step}; it is unknown whether the mesh was installed again meanwhile: {}",
            error.said()
        )),
        Err(error) => return Err(error),
    };
    Ok((step, Some(finding)))
}

/// Whether the proxies of pods report that the pods are captured; `None` if there are no such pods.
async fn pods(client: &Client, step: Removal) -> Option<CheckResult> {
    let captures = match captures(client).await {
        Ok(captures) => captures,
        Err(error) => {
            let text = format!("it is unknown whether they are captured: {}", error.said());
            return Some(captured_pods().unknown(text));
        }
    };
    let gap = captures.gap();
    Some(match (captures.lack(step), gap) {
        (Some(lack), gap) => {
            // Unencrypted pods are no defect while the mesh is being removed.
            let level = if step >= Removal::Plaintext { Level::Warning } else { Level::Bad };
            let parts: Vec<String> = [lack].into_iter().chain(gap).collect();
            captured_pods().result(level, parts.join("; "))
        }
        (None, Some(gap)) => captured_pods().warning(gap),
        (None, None) if captures.pods == 0 => return None,
        (None, None) => {
            captured_pods().good(format!("{} with a proxy, all captured", captures.pods))
        }
    })
}

async fn version(client: &Client) -> Result<CheckResult, Error> {
    let version = client.apiserver_version().await.map_err(Error::api("get /version"))?;
    let minor = leno_kube::minor_of(&version);
    let said = version.git_version;
    Ok(if minor < OLDEST_MINOR {
        kubernetes().bad(said).remedy(format!("1.{OLDEST_MINOR} or newer is needed"))
    } else if minor < NATIVE_SIDECARS {
        kubernetes().warning(format!(
            "{said}: without native sidecars (1.{NATIVE_SIDECARS}) Jobs need to end their proxy themselves"
        ))
    } else {
        kubernetes().good(said)
    })
}

/// Whether the API server has the certificate authority that signs the certificate of the control plane's webhook.
/// Without it, no pod can be created in namespaces whose pods get a proxy.
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

async fn gateway_api(client: &Client) -> Result<CheckResult, Error> {
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

/// Whether every kind of route is served in a version that the control plane reads. `served` contains the
/// `apiVersion` and kind of everything that the API server serves.
fn of_routes(served: &[(&str, String)]) -> CheckResult {
    let is_served = |route: &Kind| {
        let read = route.api_versions();
        served.iter().any(|(version, kind)| read.contains(version) && kind == route.as_str())
    };
    let (there, missing): (Vec<Kind>, Vec<Kind>) = Kind::ROUTES.into_iter().partition(is_served);
    let names =
        |kinds: &[Kind]| kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
    if missing.is_empty() {
        return gateway().good(format!("serves {}", names(&there)));
    }
    gateway().warning(format!("the API server does not serve {}", names(&missing))).remedy(
        "the mesh follows such routes once the Gateway API's definitions of them are installed, \
         gateway-api.sigs.k8s.io/guides",
    )
}

async fn controller(client: &Client, namespace: &str) -> Result<CheckResult, Error> {
    let all: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found =
        all.get_opt("leno-controller").await.map_err(Error::api("get the control plane"))?;
    let status = found.and_then(|one| Some((one.spec?.replicas.unwrap_or(1), one.status?)));
    let (wanted, ready) = status
        .map_or((1, 0), |(wanted, status)| (wanted, status.ready_replicas.unwrap_or_default()));
    let text = format!("{ready} of {wanted} ready");
    let level = match ready {
        0 => Level::Bad,
        ready if ready < wanted => Level::Warning,
        _ => return Ok(control_plane().good(text)),
    };
    Ok(control_plane().result(level, text).remedy(format!(
        "kubectl -n {namespace} describe pods -l app.kubernetes.io/name=leno-controller"
    )))
}

/// Whether the observer is ready; `None` if it is not installed. Traffic does not depend on it.
async fn observer(client: &Client, namespace: &str) -> Result<Option<CheckResult>, Error> {
    let all: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let found = all.get_opt("leno-observer").await.map_err(Error::api("get the observer"))?;
    let Some(status) = found.map(|found| found.status.unwrap_or_default()) else { return Ok(None) };
    Ok(Some(match status.ready_replicas.unwrap_or_default() {
        0 => history()
            .warning("it is not ready: leno stat --since, leno why and leno dashboard do not work")
            .remedy(format!("kubectl -n {namespace} describe pod {}", leno_charts::OBSERVER_POD)),
        _ => history().good("ready"),
    }))
}

async fn agents(client: &Client, namespace: &str) -> Result<CheckResult, Error> {
    let of = (node_agents(), "leno-agent", "pods with a proxy do not start on the others");
    on_every_node(client, namespace, of).await
}

async fn supervisors(client: &Client, namespace: &str) -> Result<CheckResult, Error> {
    let of = (node_proxies(), "leno-node", "pods in node mode are not served on the others");
    on_every_node(client, namespace, of).await
}

/// Whether a DaemonSet has a ready pod on each of its nodes. `lack` states what does not work on a node without
/// such a pod.
async fn on_every_node(
    client: &Client,
    namespace: &str,
    (check, name, lack): (Check, &str, &str),
) -> Result<CheckResult, Error> {
    let all: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let found = all.get_opt(name).await.map_err(Error::api(format!("get DaemonSet {name}")))?;
    let status = found.and_then(|one| one.status).unwrap_or_default();
    let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
    if wanted > 0 && ready == wanted {
        return Ok(check.good(format!("{ready} of {wanted} nodes")));
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
    let names: Vec<String> =
        nodes.iter().filter_map(|node| node.metadata.name.clone()).take(5).collect();
    let text = format!("{ready} of {wanted} nodes ({}): {lack}", names.join(", "));
    Ok(check.bad(text).remedy(format!("kubectl -n {namespace} describe daemonset {name}")))
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
        assert_eq!(finding.text, "the API server does not serve TLSRoute, TCPRoute");

        // A version that the control plane does not read is not enough.
        let alpha = "gateway.networking.k8s.io/v1alpha2";
        let more = served(&[(alpha, "TLSRoute"), (alpha, "TCPRoute")]);
        let all: Vec<_> = standard.into_iter().chain(more).collect();
        let finding = of_routes(&all);
        assert_eq!(finding.level, Level::Good, "{finding:?}");
        let early = served(&[(alpha, "HTTPRoute"), (alpha, "GRPCRoute")]);
        assert!(of_routes(&early).text.contains(" HTTPRoute, GRPCRoute, "), "{early:?}");
    }
}
