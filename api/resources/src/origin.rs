//! The origins from which keys may be fetched.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use http::Uri;
use leno_types::check_subdomain;

/// The longest URL, in bytes.
const MAX_URL: usize = 2048;

/// A scheme, a host and a port (RFC 6454): the origin of a URL, or one that the operator permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    is_tls: bool,
    /// A name in lower case, or an address; an IPv6 address without brackets.
    host: String,
    port: u16,
}

/// The text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin: use https://HOST, or https://HOST:PORT, without a path")]
pub struct OriginError(String);

impl Origin {
    /// The origin of a URL, if it has one and neither a user nor a password.
    #[must_use]
    pub fn of(url: &Uri) -> Option<Self> {
        let is_tls = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = url.authority()?;
        // A user, and what is no port, is left over.
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" if is_tls => 443,
            "" => 80,
            rest => port(rest.strip_prefix(':')?)?,
        };
        Some(Self { is_tls, host: host(authority.host())?, port })
    }

    /// The origin of a URL that is written in a document. The URL must not have a fragment.
    #[must_use]
    pub fn of_url(text: &str) -> Option<Self> {
        let is_plain = text.len() <= MAX_URL && !text.contains('#');
        Self::of(&text.parse().ok().filter(|_| is_plain)?)
    }

    /// Whether the origin is reached over TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A name in lower case, or an address without brackets.
fn host(text: &str) -> Option<String> {
    if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return Some(address.parse::<Ipv6Addr>().ok()?.to_string());
    }
    let name = text.to_ascii_lowercase();
    check_subdomain("host", &name).is_ok().then_some(name)
}

fn port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port > 0)
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || OriginError(text.to_owned());
        let url: Uri = text.parse().map_err(|_| error())?;
        if url.path() != "/" && !url.path().is_empty() || url.query().is_some() {
            return Err(error());
        }
        Self::of_url(text).ok_or_else(error)
    }
}

impl fmt::Display for Origin {
    /// In the form that operators write: without the port that the scheme implies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, implied) = if self.is_tls { ("https", 443) } else { ("http", 80) };
        match self.host.parse() {
            Ok(IpAddr::V6(address)) => write!(f, "{scheme}://[{address}]")?,
            _ => write!(f, "{scheme}://{}", self.host)?,
        }
        if self.port == implied { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (text, expected) in [
            ("https://id.example.com", "https://id.example.com"),
            ("https://ID.example.com:443/", "https://id.example.com"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("https://[fd00:0::1]:444", "https://[fd00::1]:444"),
        ] {
            let origin: Origin = text.parse().expect(text);
            assert_eq!(origin.to_string(), expected);
            assert_eq!(expected.parse(), Ok(origin));
        }
        for text in ["", "id.example.com", "ftp://a", "https://a/b", "https://u@a", "https://a?b"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_host_and_the_port_of_a_url_are_read_and_nothing_else_is_left() {
        for url in ["http://x:9000/keys?v=1", "http://X:9000"] {
            let origin = Origin::of_url(url).expect(url);
            assert_eq!((origin.host(), origin.port(), origin.is_tls()), ("x", 9000, false));
        }
        for url in [
            "http://x:9000.evil/",
            "http://x:/",
            "http://x:0/",
            "http://x:+80/",
            "http://x:65536/",
            "http://x:80:80/",
            "http://x@y/",
            "http://x:80@y/",
            "http://x%2eevil/",
            "http://x_y/",
            "http://x..y/",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://::1/",
            "http:///keys",
            "http://x/keys#a",
            "http://x\\y/",
            "//x/keys",
            "file:///keys",
        ] {
            assert_eq!(Origin::of_url(url), None, "{url}");
        }
        assert_eq!(Origin::of_url(&format!("http://x/{}", "a".repeat(MAX_URL))), None);
    }
}
