//! The state of one stream, and the table of a connection's streams.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a key names a slot of this list, which never shrinks"
)]

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use crate::error::Reset;
use crate::head::Head;
use crate::inner::SharedConn;
use crate::piece::{Chunk, Piece};

/// How many free slots keep the memory of their queues. This is enough for a burst.
const KEPT_SLOTS: usize = 128;

/// Identifies a stream: by its index in the table, and by its stream identifier, because indices are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) place: u32,
    pub(crate) id: u32,
}

/// A stream on another connection, to which this stream is linked.
#[derive(Clone)]
pub(crate) struct Far {
    pub(crate) conn: SharedConn,
    pub(crate) key: Key,
}

/// The progress of one direction of a stream (RFC 9113 section 5.1). Interim heads do not change it.
///
/// ```text
/// Head ──final head──► Body ──END_STREAM──► Ended
///  └────────final head with END_STREAM──────▲
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Progress {
    #[default]
    Head,
    Body,
    Ended,
}

/// What to send once all DATA that is queued in a stream was sent.
#[derive(Debug, Default)]
pub(crate) enum Then {
    /// Nothing is known yet: more DATA or an end may follow.
    #[default]
    More,
    /// END_STREAM, with the last DATA.
    End,
    /// These trailers, with END_STREAM.
    Trailers(Head),
}

/// The state of one stream.
#[derive(Default)]
pub(crate) struct Slot {
    /// The stream's identifier; 0 while the slot is free.
    pub(crate) id: u32,

    /// How much of the message was received. The reader may not have read as much.
    pub(crate) recv: Progress,
    /// Heads that were received and not read yet.
    pub(crate) heads: VecDeque<Head>,
    /// Bytes of the body that were received and not read yet.
    pub(crate) data: VecDeque<Piece>,
    pub(crate) trailers: Option<Head>,
    /// How many bytes the peer may still send.
    pub(crate) recv_window: i64,
    /// The number of received bytes for which the peer got no credit yet, because they wait for the reader or for the
    /// other connection.
    pub(crate) held: usize,
    /// How many bytes were passed on since the last check for stalled streams.
    pub(crate) taken: usize,
    /// Whether the reader took too little between the last two checks.
    pub(crate) stalled: bool,
    /// Whether the stream has the larger of the two windows.
    pub(crate) grown: bool,
    /// How many bytes of the body are missing, according to `content-length`.
    pub(crate) body_left: Option<u64>,
    /// Whether the request's method is HEAD, so that the response has no body.
    pub(crate) is_head: bool,
    /// Whether the request asks for a tunnel (CONNECT). A response with status 2xx turns the stream into the tunnel.
    pub(crate) is_connect: bool,
    /// Whether received frames go to `far`.
    pub(crate) recv_far: bool,
    /// Whether to keep a copy of the trailers although they go to `far`.
    pub(crate) keep_trailers: bool,
    pub(crate) received: u64,

    /// How much of the message was sent. Bytes count as sent once they are in the connection's queue.
    pub(crate) send: Progress,
    pub(crate) send_window: i64,
    /// DATA that waits for a window or for room in the connection's queue.
    pub(crate) queue: VecDeque<Piece>,
    /// The number of bytes in `queue`.
    pub(crate) queued: usize,
    pub(crate) then: Then,
    /// Whether the stream is in [`Inner::ring`](crate::inner::Inner::ring).
    pub(crate) in_ring: bool,
    /// Whether DATA was sent, or none was waiting, since the last check.
    pub(crate) moved: bool,
    /// Whether to reset the stream once everything is sent, to cancel what the peer still sends.
    pub(crate) close_after: bool,
    /// Whether the frames to send come from `far`.
    pub(crate) send_far: bool,
    pub(crate) sent: u64,
    /// The position of the message's head in the connection's byte stream. If the connection ends before the head was
    /// written, the request was not processed.
    pub(crate) head_at: u64,

