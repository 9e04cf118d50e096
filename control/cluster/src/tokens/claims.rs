//! Reads the claims of a token (RFC 7519) before the API server reviews it. The claims alone are enough to reject
//! a token with a clear message, but never enough to accept it.

use std::time::{Duration, SystemTime};

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;

/// Largest token, in bytes. The token of a service account has about 1 KiB.
const MAX_TOKEN: usize = 8 * 1024;

/// Why a token is rejected without a review.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidClaims {
    #[error("this is not a token of a service account")]
    Form,
    #[error(
        "the token is for {}, not for {wanted:?}: mount a projected token with audience: {wanted}",
        audiences(.found)
    )]
    Audience { found: Vec<String>, wanted: String },
    #[error(
        "the token has expired: read the file again, because the kubelet renews projected tokens \
         in time"
    )]
    Ended,
}

fn audiences(found: &[String]) -> String {
    match found.is_empty() {
        true => "no audience".to_owned(),
        false => found.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" and "),
    }
}

/// The claims that are needed.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audience,
    exp: Option<u64>,
}

/// One audience or several (RFC 7519, section 4.1.3).
#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

/// Checks whether a token can be valid for the audience `wanted` now. Returns when it expires.
pub(super) fn check(
    token: &str,
    wanted: &str,
    now: SystemTime,
) -> Result<Option<SystemTime>, InvalidClaims> {
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(InvalidClaims::Form);
    };
    if token.len() > MAX_TOKEN {
        return Err(InvalidClaims::Form);
    }
    let claims = BASE64URL_NOPAD.decode(claims.as_bytes()).map_err(|_| InvalidClaims::Form)?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| InvalidClaims::Form)?;
    let found = match claims.aud {
        Audience::One(one) => vec![one],
        Audience::Several(several) => several,
    };
    if !found.iter().any(|audience| audience == wanted) {
        return Err(InvalidClaims::Audience { found, wanted: wanted.to_owned() });
    }
    let ends =
        claims.exp.and_then(|exp| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(exp)));
    match ends {
        Some(ends) if ends <= now => Err(InvalidClaims::Ended),
        ends => Ok(ends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)
    }

    fn checked(claims: &str) -> Result<Option<SystemTime>, InvalidClaims> {
        check(&token(claims), "leno", now())
    }

    #[test]
    fn a_token_for_our_audience_is_worth_a_review() {
        let ends = SystemTime::UNIX_EPOCH + Duration::from_secs(1_001);
        assert_eq!(checked(r#"{"aud":["leno"],"exp":1001}"#), Ok(Some(ends)));
        assert_eq!(checked(r#"{"aud":["other","leno"],"exp":1001,"x":{}}"#), Ok(Some(ends)));
        assert_eq!(checked(r#"{"aud":"leno"}"#), Ok(None));
    }

    #[test]
    fn a_token_for_others_names_its_audience() {
        let error =
            checked(r#"{"aud":["https://kubernetes.default.svc"],"exp":1001}"#).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("for \"https://kubernetes.default.svc\", not for \"leno\""),
            "{text}"
        );
        assert!(checked("{}").unwrap_err().to_string().contains("no audience"));
    }

    #[test]
    fn one_that_has_ended_or_is_none_is_refused() {
        assert_eq!(checked(r#"{"aud":["leno"],"exp":1000}"#), Err(InvalidClaims::Ended));
        let long = format!("{}.{}", token(r#"{"aud":["leno"]}"#), "x");
        let large = format!("{}{}", token(r#"{"aud":["leno"]}"#), "x".repeat(MAX_TOKEN));
        let bad = ["", "nonsense", "a.b", "a.!.c", &token("[]"), &token("{"), &long, &large];
        for text in bad {
            assert_eq!(check(text, "leno", now()), Err(InvalidClaims::Form), "{text:.40}");
        }
    }
}
