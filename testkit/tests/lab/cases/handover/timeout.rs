//! Tests the time limit for streams that an earlier proxy finishes, and the metrics of those proxies.

use std::fs;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::super::flows::metric;
use super::super::node::LIMIT;
use super::{held, hold, mesh, prepare, replicas, upgrade};

pub(super) fn streams_that_outlast_the_handover_timeout_are_cut_and_counted_and_others_end_whole(
    capture: Capture,
) -> Result<()> {
    for mode in ["node", "sidecar"] {
        let documents = mesh("service-account")
            .replace("leno.dev/mode: node", &format!("leno.dev/mode: {mode}"));
        let options =
            LabOptions { handover_timeout: Some("30s"), share: None, ..LabOptions::new(capture) };
        let lab = Lab::start(&options, &documents, prepare)?;
        let counted = |name: &str, labels: &[&str]| metric(&lab, name, labels);
        let outcome = || -> Result<()> {
            for end in ["a", "b"] {
                lab.reach(&format!("near-{end}"), &format!("far-{end}.far-{end}:8080"))?;
            }
            let (over, never) = (lab.directory().join("over"), lab.directory().join("never"));
            let in_time = hold(&lab, "a", &over)?;
            let too_long = hold(&lab, "b", &never)?;
            upgrade(&lab)?;
            let proxies = 4 * replicas();
            wait::until("all earlier proxies to finish their streams", LIMIT, || {
                Ok((counted("leno_proxies_finishing", &[])? == proxies).then_some(()))
            })?;
            fs::write(&over, "")?;
            let in_time = held(in_time)?;
            ensure!(in_time.cut == 0 && in_time.messages >= in_time.opened, "{in_time:?}");
            // The program ends once all of its connections were cut.
            let too_long = held(too_long)?;
            ensure!(too_long.cut == too_long.opened, "{too_long:?}");
            wait::until("the end of all earlier proxies", LIMIT, || {
                Ok((counted("leno_proxies_finishing", &[])? == 0).then_some(()))
            })?;
            let of = |streams: &str| {
                counted("leno_proxies_finished_total", &[&format!("streams=\"{streams}\"")])
            };
            let (ended, cut) = (of("ended")?, of("cut")?);
            // A stream passes two proxies. When one of them cuts it, it has ended for the other. So only one proxy of
            // each pair `b` need count a cut, while both proxies of each pair `a` must count an end.
            let of_one_end = 2 * replicas();
            ensure!(
                ended + cut == proxies && ended >= of_one_end && cut > 0,
                "{mode}: {ended} {cut}"
            );
            Ok(())
        };
        lab.explain(outcome().context(mode))?;
    }
    Ok(())
}
