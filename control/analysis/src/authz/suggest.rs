//! Suggests the narrowest `Allow` policy that permits the requests that an `Audit` policy has recorded, and shows
//! its effect on these requests.
//!
//! ```text
//! recorded requests ─► by client ─► by port and method ─► paths ─► rules ─► AuthorizationPolicy
//!         └──────────────── decided again, with the other policies ◄──────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_policy::authorization::{AuthorizationDecision, ServerNameView, canonical_path};
use leno_resources::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationPolicySpec, AuthorizationRule,
    ClientSpec, MAX_AUTHORIZATION_ENTRIES, Metadata, Object, RequestSpec, SegmentSpec,
};
use leno_types::authorization::{Action, PathReading};
use leno_types::{Identity, InstanceName};
use serde::{Deserialize, Serialize};

use super::check::ArrivingRequest;
use super::{OUTSIDE, ObservedClient};
use crate::mesh::MeshModel;

/// Most paths in one folder that are listed. If there are more, the whole folder is permitted, because the paths
/// probably contain identifiers.
const MAX_PATHS_OF_FOLDER: usize = 16;

/// A request that an `Audit` policy has matched, as a proxy reports it in `/audited`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordedRequest {
    /// `<namespace>/<name>` of the policy.
    pub policy: String,
    /// The client's identity; empty if it has none.
    pub client: String,
    /// The address of a client without an identity.
    pub address: Option<IpAddr>,
    /// The workload's port.
    pub port: u16,
    /// The method; empty for an opaque connection.
    pub method: String,
    /// The authority of the request (`Host` or `:authority`).
    pub host: String,
    /// The path as it was sent, without its query.
    pub path: String,
    /// How many times the request was made.
    pub count: u64,
}

/// The response of a proxy to `/audited`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRequests {
    /// The distinct requests.
    pub requests: Vec<RecordedRequest>,
    /// How many requests were not recorded because the proxy's record was full.
    pub not_kept: u64,
}

/// A policy that permits the requests that an `Audit` policy has recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// `<namespace>/<name>` of the `Audit` policy.
    pub audited_by: String,
    /// The suggested policy; `None` if none of the recorded requests can be permitted.
    pub policy: Option<AuthorizationPolicy>,
    /// How many distinct requests are permitted by this policy together with the other policies.
    pub permitted: usize,
    /// Requests that would be denied, each with the reason.
    pub denied: Vec<(RecordedRequest, String)>,
    /// Requests of clients without an identity, which the suggested policy does not permit.
    pub in_clear: Vec<RecordedRequest>,
    /// How many requests the proxies did not record because their records were full.
    pub not_kept: u64,
}

/// The requests of one client: the paths for each port and method. The method is `None`, without paths, for opaque
/// connections.
type PortRequests = BTreeMap<(u16, Option<String>), BTreeSet<String>>;

impl MeshModel {
    /// Suggests a policy for each `Audit` policy of a namespace that has recorded requests, or only for the named
    /// one.
    #[must_use]
    pub fn suggestions(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        recorded: &[(InstanceName, RecordedRequests)],
    ) -> Vec<Suggestion> {
        let is_meant = |policy: &&AuthorizationPolicy| {
            policy.spec.action == AuthorizationAction::Audit
                && namespace.is_none_or(|namespace| policy.metadata.namespace == namespace)
                && name.is_none_or(|name| policy.metadata.name == name)
        };
        let policies = self.objects.iter().filter_map(|object| match object {
            Object::AuthorizationPolicy(policy) => Some(&**policy),
            _ => None,
        });
        let suggested = policies.filter(is_meant).map(|policy| self.suggestion(policy, recorded));
        suggested.collect()
    }

