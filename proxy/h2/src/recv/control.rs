//! Frames that concern the connection, or a stream as a whole.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "payloads have the length that their type demands, checked before"
)]

use super::Absent;
use crate::code::Code;
use crate::error::{Abuse, ConnError, Reset, ResetBy};
use crate::frame::{self, FrameHead, HEAD_BYTES, MAX_31, flag, kind, number31};
use crate::inner::{DRAIN_PING, Inner, Phase};
use crate::slot::{Key, Progress};

impl Inner {
    pub(super) fn on_priority(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnError> {
        self.empty_frame(Abuse::EmptyFrames)?;
        if head.id == 0 {
            return Err(ConnError::broke(
                Code::PROTOCOL_ERROR,
                "PRIORITY with stream identifier 0",
            ));
        }
        if payload.len() != 5 {
            if self.streams.key(head.id).is_none() {
                let what = "PRIORITY of a wrong length";
                return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, what));
            }
            return self.stream_error(head.id, Code::FRAME_SIZE_ERROR, None);
        }
        // Priorities are ignored (RFC 9113 section 5.3.2), but a stream must not depend on itself.
        if number31(payload, 0) == Some(head.id) {
            return self.stream_error(head.id, Code::PROTOCOL_ERROR, None);
        }
        Ok(())
    }

    pub(super) fn on_rst_stream(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnError> {
        let Some(bytes) = payload.first_chunk().filter(|_| payload.len() == 4) else {
            let what = "RST_STREAM of a wrong length";
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, what));
        };
        let code = Code(u32::from_be_bytes(*bytes));
        let Some(key) = self.stream_of(head)? else { return self.empty_frame(Abuse::EmptyFrames) };
        let Some(slot) = self.streams.get_mut(key).filter(|slot| !slot.is_over()) else {
            return Ok(());
        };
        let unprocessed = self.client && code == Code::REFUSED_STREAM;
        // RFC 9113 section 8.1: the server has sent its response and does not need the rest of the
        // request.
        let answered = self.client && code == Code::NO_ERROR && slot.recv == Progress::Ended;
        if answered && let Some(far) = slot.far.take() {
            far.conn.borrow_mut().far_finish(far.key);
        }
        self.end_stream(key, Reset { code, by: ResetBy::Peer, unprocessed });
        if !self.client && !self.resets.take() {
            return Err(ConnError::abused(
                Abuse::RapidReset,
                "the peer opened and reset streams too fast",
            ));
        }
        Ok(())
    }

    pub(super) fn on_settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnError> {
        if head.id != 0 {
            return Err(ConnError::broke(
                Code::PROTOCOL_ERROR,
                "SETTINGS with a stream identifier",
            ));
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                let what = "a SETTINGS acknowledgement with a payload";
                return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, what));
            }
            self.reading.acknowledged = true;
            return Ok(());
        }
        if self.reading.settings {
            self.empty_frame(Abuse::SettingsFlood)?;
        }
        let before = self.peer.window;
        self.peer.apply(payload, self.client)?;
        self.reading.settings = true;
        self.encoder.set_max_table(self.peer.table_bytes as usize);
        self.reply(&FrameHead::new(0, kind::SETTINGS, flag::ACK, 0).bytes())?;
        self.move_windows(i64::from(self.peer.window) - i64::from(before))?;
        if self.client {
            // Tasks may wait for these SETTINGS, or for room that they give.
            self.wake_all_openers();
        }
        Ok(())
    }

    /// RFC 9113 section 6.9.2: a new initial window also changes the windows of open streams.
    fn move_windows(&mut self, by: i64) -> Result<(), ConnError> {
        if by == 0 {
            return Ok(());
        }
        let mut freed = false;
        for (key, slot) in self.streams.iter_mut() {
            slot.send_window += by;
            if slot.send_window > i64::from(MAX_31) {
                let what =
                    "SETTINGS_INITIAL_WINDOW_SIZE makes a stream's window larger than 2^31-1";
                return Err(ConnError::abused(Abuse::WindowOverflow, what));
            }
            if slot.send_window > 0 && !slot.queue.is_empty() && !slot.in_ring {
                slot.in_ring = true;
                self.ring.push_back(key);
                freed = true;
            }
            slot.wake_send();
        }
        if freed {
            self.wake_driver();
        }
        Ok(())
    }

    pub(super) fn on_ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnError> {
        if head.id != 0 {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "PING with a stream identifier"));
        }
        let Some(opaque) = payload.first_chunk().filter(|_| payload.len() == 8) else {
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, "PING of a wrong length"));
        };
        if head.has(flag::ACK) {
            if *opaque == DRAIN_PING {
                self.drain_for_good();
            }
            return self.empty_frame(Abuse::PingFlood);
        }
        self.empty_frame(Abuse::PingFlood)?;
        self.reply(&frame::ping(true, *opaque))
    }

    pub(super) fn on_goaway(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnError> {
        if head.id != 0 {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "GOAWAY with a stream identifier"));
        }
        self.empty_frame(Abuse::EmptyFrames)?;
        let (Some(last), Some(code)) = (number31(payload, 0), payload.get(4..8)) else {
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, "GOAWAY of a wrong length"));
        };
        let code = Code(u32::from_be_bytes([code[0], code[1], code[2], code[3]]));
        if self.phase < Phase::Draining {
            self.phase = Phase::Draining;
            self.wake_all_openers();
            self.wake_accept();
        }
        if self.client {
            for place in 0..self.streams.places() {
                let Some(key) = self.streams.at(place).filter(|key| key.id > last) else {
                    continue;
                };
                let reset = Reset { code, by: ResetBy::Connection, unprocessed: true };
                self.end_stream(key, reset);
            }
        }
        if code != Code::NO_ERROR {
            let what = "the peer ended the connection with an error";
            return Err(ConnError { by_peer: true, ..ConnError::broke(code, what) });
        }
        self.wake_driver();
        Ok(())
    }

    pub(super) fn on_window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnError> {
        let Some(credit) = number31(payload, 0).filter(|_| payload.len() == 4) else {
            let what = "WINDOW_UPDATE of a wrong length";
            return Err(ConnError::broke(Code::FRAME_SIZE_ERROR, what));
        };
        if head.id == 0 {
            return self.grow_connection(credit);
        }
        let Some(key) = self.stream_of(head)? else {
            return self.empty_frame(Abuse::EmptyFrames);
        };
        self.grow_stream(key, credit)
    }

    fn grow_connection(&mut self, credit: u32) -> Result<(), ConnError> {
        if credit == 0 {
            return Err(ConnError::broke(
                Code::PROTOCOL_ERROR,
                "WINDOW_UPDATE with an increment of 0",
            ));
        }
        self.send_window += i64::from(credit);
        if self.send_window > i64::from(MAX_31) {
            let what = "WINDOW_UPDATE makes the connection's window larger than 2^31-1";
            return Err(ConnError::abused(Abuse::WindowOverflow, what));
        }
        if self.ring.is_empty() {
            // No DATA was waiting for this credit, so the frame counts as one without content.
            return self.empty_frame(Abuse::EmptyFrames);
        }
        self.wake_driver();
        Ok(())
    }

    fn grow_stream(&mut self, key: Key, credit: u32) -> Result<(), ConnError> {
        let Some(slot) = self.streams.get_mut(key).filter(|slot| !slot.is_over()) else {
            return self.empty_frame(Abuse::EmptyFrames);
        };
        if credit == 0 {
            return self.stream_error(key.id, Code::PROTOCOL_ERROR, None);
        }
        slot.send_window += i64::from(credit);
        if slot.send_window > i64::from(MAX_31) {
            return self.stream_error(
                key.id,
                Code::FLOW_CONTROL_ERROR,
                Some(Abuse::WindowOverflow),
            );
        }
        let waited = !slot.queue.is_empty();
        if waited && !slot.in_ring && slot.send_window > 0 {
            slot.in_ring = true;
            self.ring.push_back(key);
        }
        slot.wake_send();
        if waited {
            self.wake_driver();
            return Ok(());
        }
        self.empty_frame(Abuse::EmptyFrames)
    }

    /// Whether a HEADERS frame opens this stream; otherwise the frame must be ignored. An error ends the connection.
    pub(super) fn may_open(&mut self, id: u32) -> Result<bool, ConnError> {
        match self.absent(id) {
            Absent::Idle if self.client || id.is_multiple_of(2) => {
                Err(ConnError::broke(Code::PROTOCOL_ERROR, "HEADERS with a wrong identifier"))
            }
            Absent::Idle => Ok(true),
            Absent::Reset => Ok(false),
            Absent::Closed { skipped: true } => {
                Err(ConnError::broke(Code::PROTOCOL_ERROR, "HEADERS with a skipped identifier"))
            }
            Absent::Closed { skipped: false } => {
                Err(ConnError::broke(Code::STREAM_CLOSED, "HEADERS for a closed stream"))
            }
        }
    }

    /// Handles HEADERS or DATA for a stream that was reset. If we have reset it, such frames may still be on their way.
    /// But a peer that has reset a stream must not send more on it (RFC 9113 section 5.1, closed).
    pub(super) fn after_reset(&mut self, id: u32, reset: Reset) -> Result<(), ConnError> {
        match reset.by {
            ResetBy::Peer => self.stream_error(id, Code::STREAM_CLOSED, None),
            ResetBy::Us | ResetBy::Connection => Ok(()),
        }
    }

    /// Queues the first frames of a connection.
    pub(crate) fn greet(&mut self) {
        let settings = self.limits.settings(self.client);
        if self.client {
            self.out.put(frame::PREFACE);
        }
        self.out.append(|buf| {
            let start = buf.len();
            buf.extend_from_slice(&[0; HEAD_BYTES]);
            settings.put(buf);
            let len = buf.len() - start - HEAD_BYTES;
            let head = FrameHead::new(len, kind::SETTINGS, 0, 0).bytes();
            buf[start..start + HEAD_BYTES].copy_from_slice(&head);
        });
        let window = self.limits.connection_window() - crate::settings::DEFAULT_WINDOW;
        if window > 0 {
            self.out.put(&frame::window_update(0, window));
        }
    }
}
