//! Sets of public keys (RFC 7517), as issuers publish them.

use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;
use leno_types::tokens::{TokenAlgorithm, TokenKey};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The largest size of a set, in bytes. Issuers have a handful of keys with a few hundred bytes each.
pub const MAX_BYTES: usize = 64 * 1024;
/// The largest number of keys in a set.
const MAX_KEYS: usize = 64;
/// The smallest size of an RSA modulus in bytes (RFC 7518 section 3.3).
const MIN_RSA_BYTES: usize = 256;

/// The text is not a set of keys, or contains no key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwksError {
    /// The text is not JSON that contains a set of keys.
    #[error("is not a set of keys (RFC 7517): {0}")]
    Form(String),
    /// The set is too large.
    #[error("has more than {MAX_BYTES} bytes or {MAX_KEYS} keys")]
    TooLarge,
    /// A part of a key is missing, malformed, or contradicts another part.
    #[error("key {0}: {1}")]
    Key(usize, &'static str),
    /// A key contains a secret part, which only its issuer may have.
    #[error(
        "key {index} has {secret}, with which every reader of the set can sign tokens: have the issuer replace the key, \
         and publish public keys alone"
    )]
    Secret {
        /// The position of the key.
        index: usize,
        /// The name of the secret part.
        secret: &'static str,
    },
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
    /// The private part, of RSA, EC and OKP (RFC 7518 sections 6.2.2 and 6.3.2, RFC 8037 section 2).
    d: Option<IgnoredAny>,
    /// The factors of an RSA modulus and numbers derived from them; each of these reveals the private part.
    p: Option<IgnoredAny>,
    q: Option<IgnoredAny>,
    dp: Option<IgnoredAny>,
    dq: Option<IgnoredAny>,
    qi: Option<IgnoredAny>,
    oth: Option<IgnoredAny>,
    /// A shared secret (RFC 7518 section 6.4).
    k: Option<IgnoredAny>,
}

/// The keys of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet {
    /// The keys that verify signatures.
    pub(crate) keys: Vec<TokenKey>,
    /// An error for each key that is not used because everyone who reads the set could sign with it.
    pub(crate) secrets: Vec<JwksError>,
}

impl KeySet {
    /// Returns the set, or an error if one of its keys was left out because it has a secret part.
    pub(crate) fn without_secrets(self) -> Result<Self, JwksError> {
        match self.secrets.first() {
            Some(secret) => Err(secret.clone()),
            None => Ok(self),
        }
    }
}

impl Jwk {
    /// Names the secret part of the key, if it has one.
    fn secret(&self) -> Option<&'static str> {
        let Self { d, p, q, dp, dq, qi, oth, k, .. } = self;
        if self.kty == "oct" || k.is_some() {
            return Some("a shared secret (oct)");
        }
        let private = [d, p, q, dp, dq, qi, oth];
        private.into_iter().any(Option::is_some).then_some("a private part")
    }
}

/// The keys of a set that verify signatures. Keys for encryption, and keys of unknown kinds, are left out.
pub(crate) fn parse(text: &str) -> Result<KeySet, JwksError> {
    if text.len() > MAX_BYTES {
        return Err(JwksError::TooLarge);
    }
    let set: Set =
        serde_json::from_str(text).map_err(|error| JwksError::Form(error.to_string()))?;
    if set.keys.len() > MAX_KEYS {
        return Err(JwksError::TooLarge);
    }
    let mut found = KeySet::default();
    for (index, jwk) in set.keys.iter().enumerate() {
        if let Some(secret) = jwk.secret() {
            found.secrets.push(JwksError::Secret { index, secret });
        } else if jwk.usage.as_deref().is_none_or(|usage| usage == "sig") {
            found.keys.extend(key(jwk).map_err(|why| JwksError::Key(index, why))?);
        }
    }
    if found.keys.is_empty() {
        return Err(found.secrets.into_iter().next().unwrap_or(JwksError::Empty));
    }
    Ok(found)
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

/// The encoding of an uncompressed point (SEC 1 section 2.3.3).
fn point(jwk: &Jwk, length: usize) -> Result<Vec<u8>, &'static str> {
    let (x, y) = (part(jwk.x.as_deref(), length)?, part(jwk.y.as_deref(), length)?);
    Ok([&[4][..], &x, &y].concat())
}

/// The encoding `RSAPublicKey` in DER (RFC 8017 appendix A.1.1).
fn rsa_public_key(n: &[u8], e: &[u8]) -> Vec<u8> {
    let integer = |number: &[u8]| {
        let sign: &[u8] =
            if number.first().is_some_and(|first| *first >= 0x80) { &[0] } else { &[] };
        element(2, &[sign, number].concat())
    };
    element(0x30, &[integer(n), integer(e)].concat())
}

/// The encoding of an element: a tag, the length, and the content.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes = length.to_be_bytes();
    let significant = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1);
    let bytes = bytes.get(significant..).unwrap_or_default();
    let mut out = vec![tag];
    if length >= 0x80 {
        // The length takes at most eight bytes.
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
            let keys = parse(&rsa(more)).unwrap().keys;
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
        let keys = parse(&ec).unwrap().keys;
        assert_eq!((keys.len(), keys[0].public.len(), keys[1].public.len()), (2, 65, 32));
    }

    #[test]
    fn a_key_that_is_published_with_its_secret_is_left_out() {
        let x = BASE64URL_NOPAD.encode(&[7; 32]);
        let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"good","x":"{x}"}}"#);
        for (secret, what) in [
            (format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","d":"{x}"}}"#), "a private part"),
            (
                format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{x}","d":7}}"#),
                "a private part",
            ),
            (r#"{"kty":"RSA","n":"AQAB","e":"AQAB","p":"AA","q":"AA"}"#.into(), "a private part"),
            (r#"{"kty":"RSA","use":"enc","e":"AQAB","qi":""}"#.into(), "a private part"),
            (r#"{"kty":"oct"}"#.into(), "a shared secret"),
            (format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","k":"{x}"}}"#), "a shared secret"),
        ] {
            let set = parse(&format!(r#"{{"keys":[{good},{secret}]}}"#)).expect(&secret);
            assert_eq!(set.keys.len(), 1, "{secret}");
            assert_eq!(set.keys[0].id.as_deref(), Some("good"));
            let error = set.without_secrets().expect_err(&secret).to_string();
            assert!(error.starts_with("key 1 has ") && error.contains(what), "{secret}: {error}");
        }
        let public = format!(r#"{{"keys":[{good},{{"kty":"RSA","use":"enc","d":null}}]}}"#);
        assert!(parse(&public).unwrap().without_secrets().is_ok(), "nothing of it is secret");
    }

    #[test]
    fn sets_without_a_key_that_verifies_are_refused() {
        for (text, expected) in [
            ("", "is not a set of keys"),
            ("{}", "is not a set of keys"),
            (r#"{"keys":[]}"#, "has no key that verifies"),
            (r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#, "key 0 has a shared secret"),
            (&rsa(r#","d":"AAAA""#), "key 0 has a private part"),
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
