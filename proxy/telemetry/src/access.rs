//! The access log: one line for each request and opaque connection. Off unless asked for.

mod log;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::edge::EdgeLabels;

pub use log::{AccessLog, Sink};

/// Longest target or cause written; the rest is cut off.
const MAX_FIELD_BYTES: usize = 1024;

/// The forms of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key=value` pairs.
    Text,
    /// A JSON object.
    Json,
}

/// Lines that may wait to be written; more are dropped and counted, because a log that cannot be
/// written fast enough must not slow requests down.
const MAX_WAITING: usize = 4096;

/// Where the lines of all workers go: one thread that writes to standard output.
#[derive(Clone, Debug)]
pub struct Log {
    format: Format,
    lines: SyncSender<String>,
}

impl Log {
    /// Starts the writing thread, which ends with the process.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(format: Format) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(MAX_WAITING);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || write(&waiting))?;
        Ok(Self { format, lines })
    }

    /// Hands a line over; false when it had to be dropped.
    #[must_use]
    pub fn write(&self, record: &Record<'_>) -> bool {
        self.lines.try_send(record.line(self.format)).is_ok()
    }
}

/// Writes what waits in one go. Ends when standard output is closed: then nobody reads it.
fn write(waiting: &Receiver<String>) {
    let mut out = std::io::stdout().lock();
    while let Ok(mut lines) = waiting.recv() {
        lines.extend(waiting.try_iter().take(MAX_WAITING));
        if out.write_all(lines.as_bytes()).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// What one line says.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Who called whom.
    pub edge: &'a EdgeLabels,
    /// The request's method, `TCP` for an opaque connection.
    pub method: &'a str,
    /// The request's target, or the original destination.
    pub target: &'a [u8],
    /// The status of the response; none for an opaque connection.
    pub status: Option<u16>,
    /// Bytes from the client and from the server.
    pub bytes: (u64, u64),
    /// From the head of the request to the end of the response.
    pub duration: Duration,
    /// Why the mesh failed it, when it did.
    pub error: Option<&'a str>,
}

impl Record<'_> {
    /// The line, with its end. Bytes that are no printable ASCII are escaped, so that a request
    /// cannot forge a second line.
    #[must_use]
    pub fn line(&self, format: Format) -> String {
        let status = self.status.map(|status| status.to_string());
        let fields = [
            ("direction", Some(self.edge.direction.as_str().to_owned())),
            ("client", Some(qualified(&self.edge.client_namespace, &self.edge.client))),
            ("server", Some(qualified(&self.edge.server_namespace, &self.edge.server))),
            ("method", Some(escape(self.method.as_bytes()))),
            ("target", Some(escape(self.target))),
            ("status", status),
            ("request_bytes", Some(self.bytes.0.to_string())),
            ("response_bytes", Some(self.bytes.1.to_string())),
            ("duration_us", Some(self.duration.as_micros().to_string())),
            ("mtls", Some(self.edge.mtls.to_string())),
            ("error", self.error.map(|error| escape(error.as_bytes()))),
        ];
        let mut line = String::with_capacity(256);
        for (key, value) in fields {
            let Some(value) = value else { continue };
            let first = line.is_empty();
            let written = match format {
                Format::Text => write!(line, "{}{key}={value}", if first { "" } else { " " }),
                Format::Json => {
                    write!(line, "{}\"{key}\":\"{value}\"", if first { "{" } else { "," })
                }
            };
            written.expect("a string takes every write");
        }
        line.push_str(if format == Format::Json { "}\n" } else { "\n" });
        line
    }
}

fn qualified(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Percent-escapes what would end or confuse a field of either form.
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
            target: b"/a\nb \"c\\",
            status: Some(200),
            bytes: (1, 2),
            duration: Duration::from_micros(7),
            error: None,
        };
        assert_eq!(
            record.line(Format::Text),
            "direction=inbound client=shop/web server=shop/cart-0 method=GET \
             target=/a%0Ab%20%22c%5C status=200 request_bytes=1 response_bytes=2 duration_us=7 \
             mtls=true\n"
        );
        let json = record.line(Format::Json);
        assert!(json.starts_with("{\"direction\":\"inbound\",") && json.ends_with("}\n"));
        assert_eq!(json.matches('\n').count(), 1);
    }
}
