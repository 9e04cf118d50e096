//! HTTP/2 for scripts. Frames are written as raw bytes, and read without validation.

use std::collections::BTreeMap;

use loona_hpack::Decoder;

/// The client's preface (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 section 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 section 6.5.2).
pub(crate) const INITIAL_WINDOW: u16 = 4;
const DEFAULT_WINDOW: i64 = 65_535;
/// The largest frame that every side must accept (RFC 9113 section 4.2).
pub(crate) const FRAME: usize = 16_384;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A SETTINGS frame with these values.
pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in values {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// A HEADERS frame, and CONTINUATION frames if the fields are long.
pub(crate) fn headers(stream: u32, fields: &[(&str, &[u8])], end: bool) -> Vec<u8> {
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
    let block = fields_block(&fields);
    let mut frames = Vec::new();
    let count = block.len().div_ceil(FRAME).max(1);
    for nth in 0..count {
        let part = &block[nth * FRAME..block.len().min((nth + 1) * FRAME)];
        let last = if nth + 1 == count { END_HEADERS } else { 0 };
        let (kind, flags) = match nth {
            0 => (kind::HEADERS, last | if end { END_STREAM } else { 0 }),
            _ => (kind::CONTINUATION, last),
        };
        frames.extend(frame(kind, flags, stream, part));
    }
    frames
}

/// A field block without compression (RFC 7541 section 6.2.2).
pub(crate) fn fields_block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(&mut block, name);
        string(&mut block, value);
    }
    block
}

fn string(block: &mut Vec<u8>, text: &[u8]) {
    // The length of a string is an integer with a prefix of seven bits (RFC 7541 section 5.1).
    let mut length = text.len();
    if length < 127 {
        block.push(length as u8);
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push((length % 128) as u8 | 128);
            length /= 128;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text);
}

pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A message received on a stream.
#[derive(Debug, Default)]
pub(crate) struct Message {
    /// Heads and trailers, in the order of arrival.
    pub(crate) heads: Vec<Fields>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_complete: bool,
    pub(crate) is_reset: bool,
}

/// One side of a connection. It parses frames, and keeps the flow-control windows for sending.
pub(crate) struct Peer {
    read: usize,
    decoder: Decoder<'static>,
    block: Vec<u8>,
    ends: bool,
    pub(crate) streams: BTreeMap<u32, Message>,
    pub(crate) went_away: bool,
    /// Three flow-control windows for sending: of the connection, of a new stream, and for each stream the
    /// difference from the window of a new stream.
    window: i64,
    initial: i64,
    windows: BTreeMap<u32, i64>,
    /// Frames that must be sent in reply to those that were read.
    pub(crate) replies: Vec<u8>,
}

impl Peer {
    /// A side that starts reading at this offset.
    pub(crate) fn new(read: usize) -> Self {
        Self {
            read,
            decoder: Decoder::new(),
            block: Vec::new(),
            ends: false,
            streams: BTreeMap::new(),
            went_away: false,
            window: DEFAULT_WINDOW,
            initial: DEFAULT_WINDOW,
            windows: BTreeMap::new(),
            replies: Vec::new(),
        }
    }

    /// Reads all complete frames. `Err` if the bytes are not HTTP/2.
    pub(crate) fn read(&mut self, inbox: &[u8]) -> Result<(), String> {
        while let Some((header, rest)) = inbox[self.read..].split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some(payload) = rest.get(..length) else { return Ok(()) };
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            self.read += 9 + length;
            self.frame((header[3], header[4]), stream & (u32::MAX >> 1), payload)?;
        }
        Ok(())
    }

    fn frame(
        &mut self,
        (kind, flags): (u8, u8),
        stream: u32,
        payload: &[u8],
    ) -> Result<(), String> {
        match kind {
            kind::DATA => {
                let message = self.streams.entry(stream).or_default();
                message.body.extend_from_slice(unpadded(flags, payload));
                message.is_complete |= flags & END_STREAM != 0;
                self.renew(stream, payload.len());
            }
            kind::HEADERS | kind::CONTINUATION => {
                let mut part = payload;
                if kind == kind::HEADERS {
                    part = unpadded(flags, payload);
                    if flags & PRIORITY != 0 {
                        part = part.get(5..).unwrap_or_default();
                    }
                    self.ends = flags & END_STREAM != 0;
                }
                self.block.extend_from_slice(part);
                if flags & END_HEADERS != 0 {
                    let block = std::mem::take(&mut self.block);
                    let fields = self.decoder.decode(&block);
                    let fields = fields.map_err(|error| format!("HPACK: {error:?}"))?;
                    let message = self.streams.entry(stream).or_default();
                    message.heads.push(fields);
                    message.is_complete |= self.ends;
                }
            }
            kind::RST_STREAM => self.streams.entry(stream).or_default().is_reset = true,
            kind::SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW {
                        let value = [setting[2], setting[3], setting[4], setting[5]];
                        self.initial = i64::from(u32::from_be_bytes(value));
                    }
                }
                self.replies.extend(frame(kind::SETTINGS, ACK, 0, &[]));
            }
            kind::PING if flags & ACK == 0 => {
                self.replies.extend(frame(kind::PING, ACK, 0, payload));
            }
            kind::GOAWAY => self.went_away = true,
            kind::WINDOW_UPDATE => {
                let by = payload.first_chunk::<4>().copied().unwrap_or_default();
                let by = i64::from(u32::from_be_bytes(by));
                match stream {
                    0 => self.window += by,
                    _ => *self.windows.entry(stream).or_default() += by,
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn renew(&mut self, stream: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).expect("a frame is short").to_be_bytes();
        if bytes != [0; 4] {
            for stream in [0, stream] {
                self.replies.extend(frame(kind::WINDOW_UPDATE, 0, stream, &bytes));
            }
        }
    }

    /// How many of the `wanted` bytes may be sent on a stream now. Reduces both windows by that number.
    pub(crate) fn take(&mut self, stream: u32, wanted: usize) -> usize {
        let own = self.windows.entry(stream).or_default();
        let room = self.window.min(self.initial + *own).max(0) as usize;
        let taken = wanted.min(room).min(FRAME);
        self.window -= taken as i64;
        *own -= taken as i64;
        taken
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> &[u8] {
    if flags & PADDED == 0 {
        return payload;
    }
    let Some((&padding, rest)) = payload.split_first() else { return payload };
    rest.get(..rest.len().saturating_sub(usize::from(padding))).unwrap_or_default()
}
