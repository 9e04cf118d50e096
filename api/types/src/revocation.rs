//! Certificates that are no longer accepted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Identity;

/// For how many identities certificates may be revoked at a time. A mesh with more of them needs another root.
pub const MAX_REVOKED: usize = 1_024;

/// The revoked certificates: for each identity, those whose validity begins at a given time or earlier. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations(Arc<BTreeMap<Identity, i64>>);

impl Revocations {
    /// Revokes certificates. For each identity, the certificates whose validity begins at the given time (in seconds of
    /// Unix time) or earlier are revoked.
    #[must_use]
    pub fn new(last_not_before_s: impl IntoIterator<Item = (Identity, i64)>) -> Self {
        Self(Arc::new(last_not_before_s.into_iter().collect()))
    }

    /// Whether a certificate of `identity` whose validity begins at `not_before_s` is revoked.
    #[must_use]
    pub fn covers(&self, identity: &Identity, not_before_s: i64) -> bool {
        self.0.get(identity).is_some_and(|last| not_before_s <= *last)
    }

    /// Whether no certificate is revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each identity, with the latest beginning of validity that is revoked.
    pub fn iter(&self) -> impl Iterator<Item = (&Identity, i64)> {
        self.0.iter().map(|(identity, last)| (identity, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_begins_later_is_another_one() {
        let web: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let cart: Identity = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
        let revoked = Revocations::new([(web.clone(), 100)]);
        assert!(revoked.covers(&web, 99) && revoked.covers(&web, 100));
        assert!(!revoked.covers(&web, 101) && !revoked.covers(&cart, 1));
        assert!(Revocations::default().is_empty() && !revoked.is_empty());
    }
}
