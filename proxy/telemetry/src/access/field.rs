//! The fields that a line of the access log may have.

use std::fmt;
use std::str::FromStr;

macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $attribute:literal $is_observed:literal,)+) => {
        /// A field, by its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FieldName {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl FieldName {
            /// All fields, in the order of the guide.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in settings, and in lines whose settings do not rename the field.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The attribute of an OTLP record. It has the name of OpenTelemetry's semantic conventions, if they have
            /// one.
            #[must_use]
            pub const fn attribute(self) -> &'static str {
                match self { $(Self::$variant => $attribute),+ }
            }

            /// Whether the field is only available if the details of the request are recorded ([`crate::observed`]),
            /// which costs more.
            pub(crate) const fn is_observed(self) -> bool {
                match self { $(Self::$variant => $is_observed),+ }
            }
        }
    };
}

fields! {
    /// When the request or the connection began.
    Time = "time" "leno.time" false,
    /// The direction of the traffic, and so which proxy has logged it.
    Direction = "direction" "leno.direction" false,
    /// The client, with its namespace.
    Client = "client" "leno.client" false,
    /// The server, with its namespace.
    Server = "server" "leno.server" false,
    /// The service that the client called.
    Service = "service" "leno.service" false,
    /// The method.
    Method = "method" "http.request.method" false,
    /// The target with its query, without secrets.
    Target = "target" "leno.target" false,
    /// The path of the target.
    Path = "path" "url.path" false,
    /// The version of HTTP.
    Protocol = "protocol" "leno.protocol" false,
    /// The status of the response.
    Status = "status" "http.response.status_code" false,
    /// The status of a gRPC call.
    GrpcStatus = "grpc_status" "rpc.grpc.status_code" false,
    /// The host of a ClientHello.
    ServerName = "server_name" "tls.client.server_name" false,
    /// The number of bytes from the client.
    RequestBytes = "request_bytes" "http.request.size" false,
    /// The number of bytes to the client.
    ResponseBytes = "response_bytes" "http.response.size" false,
    /// The time from the beginning to the end.
    DurationUs = "duration_us" "leno.duration_us" false,
    /// Whether the connection between the proxies is mTLS.
    Mtls = "mtls" "leno.mtls" false,
    /// Why the mesh has failed the request or connection.
    Error = "error" "error.type" false,
    /// The trace to which the request belongs.
    TraceId = "trace_id" "leno.trace_id" false,
    /// The span of this proxy in that trace.
    SpanId = "span_id" "leno.span_id" false,
    /// The host that the request names.
    Authority = "authority" "server.address" true,
    /// The route and the rule that the request followed.
    Route = "route" "leno.route" true,
    /// How often the request was sent again.
    Retries = "retries" "http.request.resend_count" true,
    /// The identity that the client has proven.
    ClientIdentity = "client_identity" "leno.client.identity" true,
    /// The identity that the server has proven.
    ServerIdentity = "server_identity" "leno.server.identity" true,
    /// The time that the request spent in the client's proxy.
    ClientProxyUs = "client_proxy_us" "leno.client_proxy_us" true,
    /// The time that the request spent in the server's proxy.
    ServerProxyUs = "server_proxy_us" "leno.server_proxy_us" true,
    /// The time that the request spent in the application.
    ApplicationUs = "application_us" "leno.application_us" true,
    /// Time from the beginning of the response to its end.
    ResponseUs = "response_us" "leno.response_us" true,
}

/// A field of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A field of the table above.
    Named(FieldName),
    /// A header of the request, by its name in lower case.
    Header(Box<str>),
}

impl Field {
    /// The field's key in a line whose settings do not rename the field.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Named(name) => name.name(),
            Self::Header(name) => name,
        }
    }

    /// The field's attribute in an OTLP record whose settings do not rename the field.
    #[must_use]
    pub fn attribute(&self) -> String {
        match self {
            Self::Named(name) => name.attribute().to_owned(),
            Self::Header(name) => format!("http.request.header.{name}"),
        }
    }

    /// Whether the field is only available if the details of the request are recorded ([`crate::observed`]), which
    /// costs more.
    pub(crate) fn is_observed(&self) -> bool {
        matches!(self, Self::Named(name) if name.is_observed())
    }
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        let unknown = || UnknownField(text.to_owned());
        if let Some(name) = text.strip_prefix("header(").and_then(|rest| rest.strip_suffix(')')) {
            let is_name =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            return match !name.is_empty() && name.bytes().all(is_name) {
                true => Ok(Self::Header(name.to_ascii_lowercase().into())),
                false => Err(unknown()),
            };
        }
        let named = FieldName::ALL.iter().find(|name| name.name() == text);
        named.copied().map(Self::Named).ok_or_else(unknown)
    }
}

/// The text is not the name of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField(String);

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = FieldName::ALL.iter().map(|name| name.name()).collect();
        write!(f, "{:?} is not a field: use {} or header(NAME)", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownField {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_every_field() {
        let guide = include_str!("../../../../docs/guide/access-log.md");
        for name in FieldName::ALL {
            let row = format!("| `{}` | `{}` | ", name.name(), name.attribute());
            assert!(guide.contains(&row), "docs/guide/access-log.md lacks {row}");
        }
        let listed = guide.lines().filter(|line| line.starts_with("| `")).count();
        assert!(listed >= FieldName::ALL.len(), "{listed}");
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_known_ones() {
        assert_eq!("status".parse(), Ok(Field::Named(FieldName::Status)));
        assert_eq!("header(User-Agent)".parse(), Ok(Field::Header("user-agent".into())));
        for wrong in ["", "Status", "header()", "header(a b)", "header(x", "statuses"] {
            let error = wrong.parse::<Field>().unwrap_err().to_string();
            assert!(error.contains("use time, direction, ") && error.contains("header(NAME)"));
            assert!(error.starts_with(&format!("{wrong:?}")), "{error}");
        }
    }
}
