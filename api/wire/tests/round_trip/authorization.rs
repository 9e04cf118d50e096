//! Encodes and decodes authorization policies, including those that a proxy cannot understand.

use std::time::Duration;

use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, CertificateMatch, Cidr, ClientMatch,
    DefaultAuthorization, HeaderMatch, IpBlock, PathPermission, PathReading, PermissionRule,
    RequestMatch, SegmentMatch,
};
use leno_types::authorizer::{AuthorizerBody, AuthorizerProtocol, ExternalAuthorizer};
use leno_types::mesh::{ServerPolicy, Topology};
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenAlgorithm, TokenIssuer, TokenKey};
use leno_types::traffic::PolicySource;
use leno_types::{Egress, InstanceName, MtlsMode, Removal, ServiceName, TrustDomain};
use leno_wire::{AUTHORIZATION_LEVEL, decode, encode, proto};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;

use super::ip;

fn text() -> impl Strategy<Value = std::sync::Arc<str>> {
    "[a-z/]{0,8}".prop_map(Into::into)
}

fn segment() -> impl Strategy<Value = SegmentMatch> {
    prop_oneof![text().prop_map(SegmentMatch::Exact), text().prop_map(SegmentMatch::Prefix)]
}

fn cidr() -> impl Strategy<Value = Cidr> {
    (ip(), 0_u8..=32).prop_map(|(ip, length)| Cidr::new(ip, length).unwrap())
}

fn certificate() -> impl Strategy<Value = CertificateMatch> {
    let time = || option::of((0..100_000_u64).prop_map(Duration::from_secs));
    (time(), time(), time(), time()).prop_map(|(max_age, min_age, min_left, max_left)| {
        CertificateMatch { max_age, min_age, min_left, max_left }
    })
}

prop_compose! {
    fn client()(
        identities in vec(segment(), 0..3),
        trust_domains in vec("[a-z]{1,8}".prop_map(|name| TrustDomain::new(&name).unwrap()), 0..2),
        namespaces in vec(text(), 0..2),
        service_accounts in vec((text(), text()), 0..2),
        blocks in vec((cidr(), vec(cidr(), 0..2)), 0..2),
        unauthenticated in any::<bool>(),
        certificate in certificate(),
    ) -> ClientMatch {
        let blocks = blocks.into_iter().map(|(cidr, except)| IpBlock { cidr, except }).collect();
        ClientMatch {
            identities, trust_domains, namespaces, service_accounts, blocks, unauthenticated, certificate,
        }
    }
}

prop_compose! {
    fn request()(
        ports in vec(1_u16.., 0..2),
        methods in vec(text(), 0..2),
        hosts in vec(text(), 0..2),
        paths in vec(prop_oneof![
            segment().prop_map(PathPermission::Segment), text().prop_map(PathPermission::GrpcMethod)], 0..3),
        headers in vec((text(), vec(text(), 0..2)), 0..2),
        server_names in vec(text(), 0..2),
    ) -> RequestMatch {
        let header = |(name, values)| HeaderMatch { name, values };
        let headers = headers.into_iter().map(header).collect();
        RequestMatch { ports, methods, hosts, paths, headers, server_names }
    }
}

fn claim() -> impl Strategy<Value = ClaimMatch> {
    (text(), vec(text(), 0..2)).prop_map(|(name, values)| ClaimMatch { name, values })
}

prop_compose! {
    fn issuer()(
        (issuer, header) in (text(), text()),
        audiences in vec(text(), 0..2),
        keys in vec((option::of(text()), 0..9_usize, vec(any::<u8>(), 0..4)), 0..3),
        skew in 0..100_000_u64,
        headers in vec((text(), text()), 0..2),
    ) -> TokenIssuer {
        let key = |(id, algorithm, public): (_, usize, Vec<u8>)| TokenKey {
            id,
            algorithm: TokenAlgorithm::ALL[algorithm],
            public: public.into(),
        };
        let keys = keys.into_iter().map(key).collect();
        let headers = headers.into_iter().map(|(header, claim)| ClaimHeader { header, claim });
        let (clock_skew, claim_headers) = (Duration::from_millis(skew), headers.collect());
        TokenIssuer { issuer, audiences, keys, header, clock_skew, claim_headers }
    }
}

