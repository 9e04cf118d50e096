//! The protocol by which external authorizers are queried over gRPC: Envoy's, version 3.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

#[expect(unreachable_pub, reason = "generated; the proto file has the comments")]
mod proto {
    include!("generated/envoy.service.auth.v3.rs");
}

/// The path of the call.
pub const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// A request that an authorizer decides on.
#[derive(Clone, Debug)]
pub struct AuthorizerRequest<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// The client's identity; empty if it has none.
    pub client_identity: String,
    /// The address to which the client connected.
    pub server: SocketAddr,
    /// When the request arrived, as the time since the beginning of 1970.
    pub time: Duration,
    /// The method.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The authority.
    pub host: &'a str,
    /// The version, such as `HTTP/1.1`.
    pub version: &'a str,
    /// The headers. Each name is in lower case and occurs once.
    pub headers: HashMap<String, String>,
    /// The body, or its beginning.
    pub body: CheckBody,
    /// The length of the body; -1 if it is not known.
    pub size: i64,
}

/// The body of a request that an authorizer decides on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckBody {
    /// The body is not sent.
    #[default]
    None,
    /// The body is sent as a text.
    Text(String),
    /// The body is sent as bytes.
    Bytes(Vec<u8>),
}

/// The answer of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckAnswer {
    /// The request is permitted.
    Permitted {
        /// Headers to set on the request.
        request: Vec<(String, Bytes)>,
        /// Headers to add to the response.
        response: Vec<(String, Bytes)>,
    },
    /// The client gets this response.
    Denied {
        /// The status.
        status: i32,
        /// The headers.
        headers: Vec<(String, Bytes)>,
        /// The body.
        body: Vec<u8>,
    },
}

/// The bytes are not an authorizer's answer.
#[derive(Debug, thiserror::Error)]
#[error("not a CheckResponse")]
pub struct NoCheckAnswer(#[from] prost::DecodeError);

/// The status of a denial that has none.
const FORBIDDEN: i32 = 403;

impl AuthorizerRequest<'_> {
    /// The encoded message.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let peer = |address: SocketAddr, principal: String| {
            let (address, port) = (address.ip().to_string(), address.port().into());
            let socket_address = proto::SocketAddress { address, port_value: port };
            let address = proto::Address { socket_address: Some(socket_address) };
            Some(proto::Peer { address: Some(address), principal })
        };
        let time = proto::Timestamp {
            seconds: self.time.as_secs().try_into().unwrap_or(i64::MAX),
            // The number is below 10^9.
            nanos: self.time.subsec_nanos() as i32,
        };
        let (body, raw_body) = match self.body {
            CheckBody::None => Default::default(),
            CheckBody::Text(text) => (text, Vec::new()),
            CheckBody::Bytes(bytes) => (String::new(), bytes),
        };
        let http = proto::HttpRequest {
            method: self.method.to_owned(),
            headers: self.headers,
            path: self.path.to_owned(),
            host: self.host.to_owned(),
            scheme: "http".to_owned(),
            size: self.size,
            protocol: self.version.to_owned(),
            body,
            raw_body: raw_body.into(),
        };
        let attributes = proto::AttributeContext {
            source: peer(self.client, self.client_identity),
            destination: peer(self.server, String::new()),
            request: Some(proto::Request { time: Some(time), http: Some(http) }),
            context_extensions: HashMap::new(),
        };
        proto::CheckRequest { attributes: Some(attributes) }.encode_to_vec().into()
    }
}

impl CheckAnswer {
    /// Decodes an answer.
    ///
    /// # Errors
    /// [`NoCheckAnswer`] if it is not a valid message.
    pub fn decode(bytes: Bytes) -> Result<Self, NoCheckAnswer> {
        use proto::check_response::HttpResponse;
        let answer = proto::CheckResponse::decode(bytes)?;
        // The request is permitted only if neither the status nor the response denies it. A missing status has the code
        // 0, its default, but an empty message must not permit anything: without a status, only an OK response permits.
        let is_permitted = match (&answer.status, &answer.http_response) {
            (Some(status), _) => status.code == 0,
            (None, response) => matches!(response, Some(HttpResponse::OkResponse(_))),
        };
        Ok(match answer.http_response {
            Some(HttpResponse::OkResponse(ok)) if is_permitted => Self::Permitted {
                request: headers(ok.headers),
                response: headers(ok.response_headers_to_add),
            },
            None if is_permitted => Self::Permitted { request: Vec::new(), response: Vec::new() },
            Some(HttpResponse::DeniedResponse(denied)) => {
                let status = denied.status.map_or(0, |status| status.code);
                let status = if status == 0 { FORBIDDEN } else { status };
                Self::Denied { status, headers: headers(denied.headers), body: denied.body.into() }
            }
            _ => Self::Denied { status: FORBIDDEN, headers: Vec::new(), body: Vec::new() },
        })
    }
}

