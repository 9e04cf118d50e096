//! Tests tokens of users. The server's proxy verifies them with the keys of their issuer, or denies the request
//! with 401.
//!
//! ```text
//! web (meshed), plain (no proxy) ── Authorization: Bearer ... ──► front (HTTP)
//! ```

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use data_encoding::BASE64URL_NOPAD;
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::Step;
use leno_testkit::{binaries, command, netns, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::authorization::{answered, until, until_within};
use super::calls::peer;
use super::reauthorization::{HEAR_LIMIT, OpenTalk, begin_stream, begin_talk};
use super::{Case, once};

pub(super) const ISSUER: &str = "https://id.example.com";
pub(super) const KEY_ID: &str = r#"{"alg":"ES256","kid":"one"}"#;

pub(super) const MESH: &str = "
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
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: front}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
";

/// Clients and servers of long responses, in addition to the workloads of MESH.
const MORE: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec: {serviceAccount: cart, command: ['@BIN@/leno-peer', idle]}
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
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
";

/// The lifetime of tokens that expire during their responses, in seconds.
const SHORT: u64 = 6;

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(tokens_of_users_are_verified),
        once!(a_response_ends_with_its_token),
        once!(keys_are_fetched_from_their_issuer),
    ]
}

/// With this policy every user with a token may read, and the group `ops` may do everything.
fn policy(key: &EcdsaKeyPair) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: users, namespace: lab}}
spec:
  selector: {{matchLabels: {{app: front}}}}
  tokens: [{{issuer: '{ISSUER}', audiences: [shop], jwks: '{}'}}]
  rules:
  - to: [{{methods: [GET], paths: [{{prefix: /items}}]}}]
  - claims: [{{name: realm.groups, values: [ops]}}]
",
        key_set(key)
    )
}

pub(super) fn key_set(key: &EcdsaKeyPair) -> Value {
    named_key_set(key, "one")
}

fn named_key_set(key: &EcdsaKeyPair, name: &str) -> Value {
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let part = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
    json!({"keys": [
        {"kty": "EC", "crv": "P-256", "kid": name, "use": "sig", "x": part(x), "y": part(y)},
    ]})
}

pub(super) fn key() -> Result<EcdsaKeyPair> {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).ok().context("no key")
}

pub(super) fn token(header: &str, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    let text = format!("{}.{}", part(header), part(&claims.to_string()));
    format!("{text}.{}", BASE64URL_NOPAD.encode(&sign(text.as_bytes())))
}

/// The claims of a valid token, with these changes.
pub(super) fn claims(more: &Value) -> Result<Value> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let mut all = json!({"iss": ISSUER, "aud": ["shop"], "sub": "ann", "exp": now + 600});
    if let (Some(all), Some(more)) = (all.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    Ok(all)
}

fn tokens_of_users_are_verified(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    let cases = || -> Result<()> {
        let key = key()?;
        lab.edit(&format!("{MESH}{}", policy(&key)))?;
        let missing = "401 authorization-denied; reason=token-missing";
        let urls = [("web", "http://front.lab"), ("plain", "http://front-0.front.lab:8080")];
        for (client, url) in urls {
            until(&lab, client, &[&format!("{url}/items")], missing)?;
            decisions(&lab, &key, (client, url))?;
        }
        challenged(&lab)?;
        // From here on, the issuer has another key with the same name.
        let sign = |text: &[u8]| sign(&key, text);
        let good = bearer(&token(KEY_ID, &claims(&json!({}))?, sign));
        let request = ["-H", good.as_str(), "http://front.lab/items"];
        until(&lab, "web", &request, "200")?;
        lab.edit(&format!("{MESH}{}", policy(&self::key()?)))?;
        until(&lab, "web", &request, "401 authorization-denied; reason=token-signature")
    };
    lab.explain(cases())
}

pub(super) fn sign(key: &EcdsaKeyPair, text: &[u8]) -> Vec<u8> {
    let signature = key.sign(&SystemRandom::new(), text);
    signature.map(|signature| signature.as_ref().to_vec()).unwrap_or_default()
}

pub(super) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

