//! Tests backends of all kinds, and rules some of whose backends are invalid.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;
use leno_testkit::peer::{Backend, Server};
use leno_testkit::proxy::Proxy;
use leno_testkit::wait;

use super::causes::{field, lines};
use crate::fixture::{RoutesFixture, http_route, service};

/// How long any step may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A service in another namespace. References to it need a grant.
const THIRD: &str = "---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: third}
spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}
";

/// HTTPRouteServiceTypes: headless services and services with a virtual address, each with an EndpointSlice that
/// was not made by a selector.
#[test]
fn http_route_service_types() -> Result<()> {
    let rules = "
  - matches: [{path: {value: /headless}}]
    backendRefs: [{name: echo-v1, port: 80}]
  - matches: [{path: {value: /addressed}}]
    backendRefs: [{name: echo-v2, port: 80}]
";
    let bed = RoutesFixture::with_rules(rules)?;
    assert_eq!(bed.outcome("GET /headless")?, "echo-v1");
    assert_eq!(bed.outcome("GET /addressed")?, "echo-v2");
    Ok(())
}

/// HTTPRouteBackendProtocolWebSocket: after the upgrade, the bytes of both ends pass unchanged.
#[test]
fn http_route_backend_protocol_web_socket() -> Result<()> {
    let server = Server::start(Backend::default())?;
    let rules =
        "  - matches: [{path: {value: /upgrade}}]\n    backendRefs: [{name: ws, port: 80}]\n";
    let socket = service(("ws", "10.96.0.30"), server.address(), "kubernetes.io/ws");
    let bed = RoutesFixture::start(&(http_route("route", rules) + &socket))?;
    let mut stream = TcpStream::connect(bed.proxy.address())?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(
        b"GET /upgrade HTTP/1.1\r\nHost: echo\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    // A WebSocket text frame (RFC 6455), and bytes that are no frame.
    for said in [&b"\x81\x05hello"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        stream.write_all(said)?;
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard)?;
        assert_eq!(heard, said);
    }
    assert_eq!((bed.echo.count(), bed.v1.count(), bed.v2.count()), (0, 0, 0));
    // No rule matches other paths.
    assert_eq!(bed.outcome("GET /else")?, "404");
    Ok(())
}

/// HTTPRouteRequestHeaderModifierBackendWeights: the requests to each backend contain the header that is set for
/// that backend.
#[test]
fn http_route_request_header_modifier_backend_weights() -> Result<()> {
    let of = |name: &str| {
        format!(
            "    - name: {name}\n      port: 80\n      weight: 50\n      filters: \
             [{{type: RequestHeaderModifier, requestHeaderModifier: \
             {{set: [{{name: Backend, value: {name}}}]}}}}]\n"
        )
    };
    let rules = format!("  - backendRefs:\n{}{}", of("echo-v1"), of("echo-v2"));
    let bed = RoutesFixture::with_rules(&rules)?;
    for _ in 0..200 {
        assert_eq!(bed.send("GET /")?.status, 200);
    }
    for (name, server) in [("echo-v1", &bed.v1), ("echo-v2", &bed.v2)] {
        assert!(server.seen().iter().all(|seen| seen.header("backend") == name), "{name}");
        // Each backend gets half of the requests, within six standard deviations.
        assert!((58..=142).contains(&server.count()), "{name} has {} of 200", server.count());
    }
    Ok(())
}

