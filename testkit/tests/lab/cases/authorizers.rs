//! Tests external authorizers: policies in Rego over Envoy's protocol, and a web server over HTTP.
//!
//! ```text
//! web (meshed), plain (no proxy) ──► front (HTTP), calls (gRPC)
//!                                       │ asks, over the mesh
//!                                       └──► opa (OPA behind Envoy's Go module), login (nginx)
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::Step;
use leno_testkit::{binaries, command, tools, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::authorization::{answered, until};
use super::{Case, once};

/// How long a command of `leno` may take.
const LIMIT: Duration = Duration::from_secs(90);

/// How long a query to an authorizer may continue after its client has left. This is shorter than the query's time
/// limit.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The token that the policy accepts.
const GOOD: &str = "x-token: good";
/// The `leno-error` of a denial by an authorizer.
pub(super) const DENIED: &str = "authorization-denied; reason=external";

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
  serviceAccount: front
  command: ['@BIN@/leno-peer', http, --listen, '0.0.0.0:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab, labels: {app: calls}}
spec:
  serviceAccount: calls
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '0.0.0.0:9000']
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: opa, namespace: lab, labels: {app: opa}}
spec:
  serviceAccount: opa
  command: ['@AUTHORIZER@', '0.0.0.0:9191', '@DIR@/policy.rego']
  ports: [{name: grpc, port: 9191, appProtocol: grpc}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: login, namespace: lab, labels: {app: login}}
spec:
  serviceAccount: login
  command: [nginx, -e, stderr, -c, '@DIR@/nginx.conf']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: front}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: lab}
spec: {selector: {app: echo}, ports: [{name: bytes, port: 9000, appProtocol: tcp}]}
---
apiVersion: v1
kind: Service
metadata: {name: opa, namespace: lab}
spec: {selector: {app: opa}, ports: [{name: grpc, port: 91, targetPort: 9191, appProtocol: grpc}]}
---
apiVersion: v1
kind: Service
metadata: {name: login, namespace: lab}
spec: {selector: {app: login}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
";

/// With this policy, `web` is permitted with its token, and any client with the token of `anyone`. Without a
/// token, the response describes how to get one.
const REGO: &str = r#"package envoy.authz

default allow := false

request := input.attributes.request.http

permitted if request.headers["x-token"] == "anyone"

permitted if {
	request.headers["x-token"] == "good"
	input.attributes.source.principal == "spiffe://cluster.local/ns/lab/sa/web"
	request.host != ""
	request.headers[":path"] == request.path
	input.attributes.destination.address.socketAddress.portValue in {8080, 10000}
}

# Decided on by their bodies.
permitted if {
	contains(request.path, "/pay")
	json.unmarshal(request.body).amount < 100
	not request.rawBody
	request.headers["x-envoy-auth-partial-body"] == "false"
}

permitted if {
	contains(request.path, "/begin")
	request.body == "begins so"
	request.headers["x-envoy-auth-partial-body"] == "true"
}

permitted if {
	contains(request.path, "/bytes")
	request.rawBody == "/wA="
	not request.body
}

allow := {
	"allowed": true,
	"headers": {"x-user": "ann", "x-extra": "of-the-authorizer"},
	"response_headers_to_add": {"x-checked": "yes", "x-unlisted": "yes"},
} if {
	permitted
} else := {
	"allowed": false,
	"http_status": 401,
	"headers": {"www-authenticate": "Demo", "leno-error": "forged", "content-type": "text/html"},
	"body": "<p>who are you?</p>",
} if {
	not request.headers["x-token"]
}
"#;

/// The beginning of every policy in these tests.
pub(super) fn asking(app: &str, rest: &str) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: ask, namespace: lab}}
spec:
  selector: {{matchLabels: {{app: {app}}}}}
  action: External
{rest}"
    )
}

pub(super) const BY_GRPC: &str =
    "  rules: [{to: [{paths: [{prefix: /seen}, {prefix: /admin}, {prefix: /t.Peer}]}]}]
  external:
    backendRef: {name: opa, port: 91}
    timeout: 2s
    headers: {onRequest: [x-user], onResponse: [x-checked]}
";

const NO_ADMIN: &str = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  selector: {matchLabels: {app: front}}
  action: Deny
  rules: [{to: [{paths: [{prefix: /admin}]}]}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(authorizers_decide_over_grpc),
        once!(authorizers_decide_over_http),
        once!(without_an_answer_requests_are_denied_unless_the_policy_permits_them),
    ]
}

