//! Decodes authorization policies. A part that cannot be read makes all policies unusable, so that the proxy denies
//! every client instead of applying only a part.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, CertificateMatch, Cidr, ClientMatch,
    DefaultAuthorization, HeaderMatch, IpBlock, MAX_POLICIES, PathPermission, PathReading,
    PermissionRule, RequestMatch, SegmentMatch,
};
use leno_types::authorizer::{
    AuthorizerBody, AuthorizerProtocol, ExternalAuthorizer, MAX_AUTHORIZER_BODY,
};
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenAlgorithm, TokenIssuer, TokenKey};
use leno_types::{ServiceName, TrustDomain};

use super::{DecodeError, bounded, ips, port, traffic};
use crate::{AUTHORIZATION_LEVEL, proto};

/// The largest number of entries of a list in a policy. Policy documents have fewer.
const MAX_ENTRIES: usize = 1_000;

pub(super) fn authorization(message: Option<proto::Authorization>) -> Authorization {
    // A control plane of an earlier version sends none.
    let Some(message) = message else { return Authorization::default() };
    read(message).unwrap_or_else(|error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Authorization::unusable(format!("{error}{cause}"))
    })
}

fn read(message: proto::Authorization) -> Result<Authorization, DecodeError> {
    if message.level > AUTHORIZATION_LEVEL {
        return Err(DecodeError::Later("the authorization policies"));
    }
    bounded("authorization policies", message.policies.len(), MAX_POLICIES)?;
    let default = match proto::DefaultAuthorization::try_from(message.default) {
        Ok(proto::DefaultAuthorization::All) => DefaultAuthorization::All,
        Ok(proto::DefaultAuthorization::Meshed) => DefaultAuthorization::Meshed,
        Ok(proto::DefaultAuthorization::SameNamespace) => DefaultAuthorization::SameNamespace,
        Ok(proto::DefaultAuthorization::Deny) => DefaultAuthorization::Deny,
        Err(_) => return Err(DecodeError::Later("the defaults of authorization")),
    };
    Ok(Authorization {
        policies: message.policies.into_iter().map(policy).collect::<Result<_, _>>()?,
        default,
        paths: message.paths.map(reading).unwrap_or_default(),
        trust_domain: TrustDomain::new(&message.trust_domain)?,
        unusable: None,
    })
}

fn reading(message: proto::PathReading) -> PathReading {
    let proto::PathReading { verbatim, merges_slashes, resolves_dots, decodes_slashes } = message;
    PathReading { verbatim, merges_slashes, resolves_dots, decodes_slashes }
}

fn policy(message: proto::AuthorizationPolicy) -> Result<AuthorizationPolicy, DecodeError> {
    let action = match proto::AuthorizationAction::try_from(message.action) {
        Ok(proto::AuthorizationAction::Allow) => Action::Allow,
        Ok(proto::AuthorizationAction::Deny) => Action::Deny,
        Ok(proto::AuthorizationAction::Audit) => Action::Audit,
        Ok(proto::AuthorizationAction::External) => Action::External,
        Ok(proto::AuthorizationAction::Unspecified) | Err(_) => {
            return Err(DecodeError::Later("the actions of policies"));
        }
    };
    let rules = all("rules", message.rules, |rule| {
        Ok(PermissionRule {
            from: all("clients", rule.from, client)?,
            to: all("requests", rule.to, request)?,
            claims: all("claims", rule.claims, claim)?,
        })
    })?;
    let external = message.external.map(external).transpose()?;
    if external.is_some() != (action == Action::External) {
        return Err(DecodeError::Missing("external"));
    }
    let ports = message.ports.map(|ports| all("ports", ports.ports, port)).transpose()?;
    Ok(AuthorizationPolicy {
        source: traffic::source(message.source),
        action,
        ports: ports.map(Into::into),
        rules: rules.into(),
        tokens: all("issuers", message.tokens, issuer)?.into(),
        external: external.map(Into::into),
    })
}

fn external(message: proto::ExternalAuthorizer) -> Result<ExternalAuthorizer, DecodeError> {
    let protocol = match proto::AuthorizerProtocol::try_from(message.protocol) {
        Ok(proto::AuthorizerProtocol::Grpc) => AuthorizerProtocol::Grpc,
        Ok(proto::AuthorizerProtocol::Http) => AuthorizerProtocol::Http,
        Ok(proto::AuthorizerProtocol::Unspecified) | Err(_) => {
            return Err(DecodeError::Later("the protocols of authorizers"));
        }
    };
    let sent = message.sent.map(|sent| texts("headers", sent.names)).transpose()?;
    Ok(ExternalAuthorizer {
        service: ServiceName::new(&message.namespace, &message.service)?,
        port: port(message.port)?,
        protocol,
        timeout: Duration::from_millis(message.timeout_ms),
        permits_on_failure: message.permits_on_failure,
        path_prefix: message.path_prefix.into(),
        sent: sent.map(Into::into),
        on_request: texts("headers", message.on_request)?,
        on_response: texts("headers", message.on_response)?,
        body: message.body.map(body).transpose()?,
    })
}

