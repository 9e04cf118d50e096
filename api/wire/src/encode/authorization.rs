//! Encodes authorization policies.

use std::net::IpAddr;
use std::sync::Arc;

use leno_types::TrustDomain;
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, CertificateMatch, Cidr, ClientMatch,
    DefaultAuthorization, HeaderMatch, IpBlock, PathPermission, PathReading, PermissionRule,
    RequestMatch, SegmentMatch,
};
use leno_types::authorizer::{AuthorizerProtocol, ExternalAuthorizer};
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenIssuer, TokenKey};

use super::{ips, traffic};
use crate::{
    AUTHORIZATION_LEVEL, LEVEL_WITHOUT_AUTHORIZERS, LEVEL_WITHOUT_BODIES,
    LEVEL_WITHOUT_CERTIFICATES, LEVEL_WITHOUT_TOKENS, proto,
};

pub(super) fn authorization(authorization: &Authorization) -> proto::Authorization {
    let Authorization { policies, default, paths, trust_domain, unusable } = authorization;
    let of_policies = policies.iter().map(level).max().unwrap_or(LEVEL_WITHOUT_TOKENS);
    proto::Authorization {
        // No proxy supports this level, so every proxy rejects unusable policies and denies its clients.
        level: match unusable {
            Some(_) => u32::MAX,
            // If the application does not decode paths, a proxy that decodes them would permit other paths than it
            // should.
            None if paths.verbatim && !policies.is_empty() => AUTHORIZATION_LEVEL,
            None => of_policies,
        },
        default: match default {
            DefaultAuthorization::All => proto::DefaultAuthorization::All,
            DefaultAuthorization::Meshed => proto::DefaultAuthorization::Meshed,
            DefaultAuthorization::SameNamespace => proto::DefaultAuthorization::SameNamespace,
            DefaultAuthorization::Deny => proto::DefaultAuthorization::Deny,
        }
        .into(),
        trust_domain: trust_domain.to_string(),
        policies: policies.iter().map(policy).collect(),
        paths: (!paths.is_strict()).then(|| reading(*paths)),
    }
}

fn reading(reading: PathReading) -> proto::PathReading {
    let PathReading { verbatim, merges_slashes, resolves_dots, decodes_slashes } = reading;
    proto::PathReading { verbatim, merges_slashes, resolves_dots, decodes_slashes }
}

/// The lowest level at which a proxy applies the policy correctly.
fn level(policy: &AuthorizationPolicy) -> u32 {
    let has_body = policy.external.as_ref().is_some_and(|external| external.body.is_some());
    let any = CertificateMatch::default();
    let mut clients = policy.rules.iter().flat_map(|rule| &rule.from);
    if clients.any(|client| client.certificate != any) {
        AUTHORIZATION_LEVEL
    } else if has_body || policy.tokens.iter().any(|issuer| !issuer.claim_headers.is_empty()) {
        LEVEL_WITHOUT_CERTIFICATES
    } else if policy.action == Action::External {
        LEVEL_WITHOUT_BODIES
    } else if !policy.tokens.is_empty() {
        LEVEL_WITHOUT_AUTHORIZERS
    } else {
        LEVEL_WITHOUT_TOKENS
    }
}

fn policy(policy: &AuthorizationPolicy) -> proto::AuthorizationPolicy {
    let ports = |ports: &Arc<[u16]>| proto::AuthorizationPorts { ports: numbers(ports) };
    proto::AuthorizationPolicy {
        source: Some(traffic::source(&policy.source)),
        action: match policy.action {
            Action::Allow => proto::AuthorizationAction::Allow,
            Action::Deny => proto::AuthorizationAction::Deny,
            Action::Audit => proto::AuthorizationAction::Audit,
            Action::External => proto::AuthorizationAction::External,
        }
        .into(),
        ports: policy.ports.as_ref().map(ports),
        rules: policy.rules.iter().map(rule).collect(),
        tokens: policy.tokens.iter().map(issuer).collect(),
        external: policy.external.as_deref().map(external),
    }
}

fn external(authorizer: &ExternalAuthorizer) -> proto::ExternalAuthorizer {
    proto::ExternalAuthorizer {
        namespace: authorizer.service.namespace.to_string(),
        service: authorizer.service.name.to_string(),
        port: authorizer.port.into(),
        protocol: match authorizer.protocol {
            AuthorizerProtocol::Grpc => proto::AuthorizerProtocol::Grpc,
            AuthorizerProtocol::Http => proto::AuthorizerProtocol::Http,
        }
        .into(),
        timeout_ms: authorizer.timeout.as_millis().try_into().unwrap_or(u64::MAX),
        permits_on_failure: authorizer.permits_on_failure,
        path_prefix: authorizer.path_prefix.to_string(),
        sent: authorizer
            .sent
            .as_ref()
            .map(|names| proto::AuthorizerHeaders { names: texts(names) }),
        on_request: texts(&authorizer.on_request),
        on_response: texts(&authorizer.on_response),
        body: authorizer.body.map(|body| proto::AuthorizerBody {
            max_bytes: body.max_bytes,
            partial: body.partial,
            as_bytes: body.as_bytes,
        }),
    }
}

