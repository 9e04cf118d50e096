//! Tests routes for connections: TLS by the server name that the client sends, other connections by weight.
//!
//! ```text
//!   client ──► secure:443 ──► v1, v2   openssl s_server, each with its own certificate
//!          ──► bytes:9000 ──► v1, v2   leno-peer, which sends its name first
//! ```

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, command, wait};

use super::{Case, once};

/// How long a change may take to reach a proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(90);
/// How long openssl may take to create a certificate.
const LIMIT: Duration = Duration::from_secs(90);
/// What is returned for a connection that is refused.
const REFUSED: &str = "";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v1, namespace: lab, labels: {app: v1}}
spec:
  command: [openssl, s_server, -www, -accept, \"8443\", -cert, \"@DIR@/v1.crt\", -key, \"@DIR@/v1.key\"]
  ports: [{name: tls, port: 8443, appProtocol: tcp}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v2, namespace: lab, labels: {app: v2}}
spec:
  command: [openssl, s_server, -www, -accept, \"8443\", -cert, \"@DIR@/v2.crt\", -key, \"@DIR@/v2.key\"]
  ports: [{name: tls, port: 8443}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: b1, namespace: lab, labels: {app: b1}}
spec:
  command: [\"@BIN@/leno-peer\", banner, --listen, \"[::]:9000\", --greeting, b1]
  ports: [{name: tcp, port: 9000, appProtocol: tcp}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: b2, namespace: lab, labels: {app: b2}}
spec:
  command: [\"@BIN@/leno-peer\", banner, --listen, \"[::]:9000\", --greeting, b2]
  ports: [{name: tcp, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: secure, namespace: lab}
spec: {selector: {app: v1}, ports: [{name: tls, port: 443, targetPort: 8443}]}
---
apiVersion: v1
kind: Service
metadata: {name: bytes, namespace: lab}
spec: {selector: {app: b1}, ports: [{name: tcp, port: 9000, appProtocol: tcp}]}
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(tls_connections_follow_the_name_that_they_ask_for),
        once!(tcp_connections_follow_weights),
        once!(requests_and_connections_share_a_port),
    ]
}

fn route(kind: &str, name: &str, (service, more): (&str, &str), backends: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{name: {name}, namespace: lab}}\nspec:\n  \
         parentRefs: [{{group: \"\", kind: Service, name: {service}}}]\n{more}  \
         rules: [{{backendRefs: [{backends}]}}]\n"
    )
}

fn prepare(directory: &Path) -> Result<()> {
    let openssl = binaries::require("openssl", "openssl")?;
    for name in ["v1", "v2"] {
        let mut make = Command::new(&openssl);
        make.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        make.args(["-days", "2", "-subj", &format!("/CN={name}")]);
        make.arg("-keyout").arg(directory.join(format!("{name}.key")));
        make.arg("-out").arg(directory.join(format!("{name}.crt")));
        command::text(&mut make, LIMIT)?;
    }
    Ok(())
}

/// The subject of the server's certificate, or [`REFUSED`].
fn tls(lab: &Lab, name: &str) -> Result<String> {
    let asked =
        if name.is_empty() { "-noservername".to_owned() } else { format!("-servername {name}") };
    let script = format!(
        "timeout 10 openssl s_client -connect secure:443 {asked} </dev/null 2>/dev/null \
         | openssl x509 -noout -subject 2>/dev/null || true"
    );
    let subject = lab.text("client", &["sh", "-c", &script])?;
    Ok(subject.rsplit(['=', ' ']).next().unwrap_or_default().trim().to_owned())
}

/// The greeting that a client receives without sending anything, or [`REFUSED`].
fn banner(lab: &Lab, service: &str) -> Result<String> {
    let script = format!("timeout 10 head -c 2 </dev/tcp/{service} 2>/dev/null || true");
    Ok(lab.text("client", &["bash", "-c", &script])?.trim().to_owned())
}

fn until(expected: &str, mut look: impl FnMut() -> Result<String>) -> Result<()> {
    let mut last = String::new();
    let heard = wait::until("the answer", HEAR_LIMIT, || {
        last = look()?;
        Ok((last == expected).then_some(()))
    });
    heard.with_context(|| format!("{last:?} where {expected:?} is expected"))
}

/// Tests what the Gateway API's conformance tests TLSRouteSimpleSameNamespace and TLSRouteInvalidBackendRefNonexistent
/// are about, and a TCPRoute for all other connections.
fn tls_connections_follow_the_name_that_they_ask_for(capture: Capture) -> Result<()> {
    let named = |names: &str| ("secure", format!("  hostnames: [{names}]\n"));
    let tls_route = |name: &str, names: &str, to: &str| {
        let (service, more) = named(names);
        route("TLSRoute", name, (service, &more), to)
    };
    let one = tls_route("one", "a.example.com, gone.example.com", "{name: v1, port: 8443}");
    let below = tls_route("below", "'*.example.com'", "{name: v2, port: 8443}");
    let lost = tls_route("lost", "lost.example.com", "{name: nobody, port: 8443}");
    let routes = format!("{one}{below}{lost}");
    let lab = Lab::start(&LabOptions::new(capture), &format!("{MESH}{routes}"), prepare)?;
    let cases = || -> Result<()> {
        until("v1", || tls(&lab, "a.example.com"))?;
        for (name, expected) in [
            ("a.example.com", "v1"),
            ("A.EXAMPLE.com", "v1"),
            ("b.example.com", "v2"),
            ("c.b.example.com", "v2"),
            ("lost.example.com", REFUSED),
            ("example.com", REFUSED),
            ("other.org", REFUSED),
            ("", REFUSED),
        ] {
            let said = tls(&lab, name)?;
            ensure!(said == expected, "{name:?}: {said:?} where {expected:?} is expected");
        }
        // Other names follow a TCPRoute. Without routes, the service's own endpoints are used.
        let rest = route("TCPRoute", "rest", ("secure", ""), "{name: v2, port: 8443}");
        lab.edit(&format!("{MESH}{routes}{rest}"))?;
        until("v2", || tls(&lab, "other.org"))?;
        until("v2", || tls(&lab, ""))?;
        until("v1", || tls(&lab, "a.example.com"))?;
        until(REFUSED, || tls(&lab, "lost.example.com"))?;
        lab.edit(MESH)?;
        until("v1", || tls(&lab, "b.example.com"))
    };
    lab.explain(cases())
}

/// Tests what the Gateway API's conformance tests TCPRouteWeightedRouting and TCPRouteInvalidBackendRefNonexistent are
/// about. The server sends first, so the proxy must not wait for bytes from the client.
fn tcp_connections_follow_weights(capture: Capture) -> Result<()> {
    let to =
        |backends: &str| format!("{MESH}{}", route("TCPRoute", "split", ("bytes", ""), backends));
    let lab = Lab::start(&LabOptions::new(capture), &to("{name: b2, port: 9000}"), prepare)?;
    let cases = || -> Result<()> {
        until("b2", || banner(&lab, "bytes/9000"))?;
        // The route applies only to the service.
        until("b1", || banner(&lab, "b1/9000"))?;
        lab.edit(&to(
            "{name: b1, port: 9000}, {name: b2, port: 9000}, {name: nobody, port: 9000}",
        ))?;
        let mut seen = BTreeSet::new();
        let all = wait::until("every part", HEAR_LIMIT, || {
            seen.insert(banner(&lab, "bytes/9000")?);
            Ok((seen.len() == 3).then_some(()))
        });
        all.with_context(|| format!("{seen:?}"))?;
        ensure!(seen == BTreeSet::from([REFUSED.into(), "b1".into(), "b2".into()]), "{seen:?}");
        lab.edit(&to("{name: b1, port: 9000, weight: 0}, {name: b2, port: 9000, weight: 1}"))?;
        until("b2", || banner(&lab, "bytes/9000"))?;
        lab.edit(&to("{name: nobody, port: 9000}"))?;
        until(REFUSED, || banner(&lab, "bytes/9000"))?;
        let metrics = lab.metrics("client")?;
        ensure!(metrics.contains("cause=\"backend-invalid\""), "{metrics}");
        lab.edit(MESH)?;
        until("b1", || banner(&lab, "bytes/9000"))
    };
    lab.explain(cases())
}

/// On a port without a declared protocol, HTTP follows the `HTTPRoute`, and other connections follow the
/// `TCPRoute`. Without the `HTTPRoute`, the `TCPRoute` applies to HTTP as well.
fn requests_and_connections_share_a_port(capture: Capture) -> Result<()> {
    const SHARED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\", --name, web]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  command: [\"@BIN@/leno-peer\", echo, --listen, \"[::]:9000\"]
  ports: [{name: tcp, port: 9000, appProtocol: tcp}]
---
apiVersion: v1
kind: Service
metadata: {name: mixed, namespace: lab}
spec: {selector: {app: b2}, ports: [{name: any, port: 9000}]}
";
    let requests = route("HTTPRoute", "web", ("mixed", ""), "{name: web, port: 8080}");
    let connections = route("TCPRoute", "echo", ("mixed", ""), "{name: echo, port: 9000}");
    let documents = format!("{MESH}{SHARED}{connections}");
    let lab = Lab::start(&LabOptions::new(capture), &format!("{documents}{requests}"), prepare)?;
    let http = || {
        let script = "curl -s -m 10 -o /dev/null -w '%{http_code} %header{x-served-by}' \
                      http://mixed:9000/ || true";
        Ok(lab.text("client", &["sh", "-c", script])?.trim().to_owned())
    };
    let echoed = || {
        let script = "exec 3<>/dev/tcp/mixed/9000; printf hello >&3; timeout 10 head -c 5 <&3";
        lab.text("client", &["bash", "-c", script])
    };
    let cases = || -> Result<()> {
        until("200 web", http)?;
        until("hello", echoed)?;
        lab.edit(&documents)?;
        // The echo server returns the request, which curl rejects as a response.
        until("000", http)?;
        until("hello", echoed)
    };
    lab.explain(cases())
}