prop_compose! {
    fn authorizer()(
        (namespace, name) in ("[a-z]{1,8}", "[a-z]{1,8}"),
        (port, timeout) in (1_u16.., 0..100_000_u64),
        (is_grpc, permits_on_failure) in (any::<bool>(), any::<bool>()),
        path_prefix in text(),
        sent in option::of(vec(text(), 0..3)),
        (on_request, on_response) in (vec(text(), 0..3), vec(text(), 0..3)),
        body in option::of((0..65_537_u32, any::<bool>(), any::<bool>())),
    ) -> ExternalAuthorizer {
        ExternalAuthorizer {
            service: ServiceName::new(&namespace, &name).unwrap(),
            port,
            protocol: if is_grpc { AuthorizerProtocol::Grpc } else { AuthorizerProtocol::Http },
            timeout: Duration::from_millis(timeout),
            permits_on_failure,
            path_prefix,
            sent: sent.map(Into::into),
            on_request,
            on_response,
            body: body.map(|(max_bytes, partial, as_bytes)| AuthorizerBody {
                max_bytes, partial, as_bytes,
            }),
        }
    }
}

prop_compose! {
    fn policy()(
        (created, namespace, name) in (any::<u64>(), text(), text()),
        action in prop::sample::select(vec![Action::Allow, Action::Deny, Action::Audit, Action::External]),
        ports in option::of(vec(1_u16.., 0..3)),
        rules in vec((vec(client(), 0..2), vec(request(), 0..2), vec(claim(), 0..2)), 0..3),
        tokens in vec(issuer(), 0..2),
        external in authorizer(),
    ) -> AuthorizationPolicy {
        let external = Some(external);
        AuthorizationPolicy {
            source: PolicySource { created, namespace, name },
            action,
            ports: ports.map(Into::into),
            rules: rules.into_iter().map(|(from, to, claims)| PermissionRule { from, to, claims }).collect(),
            tokens: tokens.into(),
            external: external.filter(|_| action == Action::External).map(Into::into),
        }
    }
}

pub(crate) fn authorization() -> impl Strategy<Value = Authorization> {
    let default = prop::sample::select(DefaultAuthorization::ALL.to_vec());
    let paths = any::<[bool; 4]>().prop_map(
        |[verbatim, merges_slashes, resolves_dots, decodes_slashes]| PathReading {
            verbatim,
            merges_slashes,
            resolves_dots,
            decodes_slashes,
        },
    );
    (vec(policy(), 0..3), default, paths).prop_map(|(policies, default, paths)| Authorization {
        policies: policies.into(),
        default,
        paths,
        ..Authorization::default()
    })
}

