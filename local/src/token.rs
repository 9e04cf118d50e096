//! The tokens with which proxies prove their identity when they request their first certificate.

use std::os::unix::fs::chown;
use std::path::PathBuf;

use leno_identity::TokenStore;
use leno_types::{Identity, InstanceName, TrustDomain, ports};

use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::plan::PlannedInstance;
use crate::record;

/// The tokens of a mesh.
#[derive(Debug)]
pub struct MeshTokens {
    store: TokenStore,
    trust_domain: TrustDomain,
}

impl MeshTokens {
    /// Prepares the store of tokens, which the control plane reads.
    ///
    /// # Errors
    /// When its directory cannot be created.
    pub fn prepare(layout: &Layout) -> Result<Self> {
        let store = TokenStore::open(&layout.tokens()).map_err(refused)?;
        Ok(Self { store, trust_domain: TrustDomain::default() })
    }

    /// The trust domain of the mesh.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Gives an instance a new token, which invalidates the earlier one. Writes it to these files, one for each
    /// process that serves the instance.
    ///
    /// # Errors
    /// When the token cannot be created or written.
    pub fn issue_at(&self, instance: &PlannedInstance, paths: &[PathBuf]) -> Result<()> {
        let name = &instance.name;
        let account = &instance.launch.service_account;
        let identity = Identity::new(self.trust_domain.clone(), &name.namespace, account)
            .map_err(|error| Error::Refused(error.to_string()))?;
        let token = self.store.grant(name, &identity).map_err(refused)?;
        let write = |path: &PathBuf| {
            record::write_atomically(path, token.as_bytes(), 0o400)?;
            chown(path, Some(ports::PROXY_UID), Some(ports::PROXY_UID))
                .attempt(|| format!("cannot give {} to the proxy", path.display()))
        };
        // The earlier token is already invalid, so the remaining files are written even if one cannot be.
        let written: Vec<Result<()>> = paths.iter().map(write).collect();
        written.into_iter().collect()
    }

    /// Revokes the token of an instance.
    ///
    /// # Errors
    /// When the token cannot be removed.
    pub fn revoke(&self, instance: &InstanceName) -> Result<()> {
        self.store.revoke(instance).map_err(refused)?;
        Ok(())
    }
}

fn refused(error: leno_identity::TokenError) -> Error {
    Error::Os {
        what: "cannot create the tokens of proxies".to_owned(),
        source: std::io::Error::other(error),
    }
}
