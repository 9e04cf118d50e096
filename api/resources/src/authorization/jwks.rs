//! Sets of public keys (RFC 7517), as issuers publish them.

use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use leno_types::tokens::{TokenAlgorithm, TokenKey};
use serde::Deserialize;

/// Most bytes of a set: issuers have a handful of keys with a few hundred bytes each.
pub const MAX_BYTES: usize = 64 * 1024;
/// Most keys of a set.
const MAX_KEYS: usize = 64;
/// Least bytes of an RSA modulus (RFC 7518 section 3.3).
const MIN_RSA_BYTES: usize = 256;

/// A text that is not a set of keys, or holds none that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwksError {
    /// It is no JSON of that form.
    #[error("is not a set of keys (RFC 7517): {0}")]
    Form(String),
    /// It is too large.
    #[error("has more than {MAX_BYTES} bytes or {MAX_KEYS} keys")]
    TooLarge,
    /// A key cannot be used as it says.
    #[error("key {0}: {1}")]
    Key(usize, &'static str),
    /// There is a shared secret among the keys, which every proxy would have to hold.
    #[error("key {0} is a shared secret (oct): use public keys")]
    Secret(usize),
    /// No key is for signatures of a known kind.
    #[error("has no key that verifies signatures: RSA, EC with P-256 or P-384, or Ed25519")]
    Empty,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a set that verify signatures. Keys for encryption, and of kinds that are not known, are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<TokenKey>, JwksError> {
    if text.len() > MAX_BYTES {
        return Err(JwksError::TooLarge);
    }
    let set: Set =
        serde_json::from_str(text).map_err(|error| JwksError::Form(error.to_string()))?;
    if set.keys.len() > MAX_KEYS {
        return Err(JwksError::TooLarge);
    }
    let mut keys = Vec::new();
    for (index, jwk) in set.keys.iter().enumerate() {
        if jwk.kty == "oct" {
            return Err(JwksError::Secret(index));
        }
        if jwk.usage.as_deref().is_none_or(|usage| usage == "sig") {
            keys.extend(key(jwk).map_err(|why| JwksError::Key(index, why))?);
        }
    }
    if keys.is_empty() { Err(JwksError::Empty) } else { Ok(keys) }
}

fn key(jwk: &Jwk) -> Result<Option<TokenKey>, &'static str> {
    let named = match jwk.alg.as_deref().map(TokenAlgorithm::named) {
        Some(None) => return Ok(None),
        Some(Some(algorithm)) => Some(algorithm),
        None => None,
    };
    let (default, public) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => {
            let (n, e) = (number(jwk.n.as_deref())?, number(jwk.e.as_deref())?);
            if n.len() < MIN_RSA_BYTES {
                return Err("an RSA key needs at least 2048 bits");
            }
            (TokenAlgorithm::Rs256, rsa_public_key(&n, &e))
        }
        ("EC", Some("P-256")) => (TokenAlgorithm::Es256, point(jwk, 32)?),
        ("EC", Some("P-384")) => (TokenAlgorithm::Es384, point(jwk, 48)?),
        ("OKP", Some("Ed25519")) => (TokenAlgorithm::EdDsa, part(jwk.x.as_deref(), 32)?),
        _ => return Ok(None),
    };
    let algorithm = named.unwrap_or(default);
    let is_rsa = |one: TokenAlgorithm| matches!(one.as_str().as_bytes(), [b'R' | b'P', b'S', ..]);
    if algorithm != default && !(is_rsa(algorithm) && is_rsa(default)) {
        return Err("alg is not for this kind of key");
    }
    let id: Option<Arc<str>> = jwk.kid.as_deref().map(Into::into);
    Ok(Some(TokenKey { id, algorithm, public: public.into() }))
}

fn decoded(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    let text = text.ok_or("a part of the key is missing")?;
    BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| "a part of the key is not base64url")
}

