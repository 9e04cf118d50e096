//! A rustls session that works in buffers of this crate.
//!
//! ```text
//!   socket ─► Incoming ─process─► plaintext ─► reader
//!   socket ◄─ outgoing ◄─encrypt─ writer
//!                 ▲ handshake, alerts, tickets, key updates
//! ```
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the library says how much of the room that it was given it has used"
)]

use std::fmt;

use leno_transport::Buffer;
use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use tokio::io::ReadBuf;

use crate::binding::Binding;
use crate::cut;

/// The largest record on the wire (RFC 8446 section 5.2).
pub(crate) const MAX_RECORD: usize = 5 + (1 << 14) + 256;

/// How many bytes of its own (handshake messages, key updates, alerts) the session may queue while the socket accepts
/// no bytes. A peer that causes more is disconnected.
const MAX_OWN: usize = 64 * 1024;

/// How many bytes are encrypted at once: as many as fit into one buffer after encryption.
pub(crate) const MAX_PLAINTEXT: usize = leno_transport::RELAY_BUFFER - 1024;

/// A rustls session of either role.
pub(crate) enum Session {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Why [`Session::step`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All input was processed, and the handshake needs more.
    NeedInput,
    /// All input was processed, and application data can be encrypted.
    Open,
    /// The reader has no room for the next record.
    Full,
}

/// Encrypted bytes that wait to be sent, in the order of their encryption: the buffer of the last write, and after it
/// bytes that the session itself has queued since. Reading never waits for them; otherwise two sides that both write
/// would wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    buffer: Option<Buffer>,
    own: Vec<u8>,
}

/// Encrypted bytes that were read. The buffer has free room only during a read. While the rest of a record is awaited,
/// the buffer is no larger than its bytes.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    buffer: Option<Buffer>,
}

/// Where decrypted bytes go: first into the reader's space, then into `held`.
pub(crate) struct Plaintext<'a, 'b> {
    pub(crate) out: Option<&'a mut ReadBuf<'b>>,
    /// How many bytes were in `out` before the read began.
    pub(crate) before: usize,
    pub(crate) held: &'a mut Option<Buffer>,
    /// The binding of the connection, if the peer is a server's proxy: only such a peer sends a report.
    pub(crate) binding: Option<&'a Binding>,
    /// The report with which the peer has cut the connection ([`crate::cut`]).
    pub(crate) report: &'a mut Option<u8>,
}

impl Incoming {
    pub(crate) fn parked(bytes: Vec<u8>) -> Self {
        Self { buffer: (!bytes.is_empty()).then(|| Buffer::holding(bytes)) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_none()
    }

    /// A buffer with room for the rest of a record. `None` if it is full.
    pub(crate) fn room(&mut self) -> Option<&mut Buffer> {
        let buffer = self.buffer.get_or_insert_with(Buffer::take);
        if buffer.unfilled().len() < MAX_RECORD {
            buffer.compact();
        }
        (!buffer.unfilled().is_empty()).then_some(buffer)
    }

    /// Frees the room that is not used, before a wait.
    pub(crate) fn park(&mut self) {
        match &mut self.buffer {
            Some(buffer) if !buffer.filled().is_empty() => buffer.shrink(),
            buffer => *buffer = None,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], Buffer::filled_mut)
    }

