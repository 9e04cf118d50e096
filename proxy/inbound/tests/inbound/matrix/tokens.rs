//! Tokens of users: a valid one, and those that are rejected.

use std::time::SystemTime;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use data_encoding::BASE64URL_NOPAD;
use leno_types::tokens::{TokenAlgorithm, TokenIssuer, TokenKey};

const ISSUER: &str = "https://id.example.com";
const HOUR: u64 = 3600;

pub(crate) struct Tokens {
    key: EcdsaKeyPair,
    texts: Vec<(&'static str, Option<String>)>,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let claims = |audience: &str, until: u64| {
            format!(r#"{{"iss":"{ISSUER}","aud":"{audience}","sub":"ann","exp":{until}}}"#)
        };
        let good = claims("orders", now + HOUR);
        let head = |id: &str| format!(r#"{{"alg":"ES256","kid":"{id}"}}"#);
        let none = signed(&key, r#"{"alg":"none"}"#, &good);
        let unsigned = none.rsplit_once('.').unwrap().0;
        let texts = vec![
            ("token: good", Some(signed(&key, &head("one"), &good))),
            ("expired", Some(signed(&key, &head("one"), &claims("orders", now - HOUR)))),
            ("other audience", Some(signed(&key, &head("one"), &claims("bank", now + HOUR)))),
            ("`none`", Some(format!("{unsigned}."))),
            ("unknown `kid`", Some(signed(&key, &head("two"), &good))),
            ("no token", None),
        ];
        Self { key, texts }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        self.texts.iter().map(|(name, text)| (*name, text.as_deref()))
    }

    pub(crate) fn issuer(&self) -> TokenIssuer {
        let key = TokenKey {
            id: Some("one".into()),
            algorithm: TokenAlgorithm::Es256,
            public: self.key.public_key().as_ref().into(),
        };
        TokenIssuer {
            issuer: ISSUER.into(),
            audiences: vec!["orders".into()],
            keys: vec![key],
            header: "authorization".into(),
            clock_skew: std::time::Duration::from_secs(30),
            claim_headers: Vec::new(),
        }
    }
}

fn signed(key: &EcdsaKeyPair, header: &str, claims: &str) -> String {
    let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    let text = format!("{}.{}", part(header), part(claims));
    let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
}
