//! Tests the headers that a browser receives, as the Gateway API's conformance test HTTPRouteCORS does.

use leno_policy::cors::{actual, is_preflight, preflight};
use leno_types::routes::Cors;

use super::support::{TestRequest, sent};

fn list(items: &[&str]) -> Vec<std::sync::Arc<str>> {
    items.iter().map(|item| (*item).into()).collect()
}

fn exact() -> Cors {
    Cors {
        origins: list(&["https://www.foo.com", "https://*.bar.com"]),
        credentials: true,
        methods: list(&["GET", "OPTIONS"]),
        headers: list(&["x-header-1", "x-header-2"]),
        exposed: list(&["x-header-3", "x-header-4"]),
        max_age_s: 3600,
    }
}

fn open(credentials: bool) -> Cors {
    let all = || list(&["*"]);
    Cors {
        origins: all(),
        credentials,
        methods: all(),
        headers: all(),
        exposed: all(),
        max_age_s: 5,
    }
}

fn shown(lines: Vec<leno_policy::cors::CorsHeader>) -> Vec<String> {
    let line = |(name, value): (&str, Vec<u8>)| {
        format!("{name}: {}", String::from_utf8(value).expect("text"))
    };
    lines.into_iter().map(line).collect()
}

fn asking(origin: &str) -> TestRequest {
    sent(&format!(
        "OPTIONS /cors origin={origin} access-control-request-method=PUT access-control-request-headers=x-a"
    ))
}

#[test]
fn a_preflight_is_an_options_request_that_asks() {
    assert!(is_preflight(&asking("https://www.foo.com")));
    for other in [
        "GET / origin=a access-control-request-method=PUT",
        "OPTIONS / origin=a",
        "OPTIONS / access-control-request-method=PUT",
    ] {
        assert!(!is_preflight(&sent(other)), "{other}");
    }
}

#[test]
fn an_allowed_origin_is_told_what_it_may() {
    let expected = [
        "Vary: Origin",
        "Access-Control-Allow-Origin: https://www.foo.com",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Allow-Methods: GET, OPTIONS",
        "Access-Control-Allow-Headers: x-header-1, x-header-2",
        "Access-Control-Max-Age: 3600",
    ];
    assert_eq!(shown(preflight(&exact(), &asking("https://www.foo.com"))), expected);
    let expected = [
        "Vary: Origin",
        "Access-Control-Allow-Origin: https://a.b.bar.com",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Expose-Headers: x-header-3, x-header-4",
    ];
    assert_eq!(shown(actual(&exact(), &sent("GET / origin=https://a.b.bar.com"))), expected);
}

#[test]
fn any_other_origin_is_told_nothing() {
    for origin in [
        "https://foo.com",
        "http://www.foo.com",
        "https://www.foo.com:8443",
        "https://bar.com",
        "https://evilbar.com",
        "https://www.foo.com.evil.org",
        "null",
        "",
    ] {
        assert_eq!(preflight(&exact(), &asking(origin)), [], "{origin}");
        let request = sent(&format!("GET / origin={origin}"));
        assert_eq!(actual(&exact(), &request), [], "{origin}");
    }
    assert_eq!(actual(&exact(), &sent("GET /")), []);
}

#[test]
fn a_port_that_is_the_schemes_own_may_be_left_out() {
    for origin in ["https://www.foo.com:443", "https://WWW.foo.com"] {
        assert_ne!(preflight(&exact(), &asking(origin)), [], "{origin}");
    }
}

#[test]
fn wildcards_are_literal_only_without_credentials() {
    let expected = [
        "Access-Control-Allow-Origin: *",
        "Access-Control-Allow-Methods: *",
        "Access-Control-Allow-Headers: *",
        "Access-Control-Max-Age: 5",
    ];
    assert_eq!(shown(preflight(&open(false), &asking("https://a.org"))), expected);
    let expected = [
        "Vary: Origin",
        "Access-Control-Allow-Origin: https://a.org",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Allow-Methods: PUT",
        "Access-Control-Allow-Headers: x-a",
        "Access-Control-Max-Age: 5",
    ];
    assert_eq!(shown(preflight(&open(true), &asking("https://a.org"))), expected);
    let request = sent("GET / origin=https://a.org");
    let exposed = "Access-Control-Expose-Headers: *".to_owned();
    assert!(shown(actual(&open(false), &request)).contains(&exposed));
    assert!(!shown(actual(&open(true), &request)).contains(&exposed));
}
