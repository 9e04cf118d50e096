//! Sent frames: heads, DATA within both windows, trailers. They come from the user of a stream or
//! directly from the linked stream of another connection.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "ranges lie within the chunk, and windows are checked before they shrink"
)]

use std::ops::Range;

use leno_hpack::{Block, Token};
use leno_transport::test_panic;
use tokio::time::Instant;

use crate::code::Code;
use crate::frame::{FrameHead, HEAD_BYTES, flag, kind};
use crate::head::Head;
use crate::inner::{EMPTY_PER_USEFUL, Inner};
use crate::out::COPIED_BYTES;
use crate::piece::{Chunk, Piece};
use crate::slot::{Key, Progress, Slot, Then, queue_part};

impl Inner {
    /// Sends a head or trailers. The stream must not have ended in this direction.
    pub(crate) fn send_section(&mut self, key: Key, block: &Block, end: bool) {
        let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
        let most = self.peer.frame_bytes as usize;
        let encoder = &mut self.encoder;
        self.out.append(|buf| {
            let start = buf.len();
            buf.extend_from_slice(&[0; HEAD_BYTES]);
            encoder.encode_block(block, buf);
            test_panic("section", block.find(Token::PATH).unwrap_or_default());
            let len = buf.len() - start - HEAD_BYTES;
            if len > most {
                return split_section(buf, start, most, (flags, key.id));
            }
            let head = FrameHead::new(len, kind::HEADERS, flags, key.id).bytes();
            buf[start..start + HEAD_BYTES].copy_from_slice(&head);
        });
        self.wake_driver();
        if end {
            self.end_send(key);
        }
    }

    /// Called when the final head of this direction was sent.
    pub(crate) fn head_sent(&mut self, key: Key) {
        if let Some(slot) = self.streams.get_mut(key)
            && slot.send == Progress::Head
        {
            slot.send = Progress::Body;
        }
    }

