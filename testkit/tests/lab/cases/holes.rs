//! Tests vulnerabilities of other meshes. Each case is named after one (docs/security.md).

use anyhow::{Context as _, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};

use super::authorizers::seen;
use super::tokens::MESH;
use super::{Case, alone, once};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(cve_2024_45806_headers_of_the_mesh_are_not_believed_of_clients),
        alone!(cve_2026_31838_strangers_see_no_configuration),
        once!(metrics_are_for_scrapers_alone),
    ]
}

/// Envoy trusted internal headers from clients with private addresses. CVE-2023-27487 is similar.
fn cve_2024_45806_headers_of_the_mesh_are_not_believed_of_clients(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(forged(&lab))
}

fn forged(lab: &Lab) -> Result<()> {
    let lines = [
        "leno-error: application-unreachable",
        "LENO_ERROR: forged",
        "leno-h1: 1.0 T m=FORGED",
        "X-Forwarded-Client-Cert: URI=spiffe://cluster.local/ns/lab/sa/forged",
        "x_forwarded_client_cert: forged",
        "l5d-client-id: forged",
        "L5D_Client_Id: forged",
        "x-kept: kept",
    ];
    let lines: Vec<&str> = lines.iter().flat_map(|line| ["-H", *line]).collect();
    for (client, url) in
        [("web", "http://front.lab/seen"), ("plain", "http://front-0.front.lab:8080/seen")]
    {
        let seen = seen(lab, client, &[&lines[..], &[url]].concat())?;
        let headers = seen["headers"].to_string().to_lowercase();
        ensure!(headers.contains("kept"), "{client}: {headers}");
        for name in ["forged", "unreachable", "leno", "client-cert", "client_cert"] {
            ensure!(!headers.contains(name), "{client}: {name} in {headers}");
        }
        ensure!(seen["method"] == "GET", "{client}: {seen}");
    }
    Ok(())
}

/// Istio's control plane served debugging pages to any pod.
fn cve_2026_31838_strangers_see_no_configuration(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(pages(
        &lab,
        &[("GET", "metrics", "200"), ("GET", "config", "403"), ("POST", "drain", "403")],
    ))
}

/// Metrics name the services and clients of a workload, so only scrapers may read them.
fn metrics_are_for_scrapers_alone(capture: Capture) -> Result<()> {
    let scrapers = Some("192.0.2.0/24,2001:db8::/32");
    let options = LabOptions { scrape_from: scrapers, ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    lab.explain(scraped(&lab))
}

/// Other clients must not be able to read the pages; the workload's own application and Leno itself must be.
fn scraped(lab: &Lab) -> Result<()> {
    pages(lab, &[("GET", "metrics", "403"), ("GET", "ready", "200")])?;
    ensure!(lab.metrics("front")?.contains("leno_busy"), "no metrics over loopback");
    let stat = lab.stat()?;
    let silent = stat["silent"].as_array().context("no list of the silent")?;
    ensure!(silent.is_empty(), "leno stat: {silent:?}");
    let checked = lab.leno("check").output()?;
    let checked = String::from_utf8_lossy(&checked.stdout);
    ensure!(checked.contains("certificate valid for"), "leno check: {checked}");
    ensure!(!checked.contains("certificate unknown"), "leno check: {checked}");
    Ok(())
}

fn pages(lab: &Lab, answers: &[(&str, &str, &str)]) -> Result<()> {
    let front = lab.status()?.address("front-0", false)?;
    for (method, page, expected) in answers {
        let url = format!("http://{front}:15020/{page}");
        let curl = ["curl", "-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}"];
        let said = lab.exec("plain", &[&curl[..], &["-X", method, &url]].concat())?;
        let said = String::from_utf8_lossy(&said.stdout);
        ensure!(said == *expected, "a stranger gets {said} for /{page}");
    }
    Ok(())
}