fn headers(list: Vec<proto::HeaderValueOption>) -> Vec<(String, Bytes)> {
    let one = |option: proto::HeaderValueOption| {
        let header = option.header?;
        let value =
            if header.raw_value.is_empty() { header.value.into() } else { header.raw_value };
        Some((header.key.to_ascii_lowercase(), value))
    };
    list.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bytes are written by hand according to protobuf's encoding guide, so that the numbers of the fields
    /// are checked.
    #[test]
    fn answers_are_decoded_by_field_number() {
        let permitted = |bytes: &[u8]| CheckAnswer::decode(Bytes::copy_from_slice(bytes)).unwrap();
        // status {}, ok_response { headers { header { key: "A", value: "b" } } }
        let ok = b"\x0a\x00\x1a\x0a\x12\x08\x0a\x06\x0a\x01A\x12\x01b";
        let request = vec![("a".to_owned(), Bytes::from_static(b"b"))];
        assert_eq!(permitted(ok), CheckAnswer::Permitted { request, response: Vec::new() });
        // status { code: 7 }, denied_response { status { code: 401 }, body: "no" }
        let denied = b"\x0a\x02\x08\x07\x12\x09\x0a\x03\x08\x91\x03\x1a\x02no";
        let expected =
            CheckAnswer::Denied { status: 401, headers: Vec::new(), body: b"no".to_vec() };
        assert_eq!(permitted(denied), expected);
        let denied = CheckAnswer::Denied { status: 403, headers: Vec::new(), body: Vec::new() };
        // Servers omit fields that are zero.
        let nothing = CheckAnswer::Permitted { request: Vec::new(), response: Vec::new() };
        assert_eq!(permitted(b"\x1a\x00"), nothing);
        assert_eq!(permitted(b"\x0a\x00"), nothing);
        // An empty message, a denial without a response, and a response that the status contradicts.
        assert_eq!(permitted(b""), denied);
        assert_eq!(permitted(b"\x0a\x02\x08\x07"), denied);
        assert_eq!(permitted(b"\x0a\x02\x08\x07\x1a\x00"), denied);
        assert!(CheckAnswer::decode(Bytes::from_static(b"\x0a")).is_err());
    }

    #[test]
    fn a_request_is_encoded_by_field_number() {
        let check = AuthorizerRequest {
            client: "192.0.2.1:5".parse().unwrap(),
            client_identity: "spiffe://d/ns/n/sa/s".to_owned(),
            server: "192.0.2.2:80".parse().unwrap(),
            time: Duration::from_secs(1),
            method: "GET",
            path: "/a?b",
            host: "web",
            version: "HTTP/2",
            headers: [("x".to_owned(), "1".to_owned())].into(),
            body: CheckBody::Text("b".to_owned()),
            size: 1,
        };
        let raw =
            AuthorizerRequest { body: CheckBody::Bytes(vec![0xff]), ..check.clone() }.encode();
        assert!(raw.windows(3).any(|at| at == b"\x62\x01\xff"), "{raw:?}");
        let bytes = check.encode();
        for part in [
            // attributes.source.address.socket_address and principal
            &b"\x0a\x0f\x0a\x0d\x12\x09192.0.2.1\x18\x05\x22\x14spiffe://d/ns/n/sa/s"[..],
            // request.http.method, headers
            b"\x12\x03GET\x1a\x06\x0a\x01x\x12\x011\x22\x04/a?b\x2a\x03web\x32\x04http",
            b"\x48\x01\x52\x06HTTP/2\x5a\x01b",
        ] {
            assert!(bytes.windows(part.len()).any(|at| at == part), "{part:?} in {bytes:?}");
        }
    }
}
