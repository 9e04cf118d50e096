//! Which clients may connect to a workload, and what they may request: the authorization policies
//! that select one workload.
//!
//! The index selects the policies, `wire` encodes them, and the server's proxy compiles them
//! (`leno_policy::AuthorizationTable`). Ports are the workload's own.

mod paths;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::TrustDomain;
use crate::authorizer::ExternalAuthorizer;
use crate::tokens::{ClaimMatch, TokenIssuer};
use crate::traffic::PolicySource;

pub use paths::{PathReading, UnknownReading};

/// How many policies may select one workload. A proxy that receives more denies every client.
pub const MAX_POLICIES: usize = 1024;

/// The permissions of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorization {
    /// The policies that select the workload, ordered by namespace and name.
    pub policies: Arc<[AuthorizationPolicy]>,
    /// Which clients are permitted on a port that no allow policy selects.
    pub default: DefaultAuthorization,
    /// How the application reads paths.
    pub paths: PathReading,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
    /// Why the proxy cannot apply the policies, if it cannot. It then denies every client.
    pub unusable: Option<Arc<str>>,
}

/// The clients that are permitted on a port that no allow policy selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultAuthorization {
    /// Every client.
    #[default]
    All,
    /// Clients with an identity.
    Meshed,
    /// Clients whose identity is in the workload's own namespace.
    SameNamespace,
    /// No client.
    Deny,
}

/// The text is not a [`DefaultAuthorization`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a default of authorization: use deny, same-namespace, meshed or all")]
pub struct UnknownDefault(String);

/// A policy that selects a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationPolicy {
    /// The document.
    pub source: PolicySource,
    /// What the policy does with clients and requests that match.
    pub action: Action,
    /// The ports of the workload to which its targets limit the policy; `None` means all.
    pub ports: Option<Arc<[u16]>>,
    /// The policy matches if one of these matches.
    pub rules: Arc<[PermissionRule]>,
    /// If there are any, the policy matches only requests with a valid token of one of these.
    pub tokens: Arc<[TokenIssuer]>,
    /// Which service decides about requests that match. It is set only for [`Action::External`].
    pub external: Option<Arc<ExternalAuthorizer>>,
}

/// What a policy does if it matches. A denial takes precedence over any permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Permits matches. What no allow policy of the port permits is denied.
    Allow,
    /// Denies matches.
    Deny,
    /// Counts and logs matches.
    Audit,
    /// Permits matches only if an external authorizer permits them, too, once the other policies have.
    External,
}

/// One rule: a client and a request, both of which must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionRule {
    /// The client matches one of these. If there are none, every client matches, with or without an identity.
    pub from: Vec<ClientMatch>,
    /// The connection or request matches one of these. If there are none, all match.
    pub to: Vec<RequestMatch>,
    /// All of these match the token of the request.
    pub claims: Vec<ClaimMatch>,
}

/// A condition on a client. Every part that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientMatch {
    /// The SPIFFE ID equals one of these, or is below one of these.
    pub identities: Vec<SegmentMatch>,
    /// The identity is of one of these trust domains.
    pub trust_domains: Vec<TrustDomain>,
    /// The identity is of one of these namespaces.
    pub namespaces: Vec<Arc<str>>,
    /// The identity is of one of these service accounts, each with its namespace.
    pub service_accounts: Vec<(Arc<str>, Arc<str>)>,
    /// The address is in one of these blocks.
    pub blocks: Vec<IpBlock>,
    /// The client has no identity.
    pub unauthenticated: bool,
    /// The certificate that proves the identity fulfils this condition.
    pub certificate: CertificateMatch,
}

/// A condition on the validity of a client's certificate, in whole seconds. Every part that is set must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CertificateMatch {
    /// The certificate became valid at most this long ago.
    pub max_age: Option<Duration>,
    /// The certificate became valid at least this long ago.
    pub min_age: Option<Duration>,
    /// The certificate remains valid for at least this long.
    pub min_left: Option<Duration>,
    /// The certificate remains valid for at most this long.
    pub max_left: Option<Duration>,
}

/// The validity of a certificate, in seconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CertificateValidity {
    /// The first second of the validity.
    pub not_before_s: i64,
    /// The last second of the validity.
    pub not_after_s: i64,
}

/// A condition on a connection or a request. Every part that is not empty must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// Ports of the workload.
    pub ports: Vec<u16>,
    /// Methods, case-sensitive.
    pub methods: Vec<Arc<str>>,
    /// Hosts, in lower case and without port; `*.example.com` stands for every host below `example.com`.
    pub hosts: Vec<Arc<str>>,
    /// Canonical paths, without query.
    pub paths: Vec<PathPermission>,
    /// All of these must match.
    pub headers: Vec<HeaderMatch>,
    /// The server names in the application's own TLS, in the form of hosts.
    pub server_names: Vec<Arc<str>>,
}

/// A condition on a text with segments between slashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SegmentMatch {
    /// The whole text.
    Exact(Arc<str>),
    /// The text, or a text that continues it with a slash. It has no slash at its end, so an empty prefix matches every
    /// text that begins with a slash.
    Prefix(Arc<str>),
}

/// A condition on the header lines of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// The name, in lower case.
    pub name: Arc<str>,
    /// The values. An allow rule matches if each line has one of them, or is a list of them. A deny or audit rule
    /// matches if any line, or any element of a list, is one of them. If there are none, the header must only be
    /// present.
    pub values: Vec<Arc<str>>,
}