/// The policy that a proxy decodes after `change` has altered its message.
fn read(change: impl FnOnce(&mut proto::Authorization)) -> Authorization {
    let mut message = proto::Authorization {
        level: AUTHORIZATION_LEVEL,
        trust_domain: "cluster.local".to_owned(),
        policies: vec![proto::AuthorizationPolicy {
            action: proto::AuthorizationAction::Allow.into(),
            rules: vec![proto::AuthorizationRule {
                to: vec![proto::RequestMatch::default()],
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    change(&mut message);
    let policy = proto::ServerPolicy {
        workload: InstanceName::new("shop", "web-0").unwrap().to_string(),
        mtls: proto::MtlsMode::Strict.into(),
        authorization: Some(message),
        ..Default::default()
    };
    let any = proto::Any {
        type_url: leno_wire::SERVER_POLICY_TYPE.to_owned(),
        value: policy.encode_to_vec().into(),
    };
    let policy = decode::server_policy(&any).unwrap();
    assert_eq!(encode::server_policy(&policy).type_url, any.type_url);
    Authorization::clone(&policy.authorization)
}

#[test]
fn policies_that_a_proxy_cannot_read_deny_every_client() {
    type Change = fn(&mut proto::Authorization);
    let changes: [Change; 9] = [
        // More bytes of a body than a proxy holds.
        |message| {
            let body = Some(proto::AuthorizerBody { max_bytes: 65_537, ..Default::default() });
            let external = proto::ExternalAuthorizer {
                namespace: "shop".to_owned(),
                service: "opa".to_owned(),
                port: 1,
                protocol: 1,
                body,
                ..Default::default()
            };
            message.policies[0].action = 4;
            message.policies[0].external = Some(external);
        },
        // The external action, but no authorizer.
        |message| message.policies[0].action = 4,
        |message| message.level = AUTHORIZATION_LEVEL + 1,
        |message| message.default = 99,
        |message| message.policies[0].action = 99,
        |message| message.trust_domain = "NOT A DOMAIN".to_owned(),
        // A kind of condition that this version does not know.
        |message| message.policies[0].rules[0].to[0].paths = vec![proto::PathMatch::default()],
        |message| message.policies = vec![message.policies[0].clone(); 1_025],
        |message| {
            let keys =
                vec![proto::TokenKey { algorithm: "HS256".to_owned(), ..Default::default() }];
            message.policies[0].tokens = vec![proto::TokenIssuer { keys, ..Default::default() }];
        },
    ];
    assert_eq!(read(|_| ()).unusable, None);
    for change in changes {
        let read = read(change);
        assert!(read.unusable.is_some() && read.policies.is_empty(), "{read:?}");
    }
}

/// An older proxy must not apply a policy without the parts that it does not know. Before level 2 it would ignore
/// tokens. Before level 3 it does not know the action for external authorizers. Before level 4 it would forward headers
/// that clients send in place of the headers of claims, and query the authorizer without bodies. Before level 5 it
/// would accept certificates of any age.
#[test]
fn a_policy_with_a_newer_part_needs_a_higher_level() {
    let key = TokenKey { id: None, algorithm: TokenAlgorithm::Es256, public: [4].into() };
    let issuer = TokenIssuer {
        issuer: "https://id.example".into(),
        audiences: vec!["shop".into()],
        keys: vec![key],
        header: "authorization".into(),
        clock_skew: Duration::from_secs(30),
        claim_headers: Vec::new(),
    };
    let claim_headers = vec![ClaimHeader { header: "x-user".into(), claim: "sub".into() }];
    let with_headers = TokenIssuer { claim_headers, ..issuer.clone() };
    let external = ExternalAuthorizer::none();
    let body = Some(AuthorizerBody { max_bytes: 1, partial: false, as_bytes: false });
    let with_body = ExternalAuthorizer { body, ..external.clone() };
    let max_age = Some(Duration::from_secs(3600));
    let certificate = CertificateMatch { max_age, ..CertificateMatch::default() };
    let client = ClientMatch { certificate, ..ClientMatch::default() };
    let of_time = PermissionRule { from: vec![client], ..PermissionRule::default() };
    for (tokens, external, rule, level) in [
        (vec![], None, PermissionRule::default(), 1),
        (vec![issuer.clone()], None, PermissionRule::default(), 2),
        (vec![issuer], Some(external), PermissionRule::default(), 3),
        (vec![with_headers], None, PermissionRule::default(), 4),
        (vec![], Some(with_body), PermissionRule::default(), 4),
        (vec![], None, of_time, AUTHORIZATION_LEVEL),
    ] {
        let policy = AuthorizationPolicy {
            source: PolicySource { created: 0, namespace: "shop".into(), name: "p".into() },
            action: if external.is_some() { Action::External } else { Action::Allow },
            ports: None,
            rules: [rule].into(),
            tokens: tokens.into(),
            external: external.map(Into::into),
        };
        let authorization = Authorization { policies: [policy].into(), ..Authorization::default() };
        let server = ServerPolicy {
            workload: InstanceName::new("shop", "web-0").unwrap(),
            mtls: MtlsMode::Strict,
            ports: Vec::new(),
            limits: [].into(),
            egress: Egress::Allow,
            place: Topology::default(),
            ending: false,
            removal: Removal::None,
            authorization: authorization.into(),
        };
        let encoded = encode::server_policy(&server);
        let message = proto::ServerPolicy::decode(&*encoded.value).unwrap();
        assert_eq!(message.authorization.unwrap().level, level);
    }
}