/// A positive number without leading zeros.
fn number(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    let bytes = decoded(text)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    match bytes.get(zeros..) {
        Some(number) if !number.is_empty() => Ok(number.to_vec()),
        _ => Err("a part of the key is zero"),
    }
}

fn part(text: Option<&str>, length: usize) -> Result<Vec<u8>, &'static str> {
    let bytes = decoded(text)?;
    if bytes.len() == length { Ok(bytes) } else { Err("a part of the key has another length") }
}

/// An uncompressed point (SEC 1 section 2.3.3).
fn point(jwk: &Jwk, length: usize) -> Result<Vec<u8>, &'static str> {
    let (x, y) = (part(jwk.x.as_deref(), length)?, part(jwk.y.as_deref(), length)?);
    Ok([&[4][..], &x, &y].concat())
}

/// `RSAPublicKey` in DER (RFC 8017 appendix A.1.1).
fn rsa_public_key(n: &[u8], e: &[u8]) -> Vec<u8> {
    let integer = |number: &[u8]| {
        let sign: &[u8] =
            if number.first().is_some_and(|first| *first >= 0x80) { &[0] } else { &[] };
        element(2, &[sign, number].concat())
    };
    element(0x30, &[integer(n), integer(e)].concat())
}

/// A tag, the length, and the content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes = length.to_be_bytes();
    let significant = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1);
    let bytes = bytes.get(significant..).unwrap_or_default();
    let mut out = vec![tag];
    if length >= 0x80 {
        // At most eight bytes.
        out.push(0x80 | bytes.len() as u8);
    }
    out.extend(bytes);
    out.extend(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rsa(more: &str) -> String {
        let n = BASE64URL_NOPAD.encode(&[0xc3; 256]);
        format!(r#"{{"keys":[{{"kty":"RSA","kid":"a","n":"{n}","e":"AQAB"{more}}}]}}"#)
    }

    #[test]
    fn a_key_is_for_one_algorithm() {
        for (more, expected) in
            [("", TokenAlgorithm::Rs256), (r#","alg":"PS512","use":"sig""#, TokenAlgorithm::Ps512)]
        {
            let keys = parse(&rsa(more)).unwrap();
            assert_eq!((keys.len(), keys[0].algorithm), (1, expected));
            // SEQUENCE of 268 bytes with an INTEGER of 257.
            assert_eq!(keys[0].public[..9], [0x30, 0x82, 1, 0x0a, 2, 0x82, 1, 1, 0]);
            assert_eq!(keys[0].public[265..], [2, 3, 1, 0, 1]);
        }
        let x = BASE64URL_NOPAD.encode(&[7; 32]);
        let ec = format!(
            r#"{{"keys":[{{"kty":"EC","crv":"P-256","x":"{x}","y":"{x}"}},
            {{"kty":"OKP","crv":"Ed25519","x":"{x}"}}, {{"kty":"EC","crv":"secp256k1"}},
            {{"kty":"RSA","use":"enc"}}]}}"#
        );
        let keys = parse(&ec).unwrap();
        assert_eq!((keys.len(), keys[0].public.len(), keys[1].public.len()), (2, 65, 32));
    }

    #[test]
    fn what_verifies_nothing_is_refused() {
        for (text, expected) in [
            ("", "is not a set of keys"),
            ("{}", "is not a set of keys"),
            (r#"{"keys":[]}"#, "has no key that verifies"),
            (r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#, "key 0 is a shared secret"),
            (r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#, "at least 2048 bits"),
            (r#"{"keys":[{"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"}]}"#, "another length"),
            (r#"{"keys":[{"kty":"EC","crv":"P-256","x":"=","y":"A"}]}"#, "not base64url"),
            (&rsa(r#","alg":"ES256""#), "alg is not for this kind"),
            (&rsa(r#","alg":"HS256""#), "has no key that verifies"),
            (&" ".repeat(MAX_BYTES + 1), "more than"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
