//! Tests authorization policies on their way from YAML through the control plane to the server's proxy. They are
//! changed while they apply.
//!
//! ```text
//! web, cart (meshed), plain ──► nginx (HTTP), echo (bytes), calls (gRPC)
//! stranger (meshed, of another namespace, with the service account web) ──►
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::{binaries, wait};

use super::calls::peer;
use super::{Case, once};

/// How long a change may take to reach a proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(90);

/// The URL at which a client without a proxy reaches nginx: by the address of the instance.
const DIRECT: &str = "http://nginx-0.nginx.lab:8080/";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec: {serviceAccount: cart, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stranger, namespace: other}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: nginx, namespace: lab, labels: {app: nginx}}
spec:
  command: [nginx, -e, stderr, -c, '@DIR@/nginx.conf']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '0.0.0.0:9000']
  ports: [{name: bytes, port: 9000}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: names, namespace: lab, labels: {app: names}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '0.0.0.0:9443']
  ports: [{name: tls, port: 9443, appProtocol: tls}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab, labels: {app: calls}}
spec:
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: nginx, namespace: lab}
spec: {selector: {app: nginx}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: lab}
spec: {selector: {app: echo}, ports: [{name: bytes, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
";

/// With these policies, clients with the service account `web` may call, except below `/admin` and except with the
/// role `guest`. The rest of the namespace is closed.
const POLICIES: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: lab, annotations: {leno.dev/default-authorization: deny}}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  selector: {}
  rules: [{from: [{serviceAccounts: [web]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: nginx}]
  action: Deny
  rules:
  - to: [{paths: [{prefix: /admin}]}]
  - to: [{headers: [{name: x-role, values: [guest]}]}]
  - to: [{methods: [DELETE]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: to-names, namespace: lab}
spec: {selector: {matchLabels: {app: names}}, rules: [{}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-name, namespace: lab}
spec:
  selector: {matchLabels: {app: names}}
  action: Deny
  rules: [{to: [{serverNames: [bad.example.com]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: all-paths, namespace: lab}
spec:
  selector: {matchLabels: {app: nginx}}
  action: Deny
  rules: [{to: [{methods: [OPTIONS], paths: [{prefix: /}]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: watch, namespace: lab}
spec:
  selector: {matchLabels: {app: nginx}}
  action: Audit
  rules: [{to: [{paths: [{prefix: /watched}]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-remove, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: calls}]
  action: Deny
  rules: [{to: [{grpc: [{service: shop.Cart, method: Remove}]}]}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(clients_may_do_what_policies_permit)]
}

fn prepare(directory: &Path) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    let place = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {place}/nginx-{kind};\n"))
        .concat();
    // Like most servers, this one resolves dot segments, escapes and double slashes before it routes.
    let configuration = format!(
        "daemon off; master_process off; user root; pid {place}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  default_type text/plain;\n{temporary}  \
         server {{ listen 0.0.0.0:8080;\n    \
         location / {{ return 200 \"public\\n\"; }}\n    \
         location /admin {{ return 200 \"admin\\n\"; }} }}\n}}\n"
    );
    Ok(fs::write(directory.join("nginx.conf"), configuration)?)
}

fn clients_may_do_what_policies_permit(capture: Capture) -> Result<()> {
    let peer = peer()?;
    let lab = Lab::start(&LabOptions::new(capture), MESH, prepare)?;
    let cases = || -> Result<()> {
        // Without a policy every client is permitted.
        for client in ["web", "cart", "stranger"] {
            until(&lab, client, &["http://nginx.lab/admin"], "200")?;
        }
        until(&lab, "plain", &[DIRECT], "200")?;
        lab.edit(&format!("{MESH}{POLICIES}"))?;
        until(&lab, "cart", &["http://nginx.lab/"], "403 authorization-denied")?;
        identities_decide(&lab)?;
        denials_win(&lab)?;
        no_spelling_of_a_path_bypasses_a_policy(&lab)?;
        bytes_of_others_are_refused(&lab)?;
        server_names_are_read_of_every_client(&lab)?;
        calls_are_denied_by_their_method(&lab, &peer)?;
        decisions_are_counted(&lab)?;
        // All policies end with their documents, without any restart.
        lab.edit(MESH)?;
        until(&lab, "cart", &["http://nginx.lab/admin"], "200")?;
        until(&lab, "plain", &[DIRECT], "200")
    };
    lab.explain(cases())
}

fn identities_decide(lab: &Lab) -> Result<()> {
    for (client, expected) in [
        ("web", "200"),
        ("cart", "403 authorization-denied"),
        // This client has a service account with the same name in another namespace.
        ("stranger", "403 authorization-denied"),
    ] {
        until(lab, client, &["http://nginx.lab/"], expected)?;
    }
    until(lab, "plain", &[DIRECT], "403 authorization-denied")
}

/// The name of a policy is reported only to clients in its namespace.
fn denials_win(lab: &Lab) -> Result<()> {
    let named = "403 authorization-denied; policy=lab/no-admin";
    until(lab, "web", &["http://nginx.lab/admin"], named)?;
    until(lab, "web", &["http://nginx.lab/admin/x?y"], named)?;
    until(lab, "web", &["http://nginx.lab/administrator"], "200")?;
    until(lab, "stranger", &["http://nginx.lab/admin"], "403 authorization-denied")?;
    // Every value counts, so a harmless first line does not hide the second one.
    let roles = ["-H", "x-role: user", "-H", "x-role: guest", "http://nginx.lab/"];
    until(lab, "web", &roles, named)?;
    until(lab, "web", &["-H", "x-role: user, guest", "http://nginx.lab/"], named)?;
    until(lab, "web", &["-H", "x-role: user", "http://nginx.lab/"], "200")?;
    // WSGI, CGI and PHP convert this name to x-role.
    until(lab, "web", &["-H", "x_role: guest", "http://nginx.lab/"], named)?;
    // Some servers convert the method to upper case.
    for method in ["DELETE", "delete", "DeLeTe"] {
        until(lab, "web", &["-X", method, "http://nginx.lab/"], named)?;
    }
    // `OPTIONS *` concerns every path, so it is denied.
    let server = ["-X", "OPTIONS", "--request-target", "*", "http://nginx.lab"];
    until(lab, "cart", &server, "403 authorization-denied; policy=lab/all-paths")
}

/// Uses spellings of `/admin` that circumvented the policies of other meshes: CVE-2020-8595 (exact paths and
/// queries), CVE-2021-31920 (`//`, `%2F`), CVE-2021-29492 (`%5C`), CVE-2021-39156 (`#`).
fn no_spelling_of_a_path_bypasses_a_policy(lab: &Lab) -> Result<()> {
    let named = "403 authorization-denied; policy=lab/no-admin";
    let ambiguous = "403 authorization-denied; reason=ambiguous-path";
    for (path, expected) in [
        ("/%61dmin", named),
        ("/admin?a=/public", named),
        ("//admin", ambiguous),
        ("/public/../admin", ambiguous),
        ("/public/%2e%2e/admin", ambiguous),
        ("/public/..%2fadmin", ambiguous),
        ("/./admin", ambiguous),
        ("/public%5C..%5Cadmin", ambiguous),
        ("/admin;x=1", ambiguous),
        ("/%2561dmin", ambiguous),
        ("/admin%00", ambiguous),
        ("/admin%3Fx", ambiguous),
        ("/admin%23x", ambiguous),
        ("/admin%20", ambiguous),
        ("/admin%C2%A0", ambiguous),
    ] {
        let url = format!("http://nginx.lab{path}");
        let said = answered(lab, "web", &["--path-as-is", &url])?;
        ensure!(said == expected, "{path}: {said:?} where {expected:?} is expected");
        let page = ["curl", "-sS", "-m", "20", "--path-as-is", &url];
        let page = lab.text("web", &page)?;
        ensure!(page != "admin\n", "{path} reached the application");
    }
    Ok(())
}

/// A denied opaque connection is reset before the application receives any byte.
fn bytes_of_others_are_refused(lab: &Lab) -> Result<()> {
    let steps = [Step::Send("hello".into()), Step::Read(5)];
    let served = lab.talk("web", "echo.lab:9000", &steps)?;
    ensure!(served.failure().is_none(), "{served:?}");
    let direct = "echo-0.echo.lab:9000";
    for (client, address) in
        [("cart", "echo.lab:9000"), ("stranger", "echo.lab:9000"), ("plain", direct)]
    {
        let refused = lab.talk(client, address, &steps)?;
        ensure!(refused.was_cut(), "{client}: {refused:?}");
    }
    Ok(())
}

/// Policies must read the server name from the ClientHello of meshed and other clients, whatever protocol the port
/// declares. The server returns what it receives.
fn server_names_are_read_of_every_client(lab: &Lab) -> Result<()> {
    let (good, bad) = (hello("good.example.com"), hello("bad.example.com"));
    let versions = bad.replacen("\u{3}\u{1}", "\u{3}\u{5}", 1);
    let empty = format!("\u{16}\u{3}\u{1}\0\0{bad}");
    for (client, address) in [("web", "names.lab:9443"), ("plain", "names-0.names.lab:9443")] {
        let talk = |first: &str| {
            lab.talk(client, address, &[Step::Send(first.to_owned()), Step::Read(first.len())])
        };
        for first in ["hello", good.as_str()] {
            let served = talk(first)?;
            ensure!(served.failure().is_none(), "{client} {first:?}: {served:?}");
        }
        for first in [&bad, &versions, &empty] {
            let refused = talk(first)?;
            ensure!(refused.was_cut(), "{client} {first:?}: {refused:?}");
        }
    }
    Ok(())
}

/// A ClientHello for this server (RFC 8446 section 4.1.2) that consists of text bytes only.
fn hello(name: &str) -> String {
    let vector = |body: &str| {
        let length = char::from(u8::try_from(body.len()).expect("short"));
        assert!(length.is_ascii());
        format!("\0{length}{body}")
    };
    let names = vector(&format!("\0{}", vector(name)));
    let extensions = vector(&format!("\0\0{}", vector(&names)));
    let random = "r".repeat(32);
    let body = format!("\u{3}\u{3}{random}\0\0\u{2}\u{13}\u{1}\u{1}\0{extensions}");
    let message = format!("\u{1}\0{}", vector(&body));
    format!("\u{16}\u{3}\u{1}{}", vector(&message))
}

fn calls_are_denied_by_their_method(lab: &Lab, peer: &str) -> Result<()> {
    let call = |client: &str, method: &str| -> Result<String> {
        let said = lab.text(client, &[peer, "one", "calls.lab", "90", method])?;
        Ok(said.trim().to_owned())
    };
    let added = call("web", "/shop.Cart/Add")?;
    ensure!(added.starts_with("Ok calls"), "{added}");
    for (client, method) in [("web", "/shop.Cart/Remove"), ("cart", "/shop.Cart/Add")] {
        let denied = call(client, method)?;
        ensure!(denied.starts_with("PermissionDenied"), "{client} {method}: {denied}");
    }
    Ok(())
}

fn decisions_are_counted(lab: &Lab) -> Result<()> {
    let page = lab.metrics("nginx")?;
    let audited = "leno_authorization_total{decision=\"audit\",policy=\"lab/watch\"} ";
    let audited = page.lines().find_map(|line| line.strip_prefix(audited));
    ensure!(
        audited.is_some_and(|count| count != "0"),
        "ambiguous paths are not audited: {audited:?}"
    );
    for line in [
        "leno_authorization_total{decision=\"allow\",policy=\"lab/clients\"}",
        "leno_authorization_total{decision=\"deny\",policy=\"lab/no-admin\"}",
        "leno_authorization_total{decision=\"deny\",policy=\"not-allowed\"}",
        "leno_authorization_total{decision=\"deny\",policy=\"ambiguous-path\"}",
    ] {
        ensure!(page.contains(line), "{line} is not in\n{page}");
    }
    Ok(())
}

pub(super) fn until(lab: &Lab, client: &str, more: &[&str], expected: &str) -> Result<()> {
    until_within(HEAR_LIMIT, lab, client, more, expected)
}

/// Like [`until`], with another limit.
pub(super) fn until_within(
    limit: Duration,
    lab: &Lab,
    client: &str,
    more: &[&str],
    expected: &str,
) -> Result<()> {
    let mut last = String::new();
    let heard = wait::until("the answer", limit, || {
        last = answered(lab, client, more)?;
        Ok((last == expected).then_some(()))
    });
    heard.with_context(|| format!("{client} {more:?}: {last:?} where {expected:?} is expected"))
}

/// The status and `leno-error` of a request.
pub(super) fn answered(lab: &Lab, client: &str, more: &[&str]) -> Result<String> {
    let format = "%{http_code} %header{leno-error}";
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", format];
    let answer = lab.exec(client, &[&curl[..], more].concat())?;
    Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}
