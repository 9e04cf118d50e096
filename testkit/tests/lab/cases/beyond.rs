//! Tests services that clients reach through a waypoint and whose servers do not belong to the mesh.
//!
//! ```text
//! web, other (meshed) ══► edge (waypoint) ─┬─ TLS origination ─► pay, by its DNS name      outside: both accept packets of
//!                                          ├─ plaintext ───────► vm, by its address        edge alone
//!                                          └─ HBONE ═══════════► far, an HBONE server that permits edge alone
//! ```

use std::path::Path;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::resolver::{DnsAnswer, Resolver};
use leno_testkit::tools;

use super::waypoint::{AROUND, answer, until};
use super::{Case, external, hbone, once};
use crate::outside::{ADDRESS, Outside};

const MESH: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  name: far
  namespace: lab
  labels: {app: far}
  annotations: {leno.dev/inject: disabled, leno.dev/tunnel: hbone}
spec:
  serviceAccount: far
  command: [sh, '@DIR@/far.sh']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: lab, labels: {leno.dev/use-waypoint: edge}}
spec: {selector: {app: far}, ports: [{port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: vm, namespace: lab, labels: {leno.dev/use-waypoint: edge}}
spec: {ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: vm, namespace: lab, labels: {kubernetes.io/service-name: vm}}
addressType: IPv4
ports: [{name: http, port: 8080, appProtocol: http}]
endpoints: [{addresses: [@OUTSIDE@]}]
---
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: lab, labels: {leno.dev/use-waypoint: edge}}
spec:
  type: ExternalName
  externalName: @HOST@
  ports: [{name: http, port: 80, targetPort: 443, appProtocol: http}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ca, namespace: lab}
data: {ca.crt: @AUTHORITY@}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: pay, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: pay}]
  validation: {hostname: @HOST@, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}
";

/// The policies and routes of each service.
const RULES: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: @NAME@, namespace: lab}
spec:
  parentRefs: [{group: '', kind: Service, name: @NAME@}]
  rules:
    - filters:
        - type: ResponseHeaderModifier
          responseHeaderModifier: {set: [{name: x-route, value: of-the-waypoint}]}
      backendRefs: [{name: @NAME@, port: 80}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: @NAME@, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: @NAME@}]
  rules: [{from: [{serviceAccounts: [web]}], to: [{paths: [{prefix: /open}]}]}]
";

const SERVICES: [&str; 3] = ["pay", "vm", "far"];

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_waypoint_serves_for_servers_that_are_not_of_the_mesh)]
}

fn documents(authority: &str) -> Result<String> {
    let mesh = format!("{AROUND}{MESH}");
    let mesh = mesh.replace("@AUTHORITY@", &serde_json::to_string(authority)?);
    let mesh = mesh.replace("@HOST@", external::HOST).replace("@OUTSIDE@", ADDRESS);
    Ok(mesh + &SERVICES.map(|name| RULES.replace("@NAME@", name)).concat())
}

fn a_waypoint_serves_for_servers_that_are_not_of_the_mesh(capture: Capture) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let files = tempfile::tempdir()?;
    let authority = external::prepare(files.path())?;
    let resolver = Resolver::start()?;
    resolver.set(external::HOST, DnsAnswer::Addresses(vec![ADDRESS.parse()?], 1));
    let options = LabOptions {
        mtls: Some("strict"),
        resolver: Some(resolver.address()),
        ..LabOptions::new(capture)
    };
    let prepared = |directory: &Path| hbone::prepare(directory, &program, "edge");
    let lab = Lab::start(&options, &documents(&authority)?, prepared)?;
    let mut outside = Outside::beside(&lab)?;
    let configuration = files.path().join("outside.conf").display().to_string();
    outside.start(&["nginx", "-e", "stderr", "-c", &configuration])?;
    outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:8080"])?;
    let outcome = || -> Result<()> {
        hbone::identity(&lab, "far", "identity")?;
        // As long as their packet filter accepts all clients, the servers answer a client that bypasses the waypoint,
        // which shows that they run. The second URL sends plaintext to a port of TLS, which is answered with 400.
        for (url, status) in by_address().iter().zip(["200", "400"]) {
            until(&lab, "plain", url, status)?;
        }
        close(&lab, &outside)?;
        for name in SERVICES {
            through_it(&lab, name).with_context(|| format!("through the waypoint to {name}"))?;
        }
        with_the_name_outside(&lab)?;
        only_through_it(&lab).context("around the waypoint")
    };
    lab.explain(outcome())?;
    drop(outside);
    lab.end()
}

