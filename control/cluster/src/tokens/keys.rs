//! Reads the keys with which the cluster signs the tokens of its service accounts (JWKS, RFC 7517). With them,
//! junk is rejected without a review by the API server.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use data_encoding::BASE64URL_NOPAD;
use http::Request;
use leno_kube::Client;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The path at which the API server publishes its keys. Every service account may read it.
const JWKS: &str = "/openid/v1/jwks";
/// Shortest time between two reads of the keys. A token that names an unknown key causes a read.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Longest wait for the keys.
const ANSWER: Duration = Duration::from_secs(2);
/// Most keys that are used. A cluster has one, or two while it replaces one.
const MAX_KEYS: usize = 16;
/// The first byte of an uncompressed point (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// The result of checking a token against the cluster's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// One of the keys has signed the token. The API server decides whether the token is still valid.
    Good,
    /// The token names a known key, but that key has not signed it.
    Bad,
    /// The token names no known key, or its algorithm is not supported here.
    UnknownKey,
    /// The keys cannot be read.
    NoKeys,
}

/// The keys of the cluster. They are read when they are first needed.
pub(super) struct ClusterKeys {
    client: Client,
    read: RwLock<KeysRead>,
    /// Held during a read. Checks of tokens whose key is known do not wait for it.
    reading: Mutex<()>,
}

#[derive(Default)]
struct KeysRead {
    keys: Vec<VerifyingKey>,
    /// When the keys were last read, even if that failed.
    last: Option<Instant>,
}

struct VerifyingKey {
    id: String,
    key: PublicKey,
}

enum PublicKey {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Jwk>,
}

/// A key in the format of RFC 7518, section 6.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: String,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The header of a token (RFC 7515), with the fields that are needed.
#[derive(Deserialize)]
struct Head {
    alg: String,
    #[serde(default)]
    kid: String,
}

impl ClusterKeys {
    pub(super) fn new(client: Client) -> Self {
        Self { client, read: RwLock::default(), reading: Mutex::default() }
    }

    /// Checks the signature of a well-formed token.
    pub(super) async fn check(&self, token: &str) -> Signature {
        let first = self.read().check(token);
        if !matches!(first, Signature::UnknownKey | Signature::NoKeys) {
            return first;
        }
        let _reading = self.reading.lock().await;
        if self.read().last.is_none_or(|last| last.elapsed() >= READ_AGAIN) {
            self.read_again().await;
        }
        self.read().check(token)
    }

    async fn read_again(&self) {
        self.write().last = Some(Instant::now());
        match timeout(ANSWER, self.fetch()).await {
            Ok(Ok(keys)) => self.write().keys = keys,
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot read the keys of the cluster's tokens");
            }
            Err(_elapsed) => {
                tracing::warn!("no response to a read of the keys of the cluster's tokens")
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, KeysRead> {
        // Poisoning is ignored, because values are only replaced as a whole.
        self.read.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, KeysRead> {
        self.read.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self) -> Result<Vec<VerifyingKey>, leno_kube::Error> {
        let request = Request::get(JWKS).body(Vec::new()).map_err(leno_kube::Error::HttpError)?;
        let text = self.client.request_text(request).await?;
        parse(&text).map_err(leno_kube::Error::SerdeError)
    }
}

impl KeysRead {
    fn check(&self, token: &str) -> Signature {
        if self.keys.is_empty() {
            return Signature::NoKeys;
        }
        let parts = token.rsplit_once('.');
        let head = token.split('.').next().and_then(|head| {
            serde_json::from_slice::<Head>(&BASE64URL_NOPAD.decode(head.as_bytes()).ok()?).ok()
        });
        let (Some((signed, signature)), Some(head)) = (parts, head) else { return Signature::Bad };
        let Ok(signature) = BASE64URL_NOPAD.decode(signature.as_bytes()) else {
            return Signature::Bad;
        };
        let Some(known) = self.keys.iter().find(|known| known.id == head.kid) else {
            return Signature::UnknownKey;
        };
        match known.key.verifies(&head.alg, signed.as_bytes(), &signature) {
            Some(true) => Signature::Good,
            Some(false) => Signature::Bad,
            None => Signature::UnknownKey,
        }
    }
}

impl PublicKey {
    fn new(jwk: &Jwk) -> Option<Self> {
        let bytes = |text: &Option<String>| BASE64URL_NOPAD.decode(text.as_ref()?.as_bytes()).ok();
        let point = || Some([vec![UNCOMPRESSED], bytes(&jwk.x)?, bytes(&jwk.y)?].concat());
        match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => Some(Self::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? }),
            ("EC", Some("P-256")) => point().map(Self::P256),
            ("EC", Some("P-384")) => point().map(Self::P384),
            _ => None,
        }
    }

    /// Whether this key has made the signature; `None` if the algorithm is not supported here.
    fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        let verified = match (self, algorithm) {
            (Self::Rsa { n, e }, "RS256") => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Self::P256(point), "ES256") => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Self::P384(point), "ES384") => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            _ => return None,
        };
        Some(verified.is_ok())
    }
}

