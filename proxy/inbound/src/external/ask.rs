//! A question to an authorizer, and the answer, over gRPC or HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode, Uri};
use leno_http::{HeaderLine, HeldBody, RequestView};
use leno_types::authorizer::{AuthorizerBody, AuthorizerProtocol, ExternalAuthorizer};
use leno_wire::ext_authz::{AuthorizerRequest, CHECK_PATH, CheckAnswer, CheckBody};

use super::{Grants, MeshPort, headers};
use crate::authorize::{AUTHORIZATION_DENIED, Denied};
use crate::bearer;
use crate::calls::{self, Call, CallError, GrpcConnection};

/// The reason in `leno-error` if an authorizer denies a request.
const EXTERNAL: &str = "external";

/// The client's address, the client's identity, and the address to which the client has connected.
pub(super) type ConnectionEnds = ((SocketAddr, String), SocketAddr);

/// A question to an authorizer.
pub(crate) enum Question {
    /// A message of Envoy's protocol.
    Grpc(Bytes),
    /// A request that resembles the one about which the authorizer decides.
    Http(Box<Request<Full<Bytes>>>),
}

/// The facts from which a question is built.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) request: RequestView<'a>,
    /// The changes that policies make to the request.
    pub(super) grants: &'a Grants,
    /// The body of the request, if the authorizer gets it.
    pub(super) body: Option<&'a HeldBody>,
}

/// The part of a body that an authorizer gets.
struct Excerpt<'a> {
    content: &'a [u8],
    is_whole: bool,
    as_bytes: bool,
}

/// The decision of an authorizer. If it permits the request, it names headers to set on the request and headers to
/// add to the response.
pub(super) enum Decided {
    Permitted { set: Vec<HeaderLine>, on_response: Vec<HeaderLine> },
    Denied(Denied),
}

/// Why an authorizer has not decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// There was no answer in time.
    #[error("no answer in time")]
    Timeout,
    /// The worker already waits for the answers to as many requests as allowed.
    #[error("too many requests wait for the authorizer")]
    Overloaded,
    /// The mesh could not reach the authorizer, or the authorizer itself failed.
    #[error("it cannot be reached, or has failed")]
    Unavailable,
    /// The authorizer's answer is too long, or does not follow the protocol.
    #[error("its response cannot be parsed")]
    Answer,
    /// The mesh refused the question: the authorizer's own policies deny this workload, or the request cannot be
    /// forwarded.
    #[error("the mesh refuses the call")]
    Refused,
    /// The protocol cannot express the request.
    #[error("the request cannot be described to the authorizer")]
    Request,
    /// The request has a longer body than the authorizer gets.
    #[error("the body is longer than the authorizer accepts")]
    BodyTooLarge,
}

impl From<CallError> for AskError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable | CallError::Status { .. } => Self::Unavailable,
            CallError::Answer => Self::Answer,
            CallError::Refused => Self::Refused,
            CallError::Request => Self::Request,
        }
    }
}

impl AskError {
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Answer => "unreadable-answer",
            Self::Refused => "refused",
            Self::Request => "unaskable-request",
            Self::BodyTooLarge => "body-too-large",
        }
    }

    pub(super) fn status(&self) -> u16 {
        if matches!(self, Self::BodyTooLarge) { 413 } else { 503 }
    }

    /// Whether the request is permitted if the policy permits requests without an answer. It is not if a client could
    /// have caused the failure on purpose to avoid the question, for example with an unusual request or with too many
    /// at once.
    pub(super) fn may_be_permitted(&self) -> bool {
        !matches!(self, Self::Refused | Self::Request | Self::BodyTooLarge | Self::Overloaded)
    }
}

