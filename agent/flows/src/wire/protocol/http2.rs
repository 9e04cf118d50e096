//! Parses HTTP/2 (RFC 9113) and gRPC over it: the method of a request, its status, and gRPC's status.
//!
//! ```text
//!   client   preface │ frames: HEADERS ─► a request      HEADERS and END_STREAM ─► trailers
//!   server             frames: HEADERS ─► its response   HEADERS and END_STREAM ─► trailers, grpc-status
//! ```
//! Fields are compressed with a dynamic table, which each section of fields may change (RFC 7541). So on a
//! connection that was open before it was followed, and after a section without a sample, only entries of the
//! static table can be decoded, which are the usual methods and statuses. The status of a gRPC call cannot be
//! decoded then.

use std::rc::Rc;

use leno_hpack::{Block, Decoder, Limits};

use super::{MessageMeaning, Parsed, Side, class_of, known};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME: usize = 9;
/// The size of a dynamic table without a setting, and the largest size that is supported. A section that announces
/// a larger table cannot be decoded.
const TABLE: usize = 4096;
/// Most connections whose dynamic tables are followed, at about 30 KiB each. For further ones only the static table is
/// used.
const MAX_FOLLOWED: usize = 1024;
/// The limits of a section of fields in a sample.
const LIMITS: Limits = Limits { list_bytes: 16 << 10, fields: 128 };
/// The default limit for a frame that is not DATA (RFC 9113 section 4.2).
const MAX_FRAME: u32 = 16_384;
const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// The statuses of gRPC.
const GRPC: [&str; 17] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 0x20;

#[derive(Debug)]
pub(in crate::wire) struct Http2 {
    /// The decoders of both sides; `None` once a section had no sample or could not be decoded.
    client: Option<Decoder>,
    server: Option<Decoder>,
    block: Block,
    /// The slot of this connection, which it has while it has a decoder.
    place: Option<TableSlots>,
    /// Whether the last request was a gRPC call.
    is_grpc: bool,
    /// The number of the highest stream that the client has opened. A later section on an earlier stream contains
    /// trailers.
    last_stream: u32,
}

/// Counts the connections whose dynamic tables are followed. Each of these has a clone of this.
#[derive(Clone, Debug, Default)]
pub(in crate::wire) struct TableSlots(Rc<()>);

impl TableSlots {
    fn take(&self) -> Option<Self> {
        (Rc::strong_count(&self.0) <= MAX_FOLLOWED).then(|| self.clone())
    }
}

/// Whether these are the first bytes of a client on a connection of HTTP/2.
pub(in crate::wire) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(PREFACE)
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    /// The frame with this head; `None` if the head is invalid.
    fn new(head: [u8; FRAME]) -> Option<Self> {
        let [a, b, c, kind, flags, d, e, f, g] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let frame = Self { length, kind, flags, stream: u32::from_be_bytes([d, e, f, g]) };
        let of_stream = frame.stream != 0;
        let is_one = match kind {
            DATA => of_stream,
            HEADERS | CONTINUATION | PUSH_PROMISE => of_stream && length <= MAX_FRAME,
            PRIORITY => of_stream && length == 5,
            RST_STREAM => of_stream && length == 4,
            SETTINGS => !of_stream && length.is_multiple_of(6) && length <= MAX_FRAME,
            PING => !of_stream && length == 8,
            GOAWAY => !of_stream && (8..=MAX_FRAME).contains(&length),
            WINDOW_UPDATE => length == 4,
            // Extension frames have numbers from here on (RFC 9218, RFC 7838).
            _ => kind < 0x20 && length <= MAX_FRAME,
        };
        (is_one && frame.stream <= i32::MAX as u32).then_some(frame)
    }
}

impl Http2 {
    pub(in crate::wire) fn new(places: &TableSlots) -> Self {
        let place = places.take();
        let decoder = || place.is_some().then(|| Decoder::new(TABLE));
        Self {
            client: decoder(),
            server: decoder(),
            block: Block::new(),
            place,
            is_grpc: false,
            last_stream: 0,
        }
    }

