//! Tests that `leno authz suggest` prints a policy for audited requests, and that the policy permits exactly those
//! requests when it is applied.
//!
//! ```text
//! web, cart (meshed), plain (no proxy) ──► front (HTTP, audited)
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command;
use leno_testkit::lab::{Capture, Lab, LabOptions};
use serde_json::Value;

use super::authorization::until;
use super::tokens::MESH;
use super::{Case, once};

const LIMIT: Duration = Duration::from_secs(90);

const MORE: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec: {serviceAccount: cart, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: watch, namespace: lab}
spec: {selector: {matchLabels: {app: front}}, action: Audit, rules: [{}]}
";

/// The requests that are sent before a policy permits or denies anything.
const REQUESTS: [(&str, &[&str]); 4] = [
    ("web", &["http://front.lab/items?page=2"]),
    ("web", &["-X", "POST", "http://front.lab/items"]),
    ("cart", &["http://front.lab/%68ealth"]),
    ("plain", &["http://front-0.front.lab:8080/items"]),
];

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_policy_is_suggested_for_what_was_audited)]
}

fn a_policy_is_suggested_for_what_was_audited(capture: Capture) -> Result<()> {
    let mesh = format!("{MESH}{MORE}");
    let lab = Lab::start(&LabOptions::new(capture), &mesh, |_| Ok(()))?;
    let cases = || -> Result<()> {
        for (client, request) in REQUESTS {
            until(&lab, client, request, "200")?;
        }
        let said =
            command::text(lab.leno("authz suggest").args(["-n", "lab", "-o", "json"]), LIMIT)?;
        let said: Value = serde_json::from_str(&said)?;
        let one = &said[0];
        ensure!(
            one["audited_by"] == "lab/watch" && one["denied"] == Value::Array(vec![]),
            "{said}"
        );
        ensure!(one["permitted"] == 3 && one["not_kept"] == 0, "{said}");
        let in_clear = one["in_clear"].as_array().context("no list")?;
        ensure!(in_clear.len() == 1 && in_clear[0]["port"] == 8080, "who comes in clear: {said}");
        let policy = one["policy"].as_str().context("no policy")?;
        // The policy permits the recorded requests, and nothing else.
        lab.edit(&format!("{mesh}---\n{policy}"))?;
        let denied = "403 authorization-denied";
        until(&lab, "plain", REQUESTS[3].1, denied)?;
        for (client, request) in &REQUESTS[..3] {
            until(&lab, client, request, "200").with_context(|| policy.to_owned())?;
        }
        for (client, request) in [
            ("cart", &["http://front.lab/items"][..]),
            ("web", &["http://front.lab/health"]),
            ("web", &["http://front.lab/items/1"]),
            ("web", &["-X", "DELETE", "http://front.lab/items"]),
        ] {
            until(&lab, client, request, denied).with_context(|| policy.to_owned())?;
        }
        Ok(())
    };
    lab.explain(cases())
}
