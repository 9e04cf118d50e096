//! HEADERS and CONTINUATION (RFC 9113 sections 6.2 and 6.10): heads and trailers.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts have bounds that are checked before they grow"
)]

use leno_hpack::{Inserts, Outcome, Token};
use leno_transport::budget;

use super::unpadded;
use crate::code::Code;
use crate::error::{Abuse, ConnError, count};
use crate::frame::{FrameHead, flag, number31};
use crate::head::{self, Facts, Head};
use crate::inner::{EMPTY_PER_USEFUL, Inner, Phase};
use crate::live;
use crate::repeat::{Kind, Split, Table};
use crate::reserved::{is_mesh_field, is_reserved, remove_reserved};
use crate::slot::{Key, Progress};
use crate::trailers::may_be_trailer;

/// The number of bytes of the priority fields in a HEADERS frame. These fields are ignored.
const PRIORITY_BYTES: usize = 5;
/// Room for streams that have ended but that their user has not dropped yet, in addition to the streams that may be
/// open. If there are more, new streams are refused.
const LINGERING: usize = 256;

/// A field section whose frames have not all arrived.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) id: u32,
    end: bool,
    depends_on_itself: bool,
    bytes: Vec<u8>,
    frames: u32,
}

/// A complete field section, decoded.
struct Decoded {
    fields: Head,
    /// Whether all fields were decoded, or the section is too large.
    outcome: Outcome,
    /// Facts about the section, or the rule of RFC 9113 section 8 that it breaks.
    checked: Result<Facts, &'static str>,
}

