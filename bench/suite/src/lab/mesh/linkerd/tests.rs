//! Calls the stand-in with the clients of linkerd2-proxy-api, as a proxy does.

use linkerd2_proxy_api::destination::destination_client::DestinationClient;
use linkerd2_proxy_api::identity::identity_client::IdentityClient;
use linkerd2_proxy_api::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use linkerd2_proxy_api::outbound::TrafficSpec;
use linkerd2_proxy_api::outbound::outbound_policies_client::OutboundPoliciesClient;
use tonic::transport::{Channel, Endpoint};

use super::*;

/// A running stand-in for a lab with three workloads, the traffic of one of which is opaque, and a channel to it.
async fn served(protocol: Protocol) -> (RunningControl, Channel) {
    let workloads = vec![
        ("client".to_owned(), [10, 89, 0, 2].into()),
        ("s0".to_owned(), [10, 89, 0, 3].into()),
        ("db".to_owned(), [10, 89, 0, 4].into()),
    ];
    let opaque = vec!["10.89.0.4:8080".parse().unwrap()];
    let hop = Hop { protocol, workloads, opaque, ..Hop::default() };
    let control = Control::new(&hop, Arc::new(Authority::new().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let running = control.serve(listener).unwrap();
    let endpoint = Endpoint::try_from(format!("http://{address}")).unwrap();
    (running, endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn a_request_for_a_certificate_is_signed() {
    let (_running, channel) = served(Protocol::Http1).await;
    let directory = tempfile::tempdir().unwrap();
    // Only root may change the owner of a file.
    if nix::unistd::geteuid().is_root() {
        Authority::write_request(directory.path(), &identity("s0")).unwrap();
        let request = CertifyRequest {
            identity: identity("s0"),
            token: b"bench".to_vec(),
            certificate_signing_request: std::fs::read(directory.path().join("csr.der")).unwrap(),
        };
        let answer = IdentityClient::new(channel.clone()).certify(request).await.unwrap();
        let answer = answer.into_inner();
        let name = identity("s0");
        let has = answer.leaf_certificate.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(has, "the certificate names the workload");
        assert!(answer.valid_until.is_some());
    }
    let wrong = CertifyRequest { identity: identity("s0"), ..CertifyRequest::default() };
    let refused = IdentityClient::new(channel).certify(wrong).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn an_address_has_the_identity_of_its_workload_and_takes_http2() {
    let (_running, channel) = served(Protocol::Http1).await;
    let ask = async |channel: &Channel, path: &str| {
        let question = GetDestination { path: path.to_owned(), ..GetDestination::default() };
        let answer = DestinationClient::new(channel.clone()).get_profile(question).await.unwrap();
        answer.into_inner().message().await.unwrap().unwrap()
    };
    let endpoint = ask(&channel, "10.89.0.3:8080").await.endpoint.unwrap();
    let tls = endpoint.tls_identity.unwrap();
    assert_eq!(tls.server_name.unwrap().name, identity("s0"));
    let hint = endpoint.protocol_hint.unwrap().protocol;
    assert_eq!(hint, Some(protocol_hint::Protocol::H2(protocol_hint::H2 {})));
    // A service can be opaque by its address; if the protocol is TCP, all services are.
    let hint = ask(&channel, "10.89.0.4:8080").await.endpoint.unwrap().protocol_hint.unwrap();
    assert_eq!(hint.protocol, Some(protocol_hint::Protocol::Opaque(protocol_hint::Opaque {})));
    assert_eq!(ask(&channel, "192.0.2.1:80").await.endpoint, None, "no workload is there");
    let (_running, channel) = served(Protocol::Tcp).await;
    assert!(ask(&channel, "10.89.0.3:8080").await.opaque_protocol);
}

/// Regression: proxies refused all connections of `tcp-64k`. They did not accept mTLS on an opaque port, so no
/// connection seemed to come from a client of the mesh.
#[tokio::test]
async fn clients_of_the_mesh_may_and_there_is_no_policy_for_them() {
    for (protocol, routes) in [(Protocol::Grpc, Some(1)), (Protocol::Tcp, None)] {
        let (_running, channel) = served(protocol).await;
        let port = PortSpec { workload: "s0".into(), port: 8080 };
        let client = &mut InboundServerPoliciesClient::new(channel.clone());
        let answer = client.watch_port(port).await.unwrap().into_inner().message().await;
        let server = answer.unwrap().unwrap();
        let kind = server.protocol.unwrap().kind.unwrap();
        match &kind {
            proxy_protocol::Kind::Http2(http) => assert_eq!(Some(http.routes.len()), routes),
            other => assert!(matches!(other, proxy_protocol::Kind::Tls(_)) && routes.is_none()),
        }
        let [authorization] = &server.authorizations[..] else { panic!("one policy") };
        let permit = authorization.authentication.as_ref().unwrap().permit.as_ref();
        assert!(matches!(permit, Some(authn::Permit::MeshTls(_))), "clients with an identity");
        let spec = TrafficSpec { source_workload: "client".into(), target: None };
        let none = OutboundPoliciesClient::new(channel).watch(spec).await.unwrap_err();
        assert_eq!(none.code(), tonic::Code::NotFound, "a proxy goes by the profile then: {none}");
    }
}
