//! The request that is to be explained, parsed from words of the command line.

use leno_policy::Request;

/// A client, and the request that it would send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainQuestion {
    /// The client's namespace, if given.
    pub namespace: Option<String>,
    /// The client: a workload or an instance.
    pub client: String,
    /// The method.
    pub method: String,
    /// The host as the client names it, without a port.
    pub host: String,
    /// The port that the client connects to.
    pub port: u16,
    /// Path and query.
    pub target: String,
    /// Headers, in the order given.
    pub headers: Vec<(String, String)>,
    pub(crate) wanted: ClientProtocol,
    /// Whether the client itself uses TLS.
    tls: bool,
    /// The host, with the port if it is not the scheme's default.
    authority: String,
}

/// What the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    /// An HTTP request.
    Http,
    /// Bytes that the mesh does not recognise as HTTP, such as the client's own TLS.
    Bytes,
}

/// Why the words are not a valid request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// There is no URL.
    #[error("name the request after --, for example: GET http://cart/items -H 'x: y'")]
    Missing,
    /// The word is not a URL of the required form.
    #[error(
        "{0:?} is not a URL: use for example http://cart/items, grpc://cart:9000/shop.Cart/Add"
    )]
    Url(String),
    /// The URL's scheme is unknown.
    #[error("{0:?} is not a supported scheme: use http, https, grpc, tcp or tls")]
    Scheme(String),
    /// The port is not a valid number.
    #[error("{0:?} is not a port: use 1 to 65535")]
    Port(String),
    /// The scheme has no default port, and the URL has no port.
    #[error("{0}:// needs a port: {0}://host:port")]
    NoPort(String),
    /// The header does not have the required form.
    #[error("{0:?} is not a header: use -H 'name: value'")]
    Header(String),
    /// A word that is not part of a request.
    #[error(
        "{0:?} is an unexpected argument: a request is [METHOD] URL [-H 'name: value']..., with -X \
         for a METHOD that is not in capitals"
    )]
    Word(String),
}

impl ExplainQuestion {
    /// Reads the words of a request: `[METHOD] URL [-H 'name: value']... [-X METHOD]`.
    ///
    /// # Errors
    /// [`QuestionError`], which names the mistake and the correct form.
    pub fn parse(
        namespace: Option<&str>,
        client: &str,
        words: &[String],
    ) -> Result<Self, QuestionError> {
        let (mut method, mut url, mut headers) = (None, None, Vec::new());
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let mut value = |flag: &str| {
                let glued = word.strip_prefix(flag).filter(|glued| !glued.is_empty());
                glued.map(str::to_owned).or_else(|| rest.next().cloned())
            };
            if word.starts_with("-H") || word == "--header" {
                let line = value("-H").ok_or(QuestionError::Header(String::new()))?;
                headers.push(header(&line)?);
            } else if word.starts_with("-X") {
                method = Some(value("-X").ok_or(QuestionError::Missing)?);
            } else if url.is_none() && is_method(word) && method.is_none() {
                method = Some(word.clone());
            } else if url.is_none() && !word.starts_with('-') {
                url = Some(word.clone());
            } else {
                return Err(QuestionError::Word(word.clone()));
            }
        }
        let url = Url::parse(&url.ok_or(QuestionError::Missing)?)?;
        let grpc = url.scheme == "grpc";
        if grpc {
            headers.push(("content-type".to_owned(), "application/grpc".to_owned()));
        }
        let wanted = match url.scheme.as_str() {
            "http" | "grpc" => ClientProtocol::Http,
            _ => ClientProtocol::Bytes,
        };
        let default = if grpc { "POST" } else { "GET" };
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            client: client.to_owned(),
            method: method.unwrap_or_else(|| default.to_owned()),
            authority: url.authority,
            host: url.host,
            port: url.port,
            target: url.target,
            headers,
            wanted,
            tls: matches!(url.scheme.as_str(), "https" | "tls"),
        })
    }

    /// Whether the URL names the port. Otherwise the port is the scheme's default.
    pub(crate) fn names_port(&self) -> bool {
        self.authority.ends_with(&format!(":{}", self.port))
    }

    /// Whether the client sends an HTTP request.
    pub(crate) fn is_http(&self) -> bool {
        self.wanted == ClientProtocol::Http
    }

    /// The server name that the client sends over TLS. An address is not sent as a name (RFC 6066 section 3).
    pub(crate) fn server_name(&self) -> Option<&str> {
        let name = self.host.trim_end_matches('.');
        (self.tls && name.parse::<std::net::IpAddr>().is_err()).then_some(name)
    }

    /// The authority that the client sends.
    #[must_use]
    pub fn authority(&self) -> &str {
        let named = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        named.map_or(&self.authority, |(_, value)| value)
    }
}

impl Request for ExplainQuestion {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &[u8] {
        self.target.split('?').next().unwrap_or_default().as_bytes()
    }

    fn query(&self) -> Option<&[u8]> {
        self.target.split_once('?').map(|(_, query)| query.as_bytes())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        if name.eq_ignore_ascii_case("host") {
            return Some(self.authority().as_bytes());
        }
        let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_bytes())
    }
}

struct Url {
    scheme: String,
    host: String,
    port: u16,
    authority: String,
    target: String,
}

impl Url {
    fn parse(text: &str) -> Result<Self, QuestionError> {
        let wrong = || QuestionError::Url(text.to_owned());
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let scheme = scheme.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "http" | "grpc" => Some(80),
            "https" => Some(443),
            "tcp" | "tls" => None,
            _ => return Err(QuestionError::Scheme(scheme)),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        // A client does not send the fragment (RFC 9110 section 4.2.5).
        let target = target.split('#').next().unwrap_or_default();
        let target = match target.chars().next() {
            Some('/') => target.to_owned(),
            _ => format!("/{target}"),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                (host, rest.strip_prefix(':'))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() || host.contains(['@', ' ']) {
            return Err(wrong());
        }
        let port = match port {
            Some(text) => match text.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(QuestionError::Port(text.to_owned())),
            },
            None => usual.ok_or_else(|| QuestionError::NoPort(scheme.clone()))?,
        };
        let (host, authority) = (host.to_ascii_lowercase(), authority.to_owned());
        Ok(Self { scheme, host, port, authority, target })
    }
}

/// Whether a word is a method, which it is if it is in capitals.
fn is_method(word: &str) -> bool {
    !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
        && !word.starts_with('-')
}

fn header(line: &str) -> Result<(String, String), QuestionError> {
    let wrong = || QuestionError::Header(line.to_owned());
    let (name, value) = line.split_once(':').ok_or_else(wrong)?;
    if !leno_policy::is_field_name(name) {
        return Err(wrong());
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}