impl Question {
    pub(super) fn new(
        of: &ExternalAuthorizer,
        ends: ConnectionEnds,
        about: About<'_>,
    ) -> Result<Self, AskError> {
        let request = about.request;
        let mut path = request.path().to_vec();
        if let Some(query) = request.query() {
            path.push(b'?');
            path.extend(query);
        }
        let path = String::from_utf8(path).map_err(|_| AskError::Request)?;
        let excerpt = of.body.map(|body| Excerpt::new(body, about.body)).transpose()?;
        match of.protocol {
            AuthorizerProtocol::Grpc => Self::grpc(of, ends, (about, &path), excerpt),
            AuthorizerProtocol::Http => Self::http(of, (about, &path), excerpt),
        }
    }

    fn grpc(
        of: &ExternalAuthorizer,
        ((client, client_identity), server): ConnectionEnds,
        (About { request, grants, .. }, path): (About<'_>, &str),
        excerpt: Option<Excerpt<'_>>,
    ) -> Result<Self, AskError> {
        let (method, host) = (request.method(), request.authority());
        let sent = headers::sent(of, request, grants);
        let mut headers = headers::joined(sent.into_iter());
        // Envoy sends these values with the headers of the request, too.
        for (name, value) in
            [(":method", method), (":path", path), (":authority", host), (":scheme", "http")]
        {
            headers.insert(name.to_owned(), value.to_owned());
        }
        if let Some(excerpt) = &excerpt {
            headers.insert(headers::IS_PARTIAL.to_owned(), excerpt.is_partial().to_owned());
        }
        let whole = excerpt.as_ref().filter(|excerpt| excerpt.is_whole);
        let size = whole.and_then(|excerpt| i64::try_from(excerpt.content.len()).ok());
        let check = AuthorizerRequest {
            client,
            client_identity,
            server,
            time: bearer::now(),
            method,
            path,
            host,
            version: request.version().as_str(),
            headers,
            body: excerpt.map_or(Ok(CheckBody::None), Excerpt::body)?,
            size: size.unwrap_or(-1),
        };
        Ok(Self::Grpc(check.encode()))
    }

    fn http(
        of: &ExternalAuthorizer,
        (About { request, grants, .. }, path): (About<'_>, &str),
        excerpt: Option<Excerpt<'_>>,
    ) -> Result<Self, AskError> {
        let unfit = |_| AskError::Request;
        let method =
            Method::from_bytes(request.method().as_bytes()).map_err(|_| AskError::Request)?;
        if method == Method::CONNECT || !path.starts_with('/') {
            return Err(AskError::Request);
        }
        let uri =
            Uri::try_from(format!("{}{path}", of.path_prefix)).map_err(|_| AskError::Request)?;
        let host = request.authority();
        let own = format!("{}.{}", of.service.name, of.service.namespace);
        let host = if host.is_empty() { own.as_str() } else { host };
        let mut asked = Request::builder().method(method).uri(uri).header(HOST, host);
        for (name, value) in headers::sent(of, request, grants) {
            if headers::is_of_request(name) {
                asked = asked.header(name, value);
            }
        }
        let body = match excerpt {
            Some(excerpt) => {
                asked = asked.header(headers::IS_PARTIAL, excerpt.is_partial());
                Bytes::copy_from_slice(excerpt.content)
            }
            None => Bytes::new(),
        };
        Ok(Self::Http(Box::new(asked.body(Full::new(body)).map_err(unfit)?)))
    }
}

impl<'a> Excerpt<'a> {
    fn new(of: AuthorizerBody, held: Option<&'a HeldBody>) -> Result<Self, AskError> {
        let held = held.ok_or(AskError::Request)?;
        let most = usize::try_from(of.max_bytes).unwrap_or(usize::MAX);
        let is_whole = held.is_whole && held.content.len() <= most;
        if !is_whole && !of.partial {
            return Err(AskError::BodyTooLarge);
        }
        let content = held.content.get(..most).unwrap_or(&held.content);
        Ok(Self { content, is_whole, as_bytes: of.as_bytes })
    }

    fn is_partial(&self) -> &'static str {
        if self.is_whole { "false" } else { "true" }
    }

    fn body(self) -> Result<CheckBody, AskError> {
        if self.as_bytes {
            return Ok(CheckBody::Bytes(self.content.to_vec()));
        }
        let text = match std::str::from_utf8(self.content) {
            Ok(text) => text,
            // The limit may have cut the last character in two.
            Err(error) if error.error_len().is_none() && !self.is_whole => {
                let whole = self.content.get(..error.valid_up_to()).unwrap_or_default();
                std::str::from_utf8(whole).map_err(|_| AskError::Request)?
            }
            Err(_) => return Err(AskError::Request),
        };
        Ok(CheckBody::Text(text.to_owned()))
    }
}

impl Decided {
    pub(super) fn new(answer: CheckAnswer, of: &ExternalAuthorizer) -> Self {
        match answer {
            CheckAnswer::Permitted { request, response } => Self::Permitted {
                set: headers::allowed(&request, &of.on_request),
                on_response: headers::allowed(&response, &of.on_response),
            },
            CheckAnswer::Denied { status, headers: given, body } => {
                let status =
                    u16::try_from(status).ok().filter(|status| (200..600).contains(status));
                let content_type = given.iter().find(|(name, _)| name == "content-type");
                let content_type =
                    content_type.and_then(|(_, value)| std::str::from_utf8(value).ok());
                // Over gRPC the value may contain bytes that no header may have, such as a line break.
                let is_value =
                    |value: &&str| HeaderLine::new("content-type", value.as_bytes()).is_ok();
                let content_type = content_type.filter(is_value);
                let cause = format!("{AUTHORIZATION_DENIED}; reason={EXTERNAL}");
                let denied = Denied::failed(status.unwrap_or(403), AUTHORIZATION_DENIED, cause);
                Self::Denied(denied.answered(headers::of_denial(&given), content_type, body))
            }
        }
    }
}

/// Asks with a gRPC call.
pub(super) async fn over_grpc(
    connection: &GrpcConnection,
    service: &dyn MeshPort,
    message: Bytes,
    timeout: Duration,
) -> Result<CheckAnswer, AskError> {
    let (authority, path) = ("authorizer", CHECK_PATH);
    let call = Call { authority, path, header: None, message, timeout };
    CheckAnswer::decode(connection.call(service, call).await?).map_err(|_| AskError::Answer)
}

/// Asks with an HTTP request. A status 2xx permits the request, 5xx is a failure, and any other status is a denial.
pub(super) async fn over_http(
    service: &dyn MeshPort,
    request: Request<Full<Bytes>>,
) -> Result<CheckAnswer, AskError> {
    let is_denial = |status: StatusCode| !status.is_success() && status.as_u16() < 500;
    let (head, body) = calls::over_http(service, request, is_denial).await?.into_parts();
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    let headers: Vec<(String, Bytes)> = headers.collect();
    match head.status.as_u16() {
        200..300 => Ok(CheckAnswer::Permitted { request: headers.clone(), response: headers }),
        500.. => Err(AskError::Unavailable),
        status => Ok(CheckAnswer::Denied { status: status.into(), headers, body: body.to_vec() }),
    }
}

#[cfg(test)]
mod tests {
    use leno_http::{Limits, RequestHead};

