//! Tests connections of workloads to destinations outside the mesh.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::wait;

use super::{Case, alone};
use crate::outside::{ADDRESS, Outside};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(egress_to_unknown_destinations_is_denied_by_one_annotation)]
}

/// How long a change of the documents may take to reach the proxies.
const HEAR_LIMIT: Duration = Duration::from_secs(90);

fn documents(annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: lab, annotations: {annotations}}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: client, namespace: lab}}\n\
         spec: {{command: ['@BIN@/leno-peer', idle]}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: web, namespace: lab}}\n\
         spec:\n  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']\n  \
         ports: [{{name: http, port: 8080, appProtocol: http}}]\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: free, namespace: lab, annotations: {{leno.dev/egress: allow}}}}\n\
         spec: {{command: ['@BIN@/leno-peer', idle]}}\n"
    )
}

/// The status and `leno-error` of a request.
fn asks(lab: &Lab, who: &str, url: &str, more: &[&str]) -> Result<String> {
    let shown = "%{http_code} %header{leno-error}";
    let curl = ["curl", "-s", "-m", "10", "-o", "/dev/null", "-w", shown];
    let said = lab.exec(who, &[&curl[..], more, &[url]].concat())?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn egress_to_unknown_destinations_is_denied_by_one_annotation(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), &documents("{}"), |_| Ok(()))?;
    let mut outside = Outside::beside(&lab)?;
    outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:80"])?;
    outside.start(&["leno-peer", "echo", "--listen", "0.0.0.0:9000"])?;
    outside.start(&["leno-peer", "echo", "--listen", "0.0.0.0:53"])?;
    let (http, echo, dns) =
        (format!("http://{ADDRESS}/"), format!("{ADDRESS}:9000"), format!("{ADDRESS}:53"));
    let echoed = [Step::Send("\0x".into()), Step::Expect("\0x".into())];
    lab.explain(wait::until("the outside to answer", HEAR_LIMIT, || {
        Ok((asks(&lab, "client", &http, &[])? == "200").then_some(()))
    }))?;
    ensure!(lab.talk("client", &echo, &echoed)?.failure().is_none());
    lab.reach("client", "web:8080")?;

    lab.edit(&documents("{leno.dev/egress: deny}"))?;
    let denied = format!("403 egress-denied; destination=\"{ADDRESS}:80\"");
    lab.explain(wait::until("the refusal", HEAR_LIMIT, || {
        Ok((asks(&lab, "client", &http, &[])? == denied).then_some(()))
    }))?;
    let over_http2 = asks(&lab, "client", &http, &["--http2-prior-knowledge"])?;
    ensure!(over_http2 == denied, "over HTTP/2: {over_http2}");
    for steps in [&echoed[..], &[Step::ReadToEnd]] {
        let said = lab.talk("client", &echo, steps)?;
        ensure!(said.was_cut(), "an opaque connection went through: {said:?}");
    }
    // Everything else must still work: the mesh, DNS, the workload itself, and a workload with a permission of its
    // own.
    lab.reach("client", "web:8080")?;
    let address = lab.status()?.address("web-0", false)?;
    ensure!(asks(&lab, "client", &format!("http://{address}:8080/"), &[])? == "200");
    ensure!(asks(&lab, "web", "http://127.0.0.1:8080/", &[])? == "200");
    let named = lab.talk("client", &dns, &echoed)?;
    ensure!(named.failure().is_none(), "port 53: {named:?}");
    ensure!(asks(&lab, "free", &http, &[])? == "200", "the workload's own line did not win");
    let metrics = lab.metrics("client")?;
    let counted = metrics.lines().find(|line| line.contains("cause=\"egress-denied\""));
    let counted = counted.with_context(|| metrics.clone())?;
    let count: f64 = counted.rsplit(' ').next().unwrap_or_default().parse()?;
    ensure!(count >= 4.0, "{counted}");
    drop(outside);
    lab.end()?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}
