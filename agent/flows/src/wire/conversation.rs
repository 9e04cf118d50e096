//! Follows the messages of both sides of one connection through samples, and matches responses to requests. A turn of a
//! side is everything that it sends until the other side sends something.
//!
//! ```text
//!  a side's position:  unknown ── a turn begins ──► at a message ── its length is known ──► at the next message
//!                      ▲                             │ its length is not known, or bytes had no sample
//!                      └─────────────────────────────┘
//! ```

use std::collections::VecDeque;

use leno_bpf_abi::flow::{FlowRole, FlowSample};

use super::protocol::http2::TableSlots;
use super::protocol::{MessageMeaning, Parsed, Parser, Protocol, Side};

/// Most requests of a connection that wait for their responses. For a further one, the oldest is evicted.
const MAX_PENDING: usize = 256;
/// Most bytes of an incomplete message that are stored.
const MAX_HELD: usize = 1024;
/// How many turns of the client are examined to detect the protocol. After that the connection is ignored.
const MAX_TRIES: u8 = 4;
/// The port of DNS, and the IP protocol (UDP) in which its messages have no length prefix.
const DNS_PORT: u16 = 53;
pub(super) const UDP: u8 = 17;
/// The results of a request whose response was not seen: a sample was lost or too short, or no response came in
/// time.
pub(super) const UNSEEN: &str = "unseen";
pub(super) const UNANSWERED: &str = "unanswered";

/// A request and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) protocol: Protocol,
    pub(super) kind: &'static str,
    pub(super) result: &'static str,
    /// The time from the first byte of the request to the first byte of the response, if that was seen.
    pub(super) took_ns: Option<u64>,
}

/// The state of a connection; see the module.
#[derive(Debug)]
pub(super) struct Conversation {
    /// When its flow began. Another connection may have the same key later.
    pub(super) opened_ns: u64,
    pub(super) last_ns: u64,
    is_datagrams: bool,
    reads: ParserState,
    client: Stream,
    server: Stream,
    pending: VecDeque<Pending>,
    /// How many requests and incomplete messages were evicted because of a bound since the last
    /// [`Conversation::take_given_up`].
    given_up: u64,
    /// How many results of evicted requests are still to come, if results are only matched to requests by their
    /// order. Also when the latest of these requests was sent.
    dropped: u64,
    dropped_ns: u64,
    /// Whether some bytes had no sample, so that responses may be matched to the wrong requests.
    is_unsure: bool,
}

#[derive(Debug)]
enum ParserState {
    /// The protocol is not known yet. The number is how many more turns of the client are examined.
    Anything(u8),
    One(Parser),
    Nothing,
}

/// The state of one direction.
#[derive(Debug, Default)]
struct Stream {
    /// The sequence number after the last byte that was seen.
    end: Option<u32>,
    /// The sequence number of the next message.
    next: Option<u32>,
    /// The beginning of an incomplete message, and when it arrived.
    held: Vec<u8>,
    held_ns: u64,
}

/// Bytes to parse, which begin at a message.
struct MessageBytes<'a> {
    side: Side,
    bytes: &'a [u8],
    /// The sequence numbers of the first byte, and after the end of the frame.
    begin: u32,
    end: u32,
    /// When the first message began, and when the frame was captured.
    times: [u64; 2],
}

#[derive(Debug)]
struct Pending {
    kind: &'static str,
    id: u32,
    at_ns: u64,
    /// When its response began, and its result if no more of the response is seen.
    answer: Option<(u64, &'static str)>,
}

impl Conversation {
    pub(super) fn new(sample: &FlowSample) -> Self {
        let is_client = sample.role == FlowRole::Client as u8;
        let port = if is_client { sample.remote_port } else { sample.local_port };
        let reads = match port {
            DNS_PORT => ParserState::One(Parser::dns(sample.protocol != UDP)),
            _ => ParserState::Anything(MAX_TRIES),
        };
        Self {
            opened_ns: sample.opened_ns,
            last_ns: sample.at_ns,
            is_datagrams: sample.protocol == UDP,
            reads,
            client: Stream::default(),
            server: Stream::default(),
            pending: VecDeque::new(),
            given_up: 0,
            dropped: 0,
            dropped_ns: 0,
            is_unsure: false,
        }
    }

    /// Records that samples were lost, possibly of this connection. The next samples will show whether bytes are
    /// missing.
    pub(super) fn doubt(&mut self) {
        self.is_unsure = true;
    }

