//! Finds authorization policies without an effect: they select no workload, are not enforced, or match no request.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use leno_index::ProxyCoverage;
use leno_resources::{
    AuthorizationPolicy, Kind, Object, PolicyTarget, RequestSpec, SegmentSpec, Workload,
    default_authorization,
};
use leno_types::authorization::DefaultAuthorization;

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// Most workloads that one finding names.
const NAMED: usize = 5;

pub(super) fn policy(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    at: usize,
    policy: &AuthorizationPolicy,
) {
    let namespace = &policy.metadata.namespace;
    if policy.spec.target_refs.iter().any(|target| target.kind == "Mesh")
        && !mesh.index.is_of_mesh(namespace)
    {
        let reason = format!(
            "{namespace} is not the namespace of the control plane, so the policy has no effect"
        );
        let remedy =
            "create it in that namespace (leno-system), or target the Namespace".to_owned();
        let wrong = Mistake::error("policy-not-for-the-mesh", reason, remedy);
        findings.push(at, "spec.targetRefs", wrong);
    }
    if let Some(selector) = &policy.spec.selector {
        let path = "spec.selector.matchLabels";
        let selected: Vec<_> = mesh.labelled(namespace, &selector.match_labels).collect();
        if selected.is_empty() {
            let said = selector.match_labels.iter().map(|(key, value)| format!("{key}: {value}"));
            let reason = format!(
                "no workload of {namespace} has the labels {{{}}}, so the policy has no effect",
                said.collect::<Vec<_>>().join(", ")
            );
            let remedy =
                "a policy selects workloads of its own namespace by their labels".to_owned();
            findings.push(at, path, Mistake::error("policy-selects-nothing", reason, remedy));
        }
        enforced(mesh, findings, (at, path), &selected);
        ports(findings, (at, policy), &selected);
    }
    for (index, target) in policy.spec.target_refs.iter().enumerate() {
        let selected = match target.kind.as_str() {
            "Namespace" => mesh.labelled(namespace, &BTreeMap::new()).collect(),
            "Mesh" => mesh.workloads().collect(),
            "Service" => of_service(mesh, namespace, &target.name),
            _ => {
                let is = |one: &&Workload| {
                    one.metadata.namespace == *namespace && one.metadata.name == target.name
                };
                mesh.workloads().filter(is).collect()
            }
        };
        enforced(mesh, findings, (at, &format!("spec.targetRefs[{index}]")), &selected);
        ports(findings, (at, policy), &selected);
    }
    clients(mesh, findings, at, policy);
}

/// Finds a default authorization of a namespace that some of its workloads do not enforce.
pub(super) fn of_namespace(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    at: usize,
    namespace: &Namespace,
) {
    let Some(annotations) = &namespace.metadata.annotations else { return };
    let open = [None, Some(DefaultAuthorization::All)];
    if !open.contains(&default_authorization(annotations)) {
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        let selected: Vec<_> = mesh.labelled(name, &BTreeMap::new()).collect();
        let path = "metadata.annotations[leno.dev/default-authorization]";
        enforced(mesh, findings, (at, path), &selected);
    }
}

fn of_service<'m>(mesh: &'m MeshModel, namespace: &str, name: &str) -> Vec<&'m Workload> {
    let selector = mesh.objects.iter().find_map(|object| match object {
        Object::Service(service) => {
            let key = object.key();
            let is = key.namespace == namespace && key.name == name;
            service.spec.as_ref()?.selector.as_ref().filter(|_| is)
        }
        _ => None,
    });
    selector.into_iter().flat_map(|labels| mesh.labelled(namespace, labels)).collect()
}

/// Finds policies that select workloads without a proxy. Such workloads enforce no policy.
fn enforced(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    (at, path): (usize, &str),
    selected: &[&Workload],
) {
    let without: Vec<&&Workload> =
        selected.iter().filter(|one| is_without_proxy(mesh, one)).collect();
    if without.is_empty() {
        return;
    }
    let names: Vec<String> = without.iter().take(NAMED).map(|one| full_name(one)).collect();
    let more = without.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let (has, them) = if without.len() == 1 { ("has", "it") } else { ("have", "them") };
    let reason =
        format!("{}{more} {has} no proxy, so the policy is not enforced there", names.join(", "));
    let remedy = format!("give {them} a proxy (leno.dev/inject)");
    let code = "policy-not-enforced";
    findings.push(
        at,
        path,
        if without.len() == selected.len() {
            Mistake::error(code, reason, remedy)
        } else {
            Mistake::warning(code, reason, remedy)
        },
    );
}

/// Whether the instances of the workload are known to have no proxy.
fn is_without_proxy(mesh: &MeshModel, workload: &Workload) -> bool {
    let target = PolicyTarget {
        group: "leno.dev".to_owned(),
        kind: Kind::Workload.as_str().to_owned(),
        name: workload.metadata.name.clone(),
        section_name: None,
    };
    mesh.index.proxies_at(&workload.metadata.namespace, &target) == ProxyCoverage::None
}

