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

/// Which clients may connect to the workloads to which the policy is attached, and what they may request,
/// `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationPolicy {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The targets, the action and the rules.
    pub spec: AuthorizationPolicySpec,
    /// What controllers report about it.
    pub status: Option<PolicyStatus>,
}

/// The workloads to which the policy applies, what it does, and the clients and requests that match. The proxies of
/// these workloads enforce it. It requires `targetRefs` or `selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationPolicySpec {
    /// The objects to which the policy applies, from 1 to 16: Workloads of the policy's namespace, the workloads
    /// behind Services or one of their ports, or the Namespace itself; in the namespace of the control plane also the
    /// Mesh, whose name is `mesh`. Must be left out if there is a `selector`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<PolicyTarget>,
    /// Selects the workloads of the policy's namespace to which the policy applies by their labels. Must be left out
    /// if there are `targetRefs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// What the policy does with connections and requests that match a rule. `Allow`, the default: permits them, and
    /// denies all others to the same port that no Allow policy permits. `Deny`: denies them, whatever other policies
    /// permit. `Audit`: counts and logs them. `External`: permits them only if the service `external` permits them as
    /// well, after all other policies have.
    pub action: AuthorizationAction,
    /// The rules, at most 64. A connection or request matches the policy if it matches one of them; `{}` matches
    /// everything. An Allow policy without rules permits nothing; other policies need at least one.
    pub rules: Vec<AuthorizationRule>,
    /// Issuers of tokens of users, at most 8. If there are any, only requests with a valid JSON Web Token of one of
    /// them match. By default a request needs no token. Not with the actions Deny and External.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenIssuerSpec>,
    /// The service that decides on requests that match. Required for the action External, and rejected for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
}

/// An issuer of JSON Web Tokens. Exactly one of `jwks`, `jwksUrl`, `jwksConfigMap` and `jwksSecret` is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TokenIssuerSpec {
    /// The issuer of the tokens, which their claim `iss` must equal. Required.
    pub issuer: String,
    /// The audiences of which a token's claim `aud` must name one, from 1 to 64. They keep out tokens that were
    /// issued for another service.
    pub audiences: Vec<String>,
    /// The public keys of the issuer, as the JSON of a JWK set (RFC 7517): at most 64 keys and 64 KiB; RSA from 2048
    /// bits, EC with P-256 or P-384, or Ed25519. A set with a private or shared key is rejected.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jwks: String,
    /// The http or https URL of the issuer's JWK set, instead of `jwks`. The control plane fetches it every 30
    /// seconds. The annotation `leno.dev/keys-from` of the control plane's Namespace must name its origin. Until the
    /// set has been fetched, no token of the issuer is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// The name of a ConfigMap of the policy's namespace that has the JWK set under the key `jwks.json`, instead of
    /// `jwks`. Changes take effect at once. While it is missing or invalid, no token of the issuer is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_config_map: Option<String>,
    /// The name of a Secret of the policy's namespace that has the JWK set under the key `jwks.json`, instead of
    /// `jwks`. In a cluster, a Role must permit the control plane to list and watch it. Changes take effect at once.
    /// While it is missing or invalid, no token of the issuer is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_secret: Option<String>,
    /// The name of the request header that carries the token. By default the token follows `Bearer` in Authorization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// How far the clocks of the issuer and of the proxies may differ when the times of a token are checked. The
    /// default is 30s; at most 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew: Option<Duration>,
    /// The claims of valid tokens that the application gets as request headers, at most 64. The proxy removes headers
    /// of these names that clients send.
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

/// A request header with the value of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimHeaderSpec {
    /// The name of the header. Headers of connections, `host` and names that begin with `leno-` are rejected.
    pub name: String,
    /// The name of the claim. Dots separate the names of nested claims, such as `realm_access.roles`.
    pub claim: String,
}

/// A condition on a claim of the token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// The name of the claim. Dots separate the names of nested claims, such as `realm_access.roles`.
    pub name: String,
    /// The values of which the claim, or an element of it if it is a list, must equal one; at most 64. By default the
    /// token need only have the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Selects workloads by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSelector {
    /// The labels that a workload must have, with these values. `{}` selects all workloads of the namespace.
    pub match_labels: BTreeMap<String, String>,
}

/// What a policy does with connections and requests that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AuthorizationAction {
    /// Permits them, and denies all others to the same port that no Allow policy permits.
    #[default]
    Allow,
    /// Denies them, whatever other policies permit.
    Deny,
    /// Counts and logs them.
    Audit,
    /// Permits them only if the service `external` permits them as well, after all other policies have.
    External,
}