    /// Handles a TCP sample. Calls `each` with completed exchanges.
    pub(super) fn take(
        &mut self,
        sample: &FlowSample,
        places: &TableSlots,
        each: &mut impl FnMut(Exchange),
    ) {
        self.last_ns = sample.at_ns;
        let side = side_of(sample);
        let bytes = sample.bytes.get(..usize::from(sample.length)).unwrap_or_default();
        let end = sample.sequence.wrapping_add(sample.payload);
        let stream = if side == Side::Client { &mut self.client } else { &mut self.server };
        if stream.end.is_some_and(|seen| !is_after(end, seen)) {
            // The sample was retransmitted.
            return;
        }
        stream.end = Some(end);
        self.find_protocol(side, bytes, sample.turns != 0, places);
        if !matches!(self.reads, ParserState::One(_)) {
            return;
        }
        if side == Side::Client && sample.turns != 0 && self.is_unsure {
            self.is_unsure = false;
            // In protocols with IDs, responses are matched by these, not by their order.
            if matches!(&self.reads, ParserState::One(parser) if !parser.has_ids()) {
                self.give_up(UNSEEN, each);
            }
        }
        let Some(at) = self.begin_of(side, sample) else { return };
        let bytes = bytes.get(at..).unwrap_or_default();
        let held = std::mem::take(&mut self.stream(side).held);
        // The sequence number of the first byte that is parsed.
        let begin = sample.sequence.wrapping_add(at as u32).wrapping_sub(held.len() as u32);
        let times = [self.stream(side).held_ns, sample.at_ns];
        if held.is_empty() {
            let times = [sample.at_ns; 2];
            return self.read_all(&MessageBytes { side, bytes, begin, end, times }, each);
        }
        let bytes = &*[&*held, bytes].concat();
        self.read_all(&MessageBytes { side, bytes, begin, end, times }, each);
    }

    /// Handles a datagram, which is one complete message.
    pub(super) fn take_datagram(&mut self, sample: &FlowSample, each: &mut impl FnMut(Exchange)) {
        self.last_ns = sample.at_ns;
        let side = side_of(sample);
        let bytes = sample.bytes.get(..usize::from(sample.length)).unwrap_or_default();
        if let ParserState::One(parser) = &mut self.reads
            && let Parsed::Message(message) = parser.read(side, bytes)
        {
            self.hear(message.says, sample.at_ns, each);
        }
    }

    /// Ends requests that have waited since before this time.
    pub(super) fn expire(&mut self, before_ns: u64, each: &mut impl FnMut(Exchange)) {
        if self.dropped_ns < before_ns {
            self.dropped = 0;
        }
        while self.pending.front().is_some_and(|oldest| oldest.at_ns < before_ns) {
            self.end_oldest(UNANSWERED, each);
        }
    }

    /// Ends the connection.
    pub(super) fn end(&mut self, each: &mut impl FnMut(Exchange)) {
        self.give_up(UNANSWERED, each);
    }

    /// Stops following a connection that is still open.
    pub(super) fn abandon(&mut self, each: &mut impl FnMut(Exchange)) {
        self.give_up(UNSEEN, each);
    }

    /// Whether no state has to be kept for later samples. Datagrams need none.
    pub(super) fn is_over(&self) -> bool {
        self.is_datagrams && self.pending.is_empty()
    }

    /// The memory of waiting requests and of incomplete messages.
    pub(super) fn waiting(&self) -> usize {
        self.pending.capacity() * size_of::<Pending>()
            + self.client.held.capacity()
            + self.server.held.capacity()
    }

    /// Evicts incomplete messages, and all but the latest `most` waiting requests.
    pub(super) fn relieve(&mut self, most: usize, each: &mut impl FnMut(Exchange)) {
        for side in [Side::Client, Side::Server] {
            if !std::mem::take(&mut self.stream(side).held).is_empty() {
                self.given_up += 1;
                self.lose(side);
            }
        }
        while self.pending.len() > most {
            self.drop_oldest(each);
        }
        self.pending.shrink_to(most);
    }

    /// How many requests were evicted because of a bound since the last call.
    pub(super) fn take_given_up(&mut self) -> u64 {
        std::mem::take(&mut self.given_up)
    }

    fn find_protocol(&mut self, side: Side, bytes: &[u8], turns: bool, places: &TableSlots) {
        let ParserState::Anything(tries) = &mut self.reads else { return };
        if !turns {
            return;
        }
        if let Some(parser) = Parser::detect(side, bytes, places) {
            self.reads = ParserState::One(parser);
        } else if side == Side::Client {
            match tries.checked_sub(1) {
                Some(left) => *tries = left,
                None => self.reads = ParserState::Nothing,
            }
        }
    }

    fn stream(&mut self, side: Side) -> &mut Stream {
        if side == Side::Client { &mut self.client } else { &mut self.server }
    }

    /// The position in a sample at which the next message begins; `None` if none begins in it.
    fn begin_of(&mut self, side: Side, sample: &FlowSample) -> Option<usize> {
        let stream = self.stream(side);
        let from_turn = (sample.turns != 0).then_some(0);
        let Some(next) = stream.next else { return from_turn };
        let distance = next.wrapping_sub(sample.sequence);
        if distance < u32::from(sample.length) {
            return Some(distance as usize);
        }
        let begins_before = !is_after(sample.sequence, next);
        if begins_before && distance >= sample.payload {
            // All bytes belong to the message before.
            return None;
        }
        // Some bytes had no sample.
        stream.held.clear();
        self.lose(side);
        if begins_before { None } else { from_turn }
    }

    /// Records that the position of the next message of this side is not known.
    fn lose(&mut self, side: Side) {
        self.stream(side).next = None;
        self.is_unsure = true;
        if let ParserState::One(parser) = &mut self.reads {
            parser.lose(side);
        }
    }

