//! One token's file: JSON with the instance, its identity and the token's digest.

use aws_lc_rs::digest::SHA256;
use leno_types::{Identity, InstanceName};
use serde::{Deserialize, Serialize};

use crate::files;

/// Length of a SHA-256 digest, in bytes.
const DIGEST_LEN: usize = 32;

/// SHA-256 of a token. No salt or slow hash is needed, because a random token cannot be guessed.
pub(super) type Digest = [u8; DIGEST_LEN];

/// A granted token.
#[derive(Clone, Debug)]
pub(super) struct TokenRecord {
    pub(super) digest: Digest,
    pub(super) instance: InstanceName,
    pub(super) identity: Identity,
}

/// The content of a token's file. Unknown fields are ignored, because later versions may write them.
#[derive(Serialize, Deserialize)]
struct File {
    instance: String,
    identity: String,
    sha256: String,
}

impl TokenRecord {
    pub(super) fn new(token: &str, instance: InstanceName, identity: Identity) -> Self {
        Self { digest: digest(token), instance, identity }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let file = File {
            instance: self.instance.to_string(),
            identity: self.identity.to_string(),
            sha256: files::hex(&self.digest),
        };
        serde_json::to_vec(&file).expect("three strings are always JSON")
    }

    /// Parses the content of the file with this name. The error describes the mistake.
    pub(super) fn from_json(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let instance: InstanceName = file.instance.parse().map_err(text)?;
        if file_name(&instance) != name {
            return Err(format!(
                "it is for {instance} and should be named {}",
                file_name(&instance)
            ));
        }
        let identity = file.identity.parse().map_err(text)?;
        let digest = unhex(&file.sha256).ok_or("sha256 is not 64 hexadecimal digits")?;
        Ok(Self { digest, instance, identity })
    }
}

/// The name of an instance's file.
pub(super) fn file_name(instance: &InstanceName) -> String {
    format!("{}.{}", instance.namespace, instance.name)
}

pub(super) fn digest(token: &str) -> Digest {
    let digest = aws_lc_rs::digest::digest(&SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

fn unhex(text: &str) -> Option<Digest> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut digest = Digest::default();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(digest)
}