    use super::*;

    fn asked(protocol: AuthorizerProtocol, request: &[u8]) -> Result<Question, AskError> {
        asked_with(protocol, request, &Grants::default())
    }

    fn asked_with(
        protocol: AuthorizerProtocol,
        request: &[u8],
        grants: &Grants,
    ) -> Result<Question, AskError> {
        let mut head = RequestHead::default();
        assert!(head.parse(request, &Limits::default()).unwrap());
        let of = ExternalAuthorizer {
            protocol,
            path_prefix: "/check".into(),
            sent: Some(["cookie".into(), "range".into(), "leno-x".into(), "x-user".into()].into()),
            ..ExternalAuthorizer::none()
        };
        let address = SocketAddr::from(([192, 0, 2, 1], 80));
        let about = About { request: head.view(request), grants, body: None };
        Question::new(&of, ((address, String::new()), address), about)
    }

    /// Otherwise a client could send a longer body, or one that is not text, so that the decision is made without the
    /// body.
    #[test]
    fn a_body_that_the_authorizer_does_not_get_is_denied() {
        let of = |max_bytes, partial, as_bytes| AuthorizerBody { max_bytes, partial, as_bytes };
        let held = |content: &[u8], is_whole| HeldBody { content: content.to_vec(), is_whole };
        let excerpt = |of, held: &HeldBody| {
            Excerpt::new(of, Some(held)).and_then(|one| {
                let is_partial = one.is_partial();
                Ok((one.body()?, is_partial))
            })
        };
        let text = |text: &str| CheckBody::Text(text.to_owned());
        for (of, held, expected) in [
            (of(4, false, false), held(b"abcd", true), Ok((text("abcd"), "false"))),
            (of(4, false, false), held(b"abcde", true), Err("body-too-large")),
            (of(4, false, false), held(b"abcd", false), Err("body-too-large")),
            (of(4, true, false), held(b"abcde", true), Ok((text("abcd"), "true"))),
            (of(4, true, false), held("abc\u{e9}".as_bytes(), true), Ok((text("abc"), "true"))),
            (of(8, false, false), held(b"\xff", true), Err("unaskable-request")),
            (of(8, false, false), held("\u{e9}".as_bytes(), true), Ok((text("\u{e9}"), "false"))),
            (of(8, false, true), held(b"\xff", true), Ok((CheckBody::Bytes(vec![0xff]), "false"))),
            (of(8, false, false), held(b"", true), Ok((text(""), "false"))),
        ] {
            let found = excerpt(of, &held).map_err(|error| {
                assert!(!error.may_be_permitted());
                error.label()
            });
            assert_eq!(found, expected, "{of:?} {held:?}");
        }
    }

