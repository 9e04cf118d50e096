//! Tests external authorizers that decide based on the bodies of requests.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab};
use leno_testkit::wait;

use super::authorization::{answered, until};
use super::authorizers::{DENIED, asking, seen, start};
use super::{Case, once};

/// A policy for the paths below `/seen`, with bodies of at most 64 bytes.
fn by_body(body: &str) -> String {
    asking(
        "front",
        &format!(
            "  rules: [{{to: [{{paths: [{{prefix: /seen}}, {{prefix: /pay}}, {{prefix: /begin}}, {{prefix: /bytes}}]}}]}}]
  external: {{backendRef: {{name: opa, port: 91}}, timeout: 2s, body: {body}}}
"
        ),
    )
}

/// The two ways to the application: HTTP/2 between proxies, and HTTP/1 from a client without a proxy.
const WAYS: [(&str, &str); 2] =
    [("web", "http://front.lab"), ("plain", "http://front-0.front.lab:8080")];

/// How long the connections of a client may take.
const LIMIT: Duration = Duration::from_secs(90);

const TOO_LARGE: &str = "413 authorizer-failed; reason=body-too-large";
const NO_TEXT: &str = "503 authorizer-failed; reason=unaskable-request";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(authorizers_decide_by_bodies_up_to_their_bound)]
}

fn authorizers_decide_by_bodies_up_to_their_bound(capture: Capture) -> Result<()> {
    let (lab, mesh) = start(capture)?;
    let run = || {
        texts(&lab, &mesh)?;
        slow_ones(&lab, &mesh)?;
        beginnings(&lab, &mesh)?;
        bytes(&lab, &mesh)?;
        over_http(&lab, &mesh)
    };
    lab.explain(run())
}

