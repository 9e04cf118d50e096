//! The part of a decision that is the same for every request of a connection.
#![expect(clippy::indexing_slicing, reason = "the bits have a word for each 64 entries")]

use leno_types::Identity;
use leno_types::authorization::{
    Action, CertificateMatch, ClientMatch, DefaultAuthorization, HeaderMatch, IpBlock,
};

use super::header::is_spelling;
use super::{AuthorizationTable, ConnectionView, Entry, OtherAddresses, PolicyIndex, certificate};

/// The policies as evaluated for one connection, with the conditions that remain to be checked for each request.
#[derive(Debug, Default)]
pub struct ConnectionRules {
    /// One bit for each entry that matches the client and the port, and has conditions on requests or on TLS.
    matching: Box<[u64]>,
    /// The entries of `matching` without a condition on the path, ascending.
    pub(super) pathless: Box<[u32]>,
    /// A deny policy that denies all requests of the connection.
    pub(super) denied: Option<PolicyIndex>,
    /// An allow policy that permits all requests of the connection.
    pub(super) allowed: Option<PolicyIndex>,
    /// The audit and external policies that match all requests of the connection.
    pub(super) audited: Box<[PolicyIndex]>,
    /// Whether an allow policy selects the port.
    pub(super) is_selected: bool,
    /// Whether the default permits the client.
    pub(super) is_default: bool,
    /// Whether the decision depends on the path.
    pub(super) reads_path: bool,
    /// Whether an entry has a condition on the host.
    pub(super) reads_host: bool,
    /// Whether an entry has a condition on the method.
    pub(super) reads_method: bool,
    /// Those conditions on headers that no client can fulfil, because only policies of the port may set these headers:
    /// their positions in the table's `headers`.
    pub(super) owned: Box<[u32]>,
    /// Whether unknown addresses of the client could change the rules.
    lacks_addresses: bool,
    /// Whether the rules depend on the validity of the client's certificate.
    reads_certificate: bool,
    /// The next time at which the certificate's age may change the rules, in seconds of Unix time.
    until_s: Option<i64>,
}

/// For each value of `from` in the table, whether a client matches it.
pub(super) struct MatchingClients {
    certain: Vec<bool>,
    /// Like `certain`, but for deny and external rules: unknown addresses and an unknown validity of the certificate
    /// count as a match. `None` if both are known.
    possible: Option<Vec<bool>>,
    /// Like `certain`, but for audit rules: an unknown validity of the certificate counts as a match. `None` if it is
    /// known.
    audited: Option<Vec<bool>>,
}

impl MatchingClients {
    /// Whether an entry applies to the client.
    pub(super) fn has(&self, entry: &Entry) -> bool {
        let of_action = match (entry.action, &self.possible) {
            (Action::Deny | Action::External, Some(possible)) => possible,
            (Action::Audit, _) => self.audited.as_ref().unwrap_or(&self.certain),
            _ => &self.certain,
        };
        let is_client = |at: u32| of_action.get(at as usize).copied().unwrap_or(false);
        entry.clients.is_none_or(is_client)
    }
}

impl ConnectionRules {
    /// Whether other addresses of the client could change the rules, and are unknown.
    #[must_use]
    pub fn lacks_addresses(&self) -> bool {
        self.lacks_addresses
    }

    /// Whether the rules depend on the validity of the client's certificate, so that another certificate may change
    /// them.
    #[must_use]
    pub fn reads_certificate(&self) -> bool {
        self.reads_certificate
    }

    /// From this second of Unix time on, the rules may differ, because the certificate's age passes a limit of a
    /// condition.
    #[must_use]
    pub fn until_s(&self) -> Option<i64> {
        self.until_s
    }

    pub(super) fn matches(&self, entry: u32) -> bool {
        let word = self.matching.get(entry as usize / 64);
        word.is_some_and(|word| word >> (entry % 64) & 1 == 1)
    }
}

