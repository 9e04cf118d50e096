//! Compiles the policies of a workload into a table.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, ClientMatch, HeaderMatch, PathPermission,
    RequestMatch, SegmentMatch,
};
use leno_types::tokens::ClaimMatch;

use super::paths::PathTable;
use super::{AuthorizationTable, CompiledPolicy, Entry, PolicyIndex, RequestConditions};

/// The distinct values of one kind, and the position of each.
struct Interned<T>(HashMap<T, u32>, Vec<T>);

impl<T: Clone + Eq + Hash> Interned<T> {
    fn new() -> Self {
        Self(HashMap::new(), Vec::new())
    }

    fn position(&mut self, value: &T) -> u32 {
        if let Some(known) = self.0.get(value) {
            return *known;
        }
        let position = self.1.len() as u32;
        self.0.insert(value.clone(), position);
        self.1.push(value.clone());
        position
    }
}

struct Compiler {
    entries: Vec<Entry>,
    clients: Interned<Vec<ClientMatch>>,
    methods: Interned<Arc<str>>,
    methods_in_any_case: Interned<Arc<str>>,
    headers: Interned<HeaderMatch>,
    hosts: Vec<Arc<str>>,
    paths: Vec<(SegmentMatch, u32)>,
}

impl AuthorizationTable {
    /// Compiles the policies of a workload in this namespace.
    #[must_use]
    pub fn new(authorization: &Authorization, namespace: &str) -> Self {
        let Authorization { policies, default, paths, trust_domain, unusable } = authorization;
        let mut compiler = Compiler {
            entries: Vec::new(),
            clients: Interned::new(),
            methods: Interned::new(),
            methods_in_any_case: Interned::new(),
            headers: Interned::new(),
            hosts: sorted_hosts(policies),
            paths: Vec::new(),
        };
        for action in [Action::Deny, Action::Allow, Action::Audit, Action::External] {
            for (index, policy) in policies.iter().enumerate() {
                if policy.action == action {
                    compiler.policy(PolicyIndex(index as u32), policy);
                }
            }
        }
        let row = |policy: &AuthorizationPolicy| CompiledPolicy {
            source: policy.source.clone(),
            action: policy.action,
            ports: policy.ports.clone(),
        };
        Self {
            policies: policies.iter().map(row).collect(),
            paths: PathTable::new(&compiler.paths),
            entries: compiler.entries,
            clients: compiler.clients.1,
            methods: compiler.methods.1,
            methods_in_any_case: compiler.methods_in_any_case.1,
            hosts: compiler.hosts,
            headers: compiler.headers.1,
            owned: owned_headers(policies),
            default: *default,
            reading: *paths,
            trust_domain: trust_domain.as_str().into(),
            namespace: namespace.into(),
            is_usable: unusable.is_none(),
        }
    }
}

impl Compiler {
    fn policy(&mut self, index: PolicyIndex, policy: &AuthorizationPolicy) {
        for rule in policy.rules.iter() {
            let clients = (!rule.from.is_empty()).then(|| self.clients.position(&rule.from));
            let any = RequestMatch::default();
            let to = if rule.to.is_empty() { std::slice::from_ref(&any) } else { &rule.to };
            let token = (!policy.tokens.is_empty()).then_some(&*rule.claims);
            for request in to {
                self.request((index, policy), clients, (request, token));
            }
        }
    }

    /// Adds the entries of one condition on requests. All its paths that are compared by segments share one entry; each
    /// gRPC method has an entry of its own.
    fn request(
        &mut self,
        (index, policy): (PolicyIndex, &AuthorizationPolicy),
        clients: Option<u32>,
        (request, token): (&RequestMatch, Option<&[ClaimMatch]>),
    ) {
        let of_policy = policy.ports.as_deref();
        let ports: Option<Box<[u16]>> = match (of_policy, request.ports.as_slice()) {
            (None, []) => None,
            (Some(ports), []) => Some(ports.into()),
            (None, ports) => Some(ports.into()),
            (Some(of_policy), ports) => {
                let both = ports.iter().copied().filter(|port| of_policy.contains(port));
                Some(both.collect())
            }
        };
        let segments = request.paths.iter().filter_map(|path| match path {
            PathPermission::Segment(segment) => Some(segment),
            PathPermission::GrpcMethod(_) => None,
        });
        let segments: Vec<&SegmentMatch> = segments.collect();
        if !segments.is_empty() || request.paths.is_empty() {
            let at = self.entries.len() as u32;
            self.paths.extend(segments.iter().map(|segment| ((*segment).clone(), at)));
            let has_paths = !segments.is_empty();
            let (policy, action, ports) = (index, policy.action, ports.clone());
            let request =
                RequestConditions { has_paths, ..self.conditions(action, (request, token)) };
            self.entries.push(Entry { policy, action, clients, ports, request });
        }
        for path in &request.paths {
            let PathPermission::GrpcMethod(method) = path else { continue };
            let grpc_method = Some(Arc::clone(method));
            let (policy, action, ports) = (index, policy.action, ports.clone());
            let request =
                RequestConditions { grpc_method, ..self.conditions(action, (request, token)) };
            self.entries.push(Entry { policy, action, clients, ports, request });
        }
    }

    /// The conditions besides the paths.
    fn conditions(
        &mut self,
        action: Action,
        (request, token): (&RequestMatch, Option<&[ClaimMatch]>),
    ) -> RequestConditions {
        let RequestMatch { methods, hosts, headers, server_names, .. } = request;
        let of_host = |host: &Arc<str>| self.hosts.binary_search(host).ok().map(|at| at as u32);
        let endings = hosts.iter().filter_map(|host| host.strip_prefix('*')).map(Into::into);
        let method = |method: &Arc<str>| match action {
            Action::Allow => self.methods.position(method),
            Action::Deny | Action::Audit | Action::External => {
                self.methods_in_any_case.position(&method.to_ascii_uppercase().into())
            }
        };
        let methods = methods.iter().map(method).collect();
        RequestConditions {
            methods,
            hosts: hosts.iter().filter_map(of_host).collect(),
            wildcards: endings.collect(),
            headers: headers.iter().map(|header| self.headers.position(header)).collect(),
            token: token.map(Into::into),
            server_names: server_names.as_slice().into(),
            has_paths: false,
            grpc_method: None,
        }
    }
}

/// The headers that only policies may set.
fn owned_headers(policies: &[AuthorizationPolicy]) -> Vec<(PolicyIndex, Arc<str>)> {
    let names = |(index, policy): (usize, &AuthorizationPolicy)| {
        let answered = policy.external.iter().flat_map(|external| external.on_request.iter());
        let claims = policy.tokens.iter().flat_map(|issuer| &issuer.claim_headers);
        let names = answered.chain(claims.map(|one| &one.header));
        names.map(|name| (PolicyIndex(index as u32), Arc::clone(name))).collect::<Vec<_>>()
    };
    policies.iter().enumerate().flat_map(names).collect()
}

/// The distinct hosts without wildcard, sorted.
fn sorted_hosts(policies: &[AuthorizationPolicy]) -> Vec<Arc<str>> {
    let requests = policies.iter().flat_map(|policy| policy.rules.iter()).flat_map(|rule| &rule.to);
    let hosts = requests.flat_map(|request| &request.hosts).filter(|host| !host.starts_with('*'));
    let mut hosts: Vec<Arc<str>> = hosts.cloned().collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}
