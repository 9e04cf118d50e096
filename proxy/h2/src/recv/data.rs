//! DATA frames (RFC 9113 section 6.1), and both levels of flow control for them.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "ranges lie within the chunk, and windows are checked before they shrink"
)]

use std::ops::Range;

use super::{Absent, unpadded};
use crate::code::Code;
use crate::error::{Abuse, ConnError};
use crate::frame::{FrameHead, flag};
use crate::inner::{EMPTY_PER_USEFUL, Inner};
use crate::piece::Chunk;
use crate::slot::{Key, Progress, queue_part};

/// The rest of a DATA frame that was received in part.
#[derive(Debug)]
pub(super) struct DataRest {
    /// The stream; `None` if the bytes are discarded.
    key: Option<Key>,
    left: usize,
    end: bool,
}

impl Inner {
    /// Starts a DATA frame of which `bytes` belong to the body. The rest of its length is padding.
    pub(super) fn begin_data(&mut self, head: FrameHead, bytes: usize) -> Result<(), ConnError> {
        if head.id == 0 {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "DATA without a stream"));
        }
        let whole = i64::from(head.len);
        self.recv_window -= whole;
        if self.recv_window < 0 {
            let what = "DATA exceeds the connection's window";
            return Err(ConnError::abused(Abuse::WindowOverflow, what));
        }
        let end = head.has(flag::END_STREAM);
        if bytes == 0 && !end {
            self.empty_frame(Abuse::EmptyFrames)?;
        } else {
            self.empty_frames.give(EMPTY_PER_USEFUL);
        }
        let key = self.check_data(head, whole, bytes as u64, end)?;
        if let Some(key) = key {
            let padding = head.len as usize - bytes;
            if let Some(slot) = self.streams.get_mut(key) {
                slot.held += head.len as usize;
                slot.received += bytes as u64;
                self.held += head.len as usize;
            }
            if padding > 0 {
                self.credit(key, padding);
            }
        }
        self.renew_connection();
        if bytes == 0 {
            if let (Some(key), true) = (key, end) {
                self.end_recv(key);
            }
        } else {
            self.reading.data = Some(DataRest { key, left: bytes, end });
        }
        Ok(())
    }

    /// The stream of the frame. `None` if its bytes must be discarded.
    fn check_data(
        &mut self,
        head: FrameHead,
        whole: i64,
        bytes: u64,
        end: bool,
    ) -> Result<Option<Key>, ConnError> {
        let Some(key) = self.streams.key(head.id) else {
            return match self.absent(head.id) {
                Absent::Idle => {
                    Err(ConnError::broke(Code::PROTOCOL_ERROR, "DATA for a stream not yet opened"))
                }
                Absent::Reset => Ok(None),
                Absent::Closed { .. } => {
                    self.stream_error(head.id, Code::STREAM_CLOSED, None).map(|()| None)
                }
            };
        };
        let Some(slot) = self.streams.get_mut(key) else { return Ok(None) };
        if let Some(reset) = slot.reset {
            return self.after_reset(head.id, reset).map(|()| None);
        }
        slot.recv_window -= whole;
        let left = slot.body_left.map(|left| left.checked_sub(bytes));
        let (code, abuse) = if slot.recv == Progress::Ended {
            (Code::STREAM_CLOSED, None)
        } else if slot.recv == Progress::Head {
            (Code::PROTOCOL_ERROR, Some(Abuse::Malformed))
        } else if slot.recv_window < 0 {
            (Code::FLOW_CONTROL_ERROR, Some(Abuse::WindowOverflow))
        } else if left == Some(None) || (end && matches!(left, Some(Some(1..)))) {
            // RFC 9113 section 8.1.1: the body's length differs from content-length.
            (Code::PROTOCOL_ERROR, Some(Abuse::Malformed))
        } else {
            slot.body_left = left.flatten();
            return Ok(Some(key));
        };
        self.stream_error(head.id, code, abuse)?;
        Ok(None)
    }

    /// Passes on the received part of the current frame. Returns the position after it.
    pub(super) fn receive_data(&mut self, chunk: &Chunk, at: usize, end: usize) -> usize {
        let Some(mut rest) = self.reading.data.take() else { return at };
        let until = end.min(at + rest.left);
        rest.left -= until - at;
        let last = rest.left == 0;
        if let Some(key) = rest.key {
            self.pass_on(key, chunk, at..until, last && rest.end);
        }
        if !last {
            self.reading.data = Some(rest);
        }
        until
    }

    pub(super) fn on_padded_data(
        &mut self,
        head: FrameHead,
        chunk: &Chunk,
        range: Range<usize>,
    ) -> Result<(), ConnError> {
        let len = unpadded(head, &chunk[range.clone()])?.len();
        self.begin_data(head, len)?;
        let start = range.start + 1;
        self.receive_data(chunk, start, start + len);
        Ok(())
    }

    /// Passes bytes of a body to the reader, or directly to the linked stream.
    fn pass_on(&mut self, key: Key, chunk: &Chunk, range: Range<usize>, end: bool) {
        let Some(slot) = self.streams.get_mut(key).filter(|slot| slot.reset.is_none()) else {
            return;
        };
        if range.is_empty() && !end {
            return;
        }
        if let (true, Some(far)) = (slot.recv_far, &slot.far) {
            if end {
                slot.recv = Progress::Ended;
            }
            let taken = far.conn.borrow_mut().far_data(far.key, chunk, range.clone(), end);
            if taken {
                self.credit(key, range.len());
            }
            if end {
                self.settle(key);
            }
            return;
        }
        if !range.is_empty() {
            queue_part(&mut slot.data, &chunk[range.clone()], chunk, range);
        }
        self.notified = true;
        slot.wake_recv();
        if end {
            self.end_recv(key);
        }
    }

    /// Handles END_STREAM after everything before it has been passed on.
    pub(super) fn end_recv(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        slot.recv = Progress::Ended;
        if let (true, Some(far)) = (slot.recv_far, &slot.far) {
            far.conn.borrow_mut().far_end(far.key);
        } else {
            slot.wake_recv();
            self.notified = true;
        }
        self.settle(key);
    }
}
