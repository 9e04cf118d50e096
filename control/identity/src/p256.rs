//! ECDSA on P-256 with SHA-256, which is the only kind of key and signature in the mesh.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use x509_parser::asn1_rs::BitString;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256,
};
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

/// Length of an uncompressed point: the byte 4, and two coordinates of 32 bytes (SEC 1 section 2.3.3).
const POINT_LEN: usize = 65;

/// A P-256 public key. Only verifying a signature proves that its point is on the curve.
pub(crate) struct P256Key {
    point: [u8; POINT_LEN],
}

impl P256Key {
    /// The key in a certificate or request; `None` if it is a key of another kind (RFC 5480 section 2).
    pub(crate) fn from_spki(spki: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let curve = spki.algorithm.parameters.as_ref()?.as_oid().ok()?;
        if spki.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve != OID_EC_P256 {
            return None;
        }
        let bits = &spki.subject_public_key;
        let point: [u8; POINT_LEN] = bits.data.as_ref().try_into().ok()?;
        (bits.unused_bits == 0 && point[0] == 4).then_some(Self { point })
    }

    /// Whether this key signed `message`, with exactly the algorithm `ecdsa-with-SHA256`.
    pub(crate) fn verify(
        &self,
        algorithm: &AlgorithmIdentifier<'_>,
        message: &[u8],
        signature: &BitString<'_>,
    ) -> bool {
        algorithm.algorithm == OID_SIG_ECDSA_WITH_SHA256
            && signature.unused_bits == 0
            && self.has_signed(message, &signature.data)
    }

    /// Whether this key signed `message` with ECDSA and SHA-256. The signature is in DER.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point);
        key.verify(message, signature).is_ok()
    }
}

impl PublicKeyData for P256Key {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