fn parse(text: &str) -> Result<Vec<VerifyingKey>, serde_json::Error> {
    let set: KeySet = serde_json::from_str(text)?;
    let key = |jwk: Jwk| Some(VerifyingKey { key: PublicKey::new(&jwk)?, id: jwk.kid });
    Ok(set.keys.into_iter().filter_map(key).take(MAX_KEYS).collect())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::{KeyPair, KeySize};
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    };
    use futures_util::FutureExt;
    use tokio::net::TcpListener;

    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        BASE64URL_NOPAD.encode(bytes)
    }

    /// A key with this ID, and a function that signs with it.
    fn key(id: &str) -> (String, impl Fn(&str, &str) -> String) {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref().to_vec();
        let (x, y) = point[1..].split_at(32);
        let (x, y) = (encoded(x), encoded(y));
        let jwk = format!(
            r#"{{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"{id}","x":"{x}","y":"{y}"}}"#
        );
        let sign = move |kid: &str, claims: &str| {
            let head = format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#);
            let signed = format!("{}.{}", encoded(head.as_bytes()), encoded(claims.as_bytes()));
            let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
            format!("{signed}.{}", encoded(signature.as_ref()))
        };
        (jwk, sign)
    }

    #[test]
    fn a_token_is_junk_unless_the_key_that_it_names_has_signed_it() {
        let (own, sign) = key("own");
        let (_, forge) = key("own");
        let strange = r#"{"kty":"OKP","crv":"Ed25519","kid":"other","x":"AAAA"}"#;
        let keys = parse(&format!(r#"{{"keys":[{strange},{own}]}}"#)).unwrap();
        let read = KeysRead { keys, last: None };
        let good = sign("own", "{}");
        assert_eq!(read.check(&good), Signature::Good);
        assert_eq!(read.check(&forge("own", "{}")), Signature::Bad);
        let (head, _) = good.rsplit_once('.').unwrap();
        for junk in
            [format!("{head}."), format!("{head}.AAAA"), format!("{head}.!"), "a.b.c".into()]
        {
            assert_eq!(read.check(&junk), Signature::Bad, "{junk}");
        }
        assert_eq!(read.check(&sign("next", "{}")), Signature::UnknownKey);
        assert_eq!(KeysRead::default().check(&good), Signature::NoKeys);
    }

    /// Each junk token with an unknown key causes a read of the keys, and the API server may be slow.
    #[tokio::test]
    async fn junk_of_unknown_keys_keeps_no_good_token_waiting_for_the_api_server() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap());
        let keys = ClusterKeys::new(leno_kube::connect_to(address.parse().unwrap()).unwrap());
        let (own, sign) = key("own");
        keys.write().keys = parse(&format!(r#"{{"keys":[{own}]}}"#)).unwrap();
        let junk = sign("next", "{}");
        let mut waiting = pin!(keys.check(&junk));
        // Waits until the read has reached the API server, which never answers.
        let asked = async { silent.accept().await.unwrap() };
        let _connection = tokio::select! {
            connection = asked => connection,
            signature = &mut waiting => panic!("{signature:?}"),
        };
        assert_eq!(keys.check(&sign("own", "{}")).now_or_never(), Some(Signature::Good));
        assert_eq!(waiting.await, Signature::UnknownKey);
    }

    #[test]
    fn an_rsa_key_verifies_what_it_has_signed() {
        let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
        // An RSAPublicKey of 2,048 bits in DER (RFC 8017, appendix A.1.1), in which both numbers are at fixed
        // offsets.
        let der = pair.public_key().as_ref();
        let (n, e) = (encoded(&der[9..265]), encoded(&der[267..]));
        let set = format!(r#"{{"keys":[{{"kty":"RSA","n":"{n}","e":"{e}"}}]}}"#);
        let read = KeysRead { keys: parse(&set).unwrap(), last: None };
        let signed = format!("{}.{}", encoded(br#"{"alg":"RS256"}"#), encoded(b"{}"));
        let mut signature = vec![0; pair.public_modulus_len()];
        let random = SystemRandom::new();
        pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
        let token = format!("{signed}.{}", encoded(&signature));
        assert_eq!(read.check(&token), Signature::Good);
        let spoilt = token.replacen(&encoded(b"{}"), &encoded(b"[]"), 1);
        assert_eq!(read.check(&spoilt), Signature::Bad);
    }
}
