//! Measures what the check of a user's token costs: the first time, in comparison with the check of its signature
//! alone, and later, when the token is known.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use data_encoding::BASE64URL_NOPAD;
use leno_console::print_line;
use leno_suite::tabular::markdown;
use leno_tokens::{TokenCache, TokenUse, verify};
use leno_types::tokens::{ClaimMatch, TokenAlgorithm, TokenIssuer, TokenKey};

use crate::rounds::{DecisionRounds as Args, nanos_of};

/// The longest time that the check of a known token may take.
const MOST_KNOWN_NS: f64 = 1_000.0;
/// The longest time that the first check may take, as a multiple of the check of the signature.
const MOST_OF_SIGNATURE: f64 = 2.0;
/// The check of a signature takes about a hundred times as long as a decision, so it is repeated less often.
const LESS_OFTEN: usize = 100;

/// The moment at which tokens are verified, and the moment at which they expire.
const NOW: Duration = Duration::from_secs(1_000);
const UNTIL: u64 = 2_000;

/// Prints the table. Returns whether the bounds hold.
pub(super) fn run(args: Args) -> Result<bool> {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).ok().context("no key")?;
    let issuer = issuer(&key);
    let issuers = [&issuer];
    let (signed, signature) = token(&key)?;
    let token = format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature));
    let token = token.as_bytes();
    let claims = [ClaimMatch { name: "groups".into(), values: vec!["ops".into()] }];
    let once = (args.requests / LESS_OFTEN).max(1);
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref());
    let alone = nanos_of(args.rounds, once, |_| {
        assert!(public.verify(black_box(signed.as_bytes()), &signature).is_ok());
    });
    let first = nanos_of(args.rounds, once, |_| {
        let verified = verify(black_box(token), &issuers, NOW);
        assert!(verified.is_ok_and(|one| one.fulfil(&claims)), "a valid token");
    });
    let cache = TokenCache::default();
    let of = (TokenUse { policy: 0, header: 0 }, &issuers[..]);
    let known = nanos_of(args.rounds, args.requests, |_| {
        let verified = cache.verify(black_box(token), of, NOW);
        assert!(verified.is_ok_and(|one| one.fulfil(&claims)), "a valid token");
    });
    let heading = [format!("token of {} bytes, ES256", token.len()), "ns".to_owned()];
    let costs = [("signature alone (aws-lc)", alone), ("first time", first), ("known", known)];
    let costs = costs.map(|(what, ns)| vec![what.to_owned(), format!("{ns:.0}")]);
    print_line!("{}", markdown(&[&[heading.to_vec()][..], &costs].concat()));
    let holds = known <= MOST_KNOWN_NS && first <= MOST_OF_SIGNATURE * alone;
    let verdict = if holds { "hold" } else { "DO NOT HOLD" };
    print_line!(
        "The bounds {verdict}: {MOST_KNOWN_NS} ns once it is known, {MOST_OF_SIGNATURE} times the \
         signature the first time ({:.2})\n",
        first / alone
    );
    Ok(holds)
}

fn issuer(key: &EcdsaKeyPair) -> TokenIssuer {
    let key = TokenKey {
        id: Some("one".into()),
        algorithm: TokenAlgorithm::Es256,
        public: key.public_key().as_ref().into(),
    };
    TokenIssuer {
        issuer: "https://id.example.com".into(),
        audiences: vec!["shop".into()],
        keys: vec![key],
        header: "authorization".into(),
        clock_skew: Duration::ZERO,
        claim_headers: Vec::new(),
    }
}

/// A token of a usual size: the signed part, and the signature.
fn token(key: &EcdsaKeyPair) -> Result<(String, Vec<u8>)> {
    let claims = format!(
        r#"{{"iss":"https://id.example.com","aud":["shop","bank"],"sub":"8c7c1c4e-4a43-4d1a-9d1e-5a5d3c7f9c10","exp":{UNTIL},"iat":900,"email":"ann@example.com","groups":["dev","ops","on-call"],"scope":"openid profile email orders:read orders:write"}}"#
    );
    let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    let signed =
        format!("{}.{}", part(r#"{"alg":"ES256","kid":"one","typ":"JWT"}"#), part(&claims));
    let signature =
        key.sign(&SystemRandom::new(), signed.as_bytes()).ok().context("no signature")?;
    Ok((signed, signature.as_ref().to_vec()))
}