fn issuer(issuer: &TokenIssuer) -> proto::TokenIssuer {
    let key = |key: &TokenKey| proto::TokenKey {
        id: key.id.as_ref().map(ToString::to_string),
        algorithm: key.algorithm.as_str().to_owned(),
        public: key.public.to_vec().into(),
    };
    proto::TokenIssuer {
        issuer: issuer.issuer.to_string(),
        audiences: texts(&issuer.audiences),
        keys: issuer.keys.iter().map(key).collect(),
        header: issuer.header.to_string(),
        clock_skew_ms: issuer.clock_skew.as_millis().try_into().unwrap_or(u64::MAX),
        claim_headers: issuer.claim_headers.iter().map(claim_header).collect(),
    }
}

fn claim_header(one: &ClaimHeader) -> proto::ClaimHeader {
    proto::ClaimHeader { header: one.header.to_string(), claim: one.claim.to_string() }
}

fn rule(rule: &PermissionRule) -> proto::AuthorizationRule {
    proto::AuthorizationRule {
        from: rule.from.iter().map(client).collect(),
        to: rule.to.iter().map(request).collect(),
        claims: rule.claims.iter().map(claim).collect(),
    }
}

fn claim(claim: &ClaimMatch) -> proto::ClaimMatch {
    proto::ClaimMatch { name: claim.name.to_string(), values: texts(&claim.values) }
}

fn client(client: &ClientMatch) -> proto::ClientMatch {
    let account = |(namespace, name): &(Arc<str>, Arc<str>)| proto::ServiceAccount {
        namespace: namespace.to_string(),
        name: name.to_string(),
    };
    let block = |block: &IpBlock| proto::IpBlock {
        cidr: Some(cidr(&block.cidr)),
        except: block.except.iter().map(cidr).collect(),
    };
    proto::ClientMatch {
        identities: client.identities.iter().map(segment).collect(),
        trust_domains: client.trust_domains.iter().map(TrustDomain::to_string).collect(),
        namespaces: texts(&client.namespaces),
        service_accounts: client.service_accounts.iter().map(account).collect(),
        blocks: client.blocks.iter().map(block).collect(),
        unauthenticated: client.unauthenticated,
        certificate: (client.certificate != CertificateMatch::default())
            .then(|| certificate(client.certificate)),
    }
}

fn certificate(certificate: CertificateMatch) -> proto::CertificateMatch {
    let CertificateMatch { max_age, min_age, min_left, max_left } = certificate;
    let [max_age_s, min_age_s, min_left_s, max_left_s] =
        [max_age, min_age, min_left, max_left].map(|time| time.map(|time| time.as_secs()));
    proto::CertificateMatch { max_age_s, min_age_s, min_left_s, max_left_s }
}

fn cidr(cidr: &Cidr) -> proto::Cidr {
    let address: [IpAddr; 1] = [cidr.address()];
    let address = ips(&address).pop().unwrap_or_default();
    proto::Cidr { address, length: cidr.length().into() }
}

fn segment(segment: &SegmentMatch) -> proto::SegmentMatch {
    use proto::segment_match::Text;
    let text = match segment {
        SegmentMatch::Exact(text) => Text::Exact(text.to_string()),
        SegmentMatch::Prefix(text) => Text::Prefix(text.to_string()),
    };
    proto::SegmentMatch { text: Some(text) }
}

fn request(request: &RequestMatch) -> proto::RequestMatch {
    use proto::path_match::Path;
    let path = |path: &PathPermission| proto::PathMatch {
        path: Some(match path {
            PathPermission::Segment(path) => Path::Segment(segment(path)),
            PathPermission::GrpcMethod(method) => Path::GrpcMethod(method.to_string()),
        }),
    };
    let header = |header: &HeaderMatch| proto::HeaderMatch {
        name: header.name.to_string(),
        values: texts(&header.values),
    };
    proto::RequestMatch {
        ports: numbers(&request.ports),
        methods: texts(&request.methods),
        hosts: texts(&request.hosts),
        paths: request.paths.iter().map(path).collect(),
        headers: request.headers.iter().map(header).collect(),
        server_names: texts(&request.server_names),
    }
}

fn numbers(ports: &[u16]) -> Vec<u32> {
    ports.iter().map(|port| u32::from(*port)).collect()
}

fn texts(list: &[Arc<str>]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}