    fn consume(&mut self, n: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(n);
            if buffer.filled().is_empty() {
                self.buffer = None;
            }
        }
    }
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_none() && self.own.is_empty()
    }

    /// The bytes to send next. `None` if all were sent.
    pub(crate) fn next(&self) -> Option<&[u8]> {
        match &self.buffer {
            Some(buffer) => Some(buffer.filled()),
            None if self.own.is_empty() => None,
            None => Some(&self.own),
        }
    }

    /// Removes `n` sent bytes.
    pub(crate) fn sent(&mut self, n: usize) {
        match &mut self.buffer {
            Some(buffer) => {
                buffer.consume(n);
                if buffer.filled().is_empty() {
                    self.buffer = None;
                }
            }
            None if n == self.own.len() => self.own = Vec::new(),
            None => drop(self.own.drain(..n)),
        }
    }

    /// Frees the room that is not used, before a wait.
    pub(crate) fn park(&mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.shrink();
        }
        self.own.shrink_to_fit();
    }

    /// Takes the buffer of an encrypted write. All bytes before it must have been sent.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        debug_assert!(self.is_empty(), "sent out of order");
        self.buffer = (!buffer.filled().is_empty()).then_some(buffer);
    }

    /// Appends bytes that the session itself sends.
    fn encode(
        &mut self,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
    ) -> Result<(), rustls::Error> {
        let before = self.own.len();
        if before > MAX_OWN {
            return Err(out_of_step());
        }
        self.own.resize(before + MAX_RECORD, 0);
        let n = encode(&mut self.own[before..]).map_err(|_| out_of_step())?;
        self.own.truncate(before + n);
        Ok(())
    }
}

impl Plaintext<'_, '_> {
    // Whether a record with `len` bytes of plaintext may be decrypted now. The first record of a read always may, so
    // that the read returns something; what does not fit into `out` goes to `held`.
    fn takes(&self, len: usize) -> bool {
        match &self.out {
            Some(out) => {
                let nothing_yet = out.filled().len() == self.before && self.held.is_none();
                nothing_yet || (self.held.is_none() && len <= out.remaining())
            }
            // A write must not wait for a reader. One buffer of input becomes at most one buffer of plaintext, and no
            // more input is read while that is in `held`.
            None => true,
        }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        if let Some(report) = cut::report(self.binding, bytes) {
            *self.report = Some(report);
            return;
        }
        if let Some(out) = self.out.as_mut().filter(|_| self.held.is_none()) {
            let n = bytes.len().min(out.remaining());
            out.put_slice(&bytes[..n]);
            bytes = &bytes[n..];
        }
        if bytes.is_empty() {
            return;
        }
        let held = self.held.get_or_insert_with(Buffer::take);
        if held.unfilled().len() < bytes.len() {
            held.compact();
        }
        held.unfilled()[..bytes.len()].copy_from_slice(bytes);
        held.fill(bytes.len());
    }
}

/// The methods that both kinds of rustls connections have, for which rustls has two separate types.
trait Process {
    type Data;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// Whether the session has bytes of its own that were not encoded yet.
    fn wants_write(&self) -> bool;
}

impl Process for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(tls)
    }
    fn wants_write(&self) -> bool {
        CommonState::wants_write(self)
    }
}

impl Process for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(tls)
    }
    fn wants_write(&self) -> bool {
        CommonState::wants_write(self)
    }
}

/// Shows nothing, because sessions contain keys.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Client",
            Self::Server(_) => "Server",
        })
    }
}

