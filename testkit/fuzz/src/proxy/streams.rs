//! An application that speaks HTTP/2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::application::{Received, RunState, fields};
use super::case::{Answer, Ending, Method};
use super::end::ScriptedEnd;
use super::frames::{END_STREAM, Message, Peer, frame, headers, kind};
use super::letters::{filled, mutate, runs};

/// Error codes (RFC 9113 section 7).
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// The streams of one connection.
pub(crate) struct Streams {
    peer: Peer,
    /// The streams whose requests were counted.
    known: BTreeSet<u32>,
    /// The streams whose complete requests were checked.
    checked: BTreeSet<u32>,
    waiting: Vec<PendingResponse>,
    sending: BTreeMap<u32, Sending>,
}

/// A response that is not due yet.
struct PendingResponse {
    stream: u32,
    letter: u8,
    method: Method,
    answer: Answer,
    due: Option<Instant>,
}

/// Content that is being sent.
struct Sending {
    letter: u8,
    left: usize,
    answer: Answer,
}

impl Streams {
    pub(crate) fn new(read: usize) -> Self {
        Self {
            peer: Peer::new(read),
            known: BTreeSet::new(),
            checked: BTreeSet::new(),
            waiting: Vec::new(),
            sending: BTreeMap::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sending.is_empty()
    }

    /// The requests that were received completely.
    pub(crate) fn received(&self) -> Vec<Received> {
        let complete = self.peer.streams.values().filter(|message| message.is_complete);
        let request = |message: &Message| {
            let mut received = Received { body: message.body.clone(), ..Received::default() };
            for (name, value) in message.heads.first().into_iter().flatten() {
                let text = || String::from_utf8_lossy(value).into_owned();
                match &name[..] {
                    b":method" => received.method = text(),
                    b":path" => received.target = text(),
                    b":authority" => received.fields.push(("host".to_owned(), value.clone())),
                    _ => received
                        .fields
                        .push((String::from_utf8_lossy(name).into_owned(), value.clone())),
                }
            }
            received
        };
        complete.map(request).collect()
    }

    /// Reads requests and sends responses. Returns whether anything was sent, and whether to close
    /// the connection.
    pub(crate) fn pump(
        &mut self,
        end: &mut ScriptedEnd,
        service: usize,
        shared: &RunState,
    ) -> (bool, bool) {
        if let Err(error) = self.peer.read(&end.inbox) {
            // The planes relay a client that stops within the preface as plain bytes, so any bytes may arrive
            // here.
            if shared.is_http {
                shared.violation(format!("to an HTTP/2 application: {error}"));
            }
            return (false, true);
        }
        let mut out = std::mem::take(&mut self.peer.replies);
        self.note(service, shared);
        let mut closes = self.answer(&mut out);
        closes |= self.continue_sending(&mut out);
        end.send(&out);
        (!out.is_empty(), closes)
    }

    fn note(&mut self, service: usize, shared: &RunState) {
        for (&stream, message) in &self.peer.streams {
            let Some(head) = message.heads.first() else { continue };
            let tag = head.iter().find(|(name, _)| name == b"x-tag");
            let letter = tag.and_then(|(_, value)| value.first().copied()).unwrap_or(b'?');
            if self.known.insert(stream) {
                let (method, answer, _) = shared.saw(service, letter);
                self.waiting.push(PendingResponse { stream, letter, method, answer, due: None });
            }
            if message.is_complete && self.checked.insert(stream) {
                let fields = message.heads.iter().flatten();
                let mut all: Vec<u8> = fields.flat_map(|(_, value)| runs(value)).collect();
                all.extend(runs(&message.body));
                shared.check(letter, &all);
            }
        }
    }

    fn answer(&mut self, out: &mut Vec<u8>) -> bool {
        let mut closes = false;
        for mut waiting in std::mem::take(&mut self.waiting) {
            let message = &self.peer.streams[&waiting.stream];
            if message.is_reset {
                continue;
            }
            let delay = Duration::from_millis(waiting.answer.delay_ms.into());
            let ready = message.is_complete || waiting.answer.early;
            let due = ready
                && Instant::now() >= *waiting.due.get_or_insert_with(|| Instant::now() + delay);
            if due {
                closes |= self.begin(out, waiting);
            } else {
                self.waiting.push(waiting);
            }
        }
        closes
    }

    fn begin(&mut self, out: &mut Vec<u8>, waiting: PendingResponse) -> bool {
        let PendingResponse { stream, letter, method, answer, .. } = waiting;
        let letter = letter.to_ascii_uppercase();
        if let Some((0, ending)) = answer.cut {
            return end(out, stream, ending, true);
        }
        let mut frames = Vec::new();
        let fill = filled(letter, 10);
        for _ in 0..answer.interim {
            frames.extend(headers(stream, &[(":status", b"103"), ("x-fill", &fill)], false));
        }
        let status = match answer.status {
            0 | 101 => "200".to_owned(),
            status => status.to_string(),
        };
        let owned = fields(letter, &answer);
        let mut all: Vec<(&str, &[u8])> = vec![(":status", status.as_bytes())];
        all.extend(owned.iter().map(|(name, value)| (*name, &value[..])));
        let has_content = method != Method::Head && !matches!(answer.status, 204 | 304);
        let left = if has_content { answer.body } else { 0 };
        let ends = left == 0 && !answer.trailers;
        frames.extend(headers(stream, &all, ends));
        mutate(&mut frames, &answer.mutations);
        out.extend(frames);
        if !ends {
            self.sending.insert(stream, Sending { letter, left, answer });
        }
        false
    }

    fn continue_sending(&mut self, out: &mut Vec<u8>) -> bool {
        let mut closes = false;
        let peer = &mut self.peer;
        self.sending.retain(|&stream, sending| {
            if peer.streams.get(&stream).is_some_and(|message| message.is_reset) {
                return false;
            }
            let sent = sending.answer.body.saturating_sub(sending.left);
            if let Some((at, ending)) = sending.answer.cut
                && sent >= usize::from(at).min(sending.answer.body)
            {
                closes |= end(out, stream, ending, false);
                return false;
            }
            loop {
                let count = peer.take(stream, sending.left);
                sending.left -= count;
                if count == 0 && sending.left > 0 {
                    return true;
                }
                let is_last = sending.left == 0;
                let ends = is_last && !sending.answer.trailers;
                let flags = if ends { END_STREAM } else { 0 };
                out.extend(frame(kind::DATA, flags, stream, &filled(sending.letter, count)));
                if is_last {
                    break;
                }
            }
            if sending.answer.trailers {
                let fill = filled(sending.letter, 10);
                out.extend(headers(stream, &[("x-trailer", &fill)], true));
            }
            false
        });
        closes
    }
}

/// Cuts off a stream; returns whether to close the connection.
fn end(out: &mut Vec<u8>, stream: u32, ending: Ending, is_unseen: bool) -> bool {
    match ending {
        Ending::Stall => false,
        Ending::Close => true,
        Ending::Refuse => {
            let code = if is_unseen { REFUSED_STREAM } else { INTERNAL_ERROR };
            out.extend(frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes()));
            false
        }
        Ending::GoAway => {
            out.extend(frame(kind::GOAWAY, 0, 0, &[0; 8]));
            false
        }
    }
}