pub(super) fn start(capture: Capture) -> Result<(Lab, String)> {
    binaries::require("nginx", "nginx")?;
    let peer = binaries::directory()?.join("examples/tonic-peer");
    ensure!(peer.is_file(), "build it first: cargo build -p leno-testkit --examples");
    let authorizer = tools::install("authorizer")?.join("authorizer");
    let mesh = MESH.replace("@AUTHORIZER@", &authorizer.display().to_string());
    let lab = Lab::start(&LabOptions::new(capture), &mesh, prepare)?;
    Ok((lab, mesh))
}

/// Prepares a login server that is queried over HTTP. It permits requests with a cookie, and redirects others to
/// its page.
fn prepare(directory: &Path) -> Result<()> {
    let place = directory.display();
    fs::write(directory.join("policy.rego"), REGO)?;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {place}/nginx-{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; user root; pid {place}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 64; }}\n\
         http {{\n  access_log off;\n  default_type text/plain;\n{temporary}  \
         server {{ listen 0.0.0.0:8080;\n    \
         location /check/ {{\n      \
         if ($cookie_user = broken) {{ return 500; }}\n      \
         add_header x-user $cookie_user always;\n      \
         add_header x-asked $request_method:$http_host:$request_uri:$http_x_secret always;\n      \
         add_header x-length $content_length always;\n      \
         if ($cookie_user) {{ return 202; }}\n      \
         add_header set-cookie to=$request_uri always;\n      \
         return 302 http://login.example/?from=$http_host; }} }}\n}}\n"
    );
    Ok(fs::write(directory.join("nginx.conf"), configuration)?)
}

/// The request as the application received it.
pub(super) fn seen(lab: &Lab, client: &str, more: &[&str]) -> Result<Value> {
    let curl = ["curl", "-sS", "-m", "20", "--fail-with-body"];
    let said = lab.text(client, &[&curl[..], more].concat())?;
    serde_json::from_str(&said).with_context(|| format!("{more:?}: {said:?}"))
}

fn headers(seen: &Value) -> String {
    seen["headers"].to_string().to_lowercase()
}

fn authorizers_decide_over_grpc(capture: Capture) -> Result<()> {
    let (lab, mesh) = start(capture)?;
    lab.explain(over_grpc(&lab, &mesh))
}

fn over_grpc(lab: &Lab, mesh: &str) -> Result<()> {
    let url = "http://front.lab/seen?a=b";
    until(lab, "web", &[url], "200")?;
    lab.edit(&format!("{mesh}{}", asking("front", BY_GRPC)))?;
    let unknown = format!("401 {DENIED}");
    for (client, url) in [("web", url), ("plain", "http://front-0.front.lab:8080/seen")] {
        until(lab, client, &[url], &unknown)?;
        // The authorizer is not queried about paths without a rule.
        until(lab, client, &[&url.replace("/seen", "/other")], "200")?;
        let other = ["-H", "x-token: bad", url];
        until(lab, client, &other, &format!("403 {DENIED}"))?;
    }
    until(lab, "web", &["-H", GOOD, url], "200")?;
    // The query contains the client's identity.
    let plain = ["-H", GOOD, "http://front-0.front.lab:8080/seen"];
    until(lab, "plain", &plain, &format!("403 {DENIED}"))?;
    the_answer_reaches_the_client(lab, url)?;
    the_application_sees_what_is_allowed(lab, url)?;
    deny_rules_decide_before(lab, mesh)?;
    calls_are_asked_about(lab, mesh)?;
    bytes_are_not_asked_about(lab, mesh)?;
    lab.edit(mesh)?;
    until(lab, "web", &[url], "200")
}

fn the_answer_reaches_the_client(lab: &Lab, url: &str) -> Result<()> {
    let said = lab.text("web", &["curl", "-sSi", "-m", "20", url])?.to_lowercase();
    for part in ["www-authenticate: demo", "content-type: text/html", "<p>who are you?</p>"] {
        ensure!(said.contains(part), "{part} is not in {said}");
    }
    ensure!(!said.contains("forged"), "{said}");
    let said = lab.text("web", &["curl", "-sSi", "-m", "20", "-H", GOOD, url])?.to_lowercase();
    ensure!(said.contains("x-checked: yes") && !said.contains("x-unlisted"), "{said}");
    Ok(())
}

/// Tests a meshed client over HTTP/2 and a client without a proxy, with a body that is larger than a proxy buffers.
fn the_application_sees_what_is_allowed(lab: &Lab, url: &str) -> Result<()> {
    let body = lab.directory().join("body");
    fs::write(&body, vec![b'x'; 300_000])?;
    let data = format!("@{}", body.display());
    let direct = "http://front-0.front.lab:8080/seen?a=b";
    for (client, token, url) in [("web", GOOD, url), ("plain", "x-token: anyone", direct)] {
        let forged = ["-H", "X-User: root", "-H", "x_user: root", "-H", "x-other: kept"];
        let request = [&["-H", token, "--data-binary", &data, url][..], &forged].concat();
        let seen = seen(lab, client, &request)?;
        let headers = headers(&seen);
        ensure!(headers.contains("\"ann\"") && !headers.contains("root"), "{client}: {headers}");
        ensure!(headers.contains("kept") && !headers.contains("x-extra"), "{client}: {headers}");
        ensure!(seen["body_len"] == 300_000, "{client}: {seen}");
        ensure!(seen["target"] == "/seen?a=b", "{client}: {seen}");
    }
    Ok(())
}

/// Authorizers are not queried about requests that a rule denies, and the commands show which authorizer is
/// queried.
fn deny_rules_decide_before(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}{NO_ADMIN}", asking("front", BY_GRPC)))?;
    let named = "403 authorization-denied; policy=lab/no-admin";
    until(lab, "web", &["-H", GOOD, "http://front.lab/admin"], named)?;
    let before = counted(lab, "front", "external-allow")?;
    ensure!(before > 0 && counted(lab, "front", "external-deny")? > 0, "{before}");
    for _ in 0..5 {
        let said = answered(lab, "web", &["-H", GOOD, "http://front.lab/admin"])?;
        ensure!(said == named, "{said}");
    }
    let after = counted(lab, "front", "external-allow")?;
    ensure!(after == before, "{before}, then {after} requests were asked about");
    // The query passes through the mesh as a request of the workload itself.
    let page = lab.metrics("opa")?;
    let of_front = |line: &&str| {
        line.starts_with("leno_requests_total")
            && line.contains("client=\"front\"")
            && line.contains("mtls=\"true\"")
    };
    ensure!(page.lines().any(|line| of_front(&line)), "no request of front in\n{page}");
    let asked = "lab/opa:91 does too, which is consulted";
    for arguments in [
        &["-n", "lab", "front"][..],
        &["-n", "lab", "front", "--from", "web", "--", "GET", "http://front/seen"],
    ] {
        let said = command::text(lab.leno("authz").args(arguments), LIMIT)?;
        ensure!(said.contains("External lab/ask") && said.contains(asked), "{said}");
    }
    let explain = ["-n", "lab", "web", "--", "http://front.lab/seen"];
    let said = command::text(lab.leno("explain").args(explain), LIMIT)?;
    ensure!(said.contains(asked), "{said}");
    Ok(())
}

/// A counter of decisions of the policy `lab/ask`.
fn counted(lab: &Lab, workload: &str, decision: &str) -> Result<u64> {
    let name = format!("leno_authorization_total{{decision=\"{decision}\",policy=\"lab/ask\"}} ");
    let page = lab.metrics(workload)?;
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(Ok(0), |value| value.trim().parse().context("a count"))
}

/// A gRPC call gets the gRPC status that corresponds to the HTTP status of the authorizer's answer.
fn calls_are_asked_about(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", asking("calls", BY_GRPC)))?;
    let call = |token: &str| {
        let header = format!("x-token: {token}");
        let format = "%{http_code} %header{grpc-status}%header{leno-error} %header{x-checked}";
        let fixed = ["curl", "-sS", "-m", "20", "--http2-prior-knowledge", "-w", format, "-o"];
        let frame = ["/dev/null", "-H", "content-type: application/grpc", "-H", "te: trailers"];
        // The call has no body, because curl 7.88 exits with 92 if the response and RST_STREAM with NO_ERROR (RFC
        // 9113 section 8.1) arrive before it has sent a body.
        let more = ["-H", &header, "-X", "POST", "http://calls.lab:90/t.Peer/Echo"];
        lab.text("web", &[&fixed[..], &frame, &more].concat())
    };
    let denied = format!("200 7{DENIED} ");
    until(lab, "web", &["http://calls.lab:90/t.Peer/Echo"], &format!("401 {DENIED}"))?;
    let said = call("bad")?;
    ensure!(said == denied, "{said:?} where {denied:?} is expected");
    let said = call("good")?;
    ensure!(!said.contains(DENIED) && said.starts_with("200"), "{said:?}");
    ensure!(said.ends_with(" yes"), "no header of the answer in {said:?}");
    Ok(())
}

/// An authorizer decides about requests, so a connection without requests is denied.
fn bytes_are_not_asked_about(lab: &Lab, mesh: &str) -> Result<()> {
    let steps = [Step::Send("hello".into()), Step::Read(5)];
    let talk = || lab.talk("web", "echo.lab:9000", &steps);
    let served = talk()?;
    ensure!(served.failure().is_none(), "{served:?}");
    let everything = BY_GRPC.lines().skip(1).collect::<Vec<_>>().join("\n");
    let policy = asking("echo", &format!("  rules: [{{}}]\n{everything}\n"));
    lab.edit(&format!("{mesh}{policy}"))?;
    wait::until("the reset", LIMIT, || Ok(talk()?.was_cut().then_some(())))
}

fn authorizers_decide_over_http(capture: Capture) -> Result<()> {
    let (lab, mesh) = start(capture)?;
    lab.explain(over_http(&lab, &mesh))
}

const BY_HTTP: &str = "  rules: [{to: [{paths: [{prefix: /seen}]}]}]
  external:
    backendRef: {name: login, port: 80}
    protocol: Http
    pathPrefix: /check
    headers: {sent: [Cookie], onRequest: [X-User, X-Asked], onResponse: [X-Asked]}
";

fn over_http(lab: &Lab, mesh: &str) -> Result<()> {
    let url = "http://front.lab/seen?a=b";
    lab.edit(&format!("{mesh}{}", asking("front", BY_HTTP)))?;
    let denied = format!("302 {DENIED}");
    for (client, url) in [("web", url), ("plain", "http://front-0.front.lab:8080/seen")] {
        until(lab, client, &[url], &denied)?;
        until(lab, client, &["-H", "cookie: user=ann", url], "200")?;
    }
    let said = lab.text("web", &["curl", "-sSi", "-m", "20", url])?.to_lowercase();
    for part in [
        "location: http://login.example/?from=front.lab",
        "set-cookie: to=/check/seen?a=b",
        "302 found",
    ] {
        ensure!(said.contains(part), "{part} is not in {said}");
    }
    let request = ["-H", "cookie: user=ann", "-H", "x-user: root", "-H", "x-secret: 1", url];
    let seen = seen(lab, "web", &[&["-d", "body"][..], &request].concat())?;
    let headers = headers(&seen);
    ensure!(headers.contains("\"ann\"") && !headers.contains("root"), "{headers}");
    // The query contains the method, the host and the path of the request, and none of the headers that must not
    // be sent.
    ensure!(headers.contains("post:front.lab:/check/seen?a=b:\""), "{headers}");
    ensure!(seen["body_len"] == 4, "{seen}");
    // A failure of the authorizer is not a denial.
    let failed = "503 authorizer-failed; reason=unavailable";
    until(lab, "web", &["-H", "cookie: user=broken", url], failed)
}

fn without_an_answer_requests_are_denied_unless_the_policy_permits_them(
    capture: Capture,
) -> Result<()> {
    let (lab, mesh) = start(capture)?;
    lab.explain(without_an_answer(&lab, &mesh))
}

fn without_an_answer(lab: &Lab, mesh: &str) -> Result<()> {
    let url = "http://front.lab/seen";
    let good = ["-H", GOOD, "-H", "x-user: root", url];
    lab.edit(&format!("{mesh}{}", asking("front", BY_GRPC)))?;
    until(lab, "web", &[url], &format!("401 {DENIED}"))?;
    until(lab, "web", &good, "200")?;
    lab.kill(MeshProcess::Application("opa-0"), Signal::SIGSTOP)?;
    a_question_ends_with_its_client(lab, mesh)?;
    lab.edit(&format!("{mesh}{}", asking("front", BY_GRPC)))?;
    until(lab, "web", &good, "503 authorizer-failed; reason=timeout")?;
    ensure!(counted(lab, "front", "external-failure")? > 0, "no failure is counted");
    let page = lab.metrics("front")?;
    let is_failure = |line: &str| {
        line.starts_with("leno_errors_total") && line.contains("cause=\"authorizer-failed\"")
    };
    ensure!(page.lines().any(is_failure), "no failure in\n{page}");
    // Requests that no authorizer is queried about are served.
    until(lab, "web", &["http://front.lab/other"], "200")?;
    no_flood_of_queries_lets_a_request_pass(lab, mesh)?;
    let open = asking("front", &format!("{BY_GRPC}    onFailure: Allow\n"));
    lab.edit(&format!("{mesh}{open}"))?;
    until(lab, "web", &good, "200")?;
    let headers = headers(&seen(lab, "web", &good)?);
    ensure!(!headers.contains("root"), "{headers}");
    lab.kill(MeshProcess::Application("opa-0"), Signal::SIGCONT)?;
    until(lab, "web", &[url], &format!("401 {DENIED}"))?;
    // The policies of the authorizer's own workload may deny the query. Such a denial denies the request, even if
    // failures permit requests.
    let closed = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: opa, namespace: lab}
spec:
  selector: {matchLabels: {app: opa}}
  rules: [{from: [{serviceAccounts: [ACCOUNT]}]}]
";
    let refused = "503 authorizer-failed; reason=refused";
    lab.edit(&format!("{mesh}{open}{}", closed.replace("ACCOUNT", "calls")))?;
    until(lab, "web", &good, refused)?;
    lab.edit(&format!("{mesh}{open}{}", closed.replace("ACCOUNT", "front")))?;
    until(lab, "web", &good, "200")?;
    // This service does not exist.
    let closed = asking("front", &BY_GRPC.replace("name: opa", "name: nothing"));
    lab.edit(&format!("{mesh}{closed}"))?;
    until(lab, "web", &good, "503 authorizer-failed; reason=unavailable")
}

/// Sends more requests than the number about which a proxy queries at the same time. Prints the answer to the
/// first one that is refused; if none is, prints the beginnings of all answers.
const MANY: &str = "
import select, socket, time
address = socket.getaddrinfo('front.lab', 80, type=socket.SOCK_STREAM)[0][4][:2]
poll, asking, others = select.poll(), {}, []
for _ in range(400):
    one = socket.create_connection(address)
    one.sendall(b'GET /many HTTP/1.1\\r\\nHost: front.lab\\r\\nx-token: bad\\r\\n\\r\\n')
    asking[one.fileno()] = one
    poll.register(one, select.POLLIN)
end = time.monotonic() + 60
while asking and time.monotonic() < end:
    for descriptor, _ in poll.poll(1000):
        poll.unregister(descriptor)
        try:
            said = asking.pop(descriptor).recv(65536).decode()
        except OSError as error:
            said = str(error)
        if 'reason=overloaded' in said:
            print(said, end='')
            raise SystemExit
        others.append(said[:20])
print(others)
";

/// If failures permit requests and the authorizer does not answer, requests beyond the limit of simultaneous queries
/// are refused.
fn no_flood_of_queries_lets_a_request_pass(lab: &Lab, mesh: &str) -> Result<()> {
    let patient = BY_GRPC.replace("timeout: 2s", "timeout: 10s").replace("/seen", "/many");
    let open = asking("front", &format!("{patient}    onFailure: Allow\n"));
    lab.edit(&format!("{mesh}{open}"))?;
    until(lab, "web", &["http://front.lab/seen"], "200")?;
    let said = lab.text("web", &["python3", "-c", MANY])?;
    let is_refused = said.starts_with("HTTP/1.1 503 ") && said.contains("reason=overloaded");
    ensure!(is_refused, "{said}");
    Ok(())
}

/// When a client leaves, the query about its request must end. Here the authorizer does not answer, and its time limit
/// is longer than this test.
fn a_question_ends_with_its_client(lab: &Lab, mesh: &str) -> Result<()> {
    let patient = BY_GRPC.replace("timeout: 2s", "timeout: 10s").replace("/seen", "/slow");
    lab.edit(&format!("{mesh}{}", asking("front", &patient)))?;
    until(lab, "web", &["http://front.lab/seen"], "200")?;
    let left = || -> Result<u64> {
        let page = lab.metrics("front")?;
        let is_left = |line: &&str| {
            line.starts_with("leno_requests_total")
                && line.contains("direction=\"outbound\"")
                && line.contains("service=\"opa\"")
                && line.contains("status=\"499\"")
        };
        let counts = page.lines().filter(is_left).filter_map(|line| line.rsplit_once(' '));
        Ok(counts.filter_map(|(_, count)| count.parse::<u64>().ok()).sum())
    };
    let before = left()?;
    let slow = ["curl", "-sS", "-m", "1", "-H", GOOD, "http://front.lab/slow"];
    let curl = lab.exec("web", &slow)?;
    ensure!(curl.status.code() == Some(28), "it did not wait: {curl:?}");
    wait::until("the end of the question", LEAVE_LIMIT, || Ok((left()? > before).then_some(())))
}