fn full_name(workload: &Workload) -> String {
    format!("{}/{}", workload.metadata.namespace, workload.metadata.name)
}

/// Finds rules for ports on which no selected workload listens. Workloads that declare no ports are not
/// considered.
fn ports(
    findings: &mut Findings<'_>,
    (at, policy): (usize, &AuthorizationPolicy),
    selected: &[&Workload],
) {
    let declared: BTreeSet<u16> =
        selected.iter().flat_map(|one| one.spec.ports.iter().map(|port| port.port)).collect();
    if declared.is_empty() {
        return;
    }
    for (path, request) in requests(policy) {
        for (index, port) in request.ports.iter().enumerate() {
            if declared.contains(port) {
                continue;
            }
            let reason = format!(
                "no workload that the policy selects declares port {port}: a rule names ports of \
                 workloads, not of Services"
            );
            let has: Vec<String> = declared.iter().map(u16::to_string).collect();
            let remedy = format!("they have {}", has.join(", "));
            let wrong = Mistake::warning("policy-matches-nothing", reason, remedy);
            findings.push(at, &format!("{path}.ports[{index}]"), wrong);
        }
    }
}

fn requests(policy: &AuthorizationPolicy) -> impl Iterator<Item = (String, &RequestSpec)> {
    policy.spec.rules.iter().enumerate().flat_map(|(rule, one)| {
        let path = move |to: usize| format!("spec.rules[{rule}].to[{to}]");
        one.to.iter().enumerate().map(move |(to, request)| (path(to), request))
    })
}

/// Returns the identity, or the prefix of identities, that a pattern requires, if no workload can have it: it is in
/// the mesh's trust domain, and none of the workloads' service accounts matches. Prefixes match whole path segments.
fn unmatched<'p>(
    pattern: &'p SegmentSpec,
    domain: &str,
    accounts: &BTreeSet<(&str, &str)>,
) -> Option<&'p str> {
    let (wanted, is_whole) = match (&pattern.exact, &pattern.prefix) {
        (Some(exact), _) => (exact.as_str(), true),
        (None, Some(prefix)) => (prefix.as_str(), false),
        (None, None) => return None,
    };
    let of_domain = format!("spiffe://{domain}/");
    if !format!("{wanted}/").starts_with(&of_domain) {
        return None;
    }
    let is_matched = accounts.iter().any(|(namespace, account)| {
        let identity = format!("{of_domain}ns/{namespace}/sa/{account}");
        match identity.strip_prefix(wanted.trim_end_matches('/')) {
            Some("") => true,
            Some(rest) => !is_whole && rest.starts_with('/'),
            None => false,
        }
    });
    (!is_matched).then_some(wanted)
}

/// Finds service accounts, namespaces and identities of the mesh's own trust domain in rules that no workload has.
/// If the documents contain no workloads, nothing is reported, because they are then meant for a cluster whose
/// workloads are not known.
fn clients(mesh: &MeshModel, findings: &mut Findings<'_>, at: usize, policy: &AuthorizationPolicy) {
    let accounts: BTreeSet<(&str, &str)> = mesh
        .workloads()
        .map(|one| (one.metadata.namespace.as_str(), one.spec.service_account.as_str()))
        .collect();
    if accounts.is_empty() {
        return;
    }
    let own = policy.metadata.namespace.as_str();
    let domain = mesh.settings.trust_domain.to_string();
    let missing = |what: String| {
        let reason = format!("no workload has the {what}, so the entry matches no client");
        let remedy = "name one that exists".to_owned();
        Mistake::warning("policy-matches-nothing", reason, remedy)
    };
    for (rule, one) in policy.spec.rules.iter().enumerate() {
        for (from, client) in one.from.iter().enumerate() {
            // The clients of another trust domain are not known here.
            if !client.trust_domains.is_empty() {
                continue;
            }
            let path = format!("spec.rules[{rule}].from[{from}]");
            for (index, name) in client.service_accounts.iter().enumerate() {
                let full = name.split_once('/').unwrap_or((own, name));
                if !accounts.contains(&full) {
                    let what = format!("service account {}/{}", full.0, full.1);
                    findings.push(at, &format!("{path}.serviceAccounts[{index}]"), missing(what));
                }
            }
            for (index, name) in client.namespaces.iter().enumerate() {
                if !accounts.iter().any(|(namespace, _)| namespace == name) {
                    let what = format!("namespace {name}");
                    findings.push(at, &format!("{path}.namespaces[{index}]"), missing(what));
                }
            }
            for (index, pattern) in client.identities.iter().enumerate() {
                if let Some(identity) = unmatched(pattern, &domain, &accounts) {
                    let what = format!("identity {identity}");
                    findings.push(at, &format!("{path}.identities[{index}]"), missing(what));
                }
            }
        }
    }
}
