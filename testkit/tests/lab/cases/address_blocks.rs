//! Tests address blocks in policies, and clients that connect over the other address family.
//!
//! ```text
//! web, cart (meshed), plain, late (no proxy) ── over IPv4 and IPv6 ──► front (HTTP), echo (bytes)
//! ```

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess, Status};
use leno_testkit::peer::Step;
use nix::sys::signal::Signal;

use super::authorization::{answered, until};
use super::programs::socket;
use super::reauthorization::{begin_bytes, begin_talk};
use super::{Case, alone};

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
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: late, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: lab, labels: {app: front}}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: front}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: lab}
spec: {selector: {app: echo}, ports: [{name: bytes, port: 9000, appProtocol: tcp}]}
";

const DENIED: &str = "403 authorization-denied";

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(blocks_hold_for_all_addresses_of_a_client)]
}

fn blocks_hold_for_all_addresses_of_a_client(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(clients(&lab))
}

/// MESH with a policy for the whole namespace, about one address.
fn with_policy(action: &str, address: &str) -> String {
    format!(
        "{MESH}---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: of-addresses, namespace: lab}}
spec:
  selector: {{}}
  action: {action}
  rules: [{{from: [{{ipBlocks: [{{cidr: '{address}'}}]}}]}}]
"
    )
}

/// Checks the response that a client gets over IPv4 and over IPv6.
fn both(lab: &Lab, client: &str, expected: &str) -> Result<()> {
    for family in ["-4", "-6"] {
        until(lab, client, &[family, url(client)], expected)?;
    }
    Ok(())
}

fn url(client: &str) -> &'static str {
    match client {
        "plain" | "late" => "http://front-0.front.lab:8080",
        _ => "http://front.lab",
    }
}

fn address(status: &Status, workload: &str, ipv6: bool) -> Result<String> {
    Ok(status.address(workload, ipv6)?.to_string())
}

fn clients(lab: &Lab) -> Result<()> {
    for client in ["web", "cart", "plain"] {
        both(lab, client, "200")?;
    }
    let status = lab.status()?;
    what_is_in_progress(lab, &status)?;
    for ipv6 in [false, true] {
        // The policy contains an address of only one family.
        lab.edit(&with_policy("Deny", &address(&status, "web", ipv6)?))?;
        until(lab, "web", &[if ipv6 { "-6" } else { "-4" }, url("web")], &named())?;
        both(lab, "web", &named())?;
        both(lab, "cart", "200")?;
        both(lab, "plain", "200")?;
        lab.edit(&with_policy("Deny", &address(&status, "plain", ipv6)?))?;
        both(lab, "plain", DENIED)?;
        both(lab, "web", "200")?;
        lab.edit(&with_policy("Allow", &address(&status, "web", ipv6)?))?;
        both(lab, "cart", DENIED)?;
        both(lab, "plain", DENIED)?;
        both(lab, "web", "200")?;
    }
    without_an_answer(lab, &status)
}

fn named() -> String {
    format!("{DENIED}; policy=lab/of-addresses")
}

/// Connections are open over IPv6 when a policy with an IPv4 address is added. Exactly those of that client must
/// end.
fn what_is_in_progress(lab: &Lab, status: &Status) -> Result<()> {
    let found = lab.text("web", &["getent", "ahostsv6", "echo"])?;
    let address = found.split_whitespace().next().context("echo has no IPv6 address")?;
    let echo = socket(address, 9000);
    let go = lab.directory().join("go");
    let ends = begin_talk(lab, ("web", &echo), begin_bytes(), (&go, false))?;
    let stays = begin_talk(lab, ("cart", &echo), begin_bytes(), (&go, true))?;
    lab.edit(&with_policy("Deny", &self::address(status, "web", false)?))?;
    ends.end()?;
    std::fs::write(&go, "")?;
    stays.end()?;
    let again = lab.talk("web", &echo, &[Step::Send("x".into()), Step::Expect("x".into())])?;
    ensure!(again.was_cut(), "web again: {again:?}");
    Ok(())
}

/// As long as discovery has not reported who a client is, the client is denied if it might be the denied one.
fn without_an_answer(lab: &Lab, status: &Status) -> Result<()> {
    lab.edit(&with_policy("Deny", &address(status, "web", false)?))?;
    both(lab, "web", &named())?;
    lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
    let (over_ipv6, over_ipv4) = (["-6", url("late")], ["-4", url("late")]);
    let first = answered(lab, "late", &over_ipv6);
    let same_family = answered(lab, "late", &over_ipv4);
    let known = answered(lab, "plain", &["-6", url("plain")]);
    lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
    let (first, same_family, known) = (first?, same_family?, known?);
    ensure!(first == DENIED, "a client that nothing is known of: {first:?}");
    ensure!(same_family == "200", "its other address decides nothing: {same_family:?}");
    ensure!(known == "200", "a client that is known: {known:?}");
    both(lab, "late", "200")
}
