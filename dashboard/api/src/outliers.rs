//! Finds instances that fail or are slow while the other instances of their workload are not.

use std::collections::BTreeMap;

use leno_observe::stat::{InstanceGrowth, PairCounts};

use crate::api::{Sign, SignKind};

/// The smallest number of requests for a comparison, both of the instance and of the others.
const MIN_REQUESTS: f64 = 5.0;
/// An outlier has at least this many failures, they are at least this share of its requests, and this share is at least
/// this many times that of the other instances.
const MIN_FAILURES: f64 = 3.0;
const MIN_SHARE: f64 = 0.05;
const TIMES: f64 = 4.0;
/// The median duration of a slow outlier is at least this many times that of the other instances, and at least this
/// many seconds longer.
const SLOWER: f64 = 3.0;
const LONGER_S: f64 = 0.05;

/// Finds outliers in the counts of several observations.
#[must_use]
pub fn outliers<'a>(seen: impl Iterator<Item = &'a Vec<InstanceGrowth>>) -> Vec<Sign> {
    let mut workloads: BTreeMap<(&str, &str), BTreeMap<&str, PairCounts>> = BTreeMap::new();
    for one in seen.flatten() {
        let workload = workloads.entry((&one.name.0, &one.workload)).or_default();
        workload.entry(&one.name.1).or_default().add(&one.counts);
    }
    let mut found = Vec::new();
    for (workload, instances) in workloads {
        for (name, own) in &instances {
            let mut others = PairCounts::default();
            for (_, counts) in instances.iter().filter(|(other, _)| other != &name) {
                others.add(counts);
            }
            if let Some(how) = unlike(own, &others) {
                let line = format!("{name} {how}");
                found.push(Sign::seen(SignKind::Outlier, workload, (*name).to_owned(), line));
            }
        }
    }
    found
}

/// A description of how an instance differs from the others; `None` if it does not.
fn unlike(own: &PairCounts, others: &PairCounts) -> Option<String> {
    let (requests, of_others) = (own.requests(), others.requests());
    if requests < MIN_REQUESTS || of_others < MIN_REQUESTS {
        return None;
    }
    let failed = |counts: &PairCounts| counts.failures() + counts.given_up;
    let share = failed(own) / requests;
    if failed(own) >= MIN_FAILURES
        && share >= MIN_SHARE
        && share >= TIMES * failed(others) / of_others
    {
        return Some(format!(
            "fails {:.0} of {requests:.0} requests, the other instances {:.0} of {of_others:.0}",
            failed(own),
            failed(others)
        ));
    }
    let (slow, usual) = (own.durations.quantile(0.5)?, others.durations.quantile(0.5)?);
    (slow >= SLOWER * usual && slow >= usual + LONGER_S).then(|| {
        format!(
            "takes {:.0} ms for a request, the other instances {:.0} ms",
            slow * 1000.0,
            usual * 1000.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, failed: f64, seconds: f64) -> InstanceGrowth {
        let mut counts =
            PairCounts { classes: [0.0, 20.0 - failed, 0.0, 0.0, failed], ..PairCounts::default() };
        counts.durations.add(seconds, 20.0);
        counts.durations.add(f64::INFINITY, 20.0);
        let name = ("shop".to_owned(), name.to_owned());
        InstanceGrowth { name, workload: "cart".to_owned(), counts }
    }

    fn lines(seen: &[Vec<InstanceGrowth>]) -> Vec<String> {
        outliers(seen.iter()).into_iter().map(|sign| sign.line).collect()
    }

    #[test]
    fn the_instance_that_fails_or_is_slow_is_named() {
        let well = || instance("cart-0", 0.0, 0.005);
        assert!(lines(&[vec![well(), instance("cart-1", 1.0, 0.007)]]).is_empty());
        let failing = vec![well(), instance("cart-1", 2.0, 0.005)];
        assert_eq!(
            lines(&[failing.clone(), failing]),
            ["cart-1 fails 4 of 40 requests, the other instances 0 of 40"]
        );
        let all = vec![instance("cart-0", 5.0, 0.5), instance("cart-1", 6.0, 0.5)];
        assert!(lines(&[all]).is_empty(), "all of them fail");
        let slow = lines(&[vec![well(), instance("cart-1", 0.0, 0.5)]]);
        assert_eq!(slow.len(), 1);
        assert!(slow[0].starts_with("cart-1 takes "), "{slow:?}");
    }
}