/// A rule, which matches if its `from`, its `to` and its `claims` all match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationRule {
    /// The clients, at most 64 entries, of which one must match. By default all clients match, with an identity or
    /// without. An empty list is rejected.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub from: Vec<ClientSpec>,
    /// The connections and requests, at most 64 entries, of which one must match. By default all match. An empty list
    /// is rejected.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub to: Vec<RequestSpec>,
    /// Conditions on claims of the token, at most 64. All of them must match. They require `tokens`.
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

/// A condition on the client. Every field that is set must match, and for a field with a list one of its values. At
/// least one field is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClientSpec {
    /// The SPIFFE IDs that match, exact or by prefix; at most 64. By default the client needs no identity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<SegmentSpec>,
    /// The trust domains whose identities match, at most 64. The default is the mesh's own if there are `namespaces`
    /// or `serviceAccounts`, and otherwise every trust domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trust_domains: Vec<String>,
    /// The namespaces whose identities match, at most 64. Only in the mesh's own trust domain unless `trustDomains`
    /// is set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The service accounts whose identities match, as `NAMESPACE/NAME`, or `NAME` for the policy's own namespace; at
    /// most 64. Only in the mesh's own trust domain unless `trustDomains` is set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
    /// The blocks of client addresses that match, at most 64. They match clients with an identity and without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_blocks: Vec<IpBlockSpec>,
    /// Whether only clients without an identity match. The default is false. Not together with conditions on an
    /// identity.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unauthenticated: bool,
    /// Conditions on the validity of the certificate that proves the client's identity. All fields that are set must
    /// match, and at least one is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateSpec>,
}

/// Conditions on the validity of a certificate. Every field that is set must match. Each is a number of whole
/// seconds, at least one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSpec {
    /// The certificate became valid at most this long ago. Must be more than 5m, because certificates become valid 5m
    /// before they are issued; in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Duration>,
    /// The certificate became valid at least this long ago, in whole seconds. Must not be longer than `maxAge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_age: Option<Duration>,
    /// The certificate stays valid for at least this long from now, in whole seconds. Must not be longer than
    /// `maxLeft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_left: Option<Duration>,
    /// The certificate stays valid for at most this long from now, in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_left: Option<Duration>,
}

/// A text that consists of segments between slashes: exactly one of `exact` and `prefix`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SegmentSpec {
    /// The whole text, case-sensitive. Exactly one of `exact` and `prefix` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// The beginning of the text, in whole segments and case-sensitive: `/admin` matches `/admin` and `/admin/x`, but
    /// not `/administrator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// A block of IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpBlockSpec {
    /// The addresses of the block, in CIDR notation such as `10.0.0.0/8`.
    pub cidr: String,
    /// Parts of the block that do not match, in CIDR notation; at most 64. Each must be within `cidr`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// A condition on a connection or a request. Every field that is set must match, and for a field with a list one of
/// its values. At least one field is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RequestSpec {
    /// The ports of the workload that match, from 1 to 65535; at most 64. By default all ports match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// The HTTP methods that match, such as GET; at most 64. Allow policies compare them case-sensitively, others do
    /// not. By default all methods match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// The hosts that match, in lower case and without a port; at most 64. `*.example.com` matches all hosts below
    /// `example.com`. By default all hosts match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The paths that match, without a query and without escapes; at most 64. Where a rule depends on the path,
    /// requests with an ambiguous path, such as `/a/../b`, are denied. Not together with `grpc`. By default all paths
    /// match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<SegmentSpec>,
    /// Conditions on request headers, at most 64. All of them must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderSpec>,
    /// The server names (SNI) of the application's own TLS connections that match, in the form of `hosts`; at most
    /// 64. Not together with conditions on requests, because the proxy cannot read requests in such a connection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server_names: Vec<String>,
    /// The gRPC calls that match, at most 64. Not together with `paths`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grpc: Vec<GrpcSpec>,
}

/// A condition on a request header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderSpec {
    /// The name of the header, case-insensitive. Use `hosts` for the host, and `from` for identities.
    pub name: String,
    /// The values to which the header is compared, case-sensitively; at most 64. In an Allow policy every line of the
    /// header must have one of them, in other policies any line or any element of a list with commas. By default the
    /// request need only have the header.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A gRPC call: its service, its method, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcSpec {
    /// The gRPC service with its package, such as `shop.v1.Cart`. By default every service matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The method. By default every method matches.
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
