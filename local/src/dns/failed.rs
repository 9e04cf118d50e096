//! Counts failed lookups, by client and name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The name of the metric that counts failed lookups.
pub const FAILED_LOOKUPS: &str = "leno_dns_failed_lookups_total";
/// The reason label: the mesh does not have the name.
pub const NO_SUCH_NAME: &str = "no-such-name";
/// The reason label: no resolver has answered for a name outside of the mesh.
pub(super) const NO_ANSWER: &str = "no-answer";

/// Most pairs of client and name that are counted separately: a client that looks up random names must not use up the
/// memory.
const MAX_SERIES: usize = 256;
/// The name label of lookups above [`MAX_SERIES`].
const OTHER: &str = "other";

/// A client, a name, and a reason.
type Key = (Option<IpAddr>, String, &'static str);

/// Counts failed lookups. The lock is only taken to count one and to print the metrics.
#[derive(Debug, Default)]
pub struct FailedLookups(Mutex<BTreeMap<Key, u64>>);

impl FailedLookups {
    /// Counts one failed lookup.
    pub(super) fn count(&self, client: IpAddr, name: &str, reason: &'static str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Some(client), name.to_owned(), reason);
        let is_full = all.len() >= MAX_SERIES && !all.contains_key(&key);
        let key = if is_full { (None, OTHER.to_owned(), reason) } else { key };
        let count = all.entry(key).or_default();
        *count = count.saturating_add(1);
    }

    /// The counters in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = String::new();
        let help = "Lookups of workloads that found nothing, by the address of the client, the name and the reason.";
        let mut family = leno_program::Family::counter(&mut page, FAILED_LOOKUPS, help);
        for ((client, name, reason), count) in
            &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let client = client.map_or_else(|| OTHER.to_owned(), |client| client.to_string());
            family.sample(&[("client", &client), ("name", name), ("reason", reason)], count);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_names_are_counted_as_one() {
        let failed = FailedLookups::default();
        let client = "10.89.0.2".parse().unwrap();
        for nth in 0..MAX_SERIES + 10 {
            failed.count(client, &format!("n{nth}.shop"), NO_SUCH_NAME);
        }
        failed.count(client, "n1.shop", NO_SUCH_NAME);
        let page = failed.metrics();
        let has = |line: &str| page.lines().any(|one| one == line);
        assert!(
            has(
                "leno_dns_failed_lookups_total{client=\"10.89.0.2\",name=\"n1.shop\",reason=\"no-such-name\"} 2"
            ),
            "{page}"
        );
        assert!(
            has(
                "leno_dns_failed_lookups_total{client=\"other\",name=\"other\",reason=\"no-such-name\"} 10"
            ),
            "{page}"
        );
    }
}
