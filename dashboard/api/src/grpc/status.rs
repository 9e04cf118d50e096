//! The status of a call.

use h2::server::SendResponse;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The gRPC codes that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Ok = 0,
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A code and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    why: String,
}

impl Status {
    pub(super) fn ok() -> Self {
        Self::new(Code::Ok, String::new())
    }

    pub(super) fn new(code: Code, why: String) -> Self {
        Self { code, why }
    }

    /// Makes a status from an error of the interface, whose body is `{"error": "..."}` or a line of text.
    pub(super) fn of_answer(status: StatusCode, body: &[u8]) -> Self {
        let said = serde_json::from_slice::<serde_json::Value>(body).ok();
        let said = said.and_then(|said| Some(said.get("error")?.as_str()?.to_owned()));
        let why = said.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
        let code = match status {
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => Code::InvalidArgument,
            StatusCode::UNAUTHORIZED | StatusCode::MISDIRECTED_REQUEST => Code::Unauthenticated,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
            _ => Code::Internal,
        };
        Self { code, why }
    }

    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert(STATUS, HeaderValue::from(self.code as u16));
        if let Ok(why) = HeaderValue::from_str(&encoded(&self.why))
            && !self.why.is_empty()
        {
            trailers.insert(MESSAGE, why);
        }
        trailers
    }

    /// Rejects a call that has no response yet.
    pub(super) fn refuse(&self, respond: &mut SendResponse<Bytes>) {
        let mut head = Response::new(());
        *head.headers_mut() = self.trailers();
        head.headers_mut().insert(CONTENT_TYPE, GRPC);
        // An error means that the caller is gone.
        let _left = respond.send_response(head, true);
    }
}

/// Percent-encodes `%` and everything except the printable characters of ASCII, as gRPC requires.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte.into()),
            _ => encoded.extend(['%', digit(byte >> 4), digit(byte & 0xf)]),
        }
    }
    encoded
}

fn digit(half: u8) -> char {
    char::from_digit(half.into(), 16).map_or('0', |digit| digit.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_reason() {
        let refused = Status::of_answer(StatusCode::UNAUTHORIZED, br#"{"error": "no token"}"#);
        assert_eq!(refused, Status::new(Code::Unauthenticated, "no token".to_owned()));
        let text = Status::of_answer(StatusCode::METHOD_NOT_ALLOWED, b"use GET\n");
        assert_eq!(text, Status::new(Code::InvalidArgument, "use GET".to_owned()));
        let trailers = Status::new(Code::NotFound, "100 % \u{e9}\n".to_owned()).trailers();
        assert_eq!(trailers.get("grpc-status").unwrap(), "5");
        assert_eq!(trailers.get("grpc-message").unwrap(), "100 %25 %C3%A9%0A");
        assert_eq!(Status::ok().trailers().len(), 1);
    }
}