fn body(message: proto::AuthorizerBody) -> Result<AuthorizerBody, DecodeError> {
    let proto::AuthorizerBody { max_bytes, partial, as_bytes } = message;
    if max_bytes > MAX_AUTHORIZER_BODY {
        let number = max_bytes.into();
        return Err(DecodeError::Number { field: "bytes of a body", number });
    }
    Ok(AuthorizerBody { max_bytes, partial, as_bytes })
}

fn claim(message: proto::ClaimMatch) -> Result<ClaimMatch, DecodeError> {
    Ok(ClaimMatch { name: message.name.into(), values: texts("values", message.values)? })
}

fn issuer(message: proto::TokenIssuer) -> Result<TokenIssuer, DecodeError> {
    let key = |key: proto::TokenKey| {
        let algorithm = TokenAlgorithm::named(&key.algorithm);
        Ok(TokenKey {
            id: key.id.map(Into::into),
            algorithm: algorithm.ok_or(DecodeError::Later("the algorithms of tokens"))?,
            public: key.public.as_ref().into(),
        })
    };
    Ok(TokenIssuer {
        issuer: message.issuer.into(),
        audiences: texts("audiences", message.audiences)?,
        keys: all("keys", message.keys, key)?,
        header: message.header.into(),
        clock_skew: Duration::from_millis(message.clock_skew_ms),
        claim_headers: all("headers of claims", message.claim_headers, |one| {
            Ok(ClaimHeader { header: one.header.into(), claim: one.claim.into() })
        })?,
    })
}

fn client(message: proto::ClientMatch) -> Result<ClientMatch, DecodeError> {
    let domain = |name: String| TrustDomain::new(&name).map_err(DecodeError::Identity);
    let account =
        |account: proto::ServiceAccount| Ok((account.namespace.into(), account.name.into()));
    let block = |block: proto::IpBlock| {
        let except = all("blocks", block.except, cidr)?;
        Ok(IpBlock { cidr: cidr(block.cidr.ok_or(DecodeError::Missing("cidr"))?)?, except })
    };
    Ok(ClientMatch {
        identities: all("identities", message.identities, segment)?,
        trust_domains: all("trust domains", message.trust_domains, domain)?,
        namespaces: texts("namespaces", message.namespaces)?,
        service_accounts: all("service accounts", message.service_accounts, account)?,
        blocks: all("blocks", message.blocks, block)?,
        unauthenticated: message.unauthenticated,
        certificate: message.certificate.map(certificate).unwrap_or_default(),
    })
}

fn certificate(message: proto::CertificateMatch) -> CertificateMatch {
    let proto::CertificateMatch { max_age_s, min_age_s, min_left_s, max_left_s } = message;
    let [max_age, min_age, min_left, max_left] =
        [max_age_s, min_age_s, min_left_s, max_left_s].map(|time| time.map(Duration::from_secs));
    CertificateMatch { max_age, min_age, min_left, max_left }
}

fn cidr(message: proto::Cidr) -> Result<Cidr, DecodeError> {
    let address = ips(&[message.address])?.pop().ok_or(DecodeError::Missing("address"))?;
    let length = u8::try_from(message.length).ok().and_then(|length| Cidr::new(address, length));
    let number = message.length.into();
    length.ok_or(DecodeError::Number { field: "length of a prefix", number })
}

fn segment(message: proto::SegmentMatch) -> Result<SegmentMatch, DecodeError> {
    use proto::segment_match::Text;
    match message.text {
        Some(Text::Exact(text)) => Ok(SegmentMatch::Exact(text.into())),
        Some(Text::Prefix(text)) => Ok(SegmentMatch::Prefix(text.into())),
        None => Err(DecodeError::Later("the conditions of policies")),
    }
}

fn request(message: proto::RequestMatch) -> Result<RequestMatch, DecodeError> {
    use proto::path_match::Path;
    let path = |path: proto::PathMatch| match path.path {
        Some(Path::Segment(text)) => segment(text).map(PathPermission::Segment),
        Some(Path::GrpcMethod(method)) => Ok(PathPermission::GrpcMethod(method.into())),
        None => Err(DecodeError::Later("the conditions of policies")),
    };
    let header = |header: proto::HeaderMatch| {
        Ok(HeaderMatch { name: header.name.into(), values: texts("values", header.values)? })
    };
    Ok(RequestMatch {
        ports: all("ports", message.ports, port)?,
        methods: texts("methods", message.methods)?,
        hosts: texts("hosts", message.hosts)?,
        paths: all("paths", message.paths, path)?,
        headers: all("headers", message.headers, header)?,
        server_names: texts("server names", message.server_names)?,
    })
}

fn all<M, T>(
    field: &'static str,
    messages: Vec<M>,
    one: impl Fn(M) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    bounded(field, messages.len(), MAX_ENTRIES)?;
    messages.into_iter().map(one).collect()
}

fn texts(field: &'static str, messages: Vec<String>) -> Result<Vec<Arc<str>>, DecodeError> {
    all(field, messages, |text| Ok(text.into()))
}
