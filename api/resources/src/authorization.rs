//! `AuthorizationPolicy`: which clients may connect to a workload, and what they may request.

pub(crate) mod external;
pub(crate) mod jwks;

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_types::TrustDomain;
use leno_types::authorization as meaning;
use leno_types::authorizer::ExternalAuthorizer;
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenIssuer};
use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::gateway::PolicyStatus;
use crate::metadata::Metadata;
use crate::traffic::{PolicyTarget, meaning::source};

/// The largest number of rules of one policy, and of entries of each list in it. Clients or requests are compared with
/// each of them.
pub const MAX_AUTHORIZATION_ENTRIES: usize = 64;

pub use external::{
    AuthorizerBodySpec, AuthorizerHeadersSpec, AuthorizerProtocolSpec, AuthorizerRef, ExternalSpec,
    OnFailure, OnLarger,
};
pub use jwks::MAX_BYTES as MAX_KEY_SET_BYTES;

/// The key of a `ConfigMap` or a `Secret` that holds a set of keys of tokens.
pub const KEY_SET_KEY: &str = "jwks.json";

/// How far clocks may differ if the policy does not say it.
const CLOCK_SKEW: std::time::Duration = std::time::Duration::from_secs(30);

/// Which clients may connect to the workloads that it is attached to, and what they may request,
/// `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationPolicy {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// What it says.
    pub spec: AuthorizationPolicySpec,
    /// What controllers report about it.
    pub status: Option<PolicyStatus>,
}

/// The parts of an [`AuthorizationPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationPolicySpec {
    /// What the policy applies to, in its namespace: Workloads, the workloads behind Services or
    /// their ports, or the Namespace itself. In the control plane's namespace also the Mesh.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<PolicyTarget>,
    /// Instead of `targetRefs`: the workloads of its namespace with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// What the policy does with clients and requests that match. The default is Allow.
    pub action: AuthorizationAction,
    /// The policy matches if one of these matches. An allow policy without rules permits nothing.
    pub rules: Vec<AuthorizationRule>,
    /// If any: the policy matches only requests with a valid token of a user, of one of these
    /// issuers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenIssuerSpec>,
    /// The service that decides on requests that match. For the action External, which needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
}

/// An issuer of tokens: JSON Web Tokens with a signature by one of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TokenIssuerSpec {
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// The claim `aud` has one of these.
    pub audiences: Vec<String>,
    /// Its public keys, the JSON of a JWK set (RFC 7517), without private parts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jwks: String,
    /// Instead of `jwks`: the URL of the set, from which the control plane fetches it again and again. The origin must
    /// be in the annotation `leno.dev/keys-from` of the control plane's Namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Instead of `jwks`: a ConfigMap of the policy's namespace that has the set as `jwks.json`. A change of it holds at
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_config_map: Option<String>,
    /// Instead of `jwks`: a Secret of the policy's namespace that has the set as `jwks.json`. In a cluster a Role has to let
    /// the control plane read it. A change of it holds at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_secret: Option<String>,
    /// The header of requests that carries the token. The default is Authorization, after `Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// How far the clocks of the issuer and of the proxies may differ, 5m at most. The default is 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew: Option<Duration>,
    /// Claims of valid tokens that the application gets as headers. What clients send under these names never reaches it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claim_headers: Vec<ClaimHeaderSpec>,
}

/// Removes everything but keys of tokens from a `Secret`. Annotations are removed, too, because `kubectl` stores the
/// applied object in one. The keys are then in `data`.
pub fn only_keys(secret: &mut Secret) {
    let ObjectMeta { name, namespace, .. } = std::mem::take(&mut secret.metadata);
    secret.metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let given = secret.string_data.take().and_then(|mut texts| texts.remove(KEY_SET_KEY));
    let given = given.map(|text| ByteString(text.into_bytes()));
    let keys = given.or_else(|| secret.data.take()?.remove(KEY_SET_KEY));
    let keys = keys.filter(|keys| keys.0.len() <= MAX_KEY_SET_BYTES);
    secret.data = keys.map(|keys| [(KEY_SET_KEY.to_owned(), keys)].into());
}

/// A header with the value of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimHeaderSpec {
    /// Its name.
    pub name: String,
    /// The name of the claim. Dots lead to claims within claims.
    pub claim: String,
}

/// A claim of the token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// Its name. Dots lead to claims within claims.
    pub name: String,
    /// One of these is the claim, or an element of it. By default the claim need only be there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Workloads by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSelector {
    /// All of them; every workload of the namespace where empty.
    pub match_labels: BTreeMap<String, String>,
}

/// What a policy does with a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AuthorizationAction {
    /// Permits it, and denies everything that no allow policy of the same port permits.
    #[default]
    Allow,
    /// Denies it, whatever allow policies say.
    Deny,
    /// Counts and logs it.
    Audit,
    /// Permits it only if the service `external` does too, once the other policies have permitted it.
    External,
}

