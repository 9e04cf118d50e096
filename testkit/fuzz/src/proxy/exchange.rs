//! The outcome of sending bytes through the planes.

use super::application::Received;
use super::frames::Peer;

/// What applications and the client received.
#[derive(Clone, Debug, Default)]
pub struct Exchanged {
    /// The complete requests that applications received.
    pub requests: Vec<Received>,
    /// The statuses of the responses, without interim ones.
    pub statuses: Vec<u16>,
    /// The bytes that the client received.
    pub client: Vec<u8>,
    /// Whether the proxy has closed the connection, or reset an HTTP/2 stream.
    pub ended: bool,
    /// The general properties that did not hold.
    pub violations: Vec<String>,
}

impl Exchanged {
    /// Parses what a client has received.
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