    /// Called when END_STREAM was queued on the connection.
    fn end_send(&mut self, key: Key) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        slot.send = Progress::Ended;
        slot.wake_send();
        let call_off = slot.close_after && slot.recv != Progress::Ended;
        if call_off {
            self.reset(key, Code::NO_ERROR);
        } else {
            self.settle(key);
        }
    }

    /// How many bytes this stream can queue on the connection now.
    fn room(&self, slot: &Slot) -> usize {
        let window = self.send_window.min(slot.send_window).max(0) as usize;
        window.min(self.limits.write_bytes.saturating_sub(self.out.len()))
    }

    /// Sends DATA, or queues it in the stream if it must wait. Ignored on a stream that is over.
    pub(crate) fn send_piece(&mut self, key: Key, mut piece: Piece, end: bool) {
        let Some(slot) = self.streams.get(key).filter(|slot| may_send(slot)) else { return };
        if slot.queue.is_empty() && piece.len() <= self.room(slot) {
            self.emit(key, &mut piece, end);
        } else if let Some(slot) = self.streams.get_mut(key) {
            slot.queued += piece.len();
            slot.queue.push_back(piece);
            self.enqueue(key, end);
        }
    }

    /// Schedules a stream to whose queue bytes were added.
    fn enqueue(&mut self, key: Key, end: bool) {
        let Some(slot) = self.streams.get_mut(key) else { return };
        if end {
            slot.then = Then::End;
        }
        if !slot.in_ring && slot.send_window > 0 {
            slot.in_ring = true;
            self.ring.push_back(key);
            self.wake_driver();
        }
    }

    /// Sends DATA from the linked stream. `false` means that the DATA waits in this stream, and that [`Inner::credit`]
    /// is called later.
    pub(crate) fn far_data(
        &mut self,
        key: Key,
        chunk: &Chunk,
        range: Range<usize>,
        end: bool,
    ) -> bool {
        let payload = &chunk[range.clone()];
        let Some(slot) = self.streams.get(key).filter(|slot| may_send(slot)) else { return true };
        let at_once = slot.queue.is_empty() && payload.len() <= self.room(slot);
        if !at_once {
            let Some(slot) = self.streams.get_mut(key) else { return true };
            slot.queued += payload.len();
            queue_part(&mut slot.queue, payload, chunk, range);
            self.enqueue(key, end);
            return false;
        }
        if payload.len() <= COPIED_BYTES.min(self.frame_bytes()) {
            self.emit_copy(key, payload, end);
        } else {
            self.emit(key, &mut chunk.piece(range), end);
        }
        true
    }

    /// Sends DATA that the linked stream received before the streams were linked. The result is that of
    /// [`Inner::far_data`].
    pub(crate) fn far_piece(&mut self, key: Key, piece: Piece, end: bool) -> bool {
        let waiting = self.streams.get(key).map_or(0, |slot| slot.queued);
        self.send_piece(key, piece, end);
        self.streams.get(key).is_none_or(|slot| slot.queued <= waiting)
    }

    /// Handles the end of the linked stream, without trailers.
    pub(crate) fn far_end(&mut self, key: Key) {
        self.finish(key, None);
    }

    /// Handles the end of the linked stream, with trailers.
    pub(crate) fn far_trailers(&mut self, key: Key, trailers: Head) {
        self.finish(key, Some(trailers));
    }

    /// Ends this direction when everything that is queued in the stream has been sent.
    pub(crate) fn finish(&mut self, key: Key, trailers: Option<Head>) {
        let Some(slot) = self.streams.get_mut(key).filter(|slot| may_send(slot)) else { return };
        if !slot.queue.is_empty() {
            slot.then = trailers.map_or(Then::End, Then::Trailers);
            return;
        }
        match trailers {
            Some(trailers) => self.send_section(key, &trailers, true),
            None => self.emit_copy(key, &[], true),
        }
    }

    /// Queues one DATA frame with a copy of `payload`, which fits both windows and one frame.
    fn emit_copy(&mut self, key: Key, payload: &[u8], end: bool) {
        self.account(key, payload.len());
        let flags = if end { flag::END_STREAM } else { 0 };
        let head = FrameHead::new(payload.len(), kind::DATA, flags, key.id).bytes();
        self.out.append(|buf| {
            buf.extend_from_slice(&head);
            buf.extend_from_slice(payload);
        });
        self.wake_driver();
        if end {
            self.end_send(key);
        }
    }

    /// Queues DATA frames for all of `piece`, which fits both windows.
    fn emit(&mut self, key: Key, piece: &mut Piece, end: bool) {
        let most = self.frame_bytes();
        loop {
            let part = piece.split_to(most);
            let last = piece.is_empty();
            self.account(key, part.len());
            let flags = if end && last { flag::END_STREAM } else { 0 };
            self.out.put(&FrameHead::new(part.len(), kind::DATA, flags, key.id).bytes());
            self.out.put_piece(part);
            if last {
                break;
            }
        }
        self.wake_driver();
        if end {
            self.end_send(key);
        }
    }

    fn account(&mut self, key: Key, count: usize) {
        self.send_window -= count as i64;
        self.empty_frames.give(EMPTY_PER_USEFUL);
        if let Some(slot) = self.streams.get_mut(key) {
            slot.send_window -= count as i64;
            slot.sent += count as u64;
            slot.moved = true;
        }
    }

    /// Moves DATA from the streams into the connection's queue, one frame of each stream in turn. Only the driver calls
    /// this, because it also gives credit to linked streams, which are on other connections.
    pub(crate) fn pump(&mut self) {
        while self.send_window > 0 && self.out.len() < self.limits.write_bytes {
            let Some(key) = self.ring.pop_front() else { break };
            self.pump_one(key);
        }
        if self.send_window > 0 || self.ring.is_empty() {
            self.starved_since = None;
        } else if self.starved_since.is_none() {
            self.starved_since = Some(Instant::now());
        }
    }

    fn pump_one(&mut self, key: Key) {
        let most = self.frame_bytes() as i64;
        let Some(slot) = self.streams.get_mut(key) else { return };
        let room = slot.send_window.min(self.send_window).min(most).max(0) as usize;
        let Some(front) = slot.queue.front_mut().filter(|_| room > 0) else {
            slot.in_ring = false;
            return;
        };
        let mut part = front.split_to(room);
        if front.is_empty() {
            slot.queue.pop_front();
        }
        let count = part.len();
        slot.queued -= count;
        let then = if slot.queue.is_empty() {
            slot.in_ring = false;
            std::mem::take(&mut slot.then)
        } else {
            self.ring.push_back(key);
            Then::More
        };
        let far = slot.far.clone().filter(|_| slot.send_far);
        slot.wake_send();
        self.emit(key, &mut part, matches!(then, Then::End));
        if let Then::Trailers(trailers) = then {
            self.send_section(key, &trailers, true);
        }
        if let Some(far) = far {
            far.conn.borrow_mut().credit(far.key, count);
        }
    }
}

/// Whether DATA or an end may still be sent.
fn may_send(slot: &Slot) -> bool {
    slot.reset.is_none() && slot.send == Progress::Body && matches!(slot.then, Then::More)
}

/// Splits a section that is too long for one frame (RFC 9113 section 6.10). In `buf` it begins at
/// `start`, with room for one frame header before it.
#[cold]
fn split_section(buf: &mut Vec<u8>, start: usize, most: usize, (flags, id): (u8, u32)) {
    let section = buf.split_off(start + HEAD_BYTES);
    buf.truncate(start);
    let mut kind = kind::HEADERS;
    let mut flags = flags & !flag::END_HEADERS;
    let count = section.len().div_ceil(most);
    for (i, part) in section.chunks(most).enumerate() {
        if i + 1 == count {
            flags |= flag::END_HEADERS;
        }
        buf.extend_from_slice(&FrameHead::new(part.len(), kind, flags, id).bytes());
        buf.extend_from_slice(part);
        kind = kind::CONTINUATION;
        flags = 0;
    }
}
