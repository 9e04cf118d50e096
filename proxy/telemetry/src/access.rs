//! The access log: one line per request and per opaque connection. Off by default.

mod log;

use std::fmt::{self, Write};
use std::time::Duration;

use crate::edge::EdgeLabels;

pub use log::Log;

/// Longest target or cause in a line. The rest is cut off.
pub(crate) const MAX_FIELD_BYTES: usize = 1024;

/// The formats of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key=value` pairs.
    Text,
    /// A JSON object.
    Json,
}

/// The contents of one line.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The client and the server.
    pub edge: &'a EdgeLabels,
    /// The request's method, or `TCP` for an opaque connection.
    pub method: &'a str,
    /// The protocol of the request, for example `HTTP/2`. For an opaque connection `TLS`, if it
    /// carries TLS.
    pub protocol: Option<&'a str>,
    /// The request's target, or the original destination.
    pub target: &'a [u8],
    /// The status of the response. `None` for an opaque connection.
    pub status: Option<u16>,
    /// The `grpc-status` of a gRPC call.
    pub grpc_status: Option<u8>,
    /// The host in the ClientHello of a TLS connection.
    pub server_name: Option<&'a str>,
    /// Bytes from the client and from the server.
    pub bytes: (u64, u64),
    /// From the head of the request to the end of the response.
    pub duration: Duration,
    /// Why the mesh failed the request or connection. `None` if it did not.
    pub error: Option<&'a str>,
}

impl Record<'_> {
    /// The line, including its newline. All bytes except printable ASCII are escaped, so that a
    /// request cannot forge a second line.
    #[must_use]
    pub fn line(&self, format: Format) -> String {
        let client = qualified(&self.edge.client_namespace, &self.edge.client);
        let server = qualified(&self.edge.server_namespace, &self.edge.server);
        let duration_us = u64::try_from(self.duration.as_micros()).unwrap_or(u64::MAX);
        let fields = [
            ("direction", Some(Field::Text(self.edge.direction.as_str().to_owned()))),
            ("client", Some(Field::Text(client))),
            ("server", Some(Field::Text(server))),
            ("method", Some(Field::Text(escape(self.method.as_bytes())))),
            ("target", Some(Field::Text(escape(self.target)))),
            ("protocol", self.protocol.map(|protocol| Field::Text(escape(protocol.as_bytes())))),
            ("status", self.status.map(|status| Field::Number(status.into()))),
            ("grpc_status", self.grpc_status.map(|status| Field::Number(status.into()))),
            ("server_name", self.server_name.map(|name| Field::Text(escape(name.as_bytes())))),
            ("request_bytes", Some(Field::Number(self.bytes.0))),
            ("response_bytes", Some(Field::Number(self.bytes.1))),
            ("duration_us", Some(Field::Number(duration_us))),
            ("mtls", Some(Field::Flag(self.edge.mtls))),
            ("error", self.error.map(|error| Field::Text(escape(error.as_bytes())))),
        ];
        let mut line = String::with_capacity(256);
        for (key, value) in fields {
            let Some(value) = value else { continue };
            let first = line.is_empty();
            let written = match (format, &value) {
                (Format::Text, _) => write!(line, "{}{key}={value}", if first { "" } else { " " }),
                (Format::Json, Field::Text(text)) => {
                    write!(line, "{}\"{key}\":\"{text}\"", if first { "{" } else { "," })
                }
                (Format::Json, _) => {
                    write!(line, "{}\"{key}\":{value}", if first { "{" } else { "," })
                }
            };
            written.expect("a string takes every write");
        }
        line.push_str(if format == Format::Json { "}\n" } else { "\n" });
        line
    }
}

enum Field {
    Text(String),
    Number(u64),
    Flag(bool),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

pub(crate) fn qualified(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Percent-escapes every byte that could end or distort a field in either format.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes.iter().take(MAX_FIELD_BYTES) {
        match byte {
            b'"' | b'\\' | b'%' | b' ' | 0..=0x1f | 0x7f.. => {
                write!(text, "%{byte:02X}").expect("a string takes every write");
            }
            _ => text.push(char::from(*byte)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::Direction;

    #[test]
    fn a_request_cannot_forge_a_line() {
        let edge = EdgeLabels {
            direction: Direction::Inbound,
            client: "web".into(),
            client_namespace: "shop".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "".into(),
            mtls: true,
        };
        let record = Record {
            edge: &edge,
            method: "GET",
            protocol: Some("HTTP/2"),
            target: b"/a\nb \"c\\",
            status: Some(200),
            grpc_status: Some(5),
            server_name: None,
            bytes: (1, 2),
            duration: Duration::from_micros(7),
            error: None,
        };
        assert_eq!(
            record.line(Format::Text),
            "direction=inbound client=shop/web server=shop/cart-0 method=GET \
             target=/a%0Ab%20%22c%5C protocol=HTTP/2 status=200 grpc_status=5 request_bytes=1 \
             response_bytes=2 duration_us=7 mtls=true\n"
        );
        assert_eq!(
            record.line(Format::Json),
            "{\"direction\":\"inbound\",\"client\":\"shop/web\",\"server\":\"shop/cart-0\",\
             \"method\":\"GET\",\"target\":\"/a%0Ab%20%22c%5C\",\"protocol\":\"HTTP/2\",\
             \"status\":200,\"grpc_status\":5,\"request_bytes\":1,\"response_bytes\":2,\"duration_us\":7,\"mtls\":true}\n"
        );
    }
}
