//! Tests that the share of an endpoint that joins others grows gradually.

use anyhow::{Result, ensure};
use leno_testkit::lab::Capture;

use super::mesh::{self, TrafficMesh};

/// The number of requests in one measurement.
const REQUESTS: usize = 300;

/// Checks that the new endpoint's number of requests differs by at most six standard deviations from a `share` of
/// all requests.
fn is_share(count: usize, share: f64) -> Result<()> {
    let (mean, variance) = (REQUESTS as f64 * share, REQUESTS as f64 * share * (1.0 - share));
    let off = (count as f64 - mean).abs();
    ensure!(off <= 6.0 * variance.sqrt(), "{count} of {REQUESTS}, where {mean:.0} are expected");
    Ok(())
}

/// During slow start, the new endpoint gets a tenth as many requests as the old one. Afterwards it gets as many.
pub(super) fn a_new_endpoint_grows_to_its_share(capture: Capture) -> Result<()> {
    let bed = TrafficMesh::start(capture, &["good"])?;
    let cases = || -> Result<()> {
        let policy = |time: &str| {
            let target = "[{group: '', kind: Service, name: good}]";
            let balancing = format!("  balancing: {{algorithm: Random, slowStart: {time}}}\n");
            bed.edit("good", &mesh::traffic("good", target, &balancing))
        };
        policy("1h")?;
        bed.until("client", &["http://good/"], "200")?;
        bed.edit("later", &mesh::server("later", "good", "good"))?;
        bed.until_heard("the new one to serve", || {
            bed.ask_many("client", "http://good/first", 30, &[])?;
            Ok((!bed.seen(&["later-0"]).unwrap_or_default().is_empty()).then_some(()))
        })?;
        let more = || -> Result<usize> {
            let before = bed.seen(&["later-0"])?.len();
            let answers = bed.ask_many("client", "http://good/", REQUESTS, &[])?;
            ensure!(answers.iter().all(|answer| answer == "200"), "{answers:?}");
            Ok(bed.seen(&["later-0"])?.len() - before)
        };
        is_share(more()?, 0.1 / 1.1)?;
        // With this policy slow start is over, because the endpoint has existed for longer.
        policy("1ms")?;
        bed.until_heard("the share to have grown", || Ok(is_share(more()?, 0.5).ok()))?;
        is_share(more()?, 0.5)
    };
    bed.lab.explain(cases())
}
