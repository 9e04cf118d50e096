//! The distinct requests that audit policies have matched, and how often each occurred. Users write policies from
//! these.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The largest number of distinct requests that a worker keeps. Clients choose methods, hosts and paths, so their
/// number must be limited: with [`MAX_PATH_BYTES`] they take half a megabyte at most.
pub const MAX_AUDITED: usize = 512;

/// The longest path that is kept, in bytes.
pub const MAX_PATH_BYTES: usize = 512;

/// The longest method, and the longest host, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A request that an audit policy has matched, or a connection that is relayed as bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditedRequest {
    /// `<namespace>/<name>` of the policy.
    pub policy: Box<str>,
    /// The client's identity; empty if it has proven none.
    pub client: Box<str>,
    /// The address of a client without an identity.
    pub address: Option<IpAddr>,
    /// The workload's port.
    pub port: u16,
    /// The method. For a connection that is relayed as bytes, method, host and path are empty.
    pub method: Box<str>,
    /// The authority, as sent.
    pub host: Box<str>,
    /// The path, as sent and without its query.
    pub path: Box<str>,
}

/// The requests of one worker, or of several, and how often each occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditedRequests(BTreeMap<AuditedRequest, u64>);

impl AuditedRequests {
    /// Counts a request. Returns whether it is kept.
    pub(crate) fn count(&mut self, request: AuditedRequest) -> bool {
        let fits = request.path.len() <= MAX_PATH_BYTES
            && request.method.len() <= MAX_NAME_BYTES
            && request.host.len() <= MAX_NAME_BYTES;
        if let Some(count) = self.0.get_mut(&request) {
            *count = count.saturating_add(1);
            return true;
        }
        let is_kept = fits && self.0.len() < MAX_AUDITED;
        if is_kept {
            self.0.insert(request, 1);
        }
        is_kept
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (request, count) in other.0 {
            let known = self.0.entry(request).or_default();
            *known = known.saturating_add(count);
        }
    }

    /// Removes the requests beyond the first `most`.
    pub(crate) fn forget_beyond(&mut self, most: usize) {
        while self.0.len() > most {
            self.0.pop_last();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&AuditedRequest, u64)> {
        self.0.iter().map(|(request, count)| (request, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> AuditedRequest {
        let [policy, client, method, host] = ["shop/a", "", "GET", "web"].map(Into::into);
        AuditedRequest { policy, client, address: None, port: 80, method, host, path: path.into() }
    }

    #[test]
    fn distinct_requests_are_counted_up_to_a_bound() {
        let mut all = AuditedRequests::default();
        assert!(!all.count(get(&"/".repeat(MAX_PATH_BYTES + 1))));
        for number in 0..MAX_AUDITED {
            assert!(all.count(get(&format!("/{number}"))));
        }
        assert!(!all.count(get("/more")));
        assert!(all.count(get("/1")), "what is known is counted on");
        let mut sum = all.clone();
        sum.add(all);
        let counts: Vec<u64> = sum.iter().map(|(_, count)| count).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (MAX_AUDITED, 2 * (512 + 1)));
    }
}
