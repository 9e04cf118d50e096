//! Received frames: checks each frame's form and dispatches it.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "ranges lie within the chunk that was received"
)]

mod control;
mod data;
mod section;

use crate::code::Code;
use crate::error::{Abuse, ConnError};
use crate::frame::{FrameHead, HEAD_BYTES, PREFACE, flag, kind};
use crate::inner::Inner;
use crate::piece::Chunk;
use crate::slot::Key;

use data::DataRest;
use section::Section;

/// The state of a stream identifier that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    /// The stream was not opened yet.
    Idle,
    /// Frames for the stream are ignored. On a connection from a client, we have reset it, and the peer may not know
    /// that yet. On a connection to a server, it is over for whatever reason.
    Reset,
    /// The stream has ended, or the peer skipped the identifier.
    Closed { skipped: bool },
}

/// The state of reading.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Whether the client's preface was received.
    preface: bool,
    /// Whether the first SETTINGS were received.
    settings: bool,
    /// Whether the peer has acknowledged our settings.
    pub(crate) acknowledged: bool,
    /// A field section that the next CONTINUATION continues.
    section: Option<Section>,
    /// The rest of a DATA frame that was received in part.
    data: Option<DataRest>,
    /// How many frames were read. A DATA frame without padding counts once its header was read, and a field section
    /// counts as one frame.
    pub(crate) frames: u64,
}

impl Reading {
    /// Whether the peer must soon complete something that it has begun. Bodies are an exception, because they may take
    /// any time.
    pub(crate) fn is_urgent(&self) -> bool {
        self.section.is_some() || !self.settings
    }

    /// Whether the first SETTINGS were received.
    pub(crate) fn has_settings(&self) -> bool {
        self.settings
    }

    /// Whether no DATA frame or field section was read in part.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.section.is_none() && self.data.is_none()
    }
}

/// How many bytes of a chunk were parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// The position of the first byte that was not parsed.
    pub(crate) start: usize,
    /// How many bytes, counted from `start`, the next step needs at least.
    pub(crate) want: usize,
}

impl Inner {
    /// Handles the frames in `chunk[start..end]`.
    pub(crate) fn receive(
        &mut self,
        chunk: &Chunk,
        start: usize,
        end: usize,
    ) -> Result<Used, ConnError> {
        let mut at = start;
        if !self.client && !self.reading.preface {
            let bytes = &chunk[at..end];
            let common = bytes.len().min(PREFACE.len());
            if bytes[..common] != PREFACE[..common] {
                return Err(ConnError::broke(
                    Code::PROTOCOL_ERROR,
                    "the first bytes are not the preface of HTTP/2",
                ));
            }
            if common < PREFACE.len() {
                return Ok(Used { start: at, want: PREFACE.len() });
            }
            self.reading.preface = true;
            at += PREFACE.len();
        }
        loop {
            if self.reading.data.is_some() {
                at = self.receive_data(chunk, at, end);
                if self.reading.data.is_some() {
                    return Ok(Used { start: at, want: 1 });
                }
            }
            let Some(head) = FrameHead::parse(&chunk[at..end]) else {
                return Ok(Used { start: at, want: HEAD_BYTES });
            };
            self.check_order(head)?;
            let body = at + HEAD_BYTES;
            if head.kind == kind::DATA && !head.has(flag::PADDED) {
                // The payload is passed on as it arrives.
                self.reading.frames += 1;
                at = body;
                self.begin_data(head, head.len as usize)?;
                continue;
            }
            let next = body + head.len as usize;
            if next > end {
                return Ok(Used { start: at, want: next - at });
            }
            // CONTINUATION does not restart the time limit of its field section.
            if head.kind != kind::CONTINUATION {
                self.reading.frames += 1;
            }
            self.dispatch(head, chunk, body..next)?;
            at = next;
        }
    }

    /// Checks a frame's size, and whether it is allowed at this point.
    fn check_order(&self, head: FrameHead) -> Result<(), ConnError> {
        if head.len > self.limits.frame_bytes.max(16_384) {
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, "a frame larger than allowed"));
        }
        if !self.reading.settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "the first frame is not SETTINGS"));
        }
        let expected = self.reading.section.as_ref().map(|section| section.id);
        match (expected, head.kind == kind::CONTINUATION) {
            (None, false) => Ok(()),
            (Some(id), true) if id == head.id => Ok(()),
            _ => Err(ConnError::broke(Code::PROTOCOL_ERROR, "CONTINUATION out of place")),
        }
    }

    fn dispatch(
        &mut self,
        head: FrameHead,
        chunk: &Chunk,
        range: std::ops::Range<usize>,
    ) -> Result<(), ConnError> {
        let payload = &chunk[range.clone()];
        match head.kind {
            kind::DATA => self.on_padded_data(head, chunk, range),
            kind::HEADERS => self.on_headers(head, payload),
            kind::PRIORITY => self.on_priority(head, payload),
            kind::RST_STREAM => self.on_rst_stream(head, payload),
            kind::SETTINGS => self.on_settings(head, payload),
            kind::PUSH_PROMISE => {
                Err(ConnError::broke(Code::PROTOCOL_ERROR, "PUSH_PROMISE, which is not enabled"))
            }
            kind::PING => self.on_ping(head, payload),
            kind::GOAWAY => self.on_goaway(head, payload),
            kind::WINDOW_UPDATE => self.on_window_update(head, payload),
            kind::CONTINUATION => self.on_continuation(head, payload),
            // Unknown frame types are ignored (RFC 9113 section 4.1), up to a limit.
            _ => self.empty_frame(Abuse::EmptyFrames),
        }
    }

    /// The state of an identifier that has no stream in the table.
    fn absent(&self, id: u32) -> Absent {
        let by_client = id % 2 == 1;
        let idle = if by_client == self.client {
            id >= self.next_id
        } else {
            // Servers open no streams, since we have not enabled push.
            self.client || id > self.last_peer_id
        };
        if idle {
            Absent::Idle
        } else if self.client || self.reset_ids.contains(&id) {
            // A client ignores late frames of all streams that it has opened, and not only of those that it remembers
            // as reset. The server may learn long after a reset that the stream is over, and an error would end all
            // other requests on the connection.
            Absent::Reset
        } else {
            let back = self.last_peer_id.saturating_sub(id) / 2;
            let skipped = !self.client && back < 64 && self.opened_ids & (1 << back) == 0;
            Absent::Closed { skipped }
        }
    }

    /// The stream of a frame that needs one. `None`: ignore the frame.
    fn stream_of(&mut self, head: FrameHead) -> Result<Option<Key>, ConnError> {
        if head.id == 0 {
            return Err(ConnError::broke(
                Code::PROTOCOL_ERROR,
                "a frame of a stream has stream identifier 0",
            ));
        }
        if let Some(key) = self.streams.key(head.id) {
            return Ok(Some(key));
        }
        match self.absent(head.id) {
            Absent::Idle => Err(ConnError::broke(
                Code::PROTOCOL_ERROR,
                "a frame for a stream that is not open yet",
            )),
            Absent::Reset | Absent::Closed { .. } => Ok(None),
        }
    }
}

/// The payload without its padding (RFC 9113 section 6.1).
fn unpadded(head: FrameHead, payload: &[u8]) -> Result<&[u8], ConnError> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let Some((padding, rest)) = payload.split_first() else {
        return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, "a padded frame without its length"));
    };
    match rest.len().checked_sub(usize::from(*padding)) {
        Some(len) => Ok(&rest[..len]),
        None => Err(ConnError::broke(Code::PROTOCOL_ERROR, "the padding is longer than the frame")),
    }
}
