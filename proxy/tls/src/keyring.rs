//! The credentials in use, which all workers share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::renewal::Renewals;
use crate::{Acceptor, Connector, Credentials, CredentialsError, TlsConfigs};

/// Contains the credentials in use. Cheap to clone; workers read it once per handshake.
#[derive(Clone, Debug)]
pub struct Keyring {
    current: watch::Sender<Option<Arc<TlsConfigs>>>,
    renewals: Renewals,
}

impl Default for Keyring {
    fn default() -> Self {
        Self { current: watch::Sender::new(None), renewals: Renewals::default() }
    }
}

impl Keyring {
    /// A keyring without credentials: handshakes fail with
    /// [`crate::HandshakeError::NoCredentials`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses `credentials` for all handshakes from now on. Existing connections continue until the certificates expire
    /// with which they were made or last renewed.
    ///
    /// # Errors
    /// [`CredentialsError`] if key, certificate and bundle do not fit. Then the previous credentials stay in use.
    pub fn rotate(&self, credentials: Credentials) -> Result<(), CredentialsError> {
        self.set(TlsConfigs::new(credentials)?);
        Ok(())
    }

    pub(crate) fn set(&self, configs: TlsConfigs) {
        self.current.send_replace(Some(Arc::new(configs)));
    }

    /// The configurations in use.
    #[must_use]
    pub fn current(&self) -> Option<Arc<TlsConfigs>> {
        self.current.borrow().clone()
    }

    /// Receives the configurations after a rotation. If there are several rotations before a read, only the last is
    /// seen.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Arc<TlsConfigs>>> {
        self.current.subscribe()
    }

    /// A connector for the outbound side of one worker.
    #[must_use]
    pub fn connector(&self) -> Connector {
        Connector::new(self.watch())
    }

    /// An acceptor for the inbound side of one worker.
    #[must_use]
    pub fn acceptor(&self) -> Acceptor {
        Acceptor::new(self.watch()).sharing(&self.renewals)
    }
}
