//! Frames as they come in: what each kind must look like, and what it does.

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

/// What kind of stream an identifier without a stream belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    /// Nobody has opened it.
    Idle,
    /// We have reset it: the other side may not know yet.
    Reset,
    /// It is over, or was skipped.
    Closed { skipped: bool },
}

/// Where reading has got to.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// A client's preface was seen.
    preface: bool,
    /// The first SETTINGS was seen.
    settings: bool,
    /// Our settings were acknowledged.
    pub(crate) acknowledged: bool,
    /// A field section that CONTINUATION must go on with.
    section: Option<Section>,
    /// The rest of a DATA frame.
    data: Option<DataRest>,
    /// Frames that are read completely, a field section as one.
    pub(crate) frames: u64,
}

impl Reading {
    /// Something is open that its sender must finish soon. Bodies are not: they take what they
    /// take.
    pub(crate) fn is_urgent(&self) -> bool {
        self.section.is_some() || !self.settings
    }

    /// The other side has said hello.
    pub(crate) fn has_settings(&self) -> bool {
        self.settings
    }

    /// Nothing is half-read.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.section.is_none() && self.data.is_none()
    }
}

/// How far a chunk was used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// Position of the first byte that is not used.
    pub(crate) start: usize,
    /// Bytes from there on that the next step needs at least.
    pub(crate) want: usize,
}

impl Inner {
    /// Takes in the frames in `chunk[start..end]`.
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
                return Err(ConnError::broke(Code::PROTOCOL_ERROR, "not the preface of HTTP/2"));
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
                // Passed on as it comes.
                self.reading.frames += 1;
                at = body;
                self.begin_data(head, head.len as usize)?;
                continue;
            }
            let next = body + head.len as usize;
            if next > end {
                return Ok(Used { start: at, want: next - at });
            }
            // What goes on with a field section gives it no more time.
            if head.kind != kind::CONTINUATION {
                self.reading.frames += 1;
            }
            self.dispatch(head, chunk, body..next)?;
            at = next;
        }
    }

    /// What a frame may be at all, here.
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
            // Unknown kinds are ignored (RFC 9113 section 4.1), within reason.
            _ => self.empty_frame(Abuse::EmptyFrames),
        }
    }

    /// What an identifier is that has no stream.
    fn absent(&self, id: u32) -> Absent {
        let by_client = id % 2 == 1;
        let idle = if by_client == self.client {
            id >= self.next_id
        } else {
            // Nobody opens streams to a client, since it has not enabled push.
            self.client || id > self.last_peer_id
        };
        if idle {
            Absent::Idle
        } else if self.client || self.reset_ids.contains(&id) {
            // Of a server's connection many others make use. That a stream of it is over may be
            // news to the server, however long ago we have reset it.
            Absent::Reset
        } else {
            let back = self.last_peer_id.saturating_sub(id) / 2;
            let skipped = !self.client && back < 64 && self.opened_ids & (1 << back) == 0;
            Absent::Closed { skipped }
        }
    }

    /// The stream of a frame that needs one. `None`: the frame is to be ignored.
    fn stream_of(&mut self, head: FrameHead) -> Result<Option<Key>, ConnError> {
        if head.id == 0 {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "a frame that needs a stream"));
        }
        if let Some(key) = self.streams.key(head.id) {
            return Ok(Some(key));
        }
        match self.absent(head.id) {
            Absent::Idle => {
                Err(ConnError::broke(Code::PROTOCOL_ERROR, "a frame for a stream not yet opened"))
            }
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
        None => Err(ConnError::broke(Code::PROTOCOL_ERROR, "more padding than frame")),
    }
}
