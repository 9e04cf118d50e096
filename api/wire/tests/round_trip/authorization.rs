//! Authorization policies over the wire, and those that a proxy cannot read.

use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, Cidr, ClientMatch, DefaultAuthorization,
    HeaderMatch, IpBlock, PathMatch, RequestMatch, Rule, SegmentMatch,
};
use leno_types::traffic::Source;
use leno_types::{InstanceName, TrustDomain};
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

prop_compose! {
    fn client()(
        identities in vec(segment(), 0..3),
        trust_domains in vec("[a-z]{1,8}".prop_map(|name| TrustDomain::new(&name).unwrap()), 0..2),
        namespaces in vec(text(), 0..2),
        service_accounts in vec((text(), text()), 0..2),
        blocks in vec((cidr(), vec(cidr(), 0..2)), 0..2),
        unauthenticated in any::<bool>(),
    ) -> ClientMatch {
        let blocks = blocks.into_iter().map(|(cidr, except)| IpBlock { cidr, except }).collect();
        ClientMatch {
            identities, trust_domains, namespaces, service_accounts, blocks, unauthenticated,
        }
    }
}

prop_compose! {
    fn request()(
        ports in vec(1_u16.., 0..2),
        methods in vec(text(), 0..2),
        hosts in vec(text(), 0..2),
        paths in vec(prop_oneof![
            segment().prop_map(PathMatch::Segment), text().prop_map(PathMatch::GrpcMethod)], 0..3),
        headers in vec((text(), vec(text(), 0..2)), 0..2),
        server_names in vec(text(), 0..2),
    ) -> RequestMatch {
        let header = |(name, values)| HeaderMatch { name, values };
        let headers = headers.into_iter().map(header).collect();
        RequestMatch { ports, methods, hosts, paths, headers, server_names }
    }
}

prop_compose! {
    fn policy()(
        (created, namespace, name) in (any::<u64>(), text(), text()),
        action in prop::sample::select(vec![Action::Allow, Action::Deny, Action::Audit]),
        ports in option::of(vec(1_u16.., 0..3)),
        rules in vec((vec(client(), 0..2), vec(request(), 0..2)), 0..3),
    ) -> AuthorizationPolicy {
        AuthorizationPolicy {
            source: Source { created, namespace, name },
            action,
            ports: ports.map(Into::into),
            rules: rules.into_iter().map(|(from, to)| Rule { from, to }).collect(),
        }
    }
}

pub(crate) fn authorization() -> impl Strategy<Value = Authorization> {
    let default = prop::sample::select(DefaultAuthorization::ALL.to_vec());
    (vec(policy(), 0..3), default).prop_map(|(policies, default)| Authorization {
        policies: policies.into(),
        default,
        ..Authorization::default()
    })
}

/// What a proxy reads of a policy that `change` has altered.
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
    let changes: [Change; 6] = [
        |message| message.level = AUTHORIZATION_LEVEL + 1,
        |message| message.default = 99,
        |message| message.policies[0].action = 99,
        |message| message.trust_domain = "NOT A DOMAIN".to_owned(),
        // A kind of condition that this version does not know.
        |message| message.policies[0].rules[0].to[0].paths = vec![proto::PathMatch::default()],
        |message| message.policies = vec![message.policies[0].clone(); 1_025],
    ];
    assert_eq!(read(|_| ()).unusable, None);
    for change in changes {
        let read = read(change);
        assert!(read.unusable.is_some() && read.policies.is_empty(), "{read:?}");
    }
}
