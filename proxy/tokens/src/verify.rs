//! Verifies one token, from its text to its claims.

use std::time::Duration;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};
use data_encoding::BASE64URL_NOPAD;
use leno_types::tokens::{TokenAlgorithm, TokenIssuer, TokenKey};
use serde_json::{Map, Value};

use crate::{Claims, TokenError};

/// The longest token that is accepted, in bytes. It is as long as the whole head that servers usually accept, and far
/// longer than real tokens.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Verifies a token that must be from one of these issuers. Several may have the same name. `now` is the time since the
/// beginning of 1970.
///
/// # Errors
/// Why the token is not valid.
pub fn verify(token: &[u8], issuers: &[&TokenIssuer], now: Duration) -> Result<Claims, TokenError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenError::TooLarge);
    }
    let mut parts = token.rsplitn(2, |byte| *byte == b'.');
    let (signature, signed) = parts.next().zip(parts.next()).ok_or(TokenError::Malformed)?;
    let mut parts = signed.split(|byte| *byte == b'.');
    let (header, payload) = match (parts.next(), parts.next(), parts.next()) {
        (Some(header), Some(payload), None) => (object(header)?, object(payload)?),
        _ => return Err(TokenError::Malformed),
    };
    let signature = decoded(signature)?;
    // This header names extensions that the verifier must understand, and this crate knows none (RFC 7515 section
    // 4.1.11).
    if header.contains_key("crit") {
        return Err(TokenError::Malformed);
    }
    let issuer = payload.get("iss").and_then(Value::as_str).ok_or(TokenError::Issuer)?;
    let of_issuer = issuers.iter().enumerate().filter(|(_, one)| *one.issuer == *issuer);
    let mut error = TokenError::Issuer;
    for (position, issuer) in of_issuer {
        let key = |key: &&TokenKey| is_for(key, &header);
        let mut keys = issuer.keys.iter().filter(key).peekable();
        if keys.peek().is_none() {
            error = TokenError::Key(position);
            continue;
        }
        if !keys.any(|key| is_signed(key, signed, &signature)) {
            error = TokenError::Signature;
            continue;
        }
        match times(&payload, issuer.clock_skew) {
            Some((from, _)) if now < from => error = TokenError::NotYet,
            Some((from, until)) if now <= until => {
                if is_for_audience(&payload, issuer) {
                    return Ok(Claims::new(payload, position, (from, until)));
                }
                error = TokenError::Audience;
            }
            _ => error = TokenError::Expired,
        }
    }
    Err(error)
}

fn decoded(text: &[u8]) -> Result<Vec<u8>, TokenError> {
    BASE64URL_NOPAD.decode(text).map_err(|_| TokenError::Malformed)
}

fn object(text: &[u8]) -> Result<Map<String, Value>, TokenError> {
    serde_json::from_slice(&decoded(text)?).map_err(|_| TokenError::Malformed)
}

/// Whether a key belongs to the `alg` and the `kid` of a token. If either the key or the token has no id, only `alg`
/// counts.
fn is_for(key: &TokenKey, header: &Map<String, Value>) -> bool {
    let algorithm = header.get("alg").and_then(Value::as_str).and_then(TokenAlgorithm::named);
    let id = header.get("kid").and_then(Value::as_str);
    let is_named = match (&key.id, id) {
        (Some(own), Some(id)) => **own == *id,
        _ => true,
    };
    algorithm == Some(key.algorithm) && is_named
}

fn is_signed(key: &TokenKey, signed: &[u8], signature: &[u8]) -> bool {
    let algorithm: &'static dyn VerificationAlgorithm = match key.algorithm {
        TokenAlgorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        TokenAlgorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
        TokenAlgorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
        TokenAlgorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
        TokenAlgorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
        TokenAlgorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
        TokenAlgorithm::Es256 => &ECDSA_P256_SHA256_FIXED,
        TokenAlgorithm::Es384 => &ECDSA_P384_SHA384_FIXED,
        TokenAlgorithm::EdDsa => &ED25519,
    };
    UnparsedPublicKey::new(algorithm, &*key.public).verify(signed, signature).is_ok()
}

/// The times from which and until which a token is valid. `None` if it has no `exp`, or if one of the times is
/// malformed.
fn times(payload: &Map<String, Value>, skew: Duration) -> Option<(Duration, Duration)> {
    let time = |value: &Value| {
        value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    };
    let until = payload.get("exp").and_then(time)?.checked_add(skew)?;
    let from = match payload.get("nbf") {
        Some(from) => time(from)?.saturating_sub(skew),
        None => Duration::ZERO,
    };
    Some((from, until))
}

fn is_for_audience(payload: &Map<String, Value>, issuer: &TokenIssuer) -> bool {
    let is = |value: &Value| {
        value.as_str().is_some_and(|text| issuer.audiences.iter().any(|one| **one == *text))
    };
    match payload.get("aud") {
        Some(Value::Array(all)) => all.iter().any(is),
        Some(one) => is(one),
        None => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;