    pub(crate) far: Option<Far>,
    pub(crate) reset: Option<Reset>,
    /// Whether the stream counts towards the limit of concurrent streams.
    pub(crate) counted: bool,
    /// Whether a handle of the stream exists or will be created. The slot must not be freed before the handle is
    /// dropped.
    pub(crate) handle: bool,
    pub(crate) recv_waker: Option<Waker>,
    pub(crate) send_waker: Option<Waker>,
}

impl Slot {
    /// Whether nothing more will be sent or received.
    pub(crate) fn is_over(&self) -> bool {
        self.reset.is_some() || (self.recv == Progress::Ended && self.send == Progress::Ended)
    }

    pub(crate) fn wake_recv(&mut self) {
        if let Some(waker) = self.recv_waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn wake_send(&mut self) {
        if let Some(waker) = self.send_waker.take() {
            waker.wake();
        }
    }

    fn begin(&mut self, id: u32) {
        self.id = id;
        self.handle = true;
        self.counted = true;
        self.moved = true;
    }

    /// Frees the slot and keeps the memory of its queues.
    fn clear(&mut self) {
        let mut spare = Self {
            heads: std::mem::take(&mut self.heads),
            data: std::mem::take(&mut self.data),
            queue: std::mem::take(&mut self.queue),
            ..Self::default()
        };
        spare.heads.clear();
        spare.data.clear();
        spare.queue.clear();
        *self = spare;
    }
}

/// Queues a part of `chunk` in such a way that a few bytes do not keep a large chunk allocated: a part that is small
/// compared with its chunk is copied, together with others if there is room.
pub(crate) fn queue_part(
    queue: &mut VecDeque<Piece>,
    payload: &[u8],
    chunk: &Chunk,
    range: std::ops::Range<usize>,
) {
    let worth_sharing = payload.len() >= chunk.len() / 4;
    if worth_sharing {
        queue.push_back(chunk.piece(range));
    } else if !queue.back_mut().is_some_and(|last| last.try_append(payload)) {
        queue.push_back(Piece::copied(payload));
    }
}

/// The streams of a connection: those that are open, and those that are over and not freed yet.
#[derive(Default)]
pub(crate) struct Streams {
    slots: Vec<Slot>,
    free: Vec<u32>,
    places: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn key(&self, id: u32) -> Option<Key> {
        self.places.get(&id).map(|place| Key { place: *place, id })
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.place as usize).filter(|slot| slot.id == key.id)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.place as usize).filter(|slot| slot.id == key.id)
    }

    pub(crate) fn insert(&mut self, id: u32) -> (Key, &mut Slot) {
        let place = self.free.pop().unwrap_or_else(|| {
            if self.slots.is_empty() {
                // Grow by one slot, because most connections that are idle had only one stream at a time.
                self.slots.reserve_exact(1);
            }
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.places.insert(id, place);
        let slot = &mut self.slots[place as usize];
        slot.begin(id);
        (Key { place, id }, slot)
    }

    pub(crate) fn remove(&mut self, key: Key) {
        if self.places.remove(&key.id).is_some() {
            self.slots[key.place as usize].clear();
            self.free.push(key.place);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Slot)> {
        let slots = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.id != 0);
        slots.map(|(place, slot)| (Key { place: place as u32, id: slot.id }, slot))
    }

    /// The key of the stream at index `place`, for loops during which the table may change.
    pub(crate) fn at(&self, place: usize) -> Option<Key> {
        let slot = self.slots.get(place).filter(|slot| slot.id != 0)?;
        Some(Key { place: place as u32, id: slot.id })
    }

    /// The number of slots, including free ones. All indices are smaller than this.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Frees memory: all of it if the connection has no stream, else that of too many free slots.
    pub(crate) fn shrink(&mut self) {
        if self.places.is_empty() {
            *self = Self::default();
        } else if self.free.len() > KEPT_SLOTS {
            for place in &self.free {
                self.slots[*place as usize] = Slot::default();
            }
        }
    }
}

/// Hashes stream identifiers. A simple hash is enough: a peer may choose the identifiers, but not more of them than the
/// limit on streams allows.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        // Fibonacci hashing. The hash table uses the top and the bottom bits.
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}
