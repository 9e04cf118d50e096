//! Collects token issuers for which proxies have reported unknown keys, so that the issuers' keys are fetched
//! again.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use leno_types::InstanceName;
use tokio::sync::Notify;

use crate::state::PlaneState;

/// Most issuers that wait. If there is no room for an issuer, the proxy will report it again.
const MAX_ISSUERS: usize = 256;

/// The issuers that proxies have reported.
#[derive(Debug, Default)]
pub(crate) struct UnknownKeys {
    issuers: Mutex<BTreeSet<String>>,
    arrived: Notify,
}

impl UnknownKeys {
    fn add(&self, issuer: String) {
        // Poisoning is ignored, because an insertion is complete or did not happen.
        let mut issuers = self.issuers.lock().unwrap_or_else(PoisonError::into_inner);
        if issuers.len() < MAX_ISSUERS && issuers.insert(issuer) {
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.issuers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PlaneState {
    /// Handles a proxy's report. An issuer only counts if a policy of the proxy's own workload names it. Otherwise
    /// a proxy could cause fetches of keys for policies of other workloads.
    pub(crate) fn report_unknown_keys(&self, instance: &InstanceName, issuers: Vec<String>) {
        let Some(policy) = self.server_policy(instance).filter(|_| !issuers.is_empty()) else {
            return;
        };
        let named: BTreeSet<&str> = policy
            .authorization
            .policies
            .iter()
            .flat_map(|policy| policy.tokens.iter())
            .map(|issuer| &*issuer.issuer)
            .collect();
        for issuer in issuers.into_iter().filter(|issuer| named.contains(issuer.as_str())) {
            self.unknown_keys.add(issuer);
        }
    }

    /// Waits until proxies report tokens with unknown keys, and returns the issuers. Cancel safe: no report is
    /// lost if the future is dropped.
    pub async fn unknown_keys(&self) -> BTreeSet<String> {
        loop {
            let issuers = self.unknown_keys.take();
            if !issuers.is_empty() {
                return issuers;
            }
            self.unknown_keys.arrived.notified().await;
        }
    }
}
