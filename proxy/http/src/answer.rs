//! Responses that the mesh makes itself.

use std::io::Write;

use crate::edit::HeaderLine;
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

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}