    /// Whether a question over gRPC contains these bytes in its encoded message.
    fn has(question: &Question, text: &[u8]) -> bool {
        let Question::Grpc(message) = question else { panic!() };
        message.windows(text.len()).any(|at| at == text)
    }

    /// If a header had several lines, Envoy sent only the last one to the authorizer.
    #[test]
    fn cve_2021_32777_an_authorizer_sees_every_line_of_a_header() {
        let request = b"GET / HTTP/1.1\r\nhost: web\r\nx-user: guest\r\nx-user: root\r\n\r\n";
        let question = asked(AuthorizerProtocol::Grpc, request).ok().unwrap();
        assert!(has(&question, b"guest,root"));
        let Ok(Question::Http(asked)) = asked(AuthorizerProtocol::Http, request) else { panic!() };
        assert_eq!(asked.headers().get_all("x-user").iter().count(), 2);
    }

    /// If a header was not UTF-8, Envoy's question failed. The request then passed if the policy permits requests on
    /// failure.
    #[test]
    fn cve_2023_27488_a_header_that_is_no_text_is_asked_about() {
        let request = b"GET / HTTP/1.1\r\nhost: web\r\nx-user: \xff\xfe\r\n\r\n";
        let question = asked(AuthorizerProtocol::Grpc, request).ok().unwrap();
        assert!(has(&question, "\u{fffd}".as_bytes()));
        assert!(asked(AuthorizerProtocol::Http, request).is_ok());
    }

    #[test]
    fn an_authorizer_sees_what_the_application_gets() {
        let request = b"GET / HTTP/1.1\r\nhost: web\r\nX_User: root\r\nx-user: root\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(request, &Limits::default()).unwrap());
        let mut grants = Grants::default();
        grants.remove(head.view(request), "x-user");
        grants.set(HeaderLine::new("x-user", b"ann").unwrap());
        let Ok(Question::Http(asked)) = asked_with(AuthorizerProtocol::Http, request, &grants)
        else {
            panic!()
        };
        let users: Vec<_> = asked.headers().get_all("x-user").iter().collect();
        assert_eq!(users, ["ann"]);
        assert!(!asked.headers().contains_key("x_user"));
    }

