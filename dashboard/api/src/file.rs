//! Stores the history on disk, so that it survives a restart. The file is a log of records, and is rewritten as a
//! whole from time to time.
//!
//! ```text
//!  "leno history 1\n"  ( kind  length  payload  CRC-32 of kind, length and payload )*
//! ```
//! The file ends at the first incomplete record, which a killed process may leave; the records before it are valid.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Crc;

use crate::bytes::{ByteReader, put};
use crate::frame::Frame;
use crate::history::{History, MAX_BYTES, Mark};
use crate::series::NewName;

const MAGIC: &[u8] = b"leno history 1\n";
const SUBJECT: u8 = b's';
const CAUSE: u8 = b'c';
const FRAME: u8 = b'f';
const MARK: u8 = b'm';
/// The kind of record with the `left_out` of the frame before it, if that is not 0.
const LEFT_OUT: u8 = b'l';

/// Longest file that is read, in bytes: the largest history, and what may be appended to it before the file is
/// rewritten.
const MAX_FILE: u64 = 3 * MAX_BYTES as u64;
/// The file is rewritten, without old records, when it is this many times as long as the history.
const SLACK: u64 = 2;
/// To be rewritten, the file must also be this many bytes longer than the history, so that a small file is not
/// rewritten all the time.
const MIN_SLACK: u64 = 1024 * 1024;

/// The file of a history.
#[derive(Debug)]
pub struct HistoryStore {
    path: PathBuf,
    file: Option<File>,
    length: u64,
}

impl HistoryStore {
    /// Opens the store at `path`, and reads its history. The history is empty if the file does not exist or has
    /// another version.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub fn open(path: PathBuf, now_ms: u64) -> io::Result<(Self, History)> {
        let bytes = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Ok(of) if of.len() > MAX_FILE => Vec::new(),
            Ok(_) => fs::read(&path)?,
            Err(error) => return Err(error),
        };
        let mut history = History::default();
        if let Some(mut rest) = bytes.strip_prefix(MAGIC) {
            while let Some(left) = record(&mut history, rest) {
                rest = left;
            }
        }
        history.restored(now_ms);
        Ok((Self { path, file: None, length: 0 }, history))
    }

    /// Appends everything that has changed since the last call.
    ///
    /// # Errors
    /// The file cannot be written. The next call then rewrites the whole history.
    pub fn save(&mut self, history: &mut History) -> io::Result<()> {
        let (changes, fresh) = history.take_changes();
        let whole = changes.all || self.length > SLACK * history.size() as u64 + MIN_SLACK;
        let Some(file) = self.file.as_mut().filter(|_| !whole) else {
            return self.write(history);
        };
        let mut bytes = Vec::new();
        names(&mut bytes, fresh);
        let (frames, marks) = history.last(changes);
        frames.for_each(|frame| put_frame(&mut bytes, frame));
        marks.for_each(|mark| put_mark(&mut bytes, mark));
        let written = file.write_all(&bytes);
        self.length += bytes.len() as u64;
        if written.is_err() {
            self.file = None;
        }
        written
    }

    /// Rewrites the file.
    fn write(&mut self, history: &History) -> io::Result<()> {
        self.file = None;
        let mut bytes = MAGIC.to_vec();
        names(&mut bytes, history.names().records());
        let draft = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&bytes)?;
        self.length = bytes.len() as u64;
        let (frames, marks) = history.all();
        for frame in frames {
            bytes.clear();
            put_frame(&mut bytes, frame);
            file.write_all(&bytes)?;
            self.length += bytes.len() as u64;
        }
        bytes.clear();
        marks.for_each(|mark| put_mark(&mut bytes, mark));
        file.write_all(&bytes)?;
        self.length += bytes.len() as u64;
        fs::rename(&draft, &self.path)?;
        self.file = Some(file);
        Ok(())
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn names(bytes: &mut Vec<u8>, names: impl IntoIterator<Item = NewName>) {
    for name in names {
        match name {
            NewName::Subject(payload) => put_record(bytes, SUBJECT, &payload),
            NewName::Cause(payload) => put_record(bytes, CAUSE, &payload),
        }
    }
}

