//! The client configurations of a worker, for each identity of a server.
#![expect(clippy::arithmetic_side_effects, reason = "a count of look-ups between two sweeps")]

use std::collections::HashMap;
use std::sync::Arc;

use leno_types::Identity;
use rustls::ClientConfig;

use crate::TlsConfigs;

/// For how many identities a worker caches sessions. If there is one more, the least recently used configuration is
/// evicted together with its sessions: the next connection to that identity makes a full handshake.
pub(crate) const MAX_IDENTITIES: usize = 1024;

/// Client configurations, which are all built from the same credentials. Each has its own session cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientConfigs {
    credentials: Option<Arc<TlsConfigs>>,
    by_identity: HashMap<Identity, CachedConfig>,
    /// The number of look-ups so far. [`CachedConfig::used`] is a value of this counter.
    lookups: u64,
}

#[derive(Clone, Debug)]
struct CachedConfig {
    client: Arc<ClientConfig>,
    /// The number of the look-up that used it last.
    used: u64,
}

impl ClientConfigs {
    /// The configuration for connections to `expected` with the credentials in `current`. If the credentials have
    /// changed, all configurations are replaced.
    pub(crate) fn get(
        &mut self,
        current: &Arc<TlsConfigs>,
        expected: &Identity,
    ) -> Arc<ClientConfig> {
        if !self.credentials.as_ref().is_some_and(|before| Arc::ptr_eq(before, current)) {
            self.by_identity.clear();
            self.credentials = Some(Arc::clone(current));
        }
        self.lookups += 1;
        let used = self.lookups;
        if let Some(cached) = self.by_identity.get_mut(expected) {
            cached.used = used;
            return Arc::clone(&cached.client);
        }
        if self.by_identity.len() >= MAX_IDENTITIES {
            self.evict();
        }
        let client = current.client(expected.clone());
        let cached = CachedConfig { client: Arc::clone(&client), used };
        self.by_identity.insert(expected.clone(), cached);
        client
    }

    /// Removes the least recently used configuration. Comparing all of them costs little in comparison with the
    /// handshake that follows.
    fn evict(&mut self) {
        let oldest = self.by_identity.iter().min_by_key(|(_, cached)| cached.used);
        if let Some(identity) = oldest.map(|(identity, _)| identity.clone()) {
            self.by_identity.remove(&identity);
        }
    }
}