fn decisions(lab: &Lab, key: &EcdsaKeyPair, (client, url): (&str, &str)) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let by_key = |more: Value| -> Result<String> {
        Ok(token(KEY_ID, &claims(&more)?, |text| sign(key, text)))
    };
    let public = key.public_key().as_ref();
    let as_secret = |text: &[u8]| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, public), text).as_ref().to_vec()
    };
    let stranger = self::key()?;
    let good = claims(&json!({}))?;
    let items = format!("{url}/items");
    for (what, token, expected) in [
        ("good", by_key(json!({}))?, "200"),
        ("good again", by_key(json!({}))?, "200"),
        ("within the skew", by_key(json!({"exp": now - 5}))?, "200"),
        ("expired", by_key(json!({"exp": now - 60}))?, "401 token-expired"),
        ("early", by_key(json!({"nbf": now + 600}))?, "401 token-not-yet-valid"),
        ("other audience", by_key(json!({"aud": "bank"}))?, "401 token-audience"),
        ("other issuer", by_key(json!({"iss": "https://evil"}))?, "401 token-issuer"),
        ("none", token(r#"{"alg":"none"}"#, &good, |_| Vec::new()), "401 token-key"),
        ("confused", token(r#"{"alg":"HS256","kid":"one"}"#, &good, as_secret), "401 token-key"),
        (
            "unknown kid",
            token(r#"{"alg":"ES256","kid":"2"}"#, &good, |_| Vec::new()),
            "401 token-key",
        ),
        ("stranger", token(KEY_ID, &good, |text| sign(&stranger, text)), "401 token-signature"),
        ("oversized", by_key(json!({"x": "a".repeat(8_000)}))?, "401 token-too-large"),
        ("no token", "x.y".to_owned(), "401 token-malformed"),
    ] {
        let expected = expected.replace("401 ", "401 authorization-denied; reason=");
        let said = answered(lab, client, &["-H", &bearer(&token), &items])?;
        ensure!(said == expected, "{client}, {what}: {said:?} where {expected:?} is expected");
    }
    let denied = "403 authorization-denied";
    let (ann, ops) = (by_key(json!({}))?, by_key(json!({"realm": {"groups": ["dev", "ops"]}}))?);
    for (token, method, expected) in
        [(&ann, "POST", denied), (&ops, "POST", "200"), (&ops, "GET", "200")]
    {
        let request = ["-X", method, "-H", &bearer(token), &items];
        let said = answered(lab, client, &request)?;
        ensure!(said == expected, "{client} {method}: {said:?} where {expected:?} is expected");
    }
    // The request has two tokens. Applications differ in which one they read, so it must be denied.
    let twice = ["-H", &bearer(&ops), "-H", &bearer(&ann), &items];
    let said = answered(lab, client, &twice)?;
    ensure!(said == "401 authorization-denied; reason=token-malformed", "{client}: {said:?}");
    Ok(())
}

/// The response must tell clients how to authenticate (RFC 6750).
fn challenged(lab: &Lab) -> Result<()> {
    let format = "%header{www-authenticate}";
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", format];
    for (header, expected) in
        [("x: y", "Bearer"), ("authorization: Bearer x", "Bearer error=\"invalid_token\"")]
    {
        let said =
            lab.text("web", &[&curl[..], &["-H", header, "http://front.lab/items"]].concat())?;
        ensure!(said == expected, "{header}: {said:?}");
    }
    let page = lab.metrics("front")?;
    for line in [
        "leno_authorization_total{decision=\"deny\",policy=\"token\"}",
        "leno_authorization_total{decision=\"allow\",policy=\"lab/users\"}",
    ] {
        ensure!(page.contains(line), "{line} is not in\n{page}");
    }
    Ok(())
}

fn a_response_ends_with_its_token(capture: Capture) -> Result<()> {
    peer()?;
    let lab = Lab::start(&LabOptions::new(capture), &format!("{MESH}{MORE}"), |_| Ok(()))?;
    lab.explain(responses(&lab))
}

fn responses(lab: &Lab) -> Result<()> {
    let key = key()?;
    let users = format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: users, namespace: lab}}
spec:
  selector: {{}}
  tokens: [{{issuer: '{ISSUER}', audiences: [shop], jwks: '{}', clockSkew: 0s}}]
  rules: [{{}}]
",
        key_set(&key)
    );
    lab.edit(&format!("{MESH}{MORE}{users}"))?;
    let missing = "401 authorization-denied; reason=token-missing";
    for url in ["http://front.lab/items", "http://calls.lab:90/t.Peer/Echo"] {
        until(lab, "web", &[url], missing)?;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let by_key = |exp: u64| -> Result<String> {
        let claims = claims(&json!({"exp": exp}))?;
        Ok(bearer(&token(KEY_ID, &claims, |text| sign(&key, text))))
    };
    let (short, long) = (by_key(now + SHORT)?, by_key(now + 600)?);
    let go = lab.directory().join("go");
    let mut open = Vec::new();
    for (client, address, token, goes_on) in [
        ("web", "front.lab:80", &short, false),
        ("plain", "front-0.front.lab:8080", &short, false),
        ("cart", "front.lab:80", &long, true),
    ] {
        open.push(begin_talk(lab, (client, address), upgrade(token), (&go, goes_on))?);
    }
    let head = |client: &str| lab.directory().join(format!("{client}-head"));
    let ends = begin_stream(lab, ("web", &short), (&head("web"), &go))?;
    let stays = begin_stream(lab, ("cart", &long), (&head("cart"), &go))?;
    let kept = open.pop().ok_or_else(|| anyhow!("there is no connection"))?;
    open.into_iter().try_for_each(OpenTalk::end)?;
    let end = ends.finish(HEAR_LIMIT)?;
    ensure!(!end.status.success(), "the stream ended in order: {end:?}");
    let ended = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    ensure!(ended >= now + SHORT, "the token was still valid");
    let expired = "401 authorization-denied; reason=token-expired";
    let said = answered(lab, "web", &["-H", &short, "http://front.lab/items"])?;
    ensure!(said == expired, "{said:?}");
    // A response whose token is still valid continues.
    std::fs::write(&go, "")?;
    kept.end()?;
    let said = command::success("the kept stream", stays.finish(HEAR_LIMIT)?)?;
    ensure!(said == "200", "the kept stream: {said:?}");
    for workload in ["front", "calls"] {
        let line = "leno_authorization_total{decision=\"end\",policy=\"token\"}";
        let page = lab.metrics(workload)?;
        ensure!(page.contains(line), "{line} is not in\n{page}");
    }
    Ok(())
}

fn upgrade(token: &str) -> Vec<Step> {
    let request = format!(
        "GET /upgrade HTTP/1.1\r\nHost: front\r\n{token}\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
    );
    vec![Step::Send(request), Step::Response(false)]
}

/// The server of an issuer's keys, in addition to the documents of MESH.
const ISSUER_SERVER: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: issuer, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec:
  command: [nginx, -e, stderr, -c, '@DIR@/nginx.conf']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

/// The origins from which the control plane may fetch keys.
const PERMITTED: &str = "---
apiVersion: v1
kind: Namespace
metadata:
  name: leno-system
  annotations: {leno.dev/keys-from: 'http://issuer-0.issuer.lab.svc.cluster.local:8080'}
";

/// How long it may take until new keys are fetched and sent to a proxy.
const FETCH_LIMIT: Duration = Duration::from_secs(90);

fn keys_are_fetched_from_their_issuer(capture: Capture) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    let mesh = format!("{MESH}{ISSUER_SERVER}");
    let lab = Lab::start(&LabOptions::new(capture), &mesh, serve_keys)?;
    lab.explain(fetched_keys(&lab, &mesh))
}

fn serve_keys(directory: &Path) -> Result<()> {
    let place = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {place}/nginx-{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; user root; pid {place}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 64; }}\n\
         http {{\n  access_log off;\n  default_type application/json;\n{temporary}  \
         server {{ listen 0.0.0.0:8080;\n    \
         location /moved {{ return 302 /keys; }}\n    \
         location / {{ root {place}/served; }} }}\n}}\n"
    );
    fs::create_dir(directory.join("served"))?;
    Ok(fs::write(directory.join("nginx.conf"), configuration)?)
}

