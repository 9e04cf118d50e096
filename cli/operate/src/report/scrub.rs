//! Removes secrets from texts. Text that only looks like a secret is removed as well.

use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

/// The replacement of removed text.
pub(crate) const REMOVED: &str = "(removed)";
/// The names whose values are private, as a regular expression.
const NAMES: &str = r"(?:password|passwd|passphrase|pwd|pass|secret(?:[-_]?key)?|token|api[-_]?key|access[-_]?key|private[-_]?key|authorization|cookie|credential|signature|session[-_]?id|jwt|bearer|(?:auth|signing|encryption|account)[-_]?key|x-amz-[a-z-]+)s?(?:[-_](?:value|base))?";

/// The expressions that find secrets. The groups `before` and `after` of a match are kept.
static EXPRESSIONS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let all = [
        // A private key, even with its end cut off, or in JSON with `\n` between its lines.
        r"(?s-u)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)".to_owned(),
        // JSON Web Tokens anywhere, among them those of service accounts.
        r"(?-u)eyJ[A-Za-z0-9_=-]{6,}(?:\.[A-Za-z0-9_=-]*){0,4}".to_owned(),
        // The value of a header, to the end of its line or string: `Authorization: Basic
        // dXNlcjpwYXNz`.
        r#"(?i-u)(?P<before>\b(?:proxy-)?authorization\\?["']?\s*[:=]\s*\\?["']?)[^"'\r\n\\]+"#.to_owned(),
        r#"(?i-u)(?P<before>\b(?:set-)?cookie2?\\?["']?\s*[:=]\s*\\?["']?)[^"'\r\n\\]+"#.to_owned(),
        r"(?i-u)(?P<before>\b(?:bearer|basic|digest|negotiate)\s+)[A-Za-z0-9._~+/=-]{6,}".to_owned(),
        // A name with its value: in a query, a form, an environment, a flag, YAML, JSON, or JSON in a string.
        format!(r#"(?i-u)(?P<before>[a-z0-9_.-]*{NAMES}\\?["']?\s*(?:[:=]|%3d)\s*\\?")(?:\\.|[^"\\])+"#),
        format!(r#"(?i-u)(?P<before>[a-z0-9_.-]*{NAMES}["']?\s*(?:[:=]|%3d)\s*')(?:\\.|[^'\\])+"#),
        format!(r#"(?i-u)(?P<before>[a-z0-9_.-]*{NAMES}(?:\s*=\s*|:\s+|:|%3d))[^\s"'&\\]+"#),
        format!(
            r#"(?im-u)(?P<before>(?:^|[\s"'\[])--?[a-z0-9-]*{NAMES}(?:\s+|["'],\s*["']))[^\s"'-][^\s"']*"#
        ),
        // User name and password in a URL.
        r#"(?i-u)(?P<before>[a-z][a-z0-9+.-]*://)[^\s"'<>/:@]*:[^\s"'<>]*(?P<after>@)"#.to_owned(),
        // Keys of well-known services, recognised by their prefixes.
        r"(?-u)\b(?:AKIA|ASIA)[0-9A-Z]{16}\b".to_owned(),
        r"(?-u)\b(?:gh[pousr]|github_pat|glpat|xox[abeoprs]|sk|pk|rk|hvs|npm|dop_v1)[-_.][A-Za-z0-9_-]{16,}".to_owned(),
        r"(?-u)\bAIza[0-9A-Za-z_-]{30,}".to_owned(),
    ];
    all.iter().map(|one| Regex::new(one).expect("a test compiles them")).collect()
});
/// Matches a possible key or certificate in base64 or hexadecimal digits. The digest of an image is kept.
static LONG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?-u)(?P<before>sha256:)?[A-Za-z0-9+/_]{40,}={0,2}").expect("a test compiles it")
});

/// The text without possible secrets.
pub(crate) fn scrubbed(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for expression in &*EXPRESSIONS {
        bytes = expression.replace_all(&bytes, kept).into_owned();
    }
    let bytes = LONG.replace_all(&bytes, |found: &Captures<'_>| {
        let whole = &found[0];
        if found.name("before").is_some() || !is_mixed(whole) {
            return whole.to_vec();
        }
        REMOVED.as_bytes().to_vec()
    });
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kept(found: &Captures<'_>) -> Vec<u8> {
    let part = |name: &str| found.name(name).map_or(&[][..], |part| part.as_bytes());
    [part("before"), REMOVED.as_bytes(), part("after")].concat()
}

