//! Tests which clients get a certificate.

use std::sync::Arc;
use std::time::Duration;

use leno_identity::Authority;
use leno_types::TrustDomain;
use tonic::Code;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Plane, client};

#[tokio::test]
async fn a_token_yields_a_certificate_of_its_identity() {
    let plane = Plane::start("").await;
    let token = plane.grant("shop/web-0", "web");
    let (answer, shown) = client::issue(plane.address, &token, None).await.unwrap();
    let (_, leaf) = X509Certificate::from_der(&shown.chain[0]).unwrap();
    let names = leaf.subject_alternative_name().unwrap().unwrap().value;
    let names = format!("{:?}", names.general_names);
    assert!(names.contains("spiffe://cluster.local/ns/shop/sa/web"), "{names}");
    assert_eq!(leaf.validity().not_after.timestamp(), answer.not_after_unix_s);
    let (_, root) = X509Certificate::from_der(&answer.roots[0]).unwrap();
    leaf.verify_signature(Some(root.public_key())).unwrap();
    assert_eq!(plane.metric("leno_control_certificates_issued_total"), 1);
}

#[tokio::test]
async fn a_wrong_token_or_request_yields_none() {
    let plane = Plane::start("").await;
    let token = plane.grant("shop/web-0", "web");
    plane.tokens.revoke(&"shop/web-0".parse().unwrap()).unwrap();
    for bad in ["", "nonsense", &"0".repeat(64), &token] {
        let refused = client::issue(plane.address, bad, None).await.err().unwrap();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }

    let token = plane.grant("shop/web-0", "web");
    let channel = client::connect(plane.address, None).await.unwrap();
    let mut identity = leno_wire::proto::identity_client::IdentityClient::new(channel);
    let request = leno_wire::proto::IssueCertificateRequest {
        csr: b"no request"[..].into(),
        token,
        pod: None,
    };
    let refused = identity.issue_certificate(request).await.err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(plane.metric("leno_control_certificates_refused_total"), 5);
}

#[tokio::test]
async fn a_certificate_renews_only_its_own_identity() {
    let plane = Plane::start("").await;
    let own = plane.grant("shop/web-0", "web");
    let other = plane.grant("shop/db-0", "db");
    let (_, shown) = client::issue(plane.address, &own, None).await.unwrap();
    client::issue(plane.address, &own, Some(&shown)).await.unwrap();
    let refused = client::issue(plane.address, &other, Some(&shown)).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

#[tokio::test]
async fn a_certificate_of_another_authority_does_not_connect() {
    let plane = Plane::start("").await;
    let other = Arc::new(Authority::ephemeral(&TrustDomain::default()).unwrap());
    let other = Plane::start_as(other, "", Duration::from_hours(1)).await;
    let foreign = other.certificate("shop/web-0").await;
    // In TLS 1.3 the client completes the handshake before the server has verified its certificate, so the error
    // may appear later.
    let refused = match client::connect(plane.address, Some(&foreign)).await {
        Err(_) => true,
        Ok(channel) => match client::Stream::open(channel, "shop/web-0").await {
            Err(_) => true,
            Ok(mut stream) => stream.next().await.is_err(),
        },
    };
    assert!(refused);
    assert_eq!(plane.metric("leno_control_handshake_failures_total"), 1);
    assert_eq!(plane.metric("leno_control_streams"), 0);
}
