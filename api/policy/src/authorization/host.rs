//! Hosts of requests and of TLS, and conditions on hosts.

use std::cmp::Ordering;

/// The host of an authority, without its port and without a dot at its end.
pub(super) fn bare(authority: &str) -> &str {
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, after)) => authority.strip_suffix(after).unwrap_or(authority),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// The order of a condition, which is in lower case, and a host, whose case is ignored.
pub(super) fn compare(condition: &str, host: &str) -> Ordering {
    let host = host.bytes().map(|byte| byte.to_ascii_lowercase());
    condition.bytes().cmp(host)
}

/// Whether a host ends in an ending such as `.example.com`, ignoring case, and has something before it.
pub(super) fn ends_with(host: &str, ending: &str) -> bool {
    let Some(at) = host.len().checked_sub(ending.len()).filter(|at| *at > 0) else {
        return false;
    };
    host.as_bytes().get(at..).is_some_and(|end| end.eq_ignore_ascii_case(ending.as_bytes()))
}

/// Whether a condition, with or without a wildcard, matches a host.
pub(super) fn matches(condition: &str, host: &str) -> bool {
    match condition.strip_prefix('*') {
        Some(ending) => ends_with(host, ending),
        None => condition.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_without_port_and_final_dot() {
        for (authority, expected) in [
            ("web", "web"),
            ("web:8080", "web"),
            ("web.:80", "web"),
            ("[fd00::1]:80", "[fd00::1]"),
            ("[fd00::1]", "[fd00::1]"),
            ("", ""),
        ] {
            assert_eq!(bare(authority), expected, "{authority}");
        }
    }

    #[test]
    fn wildcards_match_hosts_below() {
        assert!(matches("*.example.com", "A.Example.com"));
        assert!(matches("*.example.com", "a.b.example.com"));
        assert!(!matches("*.example.com", "example.com"));
        assert!(!matches("*.example.com", ".example.com"));
        assert!(!matches("*.example.com", "badexample.com"));
        assert!(matches("web", "WEB"));
    }
}
