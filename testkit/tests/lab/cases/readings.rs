//! Tests that paths are compared in the form in which the application is declared to use them: with nginx, which
//! merges slashes, resolves dots and decodes slashes, and with Node, which uses paths as they are sent.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, wait};

use super::authorization::answered;
use super::reauthorization::HEAR_LIMIT;
use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(paths_are_compared_as_the_application_reads_them)]
}

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  name: nginx
  namespace: lab
  annotations: {leno.dev/path-normalisation: 'merge-slashes, resolve-dots, decode-slashes'}
spec:
  command: [nginx, -e, stderr, -c, '@DIR@/nginx.conf']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: node, namespace: lab, annotations: {leno.dev/path-normalisation: none}}
spec:
  command: [node, '@DIR@/server.js']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: strict, namespace: lab}
spec:
  command: [node, '@DIR@/server.js']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  selector: {}
  action: Deny
  rules: [{to: [{paths: [{prefix: /admin}]}]}]
";

const SERVER: &str = "
require('http').createServer((request, response) => {
  const path = request.url.split('?')[0];
  response.end(path === '/admin' || path.startsWith('/admin/') ? 'admin\\n' : 'other\\n');
}).listen(8080, '::');
";

/// Spellings of paths. Each application treats some of them as `/admin`.
const PATHS: [&str; 24] = [
    "/admin",
    "/admin/",
    "/admin/x",
    "/%61dmin",
    "//admin",
    "///admin//x",
    "/public//admin",
    "/public/../admin",
    "/public/%2e%2e/admin",
    "/public%2F..%2Fadmin",
    "/public%2f%2e%2e%2fadmin",
    "/public//..//admin",
    "/./admin",
    "/../admin",
    "/%2e%2e/admin",
    "/admin/../public",
    "/admin//../public",
    "/admin/..",
    "/public/./x",
    "/public//x",
    "/a%2Fb",
    "/admin%20",
    "/admin;x",
    "/public%5C..%5Cadmin",
];

fn prepare(directory: &Path) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    binaries::require("node", "node")?;
    let place = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {place}/nginx-{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; user root; pid {place}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  default_type text/plain;\n{temporary}  \
         server {{ listen 0.0.0.0:8080;\n    \
         location = /admin {{ return 200 \"admin\\n\"; }}\n    \
         location /admin/ {{ return 200 \"admin\\n\"; }}\n    \
         location / {{ return 200 \"other\\n\"; }} }}\n}}\n"
    );
    fs::write(directory.join("nginx.conf"), configuration)?;
    Ok(fs::write(directory.join("server.js"), SERVER)?)
}

fn paths_are_compared_as_the_application_reads_them(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, prepare)?;
    lab.explain(compared(&lab))?;
    lab.end()
}

fn compared(lab: &Lab) -> Result<()> {
    for server in ["nginx", "node", "strict"] {
        wait::until("the server", HEAR_LIMIT, || {
            let said = answered(lab, "web", &[&format!("http://{server}.lab:8080/")])?;
            Ok((said == "200").then_some(()))
        })?;
    }
    let denied = "403 authorization-denied; policy=lab/no-admin";
    let ambiguous = "403 authorization-denied; reason=ambiguous-path";
    for server in ["nginx", "node"] {
        let mut counts = [0; 3];
        for path in PATHS {
            let read = asked(lab, server, path)?;
            let url = format!("http://{server}.lab:8080{path}");
            let said = answered(lab, "web", &["--path-as-is", &url])?;
            let expected: &[&str] = match &*read {
                "admin" => &[denied, ambiguous],
                "other" => &["200", ambiguous],
                // nginx refuses paths above its root.
                _ => &["400", ambiguous],
            };
            ensure!(expected.contains(&&*said), "{server} reads {path} as {read}: {said}");
            for (count, one) in counts.iter_mut().zip(["200", denied, ambiguous]) {
                *count += usize::from(said == one);
            }
        }
        println!("{server}: {counts:?} of {} are permitted, denied, ambiguous", PATHS.len());
        let least = if server == "nginx" { [6, 11, 0] } else { [18, 6, 0] };
        ensure!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{counts:?}");
    }
    // Without the declaration, these paths are rejected.
    for path in ["/public//x", "/a%2Fb", "/public/./x", "/admin;x"] {
        let url = format!("http://strict.lab:8080{path}");
        let said = answered(lab, "web", &["--path-as-is", &url])?;
        ensure!(said == ambiguous, "{path}: {said}");
    }
    Ok(())
}

/// The first line of the response to a path without a proxy in between, which shows how the application reads the
/// path.
fn asked(lab: &Lab, server: &str, path: &str) -> Result<String> {
    let url = format!("http://127.0.0.1:8080{path}");
    let said = lab.text(server, &["curl", "-sS", "-m", "20", "--path-as-is", &url])?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}
