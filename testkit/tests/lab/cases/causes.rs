//! Tests that both proxies report the cause of a truncated response (decision 058).

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::routes::HEAR_LIMIT;
use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', faulty, --listen, '[::]:8080', --tell, '127.0.0.1:8081', --acts, 'bad-chunk,cut']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(both_proxies_report_why_a_response_was_truncated)]
}

fn both_proxies_report_why_a_response_was_truncated(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(wait::until("both responses", HEAR_LIMIT, || {
        // curl reports that the response is incomplete.
        lab.exec("client", &["curl", "-sS", "-m", "5", "http://web:8080/"])?;
        let pages = [lab.metrics("client")?, lab.metrics("web")?];
        let counts = |page: &String, cause: &str| {
            let label = format!("cause=\"{cause}\"");
            page.lines().any(|line| line.starts_with("leno_errors_total") && line.contains(&label))
        };
        for page in &pages {
            ensure!(!counts(page, "internal-error"), "{page}");
        }
        let named = |cause| pages.iter().all(|page| counts(page, cause));
        Ok((named("chunk-size") && named("closed")).then_some(()))
    }))
}