impl Inner {
    pub(super) fn on_headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ConnError> {
        if head.id == 0 {
            return Err(ConnError::broke(Code::PROTOCOL_ERROR, "HEADERS without a stream"));
        }
        let mut fragment = unpadded(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            depends_on_itself = number31(fragment, 0) == Some(head.id);
            fragment = fragment
                .get(PRIORITY_BYTES..)
                .ok_or(ConnError::broke(Code::FRAME_SIZE_ERROR, "HEADERS without its priority"))?;
        }
        let end = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.on_section(head.id, end, depends_on_itself, fragment);
        }
        let bytes = fragment.to_vec();
        self.reading.section =
            Some(Section { id: head.id, end, depends_on_itself, bytes, frames: 0 });
        Ok(())
    }

    pub(super) fn on_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<(), ConnError> {
        let Some(mut section) = self.reading.section.take() else { return Ok(()) };
        section.frames += 1;
        section.bytes.extend_from_slice(payload);
        // The decoded size counts 32 extra bytes for each field, so an honest section is shorter when it is encoded.
        // Twice the limit leaves room for poor encodings. Only a peer that inflates sections on purpose exceeds it.
        let most = self.limits.header_list_bytes as usize * 2;
        if section.frames > self.limits.continuations || section.bytes.len() > most {
            let what = "a header section has too many CONTINUATION frames or bytes";
            return Err(ConnError::abused(Abuse::ContinuationFlood, what));
        }
        if !head.has(flag::END_HEADERS) {
            self.reading.section = Some(section);
            return Ok(());
        }
        self.on_section(section.id, section.end, section.depends_on_itself, &section.bytes)
    }

    /// Handles a complete field section. It is decoded even if it is ignored afterwards, since
    /// decoding updates the connection's HPACK table.
    fn on_section(
        &mut self,
        id: u32,
        end: bool,
        depends_on_itself: bool,
        section: &[u8],
    ) -> Result<(), ConnError> {
        let key = self.streams.key(id);
        let kind = match key.and_then(|key| self.streams.get(key)) {
            None => Kind::Request,
            Some(slot) if slot.recv == Progress::Head => Kind::Response,
            Some(_) => Kind::Trailers,
        };
        let decoded = self.decode(section, kind)?;
        let key = match key {
            Some(key) => key,
            None if !self.may_open(id)? => return Ok(()),
            None => return self.on_request(id, end, depends_on_itself, decoded),
        };
        let Some(slot) = self.streams.get(key) else { return Ok(()) };
        if let Some(reset) = slot.reset {
            return self.after_reset(id, reset);
        }
        if slot.is_over() && !self.client {
            return Err(ConnError::broke(Code::STREAM_CLOSED, "HEADERS for a closed stream"));
        }
        if slot.recv == Progress::Ended {
            return self.stream_error(id, Code::STREAM_CLOSED, None);
        }
        if depends_on_itself {
            return self.stream_error(id, Code::PROTOCOL_ERROR, None);
        }
        if decoded.outcome == Outcome::TooLarge {
            return self.stream_error(id, Code::ENHANCE_YOUR_CALM, Some(Abuse::HeaderList));
        }
        match kind {
            Kind::Response => self.on_response(key, end, decoded),
            _ => self.on_trailers(key, end, decoded),
        }
    }

    /// Decodes a section and checks it as `kind`.
    fn decode(&mut self, section: &[u8], kind: Kind) -> Result<Decoded, ConnError> {
        let mut fields = Head::new();
        let before = self.decoder.version();
        let limits = leno_hpack::Limits {
            list_bytes: self.limits.header_list_bytes as usize,
            fields: self.limits.header_fields,
        };
        let split = Split::of(section, kind);
        if let Some((facts, inserts)) =
            self.repeats.find(split.section, (before, kind), &mut fields)
            && self.complete(&mut fields, (inserts, split.trace), limits)
        {
            return Ok(Decoded { fields, outcome: Outcome::Complete, checked: Ok(facts) });
        }
        let outcome = self.decoder.decode(section, &mut fields, limits).map_err(|_| {
            ConnError::abused(Abuse::Hpack, "a header section cannot be decoded (HPACK)")
        })?;
        let decoded = fields.len();
        if kind == Kind::Trailers {
            // Proxies of the mesh send no trailers of their own, so reserved fields in trailers come from an
            // application.
            remove_reserved(&mut fields, is_reserved);
        }
        let checked = match kind {
            Kind::Request => head::check_request(&fields, self.limits.connect_protocol),
            Kind::Response => head::check_response(&fields),
            Kind::Trailers => head::check_trailers(&fields),
        };
        match &checked {
            Ok(_) if kind == Kind::Trailers => {
                fields.retain(|field| may_be_trailer(field.name()));
            }
            Ok(facts) => head::remove_lengths(&mut fields, facts),
            Err(_) => {}
        }
        let table = match self.decoder.inserts().filter(|_| fields.len() == decoded) {
            Some(inserts) => Some(Table::Inserts(inserts)),
            None => (before == self.decoder.version()).then_some(Table::Version(before)),
        };
        if let (Outcome::Complete, Ok(facts), Some(table)) = (outcome, checked, table) {
            // The `traceparent` at the end is cached apart only if it surely is the section's last field. If a
            // repeated `content-length` was removed from `fields`, the removed one may have been the last.
            let is_apart = |trace: &[u8]| {
                !facts.length_repeated
                    && self.decoder.last_field() == trace.len()
                    && head::ends_with_trace(&fields)
            };
            match split.trace.is_some_and(is_apart) {
                true => self.repeats.note(split.section, (table, kind), (&fields, facts), 1),
                false => self.repeats.note(section, (table, kind), (&fields, facts), 0),
            }
        }
        Ok(Decoded { fields, outcome, checked })
    }

    /// Does those parts of decoding that a cached section needs each time: makes the insertions into the decoder's
    /// table that the section made when it was decoded, and adds the `traceparent` that follows it. Returns false if
    /// the section must be decoded instead.
    fn complete(
        &mut self,
        fields: &mut Head,
        (inserts, trace): (Inserts, Option<&[u8]>),
        limits: leno_hpack::Limits,
    ) -> bool {
        match trace {
            None => self.decoder.insert_again(fields, inserts),
            // The section is decoded as a whole instead. If `append` failed after the insertions, that decoding would
            // begin with a table that already contains them.
            Some(_) if !inserts.is_empty() => false,
            Some(trace) => {
                self.decoder.insert_again(fields, inserts)
                    && self.decoder.append(trace, fields, limits)
                    && head::ends_with_trace(fields)
            }
        }
    }

    fn on_request(
        &mut self,
        id: u32,
        end: bool,
        depends_on_itself: bool,
        Decoded { fields, outcome, checked }: Decoded,
    ) -> Result<(), ConnError> {
        // Makes room for the bits of the identifiers that were skipped, and sets the bit of this one.
        self.opened_ids = match (id - self.last_peer_id).div_ceil(2) {
            shift @ 0..64 => self.opened_ids << shift | 1,
            _ => 1,
        };
        self.last_peer_id = id;
        if self.phase >= Phase::Draining {
            // Our last GOAWAY excluded the stream, or the client itself has sent GOAWAY.
            return self.stream_error(id, Code::REFUSED_STREAM, None);
        }
        let most = self.limits.concurrent_streams;
        if self.open >= most || self.streams.len() > most as usize + LINGERING {
            return self.stream_error(id, Code::REFUSED_STREAM, Some(Abuse::ConcurrentStreams));
        }
        if !budget::admits() {
            return self.refuse_for_memory(id);
        }
        if depends_on_itself {
            return self.stream_error(id, Code::PROTOCOL_ERROR, None);
        }
        if outcome == Outcome::TooLarge {
            return self.refuse_large(id, end);
        }
        let Ok(facts) = checked else {
            return self.stream_error(id, Code::PROTOCOL_ERROR, Some(Abuse::Malformed));
        };
        if end && facts.content_length.is_some_and(|length| length > 0) {
            return self.stream_error(id, Code::PROTOCOL_ERROR, Some(Abuse::Malformed));
        }
        self.empty_frames.give(EMPTY_PER_USEFUL);
        let key = self.add_stream(id);
        if let Some(slot) = self.streams.get_mut(key) {
            slot.recv = if end { Progress::Ended } else { Progress::Body };
            slot.body_left = facts.content_length;
            slot.is_head = facts.is_head;
            slot.heads.push_back(fields);
        }
        self.accepted.push_back(key);
        self.wake_accept();
        Ok(())
    }

    /// Adds a stream with the current initial windows.
    pub(crate) fn add_stream(&mut self, id: u32) -> Key {
        self.open += 1;
        live::change(self.client, |open| open.streams += 1);
        let recv_window = i64::from(self.limits.stream_window());
        let send_window = i64::from(self.peer.window);
        let (key, slot) = self.streams.insert(id);
        slot.recv_window = recv_window;
        slot.send_window = send_window;
        key
    }

    /// Answers with status 431 (RFC 6585 section 5), which tells the client more than a reset.
    fn refuse_large(&mut self, id: u32, end: bool) -> Result<(), ConnError> {
        count(Abuse::HeaderList);
        let key = self.add_stream(id);
        if let Some(slot) = self.streams.get_mut(key) {
            slot.recv = if end { Progress::Ended } else { Progress::Body };
        }
        let answer: Head = [(":status", "431")].into_iter().collect();
        self.send_section(key, &answer, true);
        // If the client is still sending the request, this cancels the rest, by RST_STREAM with NO_ERROR after the
        // answer.
        self.drop_handle(key);
        Ok(())
    }

    fn on_response(&mut self, key: Key, end: bool, decoded: Decoded) -> Result<(), ConnError> {
        let most = self.limits.interim_heads;
        let Decoded { mut fields, checked, .. } = decoded;
        let Some(slot) = self.streams.get_mut(key) else { return Ok(()) };
        let of_mesh = slot.is_connect && fields.iter().any(|field| is_mesh_field(field.name()));
        let malformed = match checked {
            Err(_) => true,
            Ok(Facts { status: 100..200, .. }) if end => true,
            // A server may send its interim responses in one burst with the final response, before the reader runs.
            // Unlike a body, they cannot be held back by a window. Only the final response must arrive, so surplus
            // interim responses are dropped.
            Ok(Facts { status: 100..200, .. }) if slot.heads.len() >= most => {
                count(Abuse::InterimHeads);
                return Ok(());
            }
            Ok(Facts { status: 100..200, .. }) => false,
            // A success turns the stream into a tunnel, whose bytes have no length, so a client ignores
            // `content-length` (RFC 9110 section 9.3.6). This is different if a proxy of the mesh has translated an
            // HTTP/1 response, which it marks by a field of its own (`leno-h1`): it removes the length if the tunnel
            // is granted. A length that it sends is that of a body, and is checked below as usual.
            Ok(Facts { status: 200..300, .. }) if slot.is_connect && !of_mesh => {
                fields.retain(|field| field.token() != Token::CONTENT_LENGTH);
                slot.recv = if end { Progress::Ended } else { Progress::Body };
                false
            }
            Ok(facts) => {
                let no_body = slot.is_head || facts.status == 204 || facts.status == 304;
                slot.body_left = if no_body { Some(0) } else { facts.content_length };
                slot.recv = if end { Progress::Ended } else { Progress::Body };
                end && slot.body_left.is_some_and(|left| left > 0)
            }
        };
        if malformed {
            return self.stream_error(key.id, Code::PROTOCOL_ERROR, Some(Abuse::Malformed));
        }
        slot.heads.push_back(fields);
        slot.wake_recv();
        self.notified = true;
        if end {
            self.settle(key);
        }
        Ok(())
    }

    fn on_trailers(&mut self, key: Key, end: bool, decoded: Decoded) -> Result<(), ConnError> {
        let Decoded { fields, checked, .. } = decoded;
        let Some(slot) = self.streams.get_mut(key) else { return Ok(()) };
        let short = slot.body_left.is_some_and(|left| left > 0);
        if !end || short || checked.is_err() {
            return self.stream_error(key.id, Code::PROTOCOL_ERROR, Some(Abuse::Malformed));
        }
        if let (true, Some(far)) = (slot.recv_far, &slot.far) {
            slot.recv = Progress::Ended;
            slot.trailers = slot.keep_trailers.then(|| fields.clone());
            far.conn.borrow_mut().far_trailers(far.key, fields);
            self.settle(key);
        } else {
            slot.trailers = Some(fields);
            self.end_recv(key);
        }
        Ok(())
    }
}
