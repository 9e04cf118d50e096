//! Responses that the mesh itself generates.

mod write;

pub use write::unread_answers;

use leno_h2::{Head, Piece};

use crate::edit::{HeaderLine, ends_at_hop};
use crate::grpc;
use crate::head::HeadError;
use crate::writer::{Rendered, Writer};

/// A response that the proxy generates: an error, or a page of the admin server.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// Why the mesh answers in place of the application: the value of the `leno-error` header.
    pub cause: Option<&'a str>,
    /// More headers.
    pub headers: &'a [HeaderLine],
    /// The `Content-Type` of `body`.
    pub content_type: &'a str,
    /// The body. If it is empty for an error, one line of text is generated from the status and the cause.
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// An error of the mesh.
    pub fn error(status: u16, cause: &'a str) -> Self {
        Self {
            status,
            cause: Some(cause),
            headers: &[],
            content_type: "text/plain; charset=utf-8",
            body: b"",
        }
    }

    /// Renders the head, with as much of the body as fits into its buffer, and returns the rest of the body.
    /// `connection` is the `Connection` line, or empty. `to_head` says that the request's method was HEAD.
    ///
    /// A header may contain parts of a request, such as the target of a redirect or a CORS origin, so the size of the
    /// head is not known in advance. The buffer grows up to the limit of [`Writer`].
    pub(crate) fn render(
        &self,
        connection: &str,
        to_head: bool,
    ) -> Result<(Rendered, &'a [u8]), HeadError> {
        let mut out = Writer::with_room(ROOM);
        let own_line = self.has_own_line().then(|| self.own_line());
        let body = own_line.as_deref().unwrap_or(self.body);
        out.put(b"HTTP/1.1 ");
        out.put_number(self.status.into());
        out.put(b" ");
        out.put(reason(self.status).as_bytes());
        out.put(b"\r\n");
        if let Some(cause) = self.cause {
            out.put(b"leno-error: ");
            put_clean(cause, |byte| out.push(byte));
            out.put(b"\r\n");
        }
        for line in self.headers {
            out.put(line.as_bytes());
        }
        if self.has_length() {
            out.put(b"Content-Type: ");
            out.put(self.content_type.as_bytes());
            out.put(b"\r\nContent-Length: ");
            out.put_number(body.len() as u64);
            out.put(b"\r\n");
        }
        out.put(connection.as_bytes());
        out.put(b"\r\n");
        let mut rest = &[][..];
        if !to_head && self.has_body() {
            match own_line {
                Some(line) => out.put(&line),
                None => {
                    let (fits, left) = self.body.split_at(self.body.len().min(out.room()));
                    out.put(fits);
                    rest = left;
                }
            }
        }
        Ok((out.finish()?, rest))
    }

    /// The head of the answer for HTTP/2.
    pub(crate) fn head(&self) -> Head {
        let mut head = Head::new();
        head.push(b":status", self.status.to_string().as_bytes());
        self.push_headers(&mut head);
        if self.has_length() {
            let length = if self.has_own_line() { self.own_line().len() } else { self.body.len() };
            head.push(b"content-type", self.content_type.as_bytes());
            head.push(b"content-length", length.to_string().as_bytes());
        }
        head
    }

    /// The body of the answer for HTTP/2.
    pub(crate) fn h2_body(&self) -> Piece {
        if !self.has_body() {
            Piece::default()
        } else if self.has_own_line() {
            Piece::from(self.own_line())
        } else {
            Piece::copied(self.body)
        }
    }

    /// The answer to a gRPC call: one head, which is also the end of the stream.
    pub(crate) fn grpc_head(&self) -> Head {
        let cause = self.cause.unwrap_or_default();
        let status = grpc::status_of_error(self.status, cause).to_string();
        let mut head = Head::new();
        head.push(b":status", b"200");
        head.push(b"content-type", b"application/grpc");
        head.push(b"grpc-status", status.as_bytes());
        let mut message = b"leno: ".to_vec();
        grpc::push_message(&mut message, reason(self.status));
        message.extend(b": ");
        let (cause, _) = cause.split_at(cause.floor_char_boundary(CAUSE_BYTES));
        grpc::push_message(&mut message, cause);
        head.push(b"grpc-message", &message);
        self.push_headers(&mut head);
        head
    }

    fn push_headers(&self, head: &mut Head) {
        if let Some(cause) = self.cause {
            let mut clean = Vec::with_capacity(cause.len().min(CAUSE_BYTES));
            put_clean(cause, |byte| clean.push(byte));
            head.push(b"leno-error", &clean);
        }
        for line in self.headers {
            if !ends_at_hop(line.lower_name()) {
                head.push(line.lower_name(), line.value());
            }
        }
    }

    /// Whether the head has a Content-Length (RFC 9110 section 8.6).
    fn has_length(&self) -> bool {
        !matches!(self.status, 100..=199 | 204)
    }

    fn has_body(&self) -> bool {
        !matches!(self.status, 100..=199 | 204 | 304)
    }

    /// Whether the body is a line that is generated from the status and the cause.
    fn has_own_line(&self) -> bool {
        self.body.is_empty() && self.cause.is_some()
    }

    /// The body of an error: one line of text.
    fn own_line(&self) -> Vec<u8> {
        let mut line = format!("leno: {}: ", reason(self.status)).into_bytes();
        put_clean(self.cause.unwrap_or_default(), |byte| line.push(byte));
        line.push(b'\n');
        line
    }
}

/// The longest cause that is sent, in bytes. The rest of a longer one is cut off.
const CAUSE_BYTES: usize = 512;

/// The initial size of the buffer. Only long headers, such as the target of a redirect, need more. A body that does not
/// fit is written separately.
const ROOM: usize = 16 * 1024;

/// Passes the cause to `put`, with control characters replaced so that the cause stays within its line.
fn put_clean(cause: &str, put: impl FnMut(u8)) {
    let clean = |byte| if (0x20..0x7f).contains(&byte) { byte } else { b'?' };
    cause.bytes().take(CAUSE_BYTES).map(clean).for_each(put);
}

/// The reason phrase of a status (RFC 9110 section 15 and IANA's registry).
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "Status",
    }
}
