//! A row of the table of malicious requests.

use crate::frames::{PREFACE, StreamOutcome};

/// The request that an attacker tries to smuggle past the proxy. Sent after every row that must not
/// be served.
pub(crate) const SMUGGLED: &[u8] = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// A valid second request of a client whose first request is served.
const FOLLOWER: &[u8] = b"GET /follower HTTP/1.1\r\nHost: a\r\n\r\n";

/// The length of the longest word that a proxy takes for a method when it detects the protocol.
const LONGEST_METHOD: usize = 24;

/// A request, and its required outcome.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The section of the specification that decides.
    pub(crate) section: &'static str,
    pub(crate) request: Vec<u8>,
    pub(crate) fate: RequiredOutcome,
}

/// The required outcome of a request.
#[derive(Clone, Debug)]
pub(crate) enum RequiredOutcome {
    /// The proxy responds with this status and closes the connection; the server receives nothing.
    Refused(u16),
    /// The head is valid, and the body becomes invalid after `sound` bytes of the request. The server may receive
    /// those bytes; then its connection is closed.
    Broken { status: u16, sound: usize },
    /// The request is valid. The server receives exactly this request as HTTP/1, and then the next request of an
    /// HTTP/1 client.
    Served { forwarded: Vec<u8> },
    /// For HTTP/2: the client gets this message about its stream, and the server receives nothing.
    OnStream(StreamOutcome),
}

impl Row {
    /// All bytes that the client sends.
    pub(crate) fn sent(&self) -> Vec<u8> {
        let then = match self.fate {
            _ if self.is_http2() => &[],
            RequiredOutcome::Served { .. } => FOLLOWER,
            _ => SMUGGLED,
        };
        [&self.request, then].concat()
    }

    /// The requests that the server answers.
    pub(crate) fn expected(&self) -> Vec<Vec<u8>> {
        match &self.fate {
            RequiredOutcome::Served { forwarded } if self.is_http2() => vec![forwarded.clone()],
            RequiredOutcome::Served { forwarded } => vec![forwarded.clone(), FOLLOWER.to_vec()],
            _ => Vec::new(),
        }
    }

    /// The part of a broken request that the server may receive.
    pub(crate) fn sound(&self) -> &[u8] {
        match self.fate {
            RequiredOutcome::Broken { sound, .. } => &self.request[..sound],
            _ => &[],
        }
    }

    /// Whether a served request and the one after it are HEAD requests.
    pub(crate) fn is_head(&self) -> [bool; 2] {
        [self.request.starts_with(b"HEAD "), false]
    }

    /// Whether it is an HTTP/2 request.
    pub(crate) fn is_http2(&self) -> bool {
        self.request.starts_with(PREFACE)
    }

    /// Whether a proxy that detects the protocol takes the request for HTTP/1: a method in capitals that is not
    /// too long, one space, a target, one space, and the version.
    pub(crate) fn begins_as_http(&self) -> bool {
        if self.is_http2() {
            return true;
        }
        let mut words = self.request.splitn(3, |byte| *byte == b' ');
        let (method, target, rest) = (words.next(), words.next(), words.next());
        let method = method.is_some_and(|method| {
            method.len() <= LONGEST_METHOD && method.iter().all(u8::is_ascii_uppercase)
        });
        let target = target.is_some_and(|target| {
            !target.is_empty() && !target.iter().any(|byte| *byte < b' ' || *byte == 0x7f)
        });
        method && target && rest.is_some_and(|rest| rest.starts_with(b"HTTP/1."))
    }
}
