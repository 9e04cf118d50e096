//! The part of a decision that is the same for every request of a connection.

use leno_types::authorization::{Action, ClientMatch, DefaultAuthorization};

use super::{AuthorizationTable, ConnectionView, Entry, PolicyIndex};

/// What the policies leave to be decided for one connection.
#[derive(Debug, Default)]
pub struct ConnectionRules {
    /// One bit for each entry that matches the client and the port, and requires something of
    /// requests or of TLS.
    matching: Box<[u64]>,
    /// The entries of `matching` that require no path, ascending.
    pub(super) pathless: Box<[u32]>,
    /// The deny policy that denies everything.
    pub(super) denied: Option<PolicyIndex>,
    /// The allow policy that permits everything.
    pub(super) allowed: Option<PolicyIndex>,
    /// The audit policies that match everything.
    pub(super) audited: Box<[PolicyIndex]>,
    /// Whether an allow policy selects the port.
    pub(super) is_selected: bool,
    /// Whether the default permits the client.
    pub(super) is_default: bool,
    /// Whether the decision depends on the path.
    pub(super) reads_path: bool,
    /// Whether an entry requires a host.
    pub(super) reads_host: bool,
    /// Whether an entry requires a method.
    pub(super) reads_method: bool,
}

impl ConnectionRules {
    pub(super) fn matches(&self, entry: u32) -> bool {
        let word = self.matching.get(entry as usize / 64);
        word.is_some_and(|word| word >> (entry % 64) & 1 == 1)
    }
}

impl AuthorizationTable {
    /// Evaluates everything that does not depend on requests.
    #[must_use]
    pub fn connection(&self, client: &ConnectionView<'_>) -> ConnectionRules {
        let clients = self.matching_clients(client);
        let is_here = |entry: &Entry| {
            let of_client = |at: u32| clients.get(at as usize).copied().unwrap_or(false);
            entry.is_for(client.port) && entry.clients.is_none_or(of_client)
        };
        let mut rules = ConnectionRules {
            is_selected: self.policies.iter().any(|policy| {
                let ports = policy.ports.as_ref();
                policy.action == Action::Allow
                    && ports.is_none_or(|ports| ports.contains(&client.port))
            }),
            is_default: self.permits_by_default(client),
            ..ConnectionRules::default()
        };
        let mut matching = vec![0_u64; self.entries.len().div_ceil(64)];
        let (mut pathless, mut audited) = (Vec::new(), Vec::new());
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, entry)| is_here(entry)) {
            if entry.request.is_empty() {
                match entry.action {
                    Action::Deny => rules.denied = rules.denied.or(Some(entry.policy)),
                    Action::Allow => rules.allowed = rules.allowed.or(Some(entry.policy)),
                    Action::Audit if audited.contains(&entry.policy) => {}
                    Action::Audit => audited.push(entry.policy),
                }
                continue;
            }
            matching[at / 64] |= 1 << (at % 64);
            if !entry.request.has_paths {
                pathless.push(at as u32);
            }
            rules.reads_host |=
                !entry.request.hosts.is_empty() || !entry.request.wildcards.is_empty();
            rules.reads_method |= !entry.request.methods.is_empty();
        }
        rules.matching = matching.into();
        rules.pathless = pathless.into();
        rules.audited = audited.into();
        rules.reads_path = self.depends_on_path(&rules);
        rules
    }

    /// For each of the table's values of `from`, whether the client matches it.
    pub(super) fn matching_clients(&self, client: &ConnectionView<'_>) -> Vec<bool> {
        let id = client.identity.map(ToString::to_string);
        let is_client =
            |set: &Vec<ClientMatch>| set.iter().any(|one| matches(one, client, id.as_deref()));
        self.clients.iter().map(is_client).collect()
    }

    /// Whether the decision on requests depends on their path. An allow rule's path means nothing
    /// where another one permits everything.
    fn depends_on_path(&self, rules: &ConnectionRules) -> bool {
        if rules.denied.is_some() {
            return false;
        }
        let mut matching = self.entries.iter().zip(0_u32..).filter(|(_, at)| rules.matches(*at));
        matching.any(|(entry, _)| {
            let reads = entry.request.has_paths || entry.request.grpc_method.is_some();
            reads
                && match entry.action {
                    Action::Deny => true,
                    Action::Allow => rules.allowed.is_none(),
                    Action::Audit => false,
                }
        })
    }

    fn permits_by_default(&self, client: &ConnectionView<'_>) -> bool {
        match self.default {
            DefaultAuthorization::All => true,
            DefaultAuthorization::Meshed => client.identity.is_some(),
            DefaultAuthorization::SameNamespace => client.identity.is_some_and(|identity| {
                *identity.namespace() == *self.namespace
                    && *identity.trust_domain().as_str() == *self.trust_domain
            }),
            DefaultAuthorization::Deny => false,
        }
    }
}

/// Whether a client fulfils a condition. `id`: its identity as text.
fn matches(condition: &ClientMatch, client: &ConnectionView<'_>, id: Option<&str>) -> bool {
    let ClientMatch {
        identities,
        trust_domains,
        namespaces,
        service_accounts,
        blocks,
        unauthenticated,
    } = condition;
    let of_identity = !identities.is_empty()
        || !trust_domains.is_empty()
        || !namespaces.is_empty()
        || !service_accounts.is_empty();
    if *unauthenticated && client.identity.is_some() {
        return false;
    }
    if !blocks.is_empty() && !blocks.iter().any(|block| block.contains(client.address)) {
        return false;
    }
    if !of_identity {
        // A condition without any part matches no client.
        return *unauthenticated || !blocks.is_empty();
    }
    let (Some(identity), Some(id)) = (client.identity, id) else { return false };
    let namespace = identity.namespace();
    let is_account =
        |(of, name): &(_, _)| is(of, namespace) && is(name, identity.service_account());
    (identities.is_empty() || identities.iter().any(|one| one.matches(id.as_bytes())))
        && (trust_domains.is_empty() || trust_domains.contains(identity.trust_domain()))
        && (namespaces.is_empty() || namespaces.iter().any(|one| is(one, namespace)))
        && (service_accounts.is_empty() || service_accounts.iter().any(is_account))
}

fn is(one: &std::sync::Arc<str>, other: &str) -> bool {
    **one == *other
}