/// One rule: a client of `from`, a request of `to`, and the claims of its token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationRule {
    /// The client matches one of these. By default every client does, with an identity or without.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub from: Vec<ClientSpec>,
    /// The connection or request matches one of these. By default each does.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub to: Vec<RequestSpec>,
    /// Claims of the token. All of these must match. Only with `tokens`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ClaimSpec>,
}

/// Rejects an empty list. It would match everything, like a missing list, but its author probably meant that it matches
/// nothing.
fn not_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        let reason = "is empty: leave it out for everything, or name at least one entry";
        return Err(serde::de::Error::custom(reason));
    }
    Ok(list)
}

/// A client. Every field that is given must match; of the values of a field, one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClientSpec {
    /// SPIFFE IDs, exact or by prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<SegmentSpec>,
    /// Trust domains of the identity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trust_domains: Vec<String>,
    /// Namespaces of the identity; of the mesh's own trust domain unless `trustDomains` says otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Service accounts, `NAMESPACE/NAME`, or `NAME` in the policy's namespace; of the mesh's own
    /// trust domain unless `trustDomains` says otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
    /// Blocks of the client's address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_blocks: Vec<IpBlockSpec>,
    /// Whether the client has no identity.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unauthenticated: bool,
    /// The time of the certificate that proves the identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateSpec>,
}

/// The time of a certificate. Every field that is given must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSpec {
    /// It began to hold at most this long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Duration>,
    /// It began to hold at least this long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_age: Option<Duration>,
    /// It holds at least this long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_left: Option<Duration>,
    /// It holds at most this long from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_left: Option<Duration>,
}

/// A text with segments between slashes: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SegmentSpec {
    /// The whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// The text, or a text that continues it with a slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// A block of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpBlockSpec {
    /// The addresses, such as 10.0.0.0/8.
    pub cidr: String,
    /// Parts that do not belong to the block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// A connection or a request. Every field that is given must match; of the values of a field, one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RequestSpec {
    /// Ports of the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Methods, such as GET.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Hosts without port; `*.example.com` stands for every host below.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Paths without query, exact or by prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<SegmentSpec>,
    /// Headers. All of these must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderSpec>,
    /// Server names of TLS connections of the application, in the form of hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server_names: Vec<String>,
    /// gRPC calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grpc: Vec<GrpcSpec>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderSpec {
    /// Its name.
    pub name: String,
    /// Its values. Every line of the header must have one of them in an Allow policy, any line in
    /// others. By default the header need only be there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A gRPC call: the service, the method, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcSpec {
    /// The service with its package, such as shop.v1.Cart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl AuthorizationPolicy {
    /// The meaning of the policy in a mesh of this trust domain, for every port of the workload. Invalid texts match
    /// nothing.
    #[must_use]
    pub fn policy(&self, mesh: &TrustDomain) -> meaning::AuthorizationPolicy {
        let namespace = &self.metadata.namespace;
        let rule = |rule: &AuthorizationRule| meaning::PermissionRule {
            from: rule.from.iter().map(|from| from.client(namespace, mesh)).collect(),
            to: rule.to.iter().map(RequestSpec::request).collect(),
            claims: rule.claims.iter().map(ClaimSpec::claim).collect(),
        };
        meaning::AuthorizationPolicy {
            source: source(&self.metadata),
            action: match self.spec.action {
                AuthorizationAction::Allow => meaning::Action::Allow,
                AuthorizationAction::Deny => meaning::Action::Deny,
                AuthorizationAction::Audit => meaning::Action::Audit,
                AuthorizationAction::External => meaning::Action::External,
            },
            ports: None,
            rules: self.spec.rules.iter().map(rule).collect(),
            tokens: self.spec.tokens.iter().map(TokenIssuerSpec::issuer).collect(),
            external: self.authorizer(),
        }
    }
}

impl AuthorizationPolicy {
    /// The authorizer of an external policy.
    fn authorizer(&self) -> Option<std::sync::Arc<ExternalAuthorizer>> {
        if self.spec.action != AuthorizationAction::External {
            return None;
        }
        let external = self.spec.external.as_ref();
        let meant = external.and_then(|external| external.authorizer(&self.metadata.namespace));
        // If no authorizer can be reached with these settings, no request is permitted.
        Some(meant.unwrap_or_else(ExternalAuthorizer::none).into())
    }
}

/// Checks that a text is a set of keys that verify tokens. Returns why some of its keys are not used: those with which
/// tokens can be signed.
///
/// # Errors
/// Why the text is not such a set.
pub fn check_key_set(text: &str) -> Result<Vec<String>, String> {
    let set = jwks::parse(text).map_err(|error| error.to_string())?;
    Ok(set.secrets.iter().map(ToString::to_string).collect())
}

impl TokenIssuerSpec {
    /// The issuer, as proxies use it. Keys that cannot be parsed verify nothing.
    fn issuer(&self) -> TokenIssuer {
        TokenIssuer {
            issuer: self.issuer.as_str().into(),
            audiences: texts(&self.audiences),
            keys: jwks::parse(&self.jwks).unwrap_or_default().keys,
            header: self.header_name().to_ascii_lowercase().into(),
            clock_skew: self.clock_skew.map_or(CLOCK_SKEW, |skew| skew.0),
            claim_headers: self.claim_headers.iter().map(ClaimHeaderSpec::header).collect(),
        }
    }

