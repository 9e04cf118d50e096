//! Which values a tap never shows.

/// What stands for a secret.
pub const MASK: &str = "(masked)";

/// Parts of names of headers and of query parameters whose values are masked.
const SECRET: [&str; 14] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "api-key",
    "api_key",
    "apikey",
    "session",
    "credential",
    "signature",
    "jwt",
    "client-cert",
];

/// Not secrets, though their names look like it.
const PUBLIC: [&str; 2] = [":authority", "authority"];

/// Whether the value of a header or of a query parameter of this name is masked.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !PUBLIC.contains(&&*name) && SECRET.iter().any(|part| name.contains(part))
}

/// A target without the values of secret query parameters.
pub(crate) fn masked_target(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
        _ => pair.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
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
        for name in ["accept", "content-type", "traceparent", "user-agent", "x-request-id"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn a_target_keeps_its_other_parameters() {
        assert_eq!(masked_target("/a"), "/a");
        assert_eq!(
            masked_target("/a?page=2&access_token=x&b"),
            "/a?page=2&access_token=(masked)&b"
        );
    }
}
