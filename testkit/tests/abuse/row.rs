//! One row of the table.

use crate::frames::{PREFACE, Told};

/// What an attacker wants a server to take for a request of its own. Goes behind every row that
/// must not be served.
pub(crate) const SMUGGLED: &[u8] = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The proper next request of a client whose first one is served.
const FOLLOWER: &[u8] = b"GET /follower HTTP/1.1\r\nHost: a\r\n\r\n";

/// Anything longer is no method to a proxy that has to find out.
const LONGEST_METHOD: usize = 24;

/// A request, and what must become of it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The section that judges it.
    pub(crate) section: &'static str,
    pub(crate) request: Vec<u8>,
    pub(crate) fate: Fate,
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// The proxy answers with this status and ends the connection; the server sees nothing.
    Refused(u16),
    /// The head is good, the body breaks after `sound` bytes of the request: the server may see
    /// those, and its connection ends with them.
    Broken { status: u16, sound: usize },
    /// It is a proper request: the server sees exactly this one, in HTTP/1, and the next of an
    /// HTTP/1 client as the next.
    Served { forwarded: Vec<u8> },
    /// HTTP/2: the client is told this about its stream; the server sees nothing.
    Told(Told),
}

impl Row {
    /// Every byte that the client sends.
    pub(crate) fn sent(&self) -> Vec<u8> {
        let then = match self.fate {
            _ if self.is_http2() => &[],
            Fate::Served { .. } => FOLLOWER,
            _ => SMUGGLED,
        };
        [&self.request, then].concat()
    }

    /// The requests that the server answers.
    pub(crate) fn expected(&self) -> Vec<Vec<u8>> {
        match &self.fate {
            Fate::Served { forwarded } if self.is_http2() => vec![forwarded.clone()],
            Fate::Served { forwarded } => vec![forwarded.clone(), FOLLOWER.to_vec()],
            _ => Vec::new(),
        }
    }

    /// What the server may see of a broken request.
    pub(crate) fn sound(&self) -> &[u8] {
        match self.fate {
            Fate::Broken { sound, .. } => &self.request[..sound],
            _ => &[],
        }
    }

    /// Whether the methods of a served request and its follower are HEAD.
    pub(crate) fn is_head(&self) -> [bool; 2] {
        [self.request.starts_with(b"HEAD "), false]
    }

    /// Whether it is one of HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.request.starts_with(PREFACE)
    }

    /// Whether a proxy that has to find out takes it for HTTP/1: a method in capitals and no longer
    /// than methods are, one space, a target, one space, the version.
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