fn put_frame(bytes: &mut Vec<u8>, frame: &Frame) {
    let mut payload = Vec::new();
    put(&mut payload, frame.end_ms);
    put(&mut payload, frame.millis);
    payload.extend_from_slice(frame.bytes());
    put_record(bytes, FRAME, &payload);
    if frame.left_out > 0 {
        payload.clear();
        put(&mut payload, frame.left_out);
        put_record(bytes, LEFT_OUT, &payload);
    }
}

fn put_mark(bytes: &mut Vec<u8>, mark: &Mark) {
    let payload = serde_json::to_vec(mark).expect("a mark has only text keys");
    put_record(bytes, MARK, &payload);
}

fn put_record(bytes: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let start = bytes.len();
    bytes.push(kind);
    put(bytes, payload.len() as u64);
    bytes.extend_from_slice(payload);
    let sum = sum(&bytes[start..]);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

fn sum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Reads the first record, and returns the rest of the bytes; `None` if the record is incomplete.
fn record<'a>(history: &mut History, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (kind, rest) = bytes.split_first()?;
    let mut reader = ByteReader::new(rest);
    let length = reader.small()?;
    let (payload, after) = reader.rest().split_at_checked(length)?;
    let (expected, after) = after.split_first_chunk()?;
    let whole = bytes.len() - after.len() - expected.len();
    if sum(&bytes[..whole]) != u32::from_le_bytes(*expected) {
        return None;
    }
    match *kind {
        SUBJECT => history.names_mut().read_subject(payload)?,
        CAUSE => history.names_mut().read_cause(payload)?,
        FRAME => {
            let mut reader = ByteReader::new(payload);
            let (end_ms, millis) = (reader.number()?, reader.number()?);
            history.restore(Frame::packed(end_ms, millis, reader.rest())?);
        }
        LEFT_OUT => history.restore_left_out(ByteReader::new(payload).number()?),
        MARK => history.mark(serde_json::from_slice(payload).ok()?),
        // A record of a kind that only newer versions know.
        _ => {}
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::MarkKind;
    use crate::testing::{edge, growth};

    fn reopened(path: &Path, now_ms: u64) -> History {
        HistoryStore::open(path.to_owned(), now_ms).unwrap().1
    }

    #[test]
    fn the_count_of_left_out_series_survives_the_file() {
        const EDGES: usize = crate::series::MAX_SERIES + 5;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let (mut store, mut history) = HistoryStore::open(path.clone(), 0).unwrap();
        let all = (0..EDGES).map(|nth| edge("web", &format!("cart-{nth}"), 1.0));
        history.push(5_000, &growth(5.0, all.collect()));
        history.push(10_000, &growth(5.0, Vec::new()));
        store.save(&mut history).unwrap();
        let again = reopened(&path, 10_000);
        let left_out =
            [(0, 5_000), (5_000, 10_000)].map(|(from, to)| again.window(from, to).left_out);
        assert_eq!(left_out, [5, 0]);
    }

    #[test]
    fn a_history_survives_a_complete_and_a_truncated_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let (mut store, mut history) = HistoryStore::open(path.clone(), 0).unwrap();
        for tick in 1..=10 {
            history.push(tick * 5_000, &growth(5.0, vec![edge("web", "cart", tick as f64)]));
            if tick == 4 {
                let lines = vec!["Service shop/cart changed".to_owned()];
                history.mark(Mark { at_ms: 20_000, kind: MarkKind::Documents, lines });
            }
            store.save(&mut history).unwrap();
        }
        let again = reopened(&path, 50_000);
        let sums = |history: &History| history.window(0, 60_000).tallies;
        assert_eq!(sums(&again), sums(&history));
        assert_eq!(sums(&again).len(), 1);
        assert_eq!(again.marks(0, 60_000).count(), 1);
        assert_eq!(again.size(), history.size());

        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(reopened(&path, 50_000).end_ms(), Some(45_000), "the last frame is cut");
        fs::write(&path, b"something else").unwrap();
        assert_eq!(reopened(&path, 50_000).end_ms(), None);
    }
}
