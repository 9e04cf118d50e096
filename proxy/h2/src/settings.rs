//! SETTINGS (RFC 9113 section 6.5): the peer's settings, and how our own are written.

use crate::code::Code;
use crate::error::{Abuse, ConnError};
use crate::frame::MAX_31;

mod id {
    pub(super) const HEADER_TABLE_SIZE: u16 = 0x1;
    pub(super) const ENABLE_PUSH: u16 = 0x2;
    pub(super) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub(super) const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub(super) const MAX_FRAME_SIZE: u16 = 0x5;
    pub(super) const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// Whether extended CONNECT is supported (RFC 8441).
    pub(super) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
}

/// The initial windows before any SETTINGS (RFC 9113 section 6.9.2).
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;
/// The largest frame payload before any SETTINGS (RFC 9113 section 4.2), and the smallest value that
/// can be set.
pub(crate) const DEFAULT_FRAME_BYTES: u32 = 16_384;
const MAX_FRAME_BYTES: u32 = (1 << 24) - 1;
/// The size of one setting in bytes.
const SETTING_BYTES: usize = 6;

/// The peer's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    pub(crate) table_bytes: u32,
    pub(crate) concurrent: u32,
    pub(crate) window: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) list_bytes: u32,
    pub(crate) connect_protocol: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            table_bytes: 4096,
            concurrent: u32::MAX,
            window: DEFAULT_WINDOW,
            frame_bytes: DEFAULT_FRAME_BYTES,
            list_bytes: u32::MAX,
            connect_protocol: false,
        }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame. `from_server` says that a server has sent it.
    pub(crate) fn apply(&mut self, payload: &[u8], from_server: bool) -> Result<(), ConnError> {
        let (settings, rest) = payload.as_chunks::<SETTING_BYTES>();
        if !rest.is_empty() {
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, "SETTINGS of an odd length"));
        }
        for [a, b, value @ ..] in settings {
            self.set(u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value), from_server)?;
        }
        Ok(())
    }

    fn set(&mut self, id: u16, value: u32, from_server: bool) -> Result<(), ConnError> {
        let refuse = |what| Err(ConnError::broke(Code::PROTOCOL_ERROR, what));
        match id {
            id::HEADER_TABLE_SIZE => self.table_bytes = value,
            id::ENABLE_PUSH if value > 1 || (from_server && value == 1) => {
                return refuse("ENABLE_PUSH is out of range");
            }
            id::MAX_CONCURRENT_STREAMS => self.concurrent = value,
            id::INITIAL_WINDOW_SIZE if value > MAX_31 => {
                return Err(ConnError {
                    code: Code::FLOW_CONTROL_ERROR,
                    abuse: Some(Abuse::WindowOverflow),
                    ..ConnError::broke(Code::FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE too large")
                });
            }
            id::INITIAL_WINDOW_SIZE => self.window = value,
            id::MAX_FRAME_SIZE if !(DEFAULT_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&value) => {
                return refuse("MAX_FRAME_SIZE is out of range");
            }
            id::MAX_FRAME_SIZE => self.frame_bytes = value,
            id::MAX_HEADER_LIST_SIZE => self.list_bytes = value,
            id::ENABLE_CONNECT_PROTOCOL if value > 1 || (self.connect_protocol && value == 0) => {
                return refuse("ENABLE_CONNECT_PROTOCOL is out of range");
            }
            id::ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
            // Unknown settings are ignored (RFC 9113 section 6.5.2).
            _ => {}
        }
        Ok(())
    }
}

/// Our settings. Only settings that differ from the defaults are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnSettings {
    /// Whether we are the client, which disables push and sends no limit on concurrent streams.
    pub(crate) client: bool,
    pub(crate) concurrent: u32,
    pub(crate) window: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) list_bytes: u32,
    pub(crate) table_bytes: u32,
    pub(crate) connect_protocol: bool,
}

impl OwnSettings {
    /// Appends the payload of the SETTINGS frame.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        let mut say = |id: u16, value: u32| {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        };
        let defaults = PeerSettings::default();
        if self.table_bytes != defaults.table_bytes {
            say(id::HEADER_TABLE_SIZE, self.table_bytes);
        }
        if self.client {
            say(id::ENABLE_PUSH, 0);
        } else {
            say(id::MAX_CONCURRENT_STREAMS, self.concurrent);
        }
        if self.window != defaults.window {
            say(id::INITIAL_WINDOW_SIZE, self.window);
        }
        if self.frame_bytes != defaults.frame_bytes {
            say(id::MAX_FRAME_SIZE, self.frame_bytes);
        }
        say(id::MAX_HEADER_LIST_SIZE, self.list_bytes);
        if self.connect_protocol && !self.client {
            say(id::ENABLE_CONNECT_PROTOCOL, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(id: u16, value: u32) -> Vec<u8> {
        [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat()
    }

    #[test]
    fn values_out_of_range_end_the_connection() {
        let code = |payload: &[u8], from_server| {
            PeerSettings::default().apply(payload, from_server).err().map(|error| error.code)
        };
        assert_eq!(code(&one(2, 2), false), Some(Code::PROTOCOL_ERROR));
        assert_eq!(code(&one(2, 1), true), Some(Code::PROTOCOL_ERROR));
        assert_eq!(code(&one(2, 1), false), None);
        assert_eq!(code(&one(4, 1 << 31), false), Some(Code::FLOW_CONTROL_ERROR));
        assert_eq!(code(&one(5, 16_383), false), Some(Code::PROTOCOL_ERROR));
        assert_eq!(code(&one(5, 1 << 24), false), Some(Code::PROTOCOL_ERROR));
        assert_eq!(code(&one(8, 2), false), Some(Code::PROTOCOL_ERROR));
        assert_eq!(code(&[0; 5], false), Some(Code::FRAME_SIZE_ERROR));
        assert_eq!(code(&one(0x7777, 9), false), None);
    }

    #[test]
    fn what_we_set_is_what_a_peer_reads() {
        let own = OwnSettings {
            client: false,
            concurrent: 7,
            window: 100_000,
            frame_bytes: 20_000,
            list_bytes: 5000,
            table_bytes: 0,
            connect_protocol: true,
        };
        let mut payload = vec![];
        own.put(&mut payload);
        let mut read = PeerSettings::default();
        read.apply(&payload, true).unwrap();
        let expected = PeerSettings {
            table_bytes: 0,
            concurrent: 7,
            window: 100_000,
            frame_bytes: 20_000,
            list_bytes: 5000,
            connect_protocol: true,
        };
        assert_eq!(read, expected);
    }
}
