//! The compressed counts of all workloads and edges of a mesh in one span of time.
//!
//! Frames are organised by time, not by series: a frame contains one span of time of the whole mesh. So the memory
//! of the history is the sum of its frames, and thousands of similar tallies compress well.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::bytes::{ByteReader, put};
use crate::tally::Tally;

/// Largest frame after decompression, in bytes: 20,480 series of 800 bytes. This program writes no larger frame.
const MAX_UNPACKED: u64 = 16 * 1024 * 1024;

/// The counts of one span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The end of the span, in milliseconds since 1970.
    pub(crate) end_ms: u64,
    /// How many milliseconds before the end were observed.
    pub(crate) millis: u64,
    /// How many workloads, edges and route rules did not fit; the largest number at any time in the span.
    pub(crate) left_out: u64,
    packed: Box<[u8]>,
}

impl Frame {
    /// Compresses tallies. They must be sorted by the numbers of their series.
    pub(crate) fn pack<'a>(
        end_ms: u64,
        millis: u64,
        tallies: impl Iterator<Item = (u32, &'a Tally)>,
    ) -> Self {
        let mut bytes = Vec::new();
        let mut next = 0;
        for (series, tally) in tallies {
            put(&mut bytes, u64::from(series - next));
            next = series;
            tally.put(&mut bytes);
        }
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&bytes).expect("a vector takes every write");
        let packed = encoder.finish().expect("a vector takes every write").into_boxed_slice();
        Self { end_ms, millis, left_out: 0, packed }
    }

    /// The frame with this [`Frame::left_out`].
    pub(crate) fn leaving_out(self, left_out: u64) -> Self {
        Self { left_out, ..self }
    }

    /// A frame from a file; `None` if it is damaged.
    pub(crate) fn packed(end_ms: u64, millis: u64, packed: &[u8]) -> Option<Self> {
        let frame = Self { end_ms, millis, left_out: 0, packed: packed.into() };
        frame.each(|_, _| {})?;
        Some(frame)
    }

    /// The compressed bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.packed
    }

    /// The size in memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.packed.len() + size_of::<Self>()
    }

    /// Calls `visit` with every tally. `None` if the bytes are damaged.
    pub(crate) fn each(&self, mut visit: impl FnMut(u32, Tally)) -> Option<()> {
        let mut bytes = Vec::new();
        DeflateDecoder::new(&*self.packed).take(MAX_UNPACKED).read_to_end(&mut bytes).ok()?;
        let mut reader = ByteReader::new(&bytes);
        let mut series: u32 = 0;
        while !reader.is_empty() {
            series = series.checked_add(reader.number()?.try_into().ok()?)?;
            visit(series, Tally::read(&mut reader)?);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_what_was_packed() {
        let tally = |count| Tally { classes: [0, count, 0, 0, 0], ..Tally::default() };
        let all = [(0, tally(5)), (1, tally(6)), (900, tally(7))];
        let frame = Frame::pack(10_000, 5_000, all.iter().map(|(series, one)| (*series, one)));
        let mut seen = Vec::new();
        frame.each(|series, tally| seen.push((series, tally))).unwrap();
        assert_eq!(seen, all);
        assert_eq!(Frame::packed(10_000, 5_000, frame.bytes()), Some(frame));
        assert_eq!(Frame::packed(10_000, 5_000, b"\xff\xff"), None);
    }
}
