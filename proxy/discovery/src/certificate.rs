//! The certificate that proves a proxy's identity.

use std::fmt;
use std::time::SystemTime;

/// A certificate with its key and the trust bundle.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain in DER, leaf first, without the root. The control plane has issued it.
    pub chain_der: Vec<Vec<u8>>,
    /// The private key, PKCS #8 in DER. This proxy made it and never sends it anywhere.
    pub key_der: Vec<u8>,
    /// The trust bundle in DER.
    pub roots_der: Vec<Vec<u8>>,
    /// When the leaf expires.
    pub not_after: SystemTime,
}

impl fmt::Debug for Certificate {
    /// Leaves the key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("chain", &self.chain_der.len())
            .field("roots", &self.roots_der.len())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