    /// The instances whose proxies record requests for these `Audit` policies.
    #[must_use]
    pub fn recording(&self, namespace: Option<&str>, name: Option<&str>) -> Vec<InstanceName> {
        let is_meant = |one: &leno_types::authorization::AuthorizationPolicy| {
            one.action == Action::Audit
                && namespace.is_none_or(|namespace| *one.source.namespace == *namespace)
                && name.is_none_or(|name| *one.source.name == *name)
        };
        let records = |name: &InstanceName| {
            let enforced = self.enforced(name);
            enforced.is_some_and(|one| one.policy.authorization.policies.iter().any(is_meant))
        };
        let instances = self.senders().into_iter().filter_map(|one| one.instance);
        instances.filter(records).collect()
    }

    fn suggestion(
        &self,
        audit: &AuthorizationPolicy,
        recorded: &[(InstanceName, RecordedRequests)],
    ) -> Suggestion {
        let audited_by = format!("{}/{}", audit.metadata.namespace, audit.metadata.name);
        let mut requests: BTreeSet<(&InstanceName, &RecordedRequest)> = BTreeSet::new();
        let mut in_clear: BTreeMap<(Option<IpAddr>, u16), RecordedRequest> = BTreeMap::new();
        for (server, page) in recorded {
            for request in page.requests.iter().filter(|one| one.policy == audited_by) {
                if !request.client.is_empty() {
                    requests.insert((server, request));
                    continue;
                }
                let of_client = in_clear.entry((request.address, request.port));
                of_client
                    .and_modify(|known| known.count += request.count)
                    .or_insert(request.clone());
            }
        }
        let policy = self.least(audit, requests.iter().copied());
        let (permitted, denied) = self.replay(policy.as_ref(), &requests);
        Suggestion {
            audited_by,
            policy,
            permitted,
            denied,
            in_clear: in_clear.into_values().collect(),
            not_kept: recorded.iter().map(|(_, page)| page.not_kept).sum(),
        }
    }

    /// How the application of an instance interprets paths, which decides how they are normalised.
    fn path_reading(&self, instance: &InstanceName) -> PathReading {
        let policy = self.index.server_policy(instance);
        policy.map(|policy| policy.authorization.paths).unwrap_or_default()
    }

