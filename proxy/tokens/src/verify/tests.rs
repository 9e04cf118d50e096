//! Tokens of issuers, and tokens of attackers.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
};
use leno_types::tokens::ClaimMatch;

use super::*;

/// The present time in all tests, in seconds.
pub(crate) const NOW: u64 = 950;

static KEY: LazyLock<EcdsaKeyPair> =
    LazyLock::new(|| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());

fn key(id: Option<&str>, algorithm: TokenAlgorithm, public: &[u8]) -> TokenKey {
    TokenKey { id: id.map(Into::into), algorithm, public: public.into() }
}

pub(crate) fn issuer() -> TokenIssuer {
    TokenIssuer {
        issuer: "https://id".into(),
        audiences: vec!["shop".into(), "bank".into()],
        keys: vec![key(Some("one"), TokenAlgorithm::Es256, KEY.public_key().as_ref())],
        header: "authorization".into(),
        clock_skew: Duration::from_secs(30),
        claim_headers: Vec::new(),
    }
}

fn encoded(text: &str) -> String {
    BASE64URL_NOPAD.encode(text.as_bytes())
}

fn signed(header: &str, payload: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let text = format!("{}.{}", encoded(header), encoded(payload));
    let signature = BASE64URL_NOPAD.encode(&sign(text.as_bytes()));
    format!("{text}.{signature}")
}

fn es256(text: &[u8]) -> Vec<u8> {
    KEY.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec()
}