/// A policy whose keys are fetched from a URL.
fn users_of(url: &str, audiences: &str) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: users, namespace: lab}}
spec:
  selector: {{matchLabels: {{app: front}}}}
  tokens: [{{issuer: '{ISSUER}', audiences: {audiences}, jwksUrl: '{url}'}}]
  rules: [{{}}]
"
    )
}

fn fetched_keys(lab: &Lab, mesh: &str) -> Result<()> {
    let served = lab.directory().join("served/keys");
    let (first, second) = (key()?, key()?);
    fs::write(&served, key_set(&first).to_string())?;
    let by = |key: &EcdsaKeyPair, audience: &str| -> Result<[String; 3]> {
        let claims = claims(&json!({"aud": audience}))?;
        let token = bearer(&token(KEY_ID, &claims, |text| sign(key, text)));
        Ok(["-H".to_owned(), token, "http://front.lab/items".to_owned()])
    };
    let answers = |request: &[String; 3], expected: &str| -> Result<()> {
        let request: Vec<&str> = request.iter().map(String::as_str).collect();
        until_within(FETCH_LIMIT, lab, "web", &request, expected)
    };
    let url = "http://issuer-0.issuer.lab.svc.cluster.local:8080/moved";
    let users = users_of(url, "[shop]");
    // No operator has permitted the origin yet, and no keys were fetched before.
    let no_key = "401 authorization-denied; reason=token-key";
    lab.edit(&format!("{mesh}{users}"))?;
    answers(&by(&first, "shop")?, no_key)?;
    lab.edit(&format!("{mesh}{users}{PERMITTED}"))?;
    answers(&by(&first, "shop")?, "200")?;
    let of_other = "401 authorization-denied; reason=token-signature";
    answers(&by(&second, "shop")?, of_other)?;
    // The issuer publishes a second key. For a while, both keys are valid.
    let mut both = key_set(&first);
    let more = key_set(&second)["keys"][0].clone();
    both["keys"].as_array_mut().context("the keys")?.push(more);
    fs::write(&served, both.to_string())?;
    answers(&by(&second, "shop")?, "200")?;
    answers(&by(&first, "shop")?, "200")?;
    fs::write(&served, key_set(&second).to_string())?;
    answers(&by(&first, "shop")?, of_other)?;
    // These keys have a new name. The proxy reports the unknown name, so the control plane does not wait for its
    // next regular fetch.
    let before = refetches(lab)?;
    let claims = claims(&json!({}))?;
    let renamed = token(r#"{"alg":"ES256","kid":"two"}"#, &claims, |text| sign(&first, text));
    let renamed = ["-H".to_owned(), bearer(&renamed), "http://front.lab/items".to_owned()];
    answers(&renamed, no_key)?;
    let is_early = || Ok((refetches(lab)? > before).then_some(()));
    wait::until("an early fetch", FETCH_LIMIT, is_early)?;
    fs::write(&served, named_key_set(&first, "two").to_string())?;
    answers(&renamed, "200")?;
    fs::write(&served, key_set(&second).to_string())?;
    answers(&by(&second, "shop")?, "200")?;
    // If the issuer does not answer, a new control plane uses the last keys.
    fs::remove_file(&served)?;
    lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
    lab.edit(&format!("{mesh}{}{PERMITTED}", users_of(url, "[shop, bank]")))?;
    answers(&by(&second, "bank")?, "200")?;
    // A policy whose origin is not permitted gets no keys.
    lab.edit(&format!("{mesh}{}", users_of(url, "[shop, bank]")))?;
    answers(&by(&second, "bank")?, no_key)
}

/// How many times proxies have reported tokens with unknown keys to the control plane.
fn refetches(lab: &Lab) -> Result<u64> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "-m", "20", "http://127.0.0.1:15020/metrics"]);
    let page = netns::inside(&lab.switch()?, || command::text(&mut curl, FETCH_LIMIT))?;
    let name = "leno_control_key_refetches_total ";
    let count = page.lines().find_map(|line| line.strip_prefix(name));
    Ok(count.with_context(|| format!("no {name}in\n{page}"))?.trim().parse()?)
}
