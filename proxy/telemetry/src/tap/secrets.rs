//! Decides which values a tap, a span or a line of the access log never shows.

use std::borrow::Cow;

/// The text in place of a secret.
pub const MASK: &str = "(masked)";

/// If the name of a header or a query parameter contains one of these, its value is masked.
const SECRET: [&str; 20] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "api-key",
    "api_key",
    "apikey",
    "accesskey",
    "access_key",
    "access-key",
    "session",
    "sessid",
    "credential",
    "signature",
    "jwt",
    "saml",
    "client-cert",
];

/// Whole names whose values are masked: parameters of signed URLs, API keys, parameters of sign-ins.
const SECRET_NAMES: [&str; 8] = ["assertion", "code", "key", "otp", "pass", "pin", "sid", "sig"];

/// Names that contain one of the parts in [`SECRET`] but are not secret.
const PUBLIC: [&str; 2] = [":authority", "authority"];

/// Whether the value of a header or of a query parameter with this name is masked.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_like = || SECRET.iter().any(|part| name.contains(part));
    !PUBLIC.contains(&&*name) && (SECRET_NAMES.contains(&&*name) || is_like())
}

/// The name of a query parameter with its escapes decoded, which is how an application reads it.
fn unescaped(name: &[u8]) -> String {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let escape = match rest {
            [b'%', high, low, after @ ..] => {
                digit(*high).zip(digit(*low)).map(|both| (both, after))
            }
            _ => None,
        };
        let (byte, after) = match escape {
            Some(((high, low), after)) => ((high << 4) | low, after),
            None => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// A target without the values of secret query parameters.
pub(crate) fn masked_target(target: &[u8]) -> Cow<'_, [u8]> {
    let (path, query) = target.split_at(position(target, b'?').unwrap_or(target.len()));
    let secret = |pair: &[u8]| {
        let (name, _) = pair.split_at(position(pair, b'=')?);
        // The first name begins with the question mark.
        let plain = name.strip_prefix(b"?").unwrap_or(name);
        is_secret(&unescaped(plain)).then(|| [name, b"=", MASK.as_bytes()].concat())
    };
    let pairs = || query.split(|byte| *byte == b'&').map(|pair| secret(pair).ok_or(pair));
    if pairs().all(|pair| pair.is_err()) {
        return Cow::Borrowed(target);
    }
    let mut masked = path.to_vec();
    for (count, pair) in pairs().enumerate() {
        masked.extend_from_slice(if count == 0 { b"" } else { b"&" });
        masked.extend_from_slice(pair.as_deref().unwrap_or_else(|plain| plain));
    }
    Cow::Owned(masked)
}

fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|byte| *byte == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in
            ["Authorization", "proxy-authorization", "Cookie", "X-Api-Key", "x-amz-security-token"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in ["key", "sig", "code", "pwd", "PHPSESSID", "SAMLResponse", "AWSAccessKeyId"] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["accept", "content-type", "traceparent", "user-agent", "x-request-id"] {
            assert!(!is_secret(name), "{name}");
        }
        for name in ["keyword", "zipcode", "side", "compass", "shipping"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn a_target_keeps_its_other_parameters() {
        for (target, shown) in [
            ("/a", "/a"),
            ("/a?", "/a?"),
            ("/token=1", "/token=1"),
            ("/a?page=2&access_token=x&b", "/a?page=2&access_token=(masked)&b"),
            ("/a?token=x", "/a?token=(masked)"),
            ("/a?b&jwt=x=y&jwt", "/a?b&jwt=(masked)&jwt"),
            ("/a?p%61ssword=x&%74oken=y", "/a?p%61ssword=(masked)&%74oken=(masked)"),
            ("/a?%zz=x&%7=y&%=z&%74=t", "/a?%zz=x&%7=y&%=z&%74=t"),
        ] {
            assert_eq!(*masked_target(target.as_bytes()), *shown.as_bytes());
        }
        assert_eq!(*masked_target(b"/\xff?token=\xff"), *b"/\xff?token=(masked)");
    }
}