    pub(in crate::wire) fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// Records that some bytes of a side had no sample. Its dynamic table is not known from then on.
    pub(in crate::wire) fn lose(&mut self, side: Side) {
        *self.decoder(side) = None;
        if self.client.is_none() && self.server.is_none() {
            (self.block, self.place) = (Block::new(), None);
        }
    }

    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        if side == Side::Client && bytes.starts_with(b"PRI") {
            return match bytes.get(..PREFACE.len()) {
                None => Parsed::Incomplete,
                Some(PREFACE) => Parsed::message(PREFACE.len() as u32, MessageMeaning::Nothing),
                Some(_) => Parsed::Foreign,
            };
        }
        let Some((head, rest)) = bytes.split_first_chunk() else { return Parsed::Incomplete };
        let Some(frame) = Frame::new(*head) else { return Parsed::Foreign };
        let body = rest.get(..frame.length as usize);
        let says = match frame.kind {
            HEADERS => match body {
                // The rest may come with the next frame.
                None if rest.len() < 256 => return Parsed::Incomplete,
                body => self.section(side, frame, body, rest),
            },
            CONTINUATION | PUSH_PROMISE => {
                self.lose(side);
                MessageMeaning::Nothing
            }
            RST_STREAM => MessageMeaning::Result { result: "reset", id: frame.stream },
            _ => MessageMeaning::Nothing,
        };
        Parsed::message(frame.length.saturating_add(FRAME as u32), says)
    }

    fn decoder(&mut self, side: Side) -> &mut Option<Decoder> {
        if side == Side::Client { &mut self.client } else { &mut self.server }
    }

    /// The meaning of a section of fields. `body` is `None` if the sample does not contain the whole section.
    fn section(
        &mut self,
        side: Side,
        frame: Frame,
        body: Option<&[u8]>,
        part: &[u8],
    ) -> MessageMeaning {
        let section = fields(body.unwrap_or(part), frame.flags, body.is_some());
        let is_whole = body.is_some() && frame.flags & END_HEADERS != 0;
        let decoded = match (section, self.decoder(side).take()) {
            (Some(section), Some(mut decoder)) if is_whole => {
                let is_decoded = decoder.decode(section, &mut self.block, LIMITS).is_ok();
                *self.decoder(side) = is_decoded.then_some(decoder);
                is_decoded
            }
            // Later sections may refer to entries that this one has added to the table.
            _ => false,
        };
        if !decoded {
            self.block.clear();
            self.lose(side);
        }
        let first = section.and_then(|section| section.first()).copied().unwrap_or_default();
        match side {
            Side::Client => self.request(frame.stream, first),
            Side::Server => self.response(frame.stream, first, decoded),
        }
    }

    fn request(&mut self, stream: u32, first: u8) -> MessageMeaning {
        let is_new = stream % 2 == 1 && stream > self.last_stream;
        if !is_new {
            return MessageMeaning::Nothing;
        }
        self.last_stream = stream;
        let kind = match (self.block.get(b":method"), first) {
            (Some(method), _) => known(METHODS, method),
            (None, 0x82) => "GET",
            (None, 0x83) => "POST",
            (None, _) => "other",
        };
        if let Some(content) = self.block.get(b"content-type") {
            self.is_grpc = content.starts_with(b"application/grpc");
        }
        MessageMeaning::Request { kind, id: stream }
    }

    fn response(&self, stream: u32, first: u8, decoded: bool) -> MessageMeaning {
        if let Some(status) = number(self.block.get(b"grpc-status")) {
            let result = GRPC.get(usize::from(status)).copied().unwrap_or("other");
            return MessageMeaning::Result { result, id: stream };
        }
        let status = number(self.block.get(b":status")).or_else(|| static_status(first));
        match status {
            Some(100..200) => MessageMeaning::Nothing,
            // The status of a gRPC call is in its trailers.
            Some(200) if self.is_grpc => MessageMeaning::Answer { result: "unseen", id: stream },
            Some(status) => MessageMeaning::Result { result: class_of(status), id: stream },
            // These are trailers, or a section that cannot be decoded.
            None if decoded && !self.is_grpc => MessageMeaning::Nothing,
            None => MessageMeaning::Result { result: "unseen", id: stream },
        }
    }
}

fn number(value: Option<&[u8]>) -> Option<u16> {
    std::str::from_utf8(value?).ok()?.parse().ok()
}

/// The status that a first byte stands for if the dynamic table is not known (RFC 7541 appendix A).
fn static_status(first: u8) -> Option<u16> {
    let of = [200, 204, 206, 304, 400, 404, 500];
    of.get(usize::from(first.checked_sub(0x88)?)).copied()
}

/// The fields of a HEADERS frame, without padding and priority; `None` if there are none.
fn fields(mut body: &[u8], flags: u8, is_whole: bool) -> Option<&[u8]> {
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (length, rest) = body.split_first()?;
        (padding, body) = (usize::from(*length), rest);
    }
    if flags & WITH_PRIORITY != 0 {
        body = body.get(5..)?;
    }
    let end = if is_whole { body.len().checked_sub(padding)? } else { body.len() };
    body.get(..end)
}

#[cfg(test)]
mod tests {
    use leno_hpack::{Encoder, Field};

    use super::*;

    struct Peer(Encoder);

    impl Peer {
        fn new() -> Self {
            Self(Encoder::new(TABLE))
        }

        fn headers(&mut self, stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
            let mut section = Vec::new();
            let all =
                fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
            self.0.encode(all, &mut section);
            frame(HEADERS, END_HEADERS | u8::from(end), stream, &section)
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
    }