/// A token that is signed with the key `one`.
pub(crate) fn token(payload: &str) -> String {
    signed(r#"{"alg":"ES256","kid":"one"}"#, payload, es256)
}

fn result(token: &str, issuer: &TokenIssuer) -> Result<Claims, TokenError> {
    verify(token.as_bytes(), &[issuer], Duration::from_secs(NOW))
}

const GOOD: &str = r#"{"iss":"https://id","aud":["x","shop"],"exp":1000,"sub":"ann"}"#;

#[test]
fn a_token_is_valid_for_its_time_and_its_audience() {
    for (payload, expected) in [
        (GOOD, Ok(())),
        (r#"{"iss":"https://id","aud":"bank","exp":921,"nbf":979}"#, Ok(())),
        (r#"{"iss":"https://id","aud":"shop","exp":1000.5}"#, Ok(())),
        (r#"{"iss":"https://id","aud":"shop","exp":919}"#, Err(TokenError::Expired)),
        (r#"{"iss":"https://id","aud":"shop"}"#, Err(TokenError::Expired)),
        (r#"{"iss":"https://id","aud":"shop","exp":"1000"}"#, Err(TokenError::Expired)),
        (r#"{"iss":"https://id","aud":"shop","exp":-1}"#, Err(TokenError::Expired)),
        (r#"{"iss":"https://id","aud":"shop","exp":1e99}"#, Err(TokenError::Expired)),
        (r#"{"iss":"https://id","aud":"shop","exp":1000,"nbf":981}"#, Err(TokenError::NotYet)),
        (r#"{"iss":"https://id","aud":"other","exp":1000}"#, Err(TokenError::Audience)),
        (r#"{"iss":"https://id","exp":1000}"#, Err(TokenError::Audience)),
        (r#"{"iss":"https://id2","aud":"shop","exp":1000}"#, Err(TokenError::Issuer)),
        (r#"{"aud":"shop","exp":1000}"#, Err(TokenError::Issuer)),
    ] {
        assert_eq!(result(&token(payload), &issuer()).map(|_| ()), expected, "{payload}");
    }
}

#[test]
fn what_is_no_token_is_refused() {
    let good = token(GOOD);
    let parts: Vec<&str> = good.split('.').collect();
    for text in [
        "",
        ".",
        "..",
        "a.b.c",
        &format!("{good}."),
        &format!("{good}.x"),
        &format!("{}.{}", parts[0], parts[1]),
        &format!("{}=.{}.{}", parts[0], parts[1], parts[2]),
        &format!("{}.{}.{}", encoded("[1]"), parts[1], parts[2]),
        &format!("{}.{}.{}", parts[0], encoded("\"x\""), parts[2]),
        &token(&format!("{}{}", "[".repeat(200), "]".repeat(200))),
        &signed(r#"{"alg":"ES256","kid":"one","crit":["b64"],"b64":false}"#, GOOD, es256),
    ] {
        assert_eq!(result(text, &issuer()).unwrap_err(), TokenError::Malformed, "{text}");
    }
    let large = token(&format!(r#"{{"iss":"https://id","x":"{}"}}"#, "a".repeat(MAX_TOKEN_BYTES)));
    assert_eq!(result(&large, &issuer()).unwrap_err(), TokenError::TooLarge);
}

#[test]
fn a_token_chooses_no_algorithm_that_its_key_is_not_for() {
    let public = KEY.public_key().as_ref().to_vec();
    let hmac = |text: &[u8]| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &public);
        hmac::sign(&secret, text).as_ref().to_vec()
    };
    for (header, sign) in [
        (r#"{"alg":"none"}"#, Box::new(|_: &[u8]| Vec::new()) as Box<dyn Fn(&[u8]) -> Vec<u8>>),
        (r#"{"alg":"None","kid":"one"}"#, Box::new(|_: &[u8]| Vec::new())),
        // The public key, used as a shared secret.
        (r#"{"alg":"HS256","kid":"one"}"#, Box::new(hmac)),
        (r#"{"alg":"ES384","kid":"one"}"#, Box::new(es256)),
        (r#"{"alg":"es256","kid":"one"}"#, Box::new(es256)),
        (r#"{"kid":"one"}"#, Box::new(es256)),
        (r#"{"alg":["ES256"],"kid":"one"}"#, Box::new(es256)),
    ] {
        let error = result(&signed(header, GOOD, sign), &issuer()).unwrap_err();
        assert_eq!(error, TokenError::Key(0), "{header}");
    }
}

#[test]
fn only_the_keys_of_the_issuer_count() {
    let stranger = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let by_stranger =
        |text: &[u8]| stranger.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec();
    // A key inside the token has no effect.
    let own = r#"{"alg":"ES256","jwk":{"kty":"EC"},"jku":"https://evil","kid":"one"}"#;
    for header in [r#"{"alg":"ES256"}"#, r#"{"alg":"ES256","kid":"one"}"#, own] {
        let error = result(&signed(header, GOOD, by_stranger), &issuer()).unwrap_err();
        assert_eq!(error, TokenError::Signature, "{header}");
    }
    let unknown = signed(r#"{"alg":"ES256","kid":"two"}"#, GOOD, es256);
    assert_eq!(result(&unknown, &issuer()).unwrap_err(), TokenError::Key(0));
    assert!(result(&signed(r#"{"alg":"ES256"}"#, GOOD, es256), &issuer()).is_ok());
    // A missing signature.
    let good = token(GOOD);
    let (text, _) = good.rsplit_once('.').unwrap();
    assert_eq!(result(&format!("{text}."), &issuer()).unwrap_err(), TokenError::Signature);
    // Another payload with the same signature.
    let parts: Vec<&str> = good.split('.').collect();
    let forged = GOOD.replace("ann", "root");
    let forged = format!("{}.{}.{}", parts[0], encoded(&forged), parts[2]);
    assert_eq!(result(&forged, &issuer()).unwrap_err(), TokenError::Signature);
    // The issuer of another policy has the same name and other keys.
    let other = TokenIssuer { keys: Vec::new(), ..issuer() };
    assert_eq!(result(&good, &other).unwrap_err(), TokenError::Key(0));
}

#[test]
fn every_kind_of_key_verifies() {
    let edwards = Ed25519KeyPair::generate().unwrap();
    let edwards_key = key(None, TokenAlgorithm::EdDsa, edwards.public_key().as_ref());
    let by_edwards =
        signed(r#"{"alg":"EdDSA"}"#, GOOD, |text| edwards.sign(text).as_ref().to_vec());
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let rsa_key = key(None, TokenAlgorithm::Rs256, rsa.public_key().as_ref());
    let by_rsa = signed(r#"{"alg":"RS256"}"#, GOOD, |text| {
        let mut signature = vec![0; rsa.public_modulus_len()];
        rsa.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature).unwrap();
        signature
    });
    let both = TokenIssuer { keys: vec![edwards_key, rsa_key], ..issuer() };
    for text in [by_edwards, by_rsa] {
        assert!(result(&text, &both).is_ok(), "{text}");
        assert_eq!(result(&text, &issuer()).unwrap_err(), TokenError::Key(0));
    }
}

#[test]
fn claims_are_compared_by_name_and_value() {
    let claims = result(
        &token(
            r#"{"iss":"https://id","aud":"shop","exp":1000,"sub":"ann","groups":["a","b",["c"]],
                "admin":true,"age":7,"scope":"read write","realm":{"roles":["r"],"x.y":"z"},
                "https://example.com/role":"w","nothing":null}"#,
        ),
        &issuer(),
    )
    .unwrap();
    for (name, values, expected) in [
        ("sub", &["ann"][..], true),
        ("sub", &[], true),
        ("sub", &["bob", "ann"], true),
        ("sub", &["an"], false),
        ("groups", &["b"], true),
        ("groups", &["c"], false),
        ("groups", &["a b"], false),
        ("admin", &["true"], true),
        ("age", &["7"], true),
        ("scope", &["write"], true),
        ("scope", &["read write"], true),
        ("sub", &["ANN"], false),
        ("realm.roles", &["r"], true),
        ("realm.x.y", &["z"], true),
        ("realm", &["r"], false),
        ("https://example.com/role", &["w"], true),
        ("nothing", &["null"], false),
        ("other", &[], false),
    ] {
        let values = values.iter().map(|value| (*value).into()).collect();
        let wanted = ClaimMatch { name: name.into(), values };
        assert_eq!(claims.fulfil(std::slice::from_ref(&wanted)), expected, "{wanted:?}");
    }
    assert!(claims.fulfil(&[]));
}
