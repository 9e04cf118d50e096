//! Compares `leno explain` and `leno analyze` with the mesh that they describe.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, command};
use serde_json::Value;

use super::routes::{MESH, route, until_answered};
use super::{Case, once};

/// How long a command that sends no request may take.
const LIMIT: Duration = Duration::from_secs(90);
/// How many requests are at least sent for a question whose answer has several backends.
const TRIES: usize = 12;
/// The most requests that are sent until every backend has been seen. The rarest backend gets one request in four,
/// and is missed by this many requests once in 10^12 runs.
const MOST_TRIES: usize = 100;

/// Routes with every kind of outcome. For `/seen`, the peers return the request that arrived.
const RULES: &str = "
  - matches: [{path: {type: Exact, value: /v1}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /api}, method: GET}]
    name: api
    filters:
      - type: URLRewrite
        urlRewrite: {hostname: inner.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /seen}}
      - type: RequestHeaderModifier
        requestHeaderModifier: {set: [{name: x-marker, value: set}], remove: [x-gone]}
    backendRefs: [{name: v2, port: 8080}]
  - matches: [{path: {value: /both}}]
    backendRefs: [{name: v1, port: 8080}, {name: v2, port: 8080, weight: 3}]
  - matches: [{path: {value: /half}}]
    backendRefs: [{name: v1, port: 8080}, {name: nobody, port: 8080}]
  - matches: [{path: {value: /nobody}}]
    backendRefs: [{name: nobody, port: 8080}]
  - matches: [{path: {value: /zero}}]
    backendRefs: [{name: v1, port: 8080, weight: 0}]
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}, statusCode: 307}}]
  - matches: [{headers: [{name: version, type: RegularExpression, value: 't.o'}]}, {queryParams: [{name: v, value: '2'}]}]
    backendRefs: [{name: v2, port: 8080}]
  - matches: [{path: {value: /cors}}]
    filters: [{type: CORS, cors: {allowOrigins: ['http://a.example'], allowMethods: [PUT]}}]
    backendRefs: [{name: v1, port: 8080}]
";

/// The questions: the client, a method, a URL, and headers.
const QUESTIONS: [(&str, &[&str]); 21] = [
    ("client", &["GET", "http://web/v1"]),
    ("client", &["GET", "http://web/v1/more"]),
    ("client", &["GET", "http://web/api/items?a=b", "-H", "x-gone: 1"]),
    ("client", &["PUT", "http://web/api/items"]),
    ("client", &["GET", "http://web/apis"]),
    ("client", &["GET", "http://web/both"]),
    ("client", &["GET", "http://web/half"]),
    ("client", &["GET", "http://web/nobody"]),
    ("client", &["GET", "http://web/zero"]),
    ("client", &["GET", "http://web/old/place?q=1"]),
    ("client", &["GET", "http://web.lab.svc.cluster.local/old"]),
    ("client", &["GET", "http://web/", "-H", "Version: two"]),
    ("client", &["GET", "http://web/", "-H", "version: twoo"]),
    ("client", &["GET", "http://web/any?v=2"]),
    ("client", &["GET", "http://web/any?v=22"]),
    (
        "client",
        &[
            "OPTIONS",
            "http://web/cors",
            "-H",
            "Origin: http://a.example",
            "-H",
            "Access-Control-Request-Method: PUT",
        ],
    ),
    ("client", &["GET", "http://web/cors", "-H", "Origin: http://a.example"]),
    ("client", &["GET", "http://v1:8080/v1"]),
    ("client", &["GET", "http://v2-0.v2:8080/v1"]),
    ("guest", &["GET", "http://web.lab/v1"]),
    ("guest", &["GET", "http://web.lab/zero"]),
];

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(requests_have_the_outcome_that_explain_predicts),
        once!(up_warns_of_what_analyze_finds),
    ]
}

fn documents() -> String {
    let guest = route("mine", "far", "  - backendRefs: [{name: v2, namespace: lab, port: 8080}]\n");
    format!("{MESH}{}{guest}", route("all", "lab", RULES))
}

/// Each question is answered from the mesh and from its file; then the request is sent.
fn requests_have_the_outcome_that_explain_predicts(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), &documents(), |_| Ok(()))?;
    let cases = || -> Result<()> {
        until_answered(&lab, "client", &["http://web/v1"], "200 v1")?;
        until_answered(&lab, "guest", &["http://web.lab/v1"], "200 v2")?;
        for (client, request) in QUESTIONS {
            let said = explained(&mut lab.leno("explain"), client, request)?;
            let mut offline = Command::new(binaries::ours("leno")?);
            offline.arg("explain").arg("-f").arg(lab.directory().join("mesh.yaml"));
            let of_file = explained(&mut offline, client, request)?;
            ensure!(said == of_file, "{request:?}: {said:#}\nof the file: {of_file:#}");
            happens(&lab, client, request, &said)
                .with_context(|| format!("{request:?}: {said:#}"))?;
        }
        let error = command::run(
            lab.leno("explain").args(["-n", "lab", "cleint", "--", "http://web/"]),
            LIMIT,
        )?;
        let text = String::from_utf8_lossy(&error.stderr).into_owned();
        ensure!(
            error.status.code() == Some(2) && text.contains("did you mean lab/client?"),
            "{text}"
        );
        let text = command::text(
            lab.leno("explain").args(["client", "--", "http://web/api/items"]),
            LIMIT,
        )?;
        for line in [
            "rule         HTTPRoute lab/all rule 1 (api)",
            "backend      100.0 % lab/v2 port 8080",
            "for /seen/items",
            "v2-0 ",
            "mTLS, spiffe://cluster.local/ns/lab/sa/default",
            "HTTPRoute lab/all rule 0 match 0: the path is not /v1",
        ] {
            ensure!(text.contains(line), "{line:?} is not in\n{text}");
        }
        Ok(())
    };
    lab.explain(cases())
}

