//! Where keys may be fetched from.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// A scheme, a host and a port (RFC 6454) that the operator permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    is_tls: bool,
    /// In lower case; of IPv6 without brackets.
    host: String,
    port: u16,
}

/// A text that is no origin, or no URL of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin: use https://HOST, or https://HOST:PORT, without a path")]
pub(crate) struct OriginError(String);

impl Origin {
    /// The origin of a URL, if it has one and neither a user nor a password.
    #[must_use]
    pub(crate) fn of(url: &Uri) -> Option<Self> {
        let authority = url.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let is_tls = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // A port that is no number is none.
        let has_port = !authority.as_str().ends_with(authority.host());
        if host.is_empty() || has_port && authority.port_u16().is_none() {
            return None;
        }
        Some(Self { is_tls, host: host.to_ascii_lowercase(), port })
    }

    /// Whether it is reached over TLS.
    #[must_use]
    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host.
    #[must_use]
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || OriginError(text.to_owned());
        let url: Uri = text.parse().map_err(|_| error())?;
        if url.path() != "/" && !url.path().is_empty() || url.query().is_some() {
            return Err(error());
        }
        Self::of(&url).ok_or_else(error)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (text, expected) in [
            ("https://id.example.com", "https://id.example.com:443"),
            ("https://ID.example.com/", "https://id.example.com:443"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("https://[fd00::1]:444", "https://[fd00::1]:444"),
        ] {
            let origin: Origin = text.parse().expect(text);
            assert_eq!(origin.to_string(), expected);
            assert_eq!(expected.parse(), Ok(origin));
        }
        for text in ["", "id.example.com", "ftp://a", "https://a/b", "https://u@a", "https://a?b"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
