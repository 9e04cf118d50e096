//! A peer that sends and expects single frames, in the order that a test determines.

use leno_h2::{Abuse, Accept, Client, Code, ConnError, Limits, abuse_counts};
use leno_hpack::{Block, Decoder, Encoder};
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::support::{Ended, client, server};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) id: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

pub(crate) fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(id.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat()
}

pub(crate) struct Peer {
    io: DuplexStream,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
}

impl Peer {
    pub(crate) fn over(io: DuplexStream) -> Self {
        Self { io, encoder: Encoder::new(4096), decoder: Decoder::new(4096) }
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        self.raw(&frame(kind, flags, id, payload)).await;
    }

    /// Writes bytes. Ignores the error if the connection is already closed.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        drop(self.io.write_all(bytes).await);
    }

    /// The next frame of any type. `None` if the connection has ended.
    pub(crate) async fn any(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.io.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        self.io.read_exact(&mut payload).await.ok()?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], id, payload })
    }

    /// The next frame, except for frames that a connection may send at any time: SETTINGS, a PING that is not a
    /// reply, and credit for the whole connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any().await?;
            let ours = frame.kind == PING && frame.flags & ACK == 0;
            if frame.kind != SETTINGS && !ours && !(frame.kind == WINDOW_UPDATE && frame.id == 0) {
                return Some(frame);
            }
        }
    }

    /// Expects a frame of this type next, and returns it.
    pub(crate) async fn expect(&mut self, kind: u8, id: u32) -> Frame {
        let frame = self.next().await.unwrap_or_else(|| panic!("the end, not kind {kind}"));
        assert_eq!((frame.kind, frame.id), (kind, id), "{frame:?}");
        frame
    }

    pub(crate) async fn expect_reset(&mut self, id: u32, code: Code) {
        let frame = self.expect(RST_STREAM, id).await;
        assert_eq!(Code(frame.number(0)), code);
    }

    pub(crate) async fn expect_goaway(&mut self, code: Code) -> u32 {
        let frame = self.expect(GOAWAY, 0).await;
        assert_eq!(Code(frame.number(4)), code);
        frame.number(0)
    }

    pub(crate) async fn expect_end(&mut self) {
        assert_eq!(self.next().await, None);
    }

    /// Sends a PING and expects that the connection answers it.
    pub(crate) async fn expect_alive(&mut self) {
        self.send(PING, 0, 0, b"is alive").await;
        let pong = self.expect(PING, 0).await;
        assert_eq!((pong.flags, &pong.payload[..]), (ACK, &b"is alive"[..]));
    }

    pub(crate) fn section(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let block: Block = fields.iter().copied().collect();
        let mut section = vec![];
        self.encoder.encode(&block, &mut section);
        section
    }

    pub(crate) async fn headers(&mut self, id: u32, end: bool, fields: &[(&str, &str)]) {
        let section = self.section(fields);
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.send(HEADERS, flags, id, &section).await;
    }

    pub(crate) async fn get(&mut self, id: u32) {
        self.headers(id, true, &GET).await;
    }

    pub(crate) async fn post(&mut self, id: u32) {
        let post = [&[(":method", "POST")], &GET[1..]].concat();
        self.headers(id, false, &post).await;
    }

    pub(crate) fn fields(&mut self, frame: &Frame) -> Vec<(String, String)> {
        let mut block = Block::new();
        let limits = leno_hpack::Limits { list_bytes: 1 << 20, fields: 1000 };
        let outcome = self.decoder.decode(&frame.payload, &mut block, limits).unwrap();
        assert_eq!(outcome, leno_hpack::Outcome::Complete);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        block.iter().map(|field| (text(field.name()), text(field.value()))).collect()
    }
}

pub(crate) const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

/// A scripted client for our server. It has sent its preface and these settings.
pub(crate) async fn as_client(limits: &Limits, settings: &[u8]) -> (Peer, Accept, Ended) {
    let (io, accept, ended) = server(&Rc::new(limits.clone()));
    let mut peer = Peer::over(io);
    peer.raw(PREFACE).await;
    peer.send(SETTINGS, 0, 0, settings).await;
    peer.send(SETTINGS, ACK, 0, &[]).await;
    (peer, accept, ended)
}

/// A scripted server for our client. It has sent these settings.
pub(crate) async fn as_server(limits: &Limits, settings: &[u8]) -> (Peer, Client, Ended) {
    let (io, client, ended) = client(&Rc::new(limits.clone()));
    let mut peer = Peer::over(io);
    let mut preface = [0; 24];
    peer.io.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);
    peer.send(SETTINGS, 0, 0, settings).await;
    peer.send(SETTINGS, ACK, 0, &[]).await;
    // Waits until our client has applied the settings.
    loop {
        let frame = peer.any().await.unwrap();
        if frame.kind == SETTINGS && frame.flags & ACK != 0 {
            return (peer, client, ended);
        }
    }
}

/// Expects that the connection has ended for this reason, and that the reason was counted on this thread.
pub(crate) async fn ended_by(ended: Ended, abuse: Abuse) {
    let error: ConnError = ended.await.unwrap().unwrap_err();
    assert_eq!(error.abuse, Some(abuse), "{error}");
    assert_eq!(counted(abuse), 1);
}

pub(crate) fn counted(abuse: Abuse) -> u64 {
    abuse_counts().into_iter().find(|(other, _)| *other == abuse).unwrap().1
}
