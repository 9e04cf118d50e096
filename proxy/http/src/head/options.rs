//! The fields that a message's `Connection` names, for its trailers (RFC 9110 section 7.6.1).

use smallvec::SmallVec;

use super::{Framing, Headers, Known, Meaning, tokens};

/// The options of a head's `Connection`, as a list. It is stored because trailers arrive when the bytes of the head no
/// longer exist. The usual one or two names fit without an allocation.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionOptions(SmallVec<[u8; 32]>);

impl ConnectionOptions {
    /// `None` if there are no trailers, or if `Connection` only names fields that are for one hop in any case.
    pub(crate) fn of_head(
        (headers, meaning): (&Headers, &Meaning),
        framing: Framing,
        bytes: &[u8],
    ) -> Option<Self> {
        if framing != Framing::Chunked || !meaning.connection.others {
            return None;
        }
        let mut list = SmallVec::new();
        let lines = headers.iter().filter(|header| header.known == Known::Connection);
        for option in lines.flat_map(|line| tokens(line.value.of(bytes))) {
            let is = |known: &[u8]| option.eq_ignore_ascii_case(known);
            if !is(b"close") && !is(b"keep-alive") {
                list.extend_from_slice(option);
                list.push(b',');
            }
        }
        Some(Self(list))
    }

    /// Whether the field `name` is for this hop only.
    pub(crate) fn contain(&self, name: &[u8]) -> bool {
        tokens(&self.0).any(|option| option.eq_ignore_ascii_case(name))
    }
}