/// A condition on a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPermission {
    /// The path equals this one or is below it.
    Segment(SegmentMatch),
    /// The path of a gRPC call of this method, for any service: `/service/method`.
    GrpcMethod(Arc<str>),
}

/// A block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IpBlock {
    /// The addresses.
    pub cidr: Cidr,
    /// Parts that do not belong to the block.
    pub except: Vec<Cidr>,
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// The text is not a [`Cidr`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The text does not have the form `<address>/<length>`.
    #[error("{0:?} is not a block of addresses: use 10.0.0.0/8, fd00::/8 or a single address")]
    Form(String),
    /// There are bits after the prefix that are not zero.
    #[error("{0:?} has bits after the prefix: use {1}")]
    Bits(String, Cidr),
}

impl Authorization {
    /// Whether every client is permitted everything, and nothing is audited.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.policies.is_empty()
            && self.default == DefaultAuthorization::All
            && self.unusable.is_none()
    }

    /// Policies that deny every client, because the real policies cannot be applied.
    #[must_use]
    pub fn unusable(reason: impl Into<Arc<str>>) -> Self {
        Self { unusable: Some(reason.into()), ..Self::default() }
    }
}

impl DefaultAuthorization {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Deny, Self::SameNamespace, Self::Meshed, Self::All];

    /// The name used in annotations and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::SameNamespace => "same-namespace",
            Self::Meshed => "meshed",
            Self::All => "all",
        }
    }
}

impl fmt::Display for DefaultAuthorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DefaultAuthorization {
    type Err = UnknownDefault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|one| one.as_str() == text);
        known.ok_or_else(|| UnknownDefault(text.to_owned()))
    }
}

impl SegmentMatch {
    /// Creates a prefix; a slash at its end is ignored.
    #[must_use]
    pub fn prefix(text: &str) -> Self {
        Self::Prefix(text.strip_suffix('/').unwrap_or(text).into())
    }

    /// Whether the condition matches the text.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == text,
            Self::Prefix(prefix) => is_below(prefix.as_bytes(), text),
        }
    }
}

/// Whether a text is `prefix`, or continues it with a slash.
#[must_use]
pub fn is_below(prefix: &[u8], text: &[u8]) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| rest.first().is_none_or(|next| *next == b'/'))
}

impl IpBlock {
    /// Whether an address belongs to the block.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(address) && !self.except.iter().any(|cidr| cidr.contains(address))
    }
}

impl Cidr {
    /// Parses blocks separated by commas, as in flags and settings. Blanks and empty parts are ignored.
    ///
    /// # Errors
    /// One of them is not a block.
    pub fn list(text: &str) -> Result<Vec<Self>, CidrError> {
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::parse).collect()
    }

    /// The block of all addresses that share the first `length` bits with `address`. Bits after
    /// these are cleared. `None` if the length is too large.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let (bits, most) = bits(address);
        if length > most {
            return None;
        }
        let kept = bits & mask(length, most);
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4((kept as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(kept.into()),
        };
        Some(Self { address, length })
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of the common prefix, in bits.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address belongs to the block. An IPv4 address must not be in IPv4-mapped form.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let ((own, most), (given, other)) = (bits(self.address), bits(address));
        most == other && (own ^ given) & mask(self.length, most) == 0
    }
}

/// The address as a number, and the number of its bits.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(ip) => (u32::from(ip).into(), 32),
        IpAddr::V6(ip) => (ip.into(), 128),
    }
}

/// A mask of the first `length` of `most` bits.
fn mask(length: u8, most: u8) -> u128 {
    u128::MAX.checked_shl(most.saturating_sub(length).into()).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || CidrError::Form(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        if address != address.to_canonical() {
            return Err(form());
        }
        let most = bits(address).1;
        let length = match length {
            None => most,
            Some(length) => length.parse().map_err(|_| form())?,
        };
        let cidr = Self::new(address, length).ok_or_else(form)?;
        if cidr.address != address {
            return Err(CidrError::Bits(text.to_owned(), cidr));
        }
        Ok(cidr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_has_the_addresses_of_its_prefix() {
        for (block, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "10.0.0.1", false),
            ("::/0", "fd00::1", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("fd00::/127", "fd00::1", true),
            ("fd00::/127", "fd00::2", false),
        ] {
            assert_eq!(
                cidr(block).contains(address.parse().unwrap()),
                expected,
                "{block} {address}"
            );
            assert_eq!(cidr(&cidr(block).to_string()), cidr(block));
        }
        let block = IpBlock { cidr: cidr("10.0.0.0/8"), except: vec![cidr("10.9.0.0/16")] };
        assert!(block.contains("10.8.0.1".parse().unwrap()));
        assert!(!block.contains("10.9.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0", "10.0.0.0/-1", "::ffff:10.0.0.1", "fd00::/129"] {
            assert!(matches!(text.parse::<Cidr>(), Err(CidrError::Form(_))), "{text}");
        }
        let error = "10.0.0.1/8".parse::<Cidr>().unwrap_err().to_string();
        assert_eq!(error, "\"10.0.0.1/8\" has bits after the prefix: use 10.0.0.0/8");
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        for (prefix, text, expected) in [
            ("/admin", "/admin", true),
            ("/admin", "/admin/", true),
            ("/admin/", "/admin", true),
            ("/admin", "/admin/x", true),
            ("/admin", "/administrator", false),
            ("/", "/", true),
            ("/", "/x", true),
            ("/", "*", false),
        ] {
            assert_eq!(
                SegmentMatch::prefix(prefix).matches(text.as_bytes()),
                expected,
                "{prefix} {text}"
            );
        }
    }
}