    fn read_all(&mut self, part: &MessageBytes<'_>, each: &mut impl FnMut(Exchange)) {
        let MessageBytes { side, bytes, begin, end, times: [first_ns, now_ns] } = *part;
        let mut at = 0;
        // Whether the sample has all bytes of the frame up to its end.
        let is_whole = begin.wrapping_add(bytes.len() as u32) == end;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let ParserState::One(parser) = &mut self.reads else { return };
            let at_ns = if at == 0 { first_ns } else { now_ns };
            match parser.read(side, rest) {
                Parsed::Message(message) => {
                    self.is_unsure |= message.length.is_none() && !parser.alternates();
                    self.hear(message.says, at_ns, each);
                    match message.length {
                        // A message has at least one byte.
                        Some(length) => at = at.saturating_add(length.max(1) as usize),
                        None => return self.stream(side).next = None,
                    }
                }
                Parsed::Incomplete if is_whole && rest.len() <= MAX_HELD => {
                    let stream = self.stream(side);
                    (stream.held, stream.held_ns, stream.next) = (rest.to_vec(), at_ns, Some(end));
                    return;
                }
                Parsed::Incomplete | Parsed::Foreign => return self.lose(side),
            }
        }
        self.stream(side).next = Some(begin.wrapping_add(u32::try_from(at).unwrap_or(u32::MAX)));
    }

    fn hear(&mut self, says: MessageMeaning, now_ns: u64, each: &mut impl FnMut(Exchange)) {
        let ParserState::One(parser) = &self.reads else { return };
        match says {
            MessageMeaning::Nothing => {}
            MessageMeaning::Request { kind, id } => {
                if parser.alternates() {
                    self.give_up(UNSEEN, each);
                } else if self.pending.len() >= MAX_PENDING {
                    self.drop_oldest(each);
                }
                self.pending.push_back(Pending { kind, id, at_ns: now_ns, answer: None });
            }
            MessageMeaning::Answer { result, id } => {
                if let Some(of) = self.answered(id)
                    && let Some(one) = self.pending.get_mut(of)
                {
                    one.answer = Some((one.answer.map_or(now_ns, |(first, _)| first), result));
                }
            }
            // This result belongs to a request that was evicted.
            MessageMeaning::Result { .. } if self.dropped > 0 => self.dropped -= 1,
            MessageMeaning::Result { result, id } => {
                if let Some(one) = self.answered(id).and_then(|of| self.pending.remove(of)) {
                    let first_ns = one.answer.map_or(now_ns, |(first, _)| first);
                    self.report(&one, result, Some(first_ns), each);
                }
            }
            MessageMeaning::Leaves(result) => {
                self.give_up(result, each);
                self.reads = ParserState::Nothing;
            }
        }
    }

    /// The request that a response belongs to.
    fn answered(&self, id: u32) -> Option<usize> {
        let ParserState::One(parser) = &self.reads else { return None };
        if parser.has_ids() {
            return self.pending.iter().position(|one| one.id == id);
        }
        (self.dropped == 0 && !self.pending.is_empty()).then_some(0)
    }

    fn give_up(&mut self, result: &'static str, each: &mut impl FnMut(Exchange)) {
        self.dropped = 0;
        while !self.pending.is_empty() {
            self.end_oldest(result, each);
        }
    }

    /// Evicts the oldest request because of a bound. Its response is still to come.
    fn drop_oldest(&mut self, each: &mut impl FnMut(Exchange)) {
        self.given_up += 1;
        if let ParserState::One(parser) = &self.reads
            && !parser.has_ids()
            && let Some(one) = self.pending.front()
        {
            self.dropped += 1;
            self.dropped_ns = one.at_ns;
        }
        self.end_oldest(UNSEEN, each);
    }

    /// Ends the oldest request, with the result that its response has shown, or else with `result`.
    fn end_oldest(&mut self, result: &'static str, each: &mut impl FnMut(Exchange)) {
        let Some(one) = self.pending.pop_front() else { return };
        let (first_ns, result) =
            one.answer.map_or((None, result), |(first, shown)| (Some(first), shown));
        self.report(&one, result, first_ns, each);
    }

    fn report(
        &self,
        one: &Pending,
        result: &'static str,
        first_ns: Option<u64>,
        each: &mut impl FnMut(Exchange),
    ) {
        let ParserState::One(parser) = &self.reads else { return };
        let took_ns = first_ns.map(|first| first.saturating_sub(one.at_ns));
        each(Exchange { protocol: parser.protocol(), kind: one.kind, result, took_ns });
    }
}

fn side_of(sample: &FlowSample) -> Side {
    let by_client = (sample.sent != 0) == (sample.role == FlowRole::Client as u8);
    if by_client { Side::Client } else { Side::Server }
}

/// Whether a sequence number comes after another one (RFC 9293 section 3.4).
fn is_after(one: u32, other: u32) -> bool {
    one != other && one.wrapping_sub(other) < 1 << 31
}

#[cfg(test)]
mod tests;