    /// The policy that permits these requests and as few others as possible.
    fn least<'r>(
        &self,
        audit: &AuthorizationPolicy,
        requests: impl Iterator<Item = (&'r InstanceName, &'r RecordedRequest)>,
    ) -> Option<AuthorizationPolicy> {
        let mut of_clients: BTreeMap<Identity, PortRequests> = BTreeMap::new();
        let mut readings: BTreeMap<&InstanceName, PathReading> = BTreeMap::new();
        for (server, request) in requests {
            let Ok(client) = request.client.parse::<Identity>() else { continue };
            let method = (!request.method.is_empty()).then(|| request.method.clone());
            let path = match &method {
                Some(_) => match canonical_path(
                    request.path.as_bytes(),
                    *readings.entry(server).or_insert_with(|| self.path_reading(server)),
                ) {
                    Ok(path) if path != "*" => path,
                    // Such a request cannot be permitted: `*` is not a path, and a path that cannot be normalised
                    // is denied by every rule with paths.
                    Ok(_) | Err(_) => continue,
                },
                None => String::new(),
            };
            let paths = of_clients.entry(client).or_default().entry((request.port, method));
            paths.or_default().insert(path);
        }
        // Clients with the same requests share a rule.
        let mut rules: Vec<(Vec<Identity>, Vec<RequestSpec>)> = Vec::new();
        for (client, of_port) in of_clients {
            let to = requests_of(&of_port);
            // A rule without `to` permits everything.
            if to.is_empty() {
                continue;
            }
            match rules.iter_mut().find(|(_, known)| *known == to) {
                Some((clients, _)) => clients.push(client),
                None => rules.push((vec![client], to)),
            }
        }
        let rule = |(clients, to): (Vec<Identity>, Vec<RequestSpec>)| AuthorizationRule {
            from: self.client_specs(&audit.metadata.namespace, &clients),
            to,
            claims: Vec::new(),
        };
        let rules: Vec<AuthorizationRule> = rules.into_iter().map(rule).collect();
        (!rules.is_empty()).then(|| allowing(audit, rules))
    }

    /// The clients in the form of a policy: service accounts of the mesh by name, as seen from `namespace`, and
    /// other clients by identity.
    fn client_specs(&self, namespace: &str, clients: &[Identity]) -> Vec<ClientSpec> {
        let is_own = |one: &&Identity| *one.trust_domain() == self.settings.trust_domain;
        let name = |one: &Identity| match one.namespace() == namespace {
            true => one.service_account().to_owned(),
            false => format!("{}/{}", one.namespace(), one.service_account()),
        };
        let service_accounts: Vec<String> = clients.iter().filter(is_own).map(name).collect();
        let others = clients.iter().filter(|one| !is_own(one));
        let exact =
            |one: &Identity| SegmentSpec { exact: Some(one.to_string()), ..SegmentSpec::default() };
        let identities: Vec<SegmentSpec> = others.map(exact).collect();
        let of_accounts = ClientSpec { service_accounts, ..ClientSpec::default() };
        let of_identities = ClientSpec { identities, ..ClientSpec::default() };
        let all = [of_accounts, of_identities];
        all.into_iter().filter(|one| *one != ClientSpec::default()).collect()
    }

    /// Decides about each request again, as if the suggested policy were applied. Returns the number of permitted
    /// requests, and the others.
    fn replay(
        &self,
        policy: Option<&AuthorizationPolicy>,
        requests: &BTreeSet<(&InstanceName, &RecordedRequest)>,
    ) -> (usize, Vec<(RecordedRequest, String)>) {
        let more = policy.map(|policy| Object::AuthorizationPolicy(Box::new(policy.clone())));
        let mesh = self.with_objects(more.into_iter().collect());
        let (mut permitted, mut denied) = (0, Vec::new());
        let mut enforced = BTreeMap::new();
        for (server, request) in requests {
            let enforced = enforced.entry(*server).or_insert_with(|| mesh.enforced(server));
            let Some(enforced) = enforced else { continue };
            let identity = request.client.parse().ok();
            let seen =
                ObservedClient { identity, addresses: vec![request.address.unwrap_or(OUTSIDE)] };
            let view = seen.view(request.port, self.certificate);
            let rules = enforced.table.connection(&view);
            let decision = match request.method.as_str() {
                "" => enforced.table.decide_opaque(&rules, ServerNameView::Unknown, |_| ()),
                method => {
                    let (path, authority) = (request.path.as_str(), request.host.as_str());
                    let arriving = ArrivingRequest::of_request(method, path, authority);
                    enforced.table.decide(&rules, &arriving, |_| ())
                }
            };
            match decision {
                AuthorizationDecision::Permitted(_) => permitted += 1,
                AuthorizationDecision::Denied(_) => {
                    let (_, _, reason) = enforced.reason(decision);
                    denied.push(((*request).clone(), reason));
                }
            }
        }
        denied.dedup();
        (permitted, denied)
    }
}

/// The `Allow` policy that replaces an `Audit` policy.
fn allowing(audit: &AuthorizationPolicy, rules: Vec<AuthorizationRule>) -> AuthorizationPolicy {
    AuthorizationPolicy {
        metadata: Metadata {
            name: format!("{}-allow", audit.metadata.name),
            namespace: audit.metadata.namespace.clone(),
            ..Metadata::default()
        },
        spec: AuthorizationPolicySpec {
            target_refs: audit.spec.target_refs.clone(),
            selector: audit.spec.selector.clone(),
            action: AuthorizationAction::Allow,
            rules,
            ..AuthorizationPolicySpec::default()
        },
        status: None,
    }
}