impl Session {
    pub(crate) fn common(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    /// Processes as much input as possible. Sets `peer_closed` once the peer has ended its direction. After an error,
    /// `outgoing` has the alert for the peer.
    pub(crate) fn step(
        &mut self,
        incoming: &mut Incoming,
        plaintext: Plaintext<'_, '_>,
        outgoing: &mut Outgoing,
        peer_closed: &mut bool,
    ) -> Result<Step, rustls::Error> {
        match self {
            Self::Client(client) => step(client, incoming, plaintext, (outgoing, peer_closed)),
            Self::Server(server) => step(server, incoming, plaintext, (outgoing, peer_closed)),
        }
    }

    /// Encrypts up to [`MAX_PLAINTEXT`] bytes into an empty buffer. Only possible after [`Step::Open`].
    pub(crate) fn encrypt(
        &mut self,
        incoming: &mut Incoming,
        bytes: &[u8],
        to: &mut Buffer,
    ) -> Result<(), rustls::Error> {
        let encrypt = |mut traffic: Traffic<'_>| traffic.encrypt(bytes, to);
        self.in_traffic(incoming, encrypt)
    }

    /// Ends this side's direction. Only possible after [`Step::Open`].
    pub(crate) fn close(
        &mut self,
        incoming: &mut Incoming,
        to: &mut Buffer,
    ) -> Result<(), rustls::Error> {
        self.in_traffic(incoming, |mut traffic| traffic.close(to))
    }

    fn in_traffic(
        &mut self,
        incoming: &mut Incoming,
        act: impl FnOnce(Traffic<'_>) -> Result<(), EncryptError>,
    ) -> Result<(), rustls::Error> {
        let acted = match self {
            Self::Client(client) => match client.process(incoming.bytes()).state? {
                ConnectionState::WriteTraffic(traffic) => act(Traffic::Client(traffic)),
                _ => return Err(out_of_step()),
            },
            Self::Server(server) => match server.process(incoming.bytes()).state? {
                ConnectionState::WriteTraffic(traffic) => act(Traffic::Server(traffic)),
                _ => return Err(out_of_step()),
            },
        };
        acted.map_err(|error| match error {
            EncryptError::EncryptExhausted => rustls::Error::EncryptError,
            EncryptError::InsufficientSize(_) => out_of_step(),
        })
    }
}

/// The state of rustls in which encryption is possible, for either role.
enum Traffic<'c> {
    Client(WriteTraffic<'c, ClientConnectionData>),
    Server(WriteTraffic<'c, ServerConnectionData>),
}

impl Traffic<'_> {
    fn encrypt(&mut self, bytes: &[u8], to: &mut Buffer) -> Result<(), EncryptError> {
        let n = match self {
            Self::Client(traffic) => traffic.encrypt(bytes, to.unfilled()),
            Self::Server(traffic) => traffic.encrypt(bytes, to.unfilled()),
        }?;
        to.fill(n);
        Ok(())
    }

    fn close(&mut self, to: &mut Buffer) -> Result<(), EncryptError> {
        let n = match self {
            Self::Client(traffic) => traffic.queue_close_notify(to.unfilled()),
            Self::Server(traffic) => traffic.queue_close_notify(to.unfilled()),
        }?;
        to.fill(n);
        Ok(())
    }
}

fn step<P: Process>(
    connection: &mut P,
    incoming: &mut Incoming,
    mut plaintext: Plaintext<'_, '_>,
    (outgoing, peer_closed): (&mut Outgoing, &mut bool),
) -> Result<Step, rustls::Error> {
    loop {
        let UnbufferedStatus { discard, state } = connection.process(incoming.bytes());
        let stop = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.peek_len() {
                    Some(len) if !plaintext.takes(len.get()) => break Some(Step::Full),
                    _ => match traffic.next_record() {
                        Some(record) => plaintext.put(record?.payload),
                        None => break None,
                    },
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                outgoing.encode(|to| data.encode(to))?;
                None
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // The bytes are in `outgoing`, from which they are sent in order.
                data.done();
                None
            }
            Ok(ConnectionState::PeerClosed) => {
                *peer_closed = true;
                None
            }
            Ok(ConnectionState::WriteTraffic(_) | ConnectionState::Closed) => Some(Step::Open),
            Ok(ConnectionState::BlockedHandshake) => Some(Step::NeedInput),
            Ok(_) => return Err(out_of_step()),
            Err(error) => {
                alert(connection, incoming, outgoing);
                return Err(error);
            }
        };
        incoming.consume(discard);
        if let Some(stop) = stop {
            return Ok(stop);
        }
    }
}

/// Encodes the alert that rustls has after an error, and nothing else. Otherwise rustls would process the same input
/// again and make a second alert.
fn alert<P: Process>(connection: &mut P, incoming: &mut Incoming, outgoing: &mut Outgoing) {
    while connection.wants_write()
        && let Ok(ConnectionState::EncodeTlsData(mut data)) =
            connection.process(incoming.bytes()).state
    {
        if outgoing.encode(|to| data.encode(to)).is_err() {
            return;
        }
    }
}

fn out_of_step() -> rustls::Error {
    rustls::Error::General("the TLS session is out of step".to_owned())
}