impl AuthorizationTable {
    /// Evaluates the parts of the policies that do not depend on requests.
    #[must_use]
    pub fn connection(&self, client: &ConnectionView<'_>) -> ConnectionRules {
        let clients = self.matching_clients(client);
        let is_here = |entry: &Entry| entry.is_for(client.port) && clients.has(entry);
        let mut rules = ConnectionRules {
            is_selected: self
                .policies
                .iter()
                .any(|policy| policy.action == Action::Allow && policy.is_for(client.port)),
            is_default: self.permits_by_default(client),
            owned: self.owned_conditions(client.port),
            lacks_addresses: self.lacks_addresses(client),
            ..ConnectionRules::default()
        };
        self.certificates(client, &mut rules);
        let mut matching = vec![0_u64; self.entries.len().div_ceil(64)];
        let (mut pathless, mut audited) = (Vec::new(), Vec::new());
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, entry)| is_here(entry)) {
            if entry.request.is_empty() {
                match entry.action {
                    Action::Deny => rules.denied = rules.denied.or(Some(entry.policy)),
                    Action::Allow => rules.allowed = rules.allowed.or(Some(entry.policy)),
                    Action::Audit | Action::External if audited.contains(&entry.policy) => {}
                    Action::Audit | Action::External => audited.push(entry.policy),
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

    /// The conditions on headers that a client of a port cannot fulfil, because only policies may set the headers.
    fn owned_conditions(&self, port: u16) -> Box<[u32]> {
        let is_owned = |condition: &HeaderMatch| {
            self.owned(port).any(|(_, own)| is_spelling(&condition.name, own))
        };
        let conditions = self.headers.iter().zip(0..).filter(|(condition, _)| is_owned(condition));
        conditions.map(|(_, at)| at).collect()
    }

    /// Which of the table's values of `from` the client matches.
    pub(super) fn matching_clients(&self, client: &ConnectionView<'_>) -> MatchingClients {
        let id = client.identity.map(ToString::to_string);
        // A client with an identity has a certificate. If it is missing here, the proxy does not know the certificate's
        // validity.
        let lacks_times = client.identity.is_some() && client.certificate.is_none();
        let matching = |is_denial: bool, is_time: bool| -> Vec<bool> {
            let is_in = |blocks: &[IpBlock]| is_in(blocks, client, is_denial);
            let is_of_time = |time: &CertificateMatch| {
                is_time && lacks_times || certificate::matches(time, client.certificate)
            };
            let is_client = |set: &Vec<ClientMatch>| {
                set.iter().any(|one| matches(one, (client, id.as_deref()), is_in, is_of_time))
            };
            self.clients.iter().map(is_client).collect()
        };
        let is_complete = matches!(client.others, OtherAddresses::Known(_));
        let possible = (!is_complete || lacks_times).then(|| matching(true, true));
        let audited = lacks_times.then(|| matching(false, true));
        MatchingClients { certain: matching(false, false), possible, audited }
    }

    /// Whether a client's unknown address could be in a block of the other address family.
    fn lacks_addresses(&self, client: &ConnectionView<'_>) -> bool {
        let reads = |at: u32| {
            let of = self.clients.get(at as usize);
            of.is_some_and(|set| set.iter().any(|one| has_other_family(&one.blocks, client)))
        };
        client.others == OtherAddresses::Unknown
            && self
                .entries
                .iter()
                .any(|entry| entry.is_for(client.port) && entry.clients.is_some_and(reads))
    }

    /// Determines whether the rules depend on the client's certificate, and until when their result is valid.
    fn certificates(&self, client: &ConnectionView<'_>, rules: &mut ConnectionRules) {
        let Some(shown) = client.certificate else { return };
        let sets = self.entries.iter().filter(|entry| entry.is_for(client.port));
        let sets = sets.filter_map(|entry| self.clients.get(entry.clients? as usize));
        let conditions = sets.flatten().map(|one| &one.certificate);
        for condition in conditions.filter(|one| !certificate::is_empty(one)) {
            rules.reads_certificate = true;
            let next = certificate::next_change(condition, shown);
            rules.until_s = [rules.until_s, next].into_iter().flatten().min();
        }
    }

    /// Whether the decision on requests depends on their path. The paths of allow rules do not matter if another rule
    /// permits everything.
    fn depends_on_path(&self, rules: &ConnectionRules) -> bool {
        if rules.denied.is_some() {
            return false;
        }
        let mut matching = self.entries.iter().zip(0_u32..).filter(|(_, at)| rules.matches(*at));
        matching.any(|(entry, _)| {
            let reads = entry.request.has_paths || entry.request.grpc_method.is_some();
            reads
                && match entry.action {
                    Action::Deny | Action::External => true,
                    Action::Allow => rules.allowed.is_none(),
                    Action::Audit => false,
                }
        })
    }

    fn permits_by_default(&self, client: &ConnectionView<'_>) -> bool {
        match self.default {
            DefaultAuthorization::All => true,
            DefaultAuthorization::Meshed => client.identity.is_some_and(|id| self.is_of_mesh(id)),
            DefaultAuthorization::SameNamespace => client.identity.is_some_and(|identity| {
                *identity.namespace() == *self.namespace && self.is_of_mesh(identity)
            }),
            DefaultAuthorization::Deny => false,
        }
    }

    /// Whether an identity belongs to the mesh's own trust domain. Clients of federated trust domains have identities,
    /// too.
    fn is_of_mesh(&self, identity: &Identity) -> bool {
        *identity.trust_domain().as_str() == *self.trust_domain
    }
}

/// Whether an address of the client is in one of the blocks. With `is_denial`, also if it may be.
fn is_in(blocks: &[IpBlock], client: &ConnectionView<'_>, is_denial: bool) -> bool {
    let has = |address| blocks.iter().any(|block| block.contains(address));
    has(client.address)
        || match client.others {
            OtherAddresses::Known(others) => others.iter().any(|other| has(*other)),
            OtherAddresses::Unknown => is_denial && has_other_family(blocks, client),
        }
}

/// Whether a block has another address family than the client's address.
fn has_other_family(blocks: &[IpBlock], client: &ConnectionView<'_>) -> bool {
    blocks.iter().any(|block| block.cidr.address().is_ipv4() != client.address.is_ipv4())
}

/// Whether a client fulfils a condition. `id` is the client's identity as text.
fn matches(
    condition: &ClientMatch,
    (client, id): (&ConnectionView<'_>, Option<&str>),
    is_in: impl Fn(&[IpBlock]) -> bool,
    is_of_time: impl Fn(&CertificateMatch) -> bool,
) -> bool {
    let ClientMatch {
        identities,
        trust_domains,
        namespaces,
        service_accounts,
        blocks,
        unauthenticated,
        certificate: time,
    } = condition;
    let of_identity = !identities.is_empty()
        || !trust_domains.is_empty()
        || !namespaces.is_empty()
        || !service_accounts.is_empty()
        || !certificate::is_empty(time);
    if *unauthenticated && client.identity.is_some() {
        return false;
    }
    if !blocks.is_empty() && !is_in(blocks) {
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
        && is_of_time(time)
}

fn is(one: &std::sync::Arc<str>, other: &str) -> bool {
    **one == *other
}