    /// Credentials are sent to the authorizer even if its answer replaces them. Other headers that name the user are
    /// not sent, because they prove nothing.
    #[test]
    fn an_authorizer_sees_the_credentials_that_its_answer_replaces() {
        let request =
            b"GET / HTTP/1.1\r\nhost: web\r\nAuthorization: Basic x\r\nx-user: root\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(request, &Limits::default()).unwrap());
        let view = head.view(request);
        let of = ExternalAuthorizer {
            on_request: vec!["authorization".into(), "x-user".into()],
            ..ExternalAuthorizer::none()
        };
        let mut grants = Grants::default();
        of.on_request.iter().for_each(|name| grants.remove(view, name));
        let seen = |of: &ExternalAuthorizer, grants: &Grants| {
            let sent = headers::sent(of, view, grants);
            let owned = |(name, value): &(&str, &[u8])| {
                format!("{name}: {}", String::from_utf8_lossy(value))
            };
            sent.iter().filter(|(name, _)| *name != "host").map(owned).collect::<Vec<_>>()
        };
        assert_eq!(seen(&of, &grants), ["Authorization: Basic x"]);
        assert!(grants.removed().contains(&"Authorization"), "the application gets the answer's");
        // Another authorizer sees the header that the application gets.
        assert!(seen(&ExternalAuthorizer::none(), &grants).is_empty());
        grants.set(HeaderLine::new("authorization", b"Bearer y").unwrap());
        assert_eq!(seen(&of, &grants), ["authorization: Bearer y"]);
    }

    /// If a policy permits requests on failure, a client could send such requests on purpose to avoid the question.
    #[test]
    fn requests_that_cannot_be_asked_about_are_denied() {
        for request in [
            &b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
        ] {
            let error = asked(AuthorizerProtocol::Http, request).err().unwrap();
            assert!(matches!(error, AskError::Request) && !error.may_be_permitted());
        }
        let error = asked(AuthorizerProtocol::Grpc, b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(matches!(error.err().unwrap(), AskError::Request));
        assert!(!AskError::Refused.may_be_permitted() && AskError::Timeout.may_be_permitted());
    }

    #[test]
    fn an_answer_adds_no_lines_of_its_own() {
        let header = |name: &str, value: &'static str| {
            (name.to_owned(), Bytes::from_static(value.as_bytes()))
        };
        let answer = |content_type: &'static str| {
            let headers =
                vec![header("content-type", content_type), header("x-a", "1\r\nset-cookie: b")];
            let denied = CheckAnswer::Denied { status: 999, headers, body: b"no".to_vec() };
            match Decided::new(denied, &ExternalAuthorizer::none()) {
                Decided::Denied(denied) => denied,
                Decided::Permitted { .. } => panic!(),
            }
        };
        let denied = answer("text/html\r\nset-cookie: a");
        assert_eq!((denied.status, denied.answer().body), (403, &b"no"[..]));
        assert_eq!(denied.answer().content_type, "text/plain; charset=utf-8");
        assert!(denied.answer().headers.is_empty());
        assert_eq!(answer("text/html").answer().content_type, "text/html");
    }

    #[test]
    fn a_question_over_http_is_like_the_request() {
        let request =
            b"POST /a?b HTTP/1.1\r\nhost: web\r\ncookie: x\r\nrange: bytes=0-1\r\nleno-x: 1\r\n\
            authorization: y\r\ncontent-length: 5\r\nx_envoy_auth_partial_body: true\r\n\r\n";
        let Ok(Question::Http(asked)) = asked(AuthorizerProtocol::Http, request) else { panic!() };
        assert_eq!(
            (asked.method(), asked.uri().to_string().as_str()),
            (&Method::POST, "/check/a?b")
        );
        let names: Vec<_> = asked.headers().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["host", "cookie"]);
    }
}