    fn says(parser: &mut Http2, side: Side, bytes: &[u8]) -> MessageMeaning {
        match parser.read(side, bytes) {
            Parsed::Message(message) => {
                assert_eq!(message.length, Some(bytes.len() as u32));
                message.says
            }
            other => panic!("{other:?}"),
        }
    }

    const CALL: [(&str, &str); 4] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/shop.Cart/Add"),
        ("content-type", "application/grpc"),
    ];

    #[test]
    fn calls_of_grpc_have_the_status_of_their_trailers_also_from_the_table() {
        let (mut client, mut server, mut parser) =
            (Peer::new(), Peer::new(), Http2::new(&TableSlots::default()));
        assert!(begins(PREFACE));
        assert_eq!(says(&mut parser, Side::Client, PREFACE), MessageMeaning::Nothing);
        for stream in [1, 3, 5] {
            let request = client.headers(stream, false, &CALL);
            let kind = "POST";
            assert_eq!(
                says(&mut parser, Side::Client, &request),
                MessageMeaning::Request { kind, id: stream }
            );
            assert!(parser.is_grpc());
            let head = [(":status", "200"), ("content-type", "application/grpc")];
            let head = server.headers(stream, false, &head);
            let answer = MessageMeaning::Answer { result: "unseen", id: stream };
            assert_eq!(says(&mut parser, Side::Server, &head), answer);
            assert_eq!(
                says(&mut parser, Side::Server, &frame(DATA, 0, stream, b"x")),
                MessageMeaning::Nothing
            );
            let trailers = server.headers(stream, true, &[("grpc-status", "5")]);
            let result = MessageMeaning::Result { result: "5", id: stream };
            assert_eq!(says(&mut parser, Side::Server, &trailers), result);
        }
    }

    #[test]
    fn without_the_table_methods_and_statuses_of_the_static_one_are_known() {
        let (mut client, mut server, mut parser) =
            (Peer::new(), Peer::new(), Http2::new(&TableSlots::default()));
        let request = [(":method", "GET"), (":scheme", "http"), (":path", "/a")];
        let first = client.headers(1, true, &request);
        // The section is longer than its sample.
        let long = frame(HEADERS, END_HEADERS, 1, &[&first[FRAME..], &[0; 900]].concat());
        let cut = parser.read(Side::Client, &long[..512]);
        assert_eq!(
            cut,
            Parsed::message(long.len() as u32, MessageMeaning::Request { kind: "GET", id: 1 })
        );
        let again = client.headers(3, true, &request);
        let expected = MessageMeaning::Request { kind: "GET", id: 3 };
        assert_eq!(says(&mut parser, Side::Client, &again), expected);
        let head = server.headers(3, true, &[(":status", "404"), ("server", "x")]);
        let expected = MessageMeaning::Result { result: "4xx", id: 3 };
        assert_eq!(says(&mut parser, Side::Server, &head), expected);
        parser.lose(Side::Server);
        let head = server.headers(3, true, &[(":status", "503"), ("server", "x")]);
        let expected = MessageMeaning::Result { result: "unseen", id: 3 };
        assert_eq!(says(&mut parser, Side::Server, &head), expected);
        let reset = frame(RST_STREAM, 0, 3, &[0; 4]);
        let expected = MessageMeaning::Result { result: "reset", id: 3 };
        assert_eq!(says(&mut parser, Side::Client, &reset), expected);
        for other in
            [frame(PING, 0, 1, &[0; 8]), frame(SETTINGS, 0, 0, &[0; 5]), frame(0x40, 0, 0, b"")]
        {
            assert_eq!(parser.read(Side::Client, &other), Parsed::Foreign, "{other:?}");
        }
    }

    #[test]
    fn tables_are_followed_within_bounds() {
        let places = TableSlots::default();
        let mut all: Vec<_> = (0..=MAX_FOLLOWED).map(|_| Http2::new(&places)).collect();
        let follows = |parser: &Http2| parser.client.is_some() && parser.server.is_some();
        assert!(!follows(&all[MAX_FOLLOWED]) && all[..MAX_FOLLOWED].iter().all(follows));
        // The server allows a larger table, and the client announces one.
        let setting = frame(SETTINGS, 0, 0, &[0, 1, 0, 1, 0, 0]);
        for side in [Side::Server, Side::Client] {
            assert_eq!(says(&mut all[0], side, &setting), MessageMeaning::Nothing);
        }
        let announces = frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe1, 0xff, 0x03, 0x82]);
        let expected = MessageMeaning::Request { kind: "other", id: 1 };
        assert_eq!(says(&mut all[0], Side::Client, &announces), expected);
        assert!(all[0].client.is_none() && all[0].place.is_some());
        all[0].lose(Side::Server);
        assert!(follows(&Http2::new(&places)));
        all.truncate(1);
        assert_eq!(Rc::strong_count(&places.0), 1);
    }
}
