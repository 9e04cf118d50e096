//! Trust bundles, and the hash with which a proxy acknowledges one.

use std::collections::BTreeMap;
use std::fmt::Write;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use leno_types::{Revocations, TrustDomain};

/// The largest number of roots of a bundle: enough for a few rotations.
pub const MAX_ROOTS: usize = 32;
/// The largest number of trust domains with which a mesh federates. Each proxy verifies clients of all of them.
pub const MAX_FEDERATED: usize = 64;

/// The number of bytes of the digest that are used as the hash. 128 bits are enough to distinguish all bundles.
/// Deliberate collisions are no threat: a proxy that acknowledged another bundle with the same hash would harm only
/// itself.
const HASH_BYTES: usize = 16;

/// What a proxy needs to verify the certificates of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    /// X.509 certificates in DER, at least one.
    pub roots: Vec<Bytes>,
    /// The name of the key that signs new certificates.
    pub issuer: String,
    /// Revoked certificates.
    pub revoked: Revocations,
    /// The roots of other trust domains. Each proves only identities of its own domain.
    pub federated: FederatedRoots,
}

/// The roots of other trust domains, X.509 in DER.
pub type FederatedRoots = BTreeMap<TrustDomain, Vec<Bytes>>;

/// The hash of a bundle, in lower-case hexadecimal. Only its roots count, in any order.
#[must_use]
pub fn bundle_hash<T: AsRef<[u8]>>(roots: &[T]) -> String {
    let mut sorted: Vec<&[u8]> = roots.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut context = Context::new(&SHA256);
    for root in sorted {
        // The length before each root ensures that different lists of roots never give the same bytes.
        context.update(&(root.len() as u64).to_be_bytes());
        context.update(root);
    }
    let digest = context.finish();
    digest.as_ref().iter().take(HASH_BYTES).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_the_roots_and_not_on_their_order() {
        let hash = bundle_hash(&[b"one", b"two"]);
        assert_eq!(hash.len(), 2 * HASH_BYTES);
        assert_eq!(hash, bundle_hash(&[b"two", b"one"]));
        assert_eq!(hash, bundle_hash(&["two", "one", "two"]));
        assert_ne!(hash, bundle_hash(&[b"one"]));
        assert_ne!(bundle_hash(&["onetwo"]), bundle_hash(&["one", "two"]));
    }
}