fn texts(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", by_body("{maxBytes: 64}")))?;
    let denied = format!("403 {DENIED}");
    let long = format!(r#"{{"amount": 5, "note": "{}"}}"#, "x".repeat(64));
    let bound = format!(r#"{{"amount": 5, "note": "{}"}}"#, "x".repeat(64 - 25));
    ensure!(bound.len() == 64, "{bound:?} has {} bytes", bound.len());
    let no_text = lab.directory().join("no-text");
    fs::write(&no_text, [0xff, 0])?;
    let no_text = format!("@{}", no_text.display());
    for (client, url) in WAYS {
        let pay = format!("{url}/pay");
        let much = ["-H", "x-token: bad", "-d", r#"{"amount": 500}"#, &pay];
        until(lab, client, &much, &denied)?;
        let chunked = ["-H", "transfer-encoding: chunked"];
        // The client waits until the proxy requests the body, which happens before the application has received
        // anything.
        let waiting = ["-H", "expect: 100-continue", "--expect100-timeout", "30"];
        for how in [&[][..], &chunked, &waiting] {
            for (body, expected) in [
                (r#"{"amount": 5}"#, "200"),
                (r#"{"amount": 500}"#, denied.as_str()),
                (bound.as_str(), "200"),
                (long.as_str(), TOO_LARGE),
                ("{", denied.as_str()),
            ] {
                let request = [how, &["-H", "x-token: bad", "-d", body, &pay]].concat();
                let said = answered(lab, client, &request)?;
                ensure!(said == expected, "{client} {how:?} {body:?}: {said:?}, not {expected:?}");
            }
        }
        let request = ["-H", "x-token: bad", "--data-binary", &no_text, &pay];
        let said = answered(lab, client, &request)?;
        ensure!(said == NO_TEXT, "{client}: {said:?}");
        // The authorizer is also queried about requests without a body.
        let said = answered(lab, client, &["-H", "x-token: bad", &pay])?;
        ensure!(said == denied, "{client}: {said:?}");
        // The application gets the whole request.
        let request = ["-H", "x-token: anyone", "-d", "sixteen letters!", &format!("{url}/seen")];
        let seen = seen(lab, client, &request)?;
        ensure!(seen["body_len"] == 16 && seen["method"] == "POST", "{client}: {seen}");
    }
    // A body that is too large is denied even if failures are permitted.
    lab.edit(&format!("{mesh}{}", by_body("{maxBytes: 64}, onFailure: Allow")))?;
    let request = ["-H", "x-token: bad", "-d", &long, "http://front.lab/pay"];
    let said = answered(lab, "web", &request)?;
    ensure!(said == TOO_LARGE, "{said:?}");
    Ok(())
}

/// Sends heads without bodies from when one file appears until another does. There are more heads than the number
/// of bodies that a proxy reads at the same time.
const HOLD: &str = "
import os, socket, sys, time
address = socket.getaddrinfo('front-0.front.lab', 8080, type=socket.SOCK_STREAM)[0][4][:2]
held = []
for _ in range(600):
    one = socket.create_connection(address)
    held.append(one)
    one.sendall(b'POST /pay HTTP/1.1\\r\\nHost: front.lab\\r\\nContent-Length: 50\\r\\n\\r\\n')
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
";

/// A client whose bodies do not arrive must not block the bodies of other clients.
fn slow_ones(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", by_body("{maxBytes: 64}")))?;
    let denied = format!("403 {DENIED}");
    let much = ["-H", "x-token: bad", "-d", r#"{"amount": 500}"#, "http://front.lab/pay"];
    until(lab, "web", &much, &denied)?;
    let [held, go] = ["held", "go"].map(|name| lab.directory().join(name));
    let paths = [held.display().to_string(), go.display().to_string()];
    let hold = lab.spawn("plain", &["python3", "-c", HOLD, &paths[0], &paths[1]])?;
    wait::until("the heads", LIMIT, || Ok(held.exists().then_some(())))?;
    // With so many requests, some reach each worker.
    for _ in 0..8 {
        let said = answered(lab, "web", &much)?;
        ensure!(said == denied, "{said:?}");
    }
    fs::write(go, "")?;
    hold.finish(LIMIT)?;
    Ok(())
}

fn beginnings(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", by_body("{maxBytes: 9, onLarger: Truncate}")))?;
    let body = lab.directory().join("long");
    fs::write(&body, format!("begins so, and goes on: {}", "x".repeat(300_000)))?;
    let data = format!("@{}", body.display());
    for (client, url) in WAYS {
        let begin = format!("{url}/begin");
        until(lab, client, &["-H", "x-token: bad", "--data-binary", &data, &begin], "200")?;
        let other = ["-H", "x-token: bad", "-d", "begins otherwise", &begin];
        let said = answered(lab, client, &other)?;
        ensure!(said == format!("403 {DENIED}"), "{client}: {said:?}");
        let url = format!("{url}/seen");
        let request = ["-H", "x-token: anyone", "--data-binary", &data, &url];
        let seen = seen(lab, client, &request)?;
        ensure!(seen["body_len"] == 300_024, "{client}: {seen}");
    }
    Ok(())
}

fn bytes(lab: &Lab, mesh: &str) -> Result<()> {
    lab.edit(&format!("{mesh}{}", by_body("{maxBytes: 64, packAsBytes: true}")))?;
    let data = format!("@{}", lab.directory().join("no-text").display());
    for (client, url) in WAYS {
        let url = format!("{url}/bytes");
        until(lab, client, &["-H", "x-token: bad", "--data-binary", &data, &url], "200")?;
    }
    Ok(())
}

fn over_http(lab: &Lab, mesh: &str) -> Result<()> {
    let policy = asking(
        "front",
        "  rules: [{to: [{paths: [{prefix: /seen}]}]}]
  external:
    backendRef: {name: login, port: 80}
    protocol: Http
    pathPrefix: /check
    headers: {sent: [Cookie], onRequest: [X-Length]}
    body: {maxBytes: 64}
",
    );
    lab.edit(&format!("{mesh}{policy}"))?;
    for (client, url) in WAYS {
        let url = format!("{url}/seen");
        let request = ["-H", "cookie: user=ann", "-d", "eleven more", &url];
        until(lab, client, &[&url], &format!("302 {DENIED}"))?;
        let seen = seen(lab, client, &request)?;
        let headers = seen["headers"].to_string().to_lowercase();
        ensure!(headers.contains(r#"["x-length","11"]"#), "{client}: {headers}");
        ensure!(seen["body_len"] == 11, "{client}: {seen}");
    }
    Ok(())
}