/// Whether the text mixes digits and letters in a way that no natural word or path does.
fn is_mixed(text: &[u8]) -> bool {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = text.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let slashes = text.iter().filter(|byte| **byte == b'/').count();
    digits >= 3 && letters >= 3 && slashes * 8 < text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Secrets in the forms in which they occur in logs and objects, each in its context and alone.
    const PLANTED: [(&str, &str); 39] = [
        ("password=hunter2-a", "hunter2-a"),
        ("DB_PASSWORD: hunter2-b", "hunter2-b"),
        (r#"{"dbPassword":"hunter2-c d"}"#, "hunter2-c d"),
        (r#"msg="{\"token\":\"hunter2-d\"}""#, "hunter2-d"),
        ("GET /?a=1&access_token=hunter2-e&b=2", "hunter2-e"),
        ("GET /?api-key=hunter2-f HTTP/1.1", "hunter2-f"),
        ("api_key%3Dhunter2-g", "hunter2-g"),
        ("--admin-password hunter2-h", "hunter2-h"),
        ("postgres://shop:hunter2-i@db:5432/shop", "hunter2-i"),
        ("https://:hunter2-j@example.com/", "hunter2-j"),
        ("Authorization: Basic aHVudGVyMjo=", "aHVudGVyMjo="),
        ("authorization: Custom hunter2 k", "hunter2 k"),
        ("\"authorization\": \"hunter2-l m\"", "hunter2-l m"),
        ("sent Bearer hunter2-token-n", "hunter2-token-n"),
        ("Set-Cookie: session=hunter2-o; Path=/", "hunter2-o"),
        ("cookie=\"a=hunter2-p; b=hunter2-q\"", "hunter2-q"),
        ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("said eyJhbGciOiJSUzI1NiJ9 alone", "eyJhbGciOiJSUzI1NiJ9"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghij"),
        ("glpat-0123456789abcdefghij", "0123456789abcdefghij"),
        ("xoxb-123456789012-abcdefghijkl", "abcdefghijkl"),
        ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "0123456789abcdefghij"),
        ("key 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "9f86d081"),
        ("k8Jx0q3mV2bT7yPzR1uWcD5fGhLnQsXa4Z6eEoIiUtY= of us", "k8Jx0q3m"),
        ("-----BEGIN PRIVATE KEY-----\nMIGHAgEA\nMBMG\n-----END PRIVATE KEY-----\n", "MIGHAgEA"),
        ("-----BEGIN EC PRIVATE KEY-----\\nMHcCAQ\\n-----END EC PRIVATE KEY-----", "MHcCAQ"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow cut", "MIIEow"),
        ("client_secret = \"hunter2-r\"", "hunter2-r"),
        (r#"{"password":"a\"hunter2-s"}"#, "hunter2-s"),
        ("password: 'a\"hunter2-t'", "hunter2-t"),
        ("PASSWORD=a,b;hunter2-u)", "hunter2-u"),
        (r#"["--password","hunter2-v"]"#, "hunter2-v"),
        ("SECRET_KEY=hunter2-x", "hunter2-x"),
        ("DB_PASS=hunter2-y", "hunter2-y"),
        ("smtp_pass: hunter2-z", "hunter2-z"),
        ("ENCRYPTION_KEY=hunter2-A", "hunter2-A"),
        ("token_value=hunter2-B", "hunter2-B"),
        ("amqp://me:a/b@c-hunter2-w@queue:5672/", "hunter2-w"),
    ];

    #[test]
    fn secrets_of_every_shape_go_and_nothing_is_left_of_them() {
        for (text, secret) in PLANTED {
            let around = format!("before {text}\nafter");
            let scrubbed = scrubbed(&around);
            assert!(!scrubbed.contains(secret), "{scrubbed:?} still has {secret}");
            assert!(scrubbed.contains(REMOVED), "{scrubbed:?}");
            assert!(scrubbed.starts_with("before "), "{scrubbed:?}");
        }
    }

    #[test]
    fn what_is_of_use_stays() {
        for text in [
            "leno_requests_total{direction=\"inbound\",client=\"web\",mtls=\"true\",status=\"200\"} 7",
            "2026-01-02T03:04:05Z INFO leno_proxy: ready instance=shop/web-7d9c-x2x4k",
            "registry.example/leno-proxy:0.1.0@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "spiffe://cluster.local/ns/shop/sa/web 10.244.0.9:8080",
            "\"uid\": \"0b0ad0e2-4f1c-4d51-9b3e-1c2d3e4f5a6b\"",
            "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/items",
            "# TYPE leno_identity_expiration_timestamp_seconds gauge",
            "leno_control_token_reviews_total{result=\"accepted\"} 3",
        ] {
            assert_eq!(scrubbed(text), text);
        }
    }
}