/// URLs at which the servers `vm` and `pay` are reached directly.
fn by_address() -> [String; 2] {
    [format!("http://{ADDRESS}:8080/open"), format!("http://{ADDRESS}:443/open")]
}

/// Makes the packet filter of the servers outside accept connections from the waypoint alone.
fn close(lab: &Lab, outside: &Outside) -> Result<()> {
    let edge = lab.status()?.address("edge", false)?;
    let rules = format!(
        "add table ip own; add chain ip own in {{ type filter hook input priority 0; }}; \
         add rule ip own in tcp dport {{ 443, 8080 }} ip saddr != {edge} reject with tcp reset"
    );
    outside.says(&["nft", &rules]).map(drop)
}

/// The waypoint must apply the service's policies to the identity that the client has proven, and then the service's
/// routes to the permitted requests.
fn through_it(lab: &Lab, name: &str) -> Result<()> {
    until(lab, "web", &format!("http://{name}.lab/open"), "200  of-the-waypoint")?;
    for _ in 0..5 {
        let said = answer(lab, "web", &format!("http://{name}.lab/open/x"))?;
        ensure!(said == "200  of-the-waypoint", "{said}");
    }
    until(lab, "web", &format!("http://{name}.lab/closed"), "403 authorization-denied")?;
    until(lab, "other", &format!("http://{name}.lab/open"), "403 authorization-denied")?;
    let metrics = lab.metrics("edge")?;
    let server = format!("server=\"{name}\"");
    let counted = metrics.lines().any(|line| {
        line.starts_with("leno_requests_total{direction=\"inbound\"")
            && [r#"client="web""#, r#"mtls="true""#, &*server]
                .iter()
                .all(|label| line.contains(label))
    });
    ensure!(counted, "requests are counted by client and service: {metrics}");
    Ok(())
}

/// The waypoint must originate TLS to the server. The server returns the name in the ClientHello, which must be the
/// host name of the TLS policy.
fn with_the_name_outside(lab: &Lab) -> Result<()> {
    let said = lab.text("web", &["curl", "-sS", "-m", "20", "http://pay.lab/open"])?;
    ensure!(said.starts_with(&format!("first {} pay.lab", external::HOST)), "{said}");
    let metrics = lab.metrics("edge")?;
    let count = "leno_external_tls_handshakes_total ";
    let mut count = metrics.lines().filter_map(|line| line.strip_prefix(count));
    ensure!(count.any(|count| count != "0"), "the waypoint has begun no TLS: {metrics}");
    Ok(())
}

fn only_through_it(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    let far = status.address("far", false)?;
    // The client's proxy proves the client's identity, which the server does not permit.
    let url = format!("http://{far}:8080/open");
    until(lab, "web", &url, "403 authorization-denied")?;
    let log = lab.log();
    ensure!(log.contains(&format!(" CONNECT {far}:8080 401")), "the server has refused no client");
    ensure!(log.contains(&format!(" CONNECT {far}:8080 200")), "the waypoint has sent no CONNECT");
    for who in ["plain", "web", "other"] {
        for url in by_address().iter().chain([&url]) {
            let ask = ["curl", "-sS", "-o", "/dev/null", "-m", "20", "-w", "%{http_code}", url];
            let said = lab.exec(who, &ask)?;
            let said = String::from_utf8_lossy(&said.stdout);
            ensure!(["000", "403", "503"].contains(&said.trim()), "{who} got {said} from {url}");
        }
    }
    Ok(())
}
