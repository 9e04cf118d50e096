//! What came of bytes that a client has sent.

use super::application::Received;
use super::frames::Peer;

/// What came of them.
#[derive(Clone, Debug, Default)]
pub struct Exchanged {
    /// What applications got, each request in whole.
    pub requests: Vec<Received>,
    /// The statuses of the responses, without the interim ones.
    pub statuses: Vec<u16>,
    /// What the client got.
    pub client: Vec<u8>,
    /// The proxy has ended the connection, or in HTTP/2 a stream.
    pub ended: bool,
    /// What did not hold in any case.
    pub violations: Vec<String>,
}

impl Exchanged {
    /// What a client has got.
    pub(crate) fn read(client: Vec<u8>, http2: bool) -> Self {
        let mut got = Self { client, ..Self::default() };
        if http2 {
            let mut peer = Peer::new(0);
            if let Err(error) = peer.read(&got.client) {
                got.violations.push(format!("to an HTTP/2 client: {error}"));
            }
            got.ended = peer.went_away || peer.streams.values().any(|message| message.is_reset);
            let fields = peer.streams.values().flat_map(|message| message.heads.iter().flatten());
            let statuses = fields.filter(|(name, _)| name == b":status");
            let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok();
            got.statuses = statuses.filter_map(|(_, value)| number(value)).collect();
        } else {
            let starts = got.client.split(|byte| *byte == b'\n');
            let lines = starts.filter_map(|line| line.strip_prefix(b"HTTP/1.1 "));
            let status = |line: &[u8]| std::str::from_utf8(line.get(..3)?).ok()?.parse().ok();
            got.statuses = lines.filter_map(status).collect();
        }
        got.statuses.retain(|status| *status >= 200);
        got
    }
}
