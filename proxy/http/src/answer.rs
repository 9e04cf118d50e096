//! Responses that the mesh makes itself.

use std::io::Write;

use leno_h2::{Head, Piece};

use crate::edit::{HeaderLine, ends_at_hop};
use crate::grpc;
use crate::pool::{Buffer, Class};

/// A response of our own: an error, or a page of the admin server.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// Why the mesh answers and not the application: the `leno-error` header.
    pub cause: Option<&'a str>,
    /// More headers.
    pub headers: &'a [HeaderLine],
    /// The `Content-Type` of `body`.
    pub content_type: &'a str,
    /// The body. Empty for an error: then one line of text is made from status and cause.
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// An error of the mesh's.
    pub fn error(status: u16, cause: &'a str) -> Self {
        Self {
            status,
            cause: Some(cause),
            headers: &[],
            content_type: "text/plain; charset=utf-8",
            body: b"",
        }
    }

    /// The answer as far as it fits into one buffer, its length, and what of the body did not
    /// fit. `connection` is the line that says what becomes of the connection; `to_head`: the
    /// request's method was HEAD.
    pub(crate) fn render(&self, connection: &str, to_head: bool) -> (Buffer, usize, &'a [u8]) {
        let mut buffer = Buffer::take(Class::LARGEST_AT_START);
        let mut out = Cursor { bytes: &mut buffer, at: 0 };
        let reason = reason(self.status);
        let cause = self.cause.unwrap_or_default();
        let line_length = "leno: ".len() + reason.len() + 2 + out.clean_length(cause) + 1;
        let own_line = self.body.is_empty() && self.cause.is_some();
        let length = if own_line { line_length } else { self.body.len() };
        out.put(format_args!("HTTP/1.1 {} {reason}\r\n", self.status));
        if self.cause.is_some() {
            out.put(format_args!("leno-error: "));
            out.put_clean(cause);
            out.put(format_args!("\r\n"));
        }
        for line in self.headers {
            out.put_bytes(line.as_bytes());
        }
        if !matches!(self.status, 100..=199 | 204) {
            let content_type = self.content_type;
            out.put(format_args!("Content-Type: {content_type}\r\nContent-Length: {length}\r\n"));
        }
        out.put(format_args!("{connection}\r\n"));
        let mut rest = &[][..];
        if !to_head && !matches!(self.status, 100..=199 | 204 | 304) {
            if own_line {
                out.put(format_args!("leno: {reason}: "));
                out.put_clean(cause);
                out.put(format_args!("\n"));
            } else {
                let fits = self.body.len().min(out.room());
                out.put_bytes(&self.body[..fits]);
                rest = &self.body[fits..];
            }
        }
        let written = out.at;
        (buffer, written, rest)
    }
}

impl Answer<'_> {
    /// The head of the answer in HTTP/2.
    pub(crate) fn head(&self) -> Head {
        let mut head = Head::new();
        push_number(&mut head, b":status", self.status.into());
        self.push_headers(&mut head);
        if !matches!(self.status, 100..=199 | 204) {
            let length = if self.has_own_line() { self.own_line().len() } else { self.body.len() };
            head.push(b"content-type", self.content_type.as_bytes());
            push_number(&mut head, b"content-length", length);
        }
        head
    }

    /// The body of the answer in HTTP/2.
    pub(crate) fn h2_body(&self) -> Piece {
        if matches!(self.status, 100..=199 | 204 | 304) {
            Piece::default()
        } else if self.has_own_line() {
            Piece::from(self.own_line())
        } else {
            Piece::copied(self.body)
        }
    }

    /// The answer as the only head of a gRPC call.
    pub(crate) fn grpc_head(&self) -> Head {
        let cause = self.cause.unwrap_or_default();
        let mut head = Head::new();
        head.push(b":status", b"200");
        head.push(b"content-type", b"application/grpc");
        push_number(&mut head, b"grpc-status", grpc::status_of_error(self.status, cause).into());
        let mut message = b"leno: ".to_vec();
        grpc::push_message(&mut message, reason(self.status));
        message.extend(b": ");
        grpc::push_message(&mut message, &cause[..cause.floor_char_boundary(CAUSE_BYTES)]);
        head.push(b"grpc-message", &message);
        self.push_headers(&mut head);
        head
    }

    fn push_headers(&self, head: &mut Head) {
        if let Some(cause) = self.cause {
            let mut clean = [0; CAUSE_BYTES];
            let mut out = Cursor { bytes: &mut clean, at: 0 };
            out.put_clean(cause);
            let length = out.at;
            head.push(b"leno-error", &clean[..length]);
        }
        for line in self.headers {
            if !ends_at_hop(line.lower_name()) {
                head.push(line.lower_name(), line.value());
            }
        }
    }

    fn has_own_line(&self) -> bool {
        self.body.is_empty() && self.cause.is_some()
    }

    fn own_line(&self) -> Vec<u8> {
        let cause = self.cause.unwrap_or_default();
        let mut line = vec![0; CAUSE_BYTES + 64];
        let mut out = Cursor { bytes: &mut line, at: 0 };
        out.put(format_args!("leno: {}: ", reason(self.status)));
        out.put_clean(cause);
        out.put(format_args!("\n"));
        let length = out.at;
        line.truncate(length);
        line
    }
}

fn push_number(head: &mut Head, name: &[u8], number: usize) {
    let mut digits = [0; 20];
    let mut out = Cursor { bytes: &mut digits, at: 0 };
    out.put(format_args!("{number}"));
    let length = out.at;
    head.push(name, &digits[..length]);
}

/// Longest cause that is sent; the rest is cut off.
const CAUSE_BYTES: usize = 512;

struct Cursor<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl Cursor<'_> {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        let mut rest = &mut self.bytes[self.at..];
        let room = rest.len();
        rest.write_fmt(text).expect("a head of our own fits into a buffer");
        self.at += room - rest.len();
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Text with control characters replaced, so that it stays within its line.
    fn put_clean(&mut self, text: &str) {
        let length = self.clean_length(text);
        for byte in text.bytes().take(length) {
            self.bytes[self.at] = if (0x20..0x7f).contains(&byte) { byte } else { b'?' };
            self.at += 1;
        }
    }

    fn clean_length(&self, text: &str) -> usize {
        text.len().min(CAUSE_BYTES)
    }

    fn room(&self) -> usize {
        self.bytes.len() - self.at
    }
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
