//! Tests users who sign in. A real oauth2-proxy is the authorizer over HTTP, and an OpenID Connect provider
//! authenticates the user.
//!
//! ```text
//! web (meshed), plain (no proxy) ──► front
//!    │                                 │ asks, over the mesh
//!    │                                 └──► login (oauth2-proxy)
//!    │                                        │ fetches keys, redeems codes
//!    └── follows the redirect of a denial ──► idp (OpenID Connect)
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::{tools, wait};
use nix::sys::signal::Signal;

use super::authorization::{answered, until, until_within};
use super::authorizers::{DENIED, asking, seen};
use super::{Case, once};

/// How long oauth2-proxy may take to find its provider.
const START_LIMIT: Duration = Duration::from_secs(120);

const URL: &str = "http://front.lab/seen?a=b";

/// The user that the provider reports for each visitor.
const EMAIL: &str = "jane.doe@example.com";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: lab, labels: {app: front}}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '0.0.0.0:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: idp, namespace: lab, labels: {app: idp}}
spec:
  command: ['@OIDC@', '0.0.0.0:9000', 'idp.lab', shop, 'secret of shop']
  ports: [{name: http, port: 9000, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: login, namespace: lab, labels: {app: login}}
spec:
  command:
  - '@OAUTH2_PROXY@'
  - --provider=oidc
  - --oidc-issuer-url=http://idp.lab/oidc
  - --client-id=shop
  - --client-secret=secret of shop
  - --redirect-url=http://front.lab/oauth2/callback
  - --cookie-secret=0123456789abcdef0123456789abcdef
  - --cookie-secure=false
  - --email-domain=*
  - --scope=openid email profile groups
  - --http-address=0.0.0.0:4180
  - --upstream=static://202
  - --set-xauthrequest
  - --skip-provider-button
  - --ping-path=/oauth2/ping
  - --ready-path=/oauth2/ready
  ports: [{name: http, port: 4180, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: front}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: idp, namespace: lab}
spec: {selector: {app: idp}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: login, namespace: lab}
spec: {selector: {app: login}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
";

const BY_LOGIN: &str = "  rules: [{to: [{paths: [{prefix: /}]}]}]
  external:
    backendRef: {name: login, port: 80}
    protocol: Http
    timeout: 5s
    headers:
      sent: [Cookie, Authorization, Accept]
      onRequest: [X-Auth-Request-User, X-Auth-Request-Email, X-Auth-Request-Groups, X-Auth-Request-Preferred-Username]
      onResponse: [Set-Cookie]
";

/// Headers with which a client claims to be a particular user.
const FORGED: [&str; 6] = [
    "-H",
    "X-Auth-Request-Email: root@example.com",
    "-H",
    "x_auth_request_user: root",
    "-H",
    "X-Auth-Request.Groups: root",
];

/// Options with which curl reaches a workload directly, for a client without a proxy, which cannot reach services.
const DIRECTLY: [&str; 4] = [
    "--connect-to",
    "front.lab:80:front-0.front.lab:8080",
    "--connect-to",
    "idp.lab:80:idp-0.idp.lab:9000",
];

pub(super) fn cases() -> Vec<Case> {
    vec![once!(users_sign_in_by_oauth2_proxy)]
}

fn users_sign_in_by_oauth2_proxy(capture: Capture) -> Result<()> {
    let oidc = tools::install("oidc")?.join("oidc");
    let oauth2_proxy = tools::install("oauth2-proxy")?.join("oauth2-proxy");
    let mesh = MESH
        .replace("@OIDC@", &oidc.display().to_string())
        .replace("@OAUTH2_PROXY@", &oauth2_proxy.display().to_string());
    let lab = Lab::start(&LabOptions::new(capture), &mesh, |_| Ok(()))?;
    lab.explain(run(&lab, &mesh))
}

fn run(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", asking("front", BY_LOGIN)))?;
    until_within(START_LIMIT, lab, "web", &[URL], &format!("302 {DENIED}"))?;
    strangers_get_the_answer_of_the_login(lab)?;
    for client in ["web", "plain"] {
        a_user_signs_in(lab, client, &jar(lab, client))?;
    }
    what_a_client_says_of_its_user_is_not_believed(lab)?;
    without_the_provider_no_user_signs_in(lab)?;
    without_the_login_all_are_denied(lab)?;
    a_user_signs_out(lab)
}

/// The file with a client's cookies.
fn jar(lab: &Lab, client: &str) -> String {
    lab.directory().join(format!("cookies-{client}")).display().to_string()
}

fn way(client: &str) -> &'static [&'static str] {
    if client == "plain" { &DIRECTLY } else { &[] }
}

/// A browser must be redirected to the provider, and a program must get 401.
fn strangers_get_the_answer_of_the_login(lab: &Lab) -> Result<()> {
    let said = lab.text("web", &["curl", "-sSi", "-m", "20", URL])?;
    let location = said.lines().find_map(|line| line.strip_prefix("location: "));
    let location = location.with_context(|| format!("no location in {said}"))?;
    ensure!(location.starts_with("http://idp.lab/oidc/authorize?"), "{location}");
    ensure!(location.contains("front.lab%2Foauth2%2Fcallback"), "{location}");
    ensure!(said.to_lowercase().contains("set-cookie: _oauth2_proxy_csrf"), "{said}");
    let program = ["-H", "accept: application/json", URL];
    until(lab, "web", &program, &format!("401 {DENIED}"))?;
    // Three requests that must not be permitted: one with a cookie that the login has not signed, one for a path
    // that the login itself answers for probes, and one for a path with two interpretations.
    let forged = ["-H", "cookie: _oauth2_proxy=am9obg==|1700000000|c2lnbmVk", URL];
    until(lab, "web", &forged, &format!("302 {DENIED}"))?;
    until(lab, "web", &["http://front.lab/ping"], &format!("302 {DENIED}"))?;
    let two = ["--path-as-is", "http://front.lab/oauth2/static/../../seen"];
    until(lab, "web", &two, "403 authorization-denied; reason=ambiguous-path")
}

/// Signs in by following the redirects, as a browser does.
fn a_user_signs_in(lab: &Lab, client: &str, jar: &str) -> Result<()> {
    let request = ["-L", "-c", jar, "-b", jar, URL];
    let seen = seen(lab, client, &[way(client), &request].concat())?;
    ensure!(seen["target"] == "/seen?a=b", "it is not back where it began: {seen}");
    let headers = seen["headers"].to_string().to_lowercase();
    for part in ["x-auth-request-user", "x-auth-request-email", EMAIL, "engineering,design"] {
        ensure!(headers.contains(part), "{client}: no {part} in {headers}");
    }
    ensure!(!headers.contains("gap-auth"), "a header that the policy does not name: {headers}");
    Ok(())
}

fn what_a_client_says_of_its_user_is_not_believed(lab: &Lab) -> Result<()> {
    for client in ["web", "plain"] {
        let jar = jar(lab, client);
        let request = [way(client), &FORGED, &["-b", &jar, URL]].concat();
        let seen = seen(lab, client, &request)?;
        let headers = seen["headers"].to_string().to_lowercase();
        ensure!(headers.contains(EMAIL) && !headers.contains("root"), "{client}: {headers}");
    }
    until(lab, "web", &[&FORGED[..], &[URL]].concat(), &format!("302 {DENIED}"))
}

/// While the provider does not answer, a user who has signed in is still served. A code cannot be redeemed, so it
/// permits nothing.
fn without_the_provider_no_user_signs_in(lab: &Lab) -> Result<()> {
    let late = jar(lab, "late");
    // Follows the redirects up to the one to the provider, which is not followed.
    let print = ["-o", "/dev/null", "-w", "%{redirect_url}"];
    let step = |url: &str| {
        let curl = ["curl", "-sS", "-m", "20", "-c", &late, "-b", &late];
        lab.text("web", &[&curl[..], &print, &[url]].concat())
    };
    let authorize = step(URL)?;
    let callback = step(authorize.trim())?;
    ensure!(callback.starts_with("http://front.lab/oauth2/callback?code="), "{callback}");
    lab.kill(MeshProcess::Application("idp-0"), Signal::SIGSTOP)?;
    let said = answered(lab, "web", &["-c", &late, "-b", &late, callback.trim()])?;
    ensure!(said == "503 authorizer-failed; reason=timeout", "{said}");
    until(lab, "web", &["-b", &late, URL], &format!("302 {DENIED}"))?;
    until(lab, "web", &["-b", &jar(lab, "web"), URL], "200")?;
    lab.kill(MeshProcess::Application("idp-0"), Signal::SIGCONT)?;
    // Signs in without cookies, because a user who has signed in does not need the provider.
    let next = jar(lab, "next");
    wait::until("the next sign-in", START_LIMIT, || Ok(a_user_signs_in(lab, "web", &next).ok()))
}

fn without_the_login_all_are_denied(lab: &Lab) -> Result<()> {
    let jar = jar(lab, "web");
    lab.kill(MeshProcess::Application("login-0"), Signal::SIGSTOP)?;
    for cookies in [&["-b", &jar][..], &[]] {
        let said = answered(lab, "web", &[cookies, &[URL]].concat())?;
        ensure!(said == "503 authorizer-failed; reason=timeout", "{cookies:?}: {said}");
    }
    lab.kill(MeshProcess::Application("login-0"), Signal::SIGCONT)?;
    until(lab, "web", &["-b", &jar, URL], "200")
}

fn a_user_signs_out(lab: &Lab) -> Result<()> {
    let jar = jar(lab, "web");
    let out = ["-c", &jar, "-b", &jar, "http://front.lab/oauth2/sign_out"];
    until(lab, "web", &out, &format!("302 {DENIED}"))?;
    until(lab, "web", &["-b", &jar, URL], &format!("302 {DENIED}"))
}