/// The requests of a client as entries of `to`. Methods with the same paths share an entry. Clients may have sent
/// methods and paths that a document cannot contain, such as `delete` or `/x*`; these are left out.
fn requests_of(of_port: &PortRequests) -> Vec<RequestSpec> {
    let mut entries: Vec<RequestSpec> = Vec::new();
    for ((port, method), paths) in of_port {
        let (methods, paths) = match method {
            Some(method) => (vec![method.clone()], segments(paths)),
            None => (Vec::new(), Vec::new()),
        };
        let is_request = method.is_some();
        let of_method = RequestSpec { methods: methods.clone(), ..RequestSpec::default() };
        let of_path = |path: &SegmentSpec| RequestSpec {
            paths: vec![path.clone()],
            ..RequestSpec::default()
        };
        let paths: Vec<SegmentSpec> =
            paths.into_iter().filter(|path| of_path(path).is_accepted()).collect();
        if is_request && (paths.is_empty() || !of_method.is_accepted()) {
            continue;
        }
        let same = entries
            .iter_mut()
            .find(|one| one.ports == [*port] && one.paths == paths && !one.methods.is_empty());
        match same.filter(|_| method.is_some()) {
            Some(known) => known.methods.extend(methods),
            None => entries.push(RequestSpec {
                ports: vec![*port],
                methods,
                paths,
                ..RequestSpec::default()
            }),
        }
    }
    entries
}

/// The patterns for these paths; a folder with many paths becomes one pattern.
fn segments(paths: &BTreeSet<String>) -> Vec<SegmentSpec> {
    let (mut exact, mut folders) = (paths.clone(), BTreeSet::<String>::new());
    let mut most = MAX_PATHS_OF_FOLDER;
    loop {
        let mut of_folder: BTreeMap<String, usize> = BTreeMap::new();
        for path in exact.iter().chain(&folders).filter(|path| !path.is_empty()) {
            *of_folder.entry(folder(path).to_owned()).or_default() += 1;
        }
        let full: Vec<String> = of_folder
            .into_iter()
            .filter(|(_, count)| *count > most)
            .map(|(name, _)| name)
            .collect();
        let is_any_full = !full.is_empty();
        for name in full {
            let is_below = |path: &String| path.starts_with(&format!("{name}/")) && *path != name;
            exact.retain(|path| !is_below(path));
            folders.retain(|path| !is_below(path));
            exact.remove(&name);
            folders.insert(name);
        }
        if !is_any_full {
            if exact.len() + folders.len() <= MAX_AUTHORIZATION_ENTRIES || most == 0 {
                break;
            }
            most /= 2;
        }
    }
    let of_exact = exact.into_iter().map(|path| SegmentSpec { exact: Some(path), prefix: None });
    let prefix = |path: String| if path.is_empty() { "/".to_owned() } else { path };
    let of_folders =
        folders.into_iter().map(|path| SegmentSpec { exact: None, prefix: Some(prefix(path)) });
    of_exact.chain(of_folders).collect()
}

/// The path without its last segment; empty for a path directly below the root.
fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(paths: impl IntoIterator<Item = String>) -> Vec<String> {
        let one = |segment: SegmentSpec| match segment.exact {
            Some(path) => path,
            None => format!("{}/*", segment.prefix.unwrap_or_default()),
        };
        segments(&paths.into_iter().collect()).into_iter().map(one).collect()
    }

    #[test]
    fn folders_with_many_paths_stand_for_them() {
        assert_eq!(of(["/a".to_owned(), "/b/c".to_owned()]), ["/a", "/b/c"]);
        let many = (0..17).map(|number| format!("/items/{number}"));
        assert_eq!(of(many.chain(["/health".to_owned()])), ["/health", "/items/*"]);
        let nested = (0..40).flat_map(|one| (0..40).map(move |two| format!("/v1/{one}/{two}")));
        assert_eq!(of(nested), ["/v1/*"]);
        // A very large number of folders with few paths each.
        let wide = (0..400).map(|number| format!("/{number}/x"));
        assert_eq!(of(wide), ["//*"]);
    }
}