    pub(crate) fn header_name(&self) -> &str {
        self.header.as_deref().unwrap_or("authorization")
    }
}

impl ClaimHeaderSpec {
    fn header(&self) -> ClaimHeader {
        let header = self.name.to_ascii_lowercase().into();
        ClaimHeader { header, claim: self.claim.as_str().into() }
    }
}

impl ClaimSpec {
    fn claim(&self) -> ClaimMatch {
        ClaimMatch { name: self.name.as_str().into(), values: texts(&self.values) }
    }
}

impl ClientSpec {
    /// Whether the condition is on the client's identity.
    pub(crate) fn has_identity(&self) -> bool {
        !self.identities.is_empty()
            || !self.trust_domains.is_empty()
            || !self.namespaces.is_empty()
            || !self.service_accounts.is_empty()
            || self.certificate.is_some()
    }

    fn client(&self, namespace: &str, mesh: &TrustDomain) -> meaning::ClientMatch {
        let account = |text: &String| match text.split_once('/') {
            Some((namespace, name)) => (namespace.into(), name.into()),
            None => (namespace.into(), text.as_str().into()),
        };
        let block = |block: &IpBlockSpec| {
            let except = block.except.iter().filter_map(|cidr| cidr.parse().ok()).collect();
            Some(meaning::IpBlock { cidr: block.cidr.parse().ok()?, except })
        };
        let domains = self.trust_domains.iter().filter_map(|name| TrustDomain::new(name).ok());
        let mut trust_domains: Vec<TrustDomain> = domains.collect();
        if trust_domains.is_empty()
            && (!self.namespaces.is_empty() || !self.service_accounts.is_empty())
        {
            trust_domains.push(mesh.clone());
        }
        meaning::ClientMatch {
            identities: self.identities.iter().filter_map(SegmentSpec::segment).collect(),
            trust_domains,
            namespaces: texts(&self.namespaces),
            service_accounts: self.service_accounts.iter().map(account).collect(),
            blocks: self.ip_blocks.iter().filter_map(block).collect(),
            unauthenticated: self.unauthenticated,
            certificate: self.certificate.map(CertificateSpec::condition).unwrap_or_default(),
        }
    }
}

impl CertificateSpec {
    /// The limits with their names.
    pub(crate) fn limits(self) -> [(&'static str, Option<Duration>); 4] {
        let Self { max_age, min_age, min_left, max_left } = self;
        [("maxAge", max_age), ("minAge", min_age), ("minLeft", min_left), ("maxLeft", max_left)]
    }

    fn condition(self) -> meaning::CertificateMatch {
        let [max_age, min_age, min_left, max_left] =
            self.limits().map(|(_, limit)| limit.map(|limit| limit.0));
        meaning::CertificateMatch { max_age, min_age, min_left, max_left }
    }
}

impl SegmentSpec {
    pub(crate) fn segment(&self) -> Option<meaning::SegmentMatch> {
        match (&self.exact, &self.prefix) {
            (Some(exact), None) => Some(meaning::SegmentMatch::Exact(exact.as_str().into())),
            (None, Some(prefix)) => Some(meaning::SegmentMatch::prefix(prefix)),
            _ => None,
        }
    }
}

impl RequestSpec {
    fn request(&self) -> meaning::RequestMatch {
        let path = |path: &SegmentSpec| path.segment().map(meaning::PathPermission::Segment);
        let header = |header: &HeaderSpec| meaning::HeaderMatch {
            name: header.name.to_ascii_lowercase().into(),
            values: texts(&header.values),
        };
        let calls = self.grpc.iter().filter_map(GrpcSpec::path);
        meaning::RequestMatch {
            ports: self.ports.clone(),
            methods: texts(&self.methods),
            hosts: texts(&self.hosts),
            paths: self.paths.iter().filter_map(path).chain(calls).collect(),
            headers: self.headers.iter().map(header).collect(),
            server_names: texts(&self.server_names),
        }
    }
}

impl GrpcSpec {
    /// The path of the call: `/service/method`.
    fn path(&self) -> Option<meaning::PathPermission> {
        let segment = match (&self.service, &self.method) {
            (None, None) => return None,
            (None, Some(method)) => {
                return Some(meaning::PathPermission::GrpcMethod(method.as_str().into()));
            }
            (Some(service), None) => meaning::SegmentMatch::prefix(&format!("/{service}")),
            (Some(service), Some(method)) => {
                meaning::SegmentMatch::Exact(format!("/{service}/{method}").into())
            }
        };
        Some(meaning::PathPermission::Segment(segment))
    }
}

fn texts(list: &[String]) -> Vec<std::sync::Arc<str>> {
    list.iter().map(|text| text.as_str().into()).collect()
}
