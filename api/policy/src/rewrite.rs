//! Computes rewritten targets and redirections.

use leno_types::routes::{PathChange, Redirect};

/// The new target of a request whose path changes; the query is kept. `prefix` is the length, in bytes, of the part of
/// the path that the rule's prefix match has matched.
#[must_use]
pub fn target(
    change: &PathChange,
    path: &[u8],
    query: Option<&[u8]>,
    prefix: Option<usize>,
) -> Vec<u8> {
    let mut target = self::path(change, path, prefix);
    if let Some(query) = query {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    target
}

/// The changed path. The part after a replaced prefix is joined to the new prefix with one slash, as in the
/// specification's table for `replacePrefixMatch`.
fn path(change: &PathChange, path: &[u8], prefix: Option<usize>) -> Vec<u8> {
    let (new, rest) = match change {
        PathChange::Full(new) => (new.as_bytes(), &b""[..]),
        PathChange::Prefix(new) => {
            let new = new.trim_end_matches('/').as_bytes();
            (new, path.get(prefix.unwrap_or(0)..).unwrap_or_default())
        }
    };
    let whole = [new, rest].concat();
    if whole.first() == Some(&b'/') { whole } else { [b"/", &whole[..]].concat() }
}

/// The parts of a request's original URL that a redirection may keep.
#[derive(Clone, Copy, Debug)]
pub struct RequestUrl<'r> {
    /// `http` or `https`.
    pub scheme: &'r str,
    /// `host` or `host:port`.
    pub authority: &'r str,
    /// The port that the client dialled.
    pub port: u16,
    /// The path.
    pub path: &'r [u8],
    /// The part after the first `?`.
    pub query: Option<&'r [u8]>,
}

/// The value of the `Location` header of a redirection. If the filter sets a scheme and no port, the port is the
/// scheme's default; if it sets neither, the port is the one that the client dialled. The scheme's default port is left
/// out.
#[must_use]
pub fn location(redirect: &Redirect, place: &RequestUrl<'_>, prefix: Option<usize>) -> Vec<u8> {
    let scheme = redirect.scheme.as_deref().unwrap_or(place.scheme);
    let (host, _) = split_authority(place.authority);
    let host = redirect.hostname.as_deref().unwrap_or(host);
    let well_known = if scheme == "https" { 443 } else { 80 };
    let port = match (redirect.port, &redirect.scheme) {
        (Some(port), _) => port,
        (None, Some(_)) => well_known,
        (None, None) => place.port,
    };
    let mut location = format!("{scheme}://{host}").into_bytes();
    if port != well_known {
        location.extend_from_slice(format!(":{port}").as_bytes());
    }
    match &redirect.path {
        Some(change) => location.extend(target(change, place.path, place.query, prefix)),
        None => {
            location.extend_from_slice(place.path);
            if let Some(query) = place.query {
                location.push(b'?');
                location.extend_from_slice(query);
            }
        }
    }
    location
}

/// Splits an authority into host and port (RFC 3986 section 3.2); an IPv6 host keeps its brackets.
fn split_authority(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => {
            (host, Some(port))
        }
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(change: &PathChange, path: &str, prefix: &str) -> String {
        let prefix = prefix.trim_end_matches('/').len();
        let target = target(change, path.as_bytes(), None, Some(prefix));
        String::from_utf8(target).unwrap()
    }

    #[test]
    fn prefixes_are_replaced_as_the_specification_lists() {
        for (path, prefix, new, expected) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/a", "/", "/v1", "/v1/a"),
        ] {
            let change = PathChange::Prefix(new.into());
            assert_eq!(rewritten(&change, path, prefix), expected, "{path} {prefix} {new}");
        }
        assert_eq!(rewritten(&PathChange::Full("/one".into()), "/foo/bar", "/"), "/one");
        assert_eq!(rewritten(&PathChange::Full("".into()), "/foo/bar", "/"), "/");
        let full = PathChange::Full("/one".into());
        assert_eq!(target(&full, b"/foo", Some(b"a=1&b"), None), b"/one?a=1&b");
    }

    #[test]
    fn redirections_keep_what_is_not_replaced() {
        let place = RequestUrl {
            scheme: "http",
            authority: "web.shop:8080",
            port: 8080,
            path: b"/a/b",
            query: Some(b"x=1"),
        };
        let location = |redirect: Redirect, prefix| {
            String::from_utf8(super::location(&redirect, &place, prefix)).unwrap()
        };
        let text = |text: &str| Some(text.into());
        let none = Redirect::default();
        assert_eq!(location(none.clone(), None), "http://web.shop:8080/a/b?x=1");
        let redirect = Redirect { scheme: text("https"), ..none.clone() };
        assert_eq!(location(redirect, None), "https://web.shop/a/b?x=1");
        let redirect = Redirect { scheme: text("https"), port: Some(8443), ..none.clone() };
        assert_eq!(location(redirect, None), "https://web.shop:8443/a/b?x=1");
        let redirect = Redirect { hostname: text("example.org"), ..none.clone() };
        assert_eq!(location(redirect, None), "http://example.org:8080/a/b?x=1");
        let redirect = Redirect { port: Some(80), ..none.clone() };
        assert_eq!(location(redirect, None), "http://web.shop/a/b?x=1");
        let path = Some(PathChange::Prefix("/c".into()));
        assert_eq!(location(Redirect { path, ..none }, Some(2)), "http://web.shop:8080/c/b?x=1");
    }

    #[test]
    fn authorities_are_split() {
        for (authority, host) in
            [("web", "web"), ("web:80", "web"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")]
        {
            assert_eq!(split_authority(authority).0, host);
        }
    }
}
