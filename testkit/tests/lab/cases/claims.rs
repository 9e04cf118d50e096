//! Tests claims of tokens that are passed to applications in headers, and token keys in a ConfigMap.
//!
//! ```text
//! web (meshed), plain (no proxy) ── Authorization: Bearer ..., forged headers ──► front (HTTP)
//! ```

use anyhow::{Context, Result, ensure};
use aws_lc_rs::signature::EcdsaKeyPair;
use leno_testkit::lab::{Capture, Lab, LabOptions};
use serde_json::{Value, json};

use super::authorization::{answered, until};
use super::authorizers::seen;
use super::tokens::{ISSUER, KEY_ID, MESH, bearer, claims, key, key_set, sign, token};
use super::{Case, once};

/// With these policies, users are identified by their tokens, and `/seen?open` is permitted for all clients. The
/// last policy matches a header that clients cannot set.
const POLICIES: &str = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: users, namespace: lab}
spec:
  selector: {matchLabels: {app: front}}
  tokens:
  - issuer: '@ISSUER@'
    audiences: [shop]
    jwksConfigMap: keys
    claimHeaders: [{name: X-User, claim: sub}, {name: x-groups, claim: realm.groups}]
  - issuer: '@GUESTS@'
    audiences: [shop]
    jwksConfigMap: keys
    header: x-guest
    claimHeaders: [{name: x-guest-name, claim: sub}]
  rules: [{to: [{paths: [{exact: /seen}]}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: everyone, namespace: lab}
spec:
  selector: {matchLabels: {app: front}}
  rules:
  - to: [{methods: [PUT]}]
  - to: [{methods: [DELETE], headers: [{name: x-user, values: [root]}]}]
";

/// An issuer whose tokens are in another header.
const GUESTS: &str = "https://guests.example.com";

/// Headers that clients forge to imitate claims of a token.
const FORGED: [&str; 6] = ["-H", "X-User: root", "-H", "x_user: root", "-H", "x.groups: root"];

pub(super) fn cases() -> Vec<Case> {
    vec![once!(claims_reach_the_application_and_no_client_forges_them)]
}

fn claims_reach_the_application_and_no_client_forges_them(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(run(&lab))
}

fn keys(key: &EcdsaKeyPair) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: keys, namespace: lab}}\n\
         data: {{jwks.json: '{}'}}\n",
        key_set(key)
    )
}

fn run(lab: &Lab) -> Result<()> {
    let key = key()?;
    let by_key = |more: &Value| -> Result<String> {
        Ok(bearer(&token(KEY_ID, &claims(more)?, |text| sign(&key, text))))
    };
    let policies = POLICIES.replace("@ISSUER@", ISSUER).replace("@GUESTS@", GUESTS);
    let ann = by_key(&json!({"realm": {"groups": ["dev", "ops"]}}))?;
    // The ConfigMap does not exist yet.
    lab.edit(&format!("{MESH}{policies}"))?;
    let no_key = "401 authorization-denied; reason=token-key";
    until(lab, "web", &["-H", &ann, "http://front.lab/seen"], no_key)?;
    lab.edit(&format!("{MESH}{policies}{}", keys(&key)))?;
    for (client, url) in [("web", "http://front.lab/seen"), ("plain", DIRECT)] {
        until(lab, client, &["-H", &ann, url], "200")?;
        let headers = headers(lab, client, &["-H", &ann, url])?;
        ensure!(headers.contains("\"ann\"") && headers.contains("\"dev,ops\""), "{headers}");
        ensure!(!headers.contains("root"), "{client}: {headers}");
        // To the application, a group with a comma in its name would be two groups.
        let tricky = by_key(&json!({"realm": {"groups": ["dev,admin"]}}))?;
        let headers = self::headers(lab, client, &["-H", &tricky, url])?;
        ensure!(headers.contains("\"ann\"") && !headers.contains("groups\""), "{headers}");
        // If another policy permits a request without a token, the request has none of these headers; a request
        // with a token has them.
        let headers = self::headers(lab, client, &["-X", "PUT", url])?;
        ensure!(!headers.contains("user\"") && !headers.contains("root"), "{client}: {headers}");
        let headers = self::headers(lab, client, &["-X", "PUT", "-H", &ann, url])?;
        ensure!(headers.contains("\"ann\"") && !headers.contains("root"), "{client}: {headers}");
        // A client cannot remove the header by naming it in `Connection`.
        let named = ["-H", "connection: x-user", "-H", &ann, url];
        let headers = self::headers(lab, client, &named)?;
        ensure!(headers.contains("\"ann\"") && !headers.contains("root"), "{client}: {headers}");
        guests_are_no_users(lab, (client, url), &key)?;
        // No rule trusts this header if the client itself has set it.
        let said = answered(lab, client, &["-X", "DELETE", "-H", "x-user: root", url])?;
        ensure!(said == "401 authorization-denied; reason=token-missing", "{client}: {said}");
    }
    // From here on, the ConfigMap contains the keys of another issuer.
    lab.edit(&format!("{MESH}{policies}{}", keys(&self::key()?)))?;
    let signature = "401 authorization-denied; reason=token-signature";
    until(lab, "web", &["-H", &ann, "http://front.lab/seen"], signature)
}

/// A token that a worker has already verified must not be valid in the header of another issuer.
fn guests_are_no_users(lab: &Lab, (client, url): (&str, &str), key: &EcdsaKeyPair) -> Result<()> {
    let claims = claims(&json!({"iss": GUESTS, "sub": "eve"}))?;
    let guest = token(KEY_ID, &claims, |text| sign(key, text));
    for _ in 0..8 {
        let headers = headers(lab, client, &["-H", &format!("x-guest: {guest}"), url])?;
        ensure!(headers.contains("\"eve\"") && !headers.contains("root"), "{client}: {headers}");
        let said = answered(lab, client, &["-H", &bearer(&guest), url])?;
        ensure!(said == "401 authorization-denied; reason=token-issuer", "{client}: {said}");
    }
    Ok(())
}

const DIRECT: &str = "http://front-0.front.lab:8080/seen";

/// The headers of a request as the application received them. The request contains forged headers.
fn headers(lab: &Lab, client: &str, more: &[&str]) -> Result<String> {
    let seen = seen(lab, client, &[more, &FORGED].concat())?;
    let headers = seen["headers"].as_array().context("the headers")?;
    Ok(Value::from(headers.clone()).to_string().to_lowercase())
}