/// HTTPRoutePartiallyInvalidViaInvalidReferenceGrant: other rules apply, and so do the valid backends of the same
/// rule.
#[test]
fn http_route_partially_invalid() -> Result<()> {
    let rules = "
  - matches: [{path: {value: /far}}]
    backendRefs: [{name: far, namespace: third, port: 80}]
  - matches: [{path: {value: /part}}]
    backendRefs: [{name: far, namespace: third, port: 80}, {name: echo-v1, port: 80}]
  - matches: [{path: {value: /v2}}]
    backendRefs: [{name: echo-v2, port: 80}]
";
    // The grant is for another kind of route.
    let grant = "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
        metadata: {name: grant, namespace: third}\nspec:\n  \
        from: [{group: gateway.networking.k8s.io, kind: GRPCRoute, namespace: t}]\n  \
        to: [{group: \"\", kind: Service}]\n";
    let bed = RoutesFixture::start(&(http_route("route", rules) + THIRD + grant))?;
    assert_eq!(bed.outcome("GET /far")?, "500");
    let mut failed = 0;
    for _ in 0..200 {
        let response = bed.send("GET /part")?;
        match response.header("leno-error") {
            None => assert_eq!(response.status, 200),
            Some(cause) => {
                let expected =
                    "backend-invalid; reason=RefNotPermitted; by=\"HTTPRoute t/route rule 1\"";
                assert_eq!((response.status, cause), (500, expected));
                failed += 1;
            }
        }
    }
    assert!((58..=142).contains(&failed), "{failed} of 200 failed");
    assert_eq!(bed.outcome("GET /v2")?, "echo-v2");
    Ok(())
}

/// HTTPRouteInvalidParentRefNotMatchingListenerPort, HTTPRouteInvalidParentRefNotMatchingSectionName,
/// HTTPRouteInvalidParentRefSectionNameNotMatchingPort, applied to the ports of a Service. A route that matches
/// none of them has no effect.
#[test]
fn http_route_parent_ports() -> Result<()> {
    let rules = "  - backendRefs: [{name: echo-v1, port: 80}]\n";
    for (parent, expected) in [
        ("port: 80", "echo-v1"),
        ("sectionName: x", "echo-v1"),
        ("sectionName: x, port: 80", "echo-v1"),
        ("port: 81", "echo"),
        ("sectionName: y", "echo"),
        ("sectionName: x, port: 81", "echo"),
        ("sectionName: y, port: 80", "echo"),
    ] {
        let bed = RoutesFixture::start(
            &http_route("route", rules)
                .replace("port: 80}]\n  rules", &format!("{parent}}}]\n  rules")),
        )?;
        assert_eq!(bed.outcome("GET /")?, expected, "{parent}");
    }
    Ok(())
}

/// A ClientHello (RFC 8446 section 4.1.2) with this server name.
fn client_hello(host: &str) -> Vec<u8> {
    let sized = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("it is short").to_be_bytes();
        [&length[..], bytes].concat()
    };
    let name = [&[0][..], &sized(host.as_bytes())].concat();
    let server_name = [&[0, 0][..], &sized(&sized(&name))].concat();
    let versions = [0, 43, 0, 3, 2, 3, 4];
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 2, 0x13, 1],
        &[1, 0],
        &sized(&[&server_name[..], &versions].concat()),
    ]
    .concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

/// TCPRouteInvalidCrossNamespaceBackendRef, TCPRouteReferenceGrant, TLSRouteInvalidReferenceGrant,
/// TLSRouteInvalidBackendRefUnknownKind: a connection is refused if there is no grant for its backend. The backend
/// with a grant has no endpoint here.
#[test]
fn connections_are_refused_without_a_grant() -> Result<()> {
    let far = "{name: far, namespace: third, port: 80}";
    for (kind, granted, backend, cause) in [
        ("TCPRoute", "TCPRoute", far, "no-endpoints"),
        ("TCPRoute", "TLSRoute", far, "backend-invalid"),
        ("TLSRoute", "TLSRoute", far, "no-endpoints"),
        ("TLSRoute", "TCPRoute", far, "backend-invalid"),
        ("TLSRoute", "TLSRoute", "{group: example.org, kind: Bucket, name: b}", "backend-invalid"),
        ("TCPRoute", "TCPRoute", "{group: example.org, kind: Bucket, name: b}", "backend-invalid"),
    ] {
        let hostnames = if kind == "TLSRoute" { "hostnames: [db.example]\n  " } else { "" };
        let proxy = Proxy::start_logging("text", |address, admin| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
                 spec: {{workers: 1, admin: \"{admin}\", mtls: disabled, \
                 outbound: {{listen: \"{address}\", service: \"t/bytes:80\"}}}}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {{name: bytes, namespace: t}}\n\
                 spec: {{clusterIP: 10.96.0.10, ports: [{{name: x, port: 80, appProtocol: tcp}}]}}\n\
                 {THIRD}---\n\
                 apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
                 metadata: {{name: grant, namespace: third}}\nspec:\n  \
                 from: [{{group: gateway.networking.k8s.io, kind: {granted}, namespace: t}}]\n  \
                 to: [{{group: \"\", kind: Service}}]\n---\n\
                 apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
                 metadata: {{name: bytes, namespace: t}}\nspec:\n  \
                 parentRefs: [{{group: '', kind: Service, name: bytes}}]\n  {hostnames}\
                 rules: [{{backendRefs: [{backend}]}}]\n"
            )
        })?;
        let mut client = TcpStream::connect(proxy.address())?;
        client.set_read_timeout(Some(LIMIT))?;
        // Fails if the proxy refuses before it has read anything.
        client.write_all(&client_hello("db.example")).unwrap_or_default();
        assert!(!matches!(client.read(&mut [0]), Ok(1..)), "{kind} {granted} {backend}");
        wait::until("a line of the access log", LIMIT, || {
            let found = lines("text", &proxy.log()?);
            Ok(found.iter().any(|line| field(line, "error") == Some(cause)).then_some(()))
        })
        .map_err(|error| error.context(format!("{kind} {granted} {backend}: {:?}", proxy.log())))?;
    }
    Ok(())
}
