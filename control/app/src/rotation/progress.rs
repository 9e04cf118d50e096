//! Counts the proxies that have acknowledged a phase of a rotation.

use std::collections::BTreeMap;

use leno_identity::RotationPhase;
use leno_identity::report::{MAX_NAMED, ProxiesReport, WaitingProxy};
use leno_serve::{PlaneState, ProxyTrust, TrustInUse};

/// The progress of the proxies in one phase.
pub(super) struct PhaseProgress {
    pub(super) connected: usize,
    /// How many of the connected proxies have acknowledged the phase.
    pub(super) current: usize,
    /// How many connected proxies use each bundle, by the bundle's hash; `unknown` if a proxy has not reported its
    /// bundle.
    bundles: BTreeMap<String, usize>,
    /// The proxies that have not acknowledged the phase, whether they are connected or not.
    pub(super) waiting: Vec<ProxyTrust>,
}

impl PhaseProgress {
    pub(super) fn of(state: &PlaneState, phase: RotationPhase) -> Self {
        let wanted = state.wanted_trust().unwrap_or_default();
        Self::count(state.proxies(), &wanted, phase)
    }

    fn count(proxies: Vec<ProxyTrust>, wanted: &TrustInUse, phase: RotationPhase) -> Self {
        let connected = proxies.iter().filter(|one| one.connected).count();
        let mut bundles = BTreeMap::new();
        for one in proxies.iter().filter(|one| one.connected) {
            let bundle = one.in_use.as_ref().map(|in_use| in_use.bundle.clone());
            *bundles.entry(bundle.unwrap_or_else(|| "unknown".to_owned())).or_default() += 1;
        }
        let waiting: Vec<ProxyTrust> =
            proxies.into_iter().filter(|one| !acknowledges(one, wanted, phase)).collect();
        let current = connected - waiting.iter().filter(|one| one.connected).count();
        Self { connected, current, bundles, waiting }
    }

    pub(super) fn report(&self) -> ProxiesReport {
        let named = self.waiting.iter().take(MAX_NAMED).map(|one| WaitingProxy {
            workload: one.instance.to_string(),
            bundle: one.in_use.as_ref().map(|in_use| in_use.bundle.clone()),
            issuer: one.in_use.as_ref().map(|in_use| in_use.issuer.clone()),
            connected: one.connected,
        });
        ProxiesReport {
            connected: self.connected,
            current: self.current,
            bundles: self.bundles.clone(),
            waiting: named.collect(),
            waiting_total: self.waiting.len(),
        }
    }
}

/// Whether this proxy has acknowledged the phase. While a root is being added, its certificate need not be
/// renewed, because the signing key does not change in this phase.
fn acknowledges(proxy: &ProxyTrust, wanted: &TrustInUse, phase: RotationPhase) -> bool {
    proxy.in_use.as_ref().is_some_and(|in_use| {
        in_use.bundle == wanted.bundle
            && (phase == RotationPhase::Add || in_use.issuer == wanted.issuer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(bundle: &str, issuer: &str) -> TrustInUse {
        TrustInUse { bundle: bundle.to_owned(), issuer: issuer.to_owned() }
    }

    #[test]
    fn a_phase_waits_for_each_proxy_that_trusts_too_little_or_has_an_older_certificate() {
        let proxy = |name: &str, in_use, connected| ProxyTrust {
            instance: format!("shop/{name}").parse().unwrap(),
            in_use,
            connected,
        };
        let proxies = vec![
            proxy("current-0", Some(in_use("both", "new")), true),
            proxy("older-0", Some(in_use("both", "old")), true),
            proxy("away-0", Some(in_use("one", "old")), false),
            proxy("silent-0", None, true),
        ];
        let wanted = in_use("both", "new");
        let waits = |phase| {
            let progress = PhaseProgress::count(proxies.clone(), &wanted, phase);
            let report = progress.report();
            assert_eq!(report.waiting_total, report.waiting.len());
            assert_eq!(report.bundles, [("both".to_owned(), 2), ("unknown".to_owned(), 1)].into());
            let names = report.waiting.into_iter().map(|one| one.workload).collect::<Vec<_>>();
            (progress.connected, progress.current, names.join(" "))
        };
        assert_eq!(waits(RotationPhase::Add), (3, 2, "shop/away-0 shop/silent-0".to_owned()));
        let names = "shop/older-0 shop/away-0 shop/silent-0".to_owned();
        assert_eq!(waits(RotationPhase::Switch), (3, 1, names));
    }
}