fn explained(leno: &mut Command, client: &str, request: &[&str]) -> Result<Value> {
    let text = command::text(leno.args([client, "-o", "json", "--"]).args(request), LIMIT)?;
    serde_json::from_str(&text).context("no JSON")
}

/// Sends the request, and compares its outcome with the explanation.
fn happens(lab: &Lab, client: &str, request: &[&str], said: &Value) -> Result<()> {
    let outcome = &said["outcome"];
    let choices = said["backends"]
        .as_array()
        .map_or(1, |all| all.iter().filter(|one| one["share"].as_f64() > Some(0.0)).count().max(1));
    let least =
        if said["backends"].as_array().is_some_and(|all| all.len() > 1) { TRIES } else { 1 };
    let (mut seen, mut tries) = (std::collections::BTreeSet::new(), 0);
    while tries < least || (seen.len() < choices && tries < MOST_TRIES) {
        tries += 1;
        let sent = send(lab, client, request)?;
        let part = sent.part(said);
        ensure!(part.is_some(), "no proxy reported {sent:?}");
        seen.extend(part);
        if let Some(location) = location(outcome) {
            ensure!(sent.location == location, "{sent:?}");
        }
        if request[1].contains("/api") && outcome["kind"] == "forwarded" {
            arrived(&sent.body, &said["backends"][0])?;
        }
    }
    ensure!(seen.len() == choices, "only {seen:?} in {tries} requests");
    Ok(())
}

/// Compares the request that the server received with the explained backend.
fn arrived(body: &str, backend: &Value) -> Result<()> {
    // Only `/seen` returns the request. If a rewritten path has anything after `/seen`, it is answered like any
    // other path.
    if backend["target"] == "/seen" {
        let seen: Value = serde_json::from_str(body)?;
        ensure!(seen["target"] == backend["target"], "{seen:#}");
    }
    Ok(())
}

fn location(outcome: &Value) -> Option<&str> {
    let headers = outcome["headers"].as_array()?;
    headers.iter().find(|line| line[0] == "Location")?[1].as_str()
}

/// The outcome of a request.
#[derive(Debug)]
struct RequestOutcome {
    status: u64,
    served_by: String,
    leno_error: String,
    location: String,
    body: String,
}

impl RequestOutcome {
    /// The part of the explanation that agrees with the outcome: the index of a backend, or 0 for an outcome
    /// without backends. `None` if none agrees.
    fn part(&self, said: &Value) -> Option<usize> {
        let outcome = &said["outcome"];
        if outcome["kind"] != "forwarded" {
            let error = outcome["leno_error"].as_str().unwrap_or_default();
            let same = outcome["status"] == self.status && self.leno_error == error;
            return (same && self.served_by.is_empty()).then_some(0);
        }
        let backends = said["backends"].as_array()?;
        backends.iter().position(|backend| match backend["leno_error"].as_str() {
            Some(error) => self.leno_error == error && self.status == 500,
            None => {
                let endpoints = backend["endpoints"].as_array();
                let instance = format!("lab/{}-0", self.served_by);
                let named = endpoints
                    .is_some_and(|all| all.iter().any(|one| one["workload"] == instance.as_str()));
                named && self.status == 200
            }
        })
    }
}

fn send(lab: &Lab, client: &str, request: &[&str]) -> Result<RequestOutcome> {
    const FORMAT: &str =
        "\n%{http_code}\n%header{x-served-by}\n%header{leno-error}\n%header{location}";
    let (method, rest) = request.split_first().context("no method")?;
    let curl = ["curl", "-sS", "-m", "20", "-w", FORMAT, "-X", method];
    let text = lab.text(client, &[&curl[..], rest].concat())?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    let mut last = || lines.pop().unwrap_or_default().to_owned();
    let (location, leno_error, served_by, status) = (last(), last(), last(), last());
    Ok(RequestOutcome {
        status: status.parse()?,
        served_by,
        leno_error,
        location,
        body: lines.join("\n"),
    })
}

/// `leno analyze` must find the same mistakes in a file and in the mesh that was started from the file, and `leno
/// up` must print them.
fn up_warns_of_what_analyze_finds(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), &documents(), |_| Ok(()))?;
    let cases = || -> Result<()> {
        let mut analyze = Command::new(binaries::ours("leno")?);
        analyze.arg("analyze").arg(lab.directory().join("mesh.yaml"));
        let of_file = command::run(&mut analyze, LIMIT)?;
        let of_mesh = command::run(&mut lab.leno("analyze"), LIMIT)?;
        ensure!(of_file.status.code() == Some(1), "{of_file:?}");
        ensure!(of_file.stdout == of_mesh.stdout, "{of_file:?}\n{of_mesh:?}");
        let text = String::from_utf8(of_file.stdout)?;
        ensure!(text.ends_with("3 errors, 0 warnings\n"), "{text}");
        let log = lab.log();
        for finding in text.lines().filter(|line| line.contains("error[")) {
            ensure!(log.contains(finding), "{finding:?} is not in\n{log}");
        }
        Ok(())
    };
    lab.explain(cases())
}
