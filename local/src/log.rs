//! The lines of a mesh in files, for `leno logs`: the newest, of bounded size.
//!
//! ```text
//! log      TIME <tab> NAME <tab> TEXT          written until it is full, then renamed to log.1
//! log.1    the lines before, replaced by the next that is full
//! ```
//!
//! NAME is `namespace/instance`, `namespace/instance proxy`, `controller` or `leno`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;

/// Most bytes of one of the two files: `/run` is memory, and some 40,000 lines are enough to look
/// back.
const MAX_BYTES: u64 = 4 << 20;

/// The log of a mesh, for its writer.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was printed, in RFC 3339.
    pub at: String,
    /// What printed it.
    pub name: String,
    /// The line.
    pub text: Vec<u8>,
}

/// The log of a mesh, for a reader that goes on as it grows.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// The beginning of a line whose end is not written yet.
    begun: Vec<u8>,
}

/// The file that holds the lines before those of `path`.
fn older(path: &Path) -> PathBuf {
    path.with_extension("1")
}

impl LogFile {
    /// Begins an empty log.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // What applications print may hold secrets.
        let file = options.create(true).write(true).truncate(true).mode(0o600).open(&path)?;
        Ok(Self { path, file, bytes: 0 })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, at: Timestamp, name: &str, text: &[u8]) -> io::Result<()> {
        let mut line = format!("{at:.3}\t{name}\t").into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        let length = line.len() as u64;
        if self.bytes + length > MAX_BYTES {
            std::fs::rename(&self.path, older(&self.path))?;
            *self = Self::create(self.path.clone())?;
        }
        self.file.write_all(&line)?;
        self.bytes += length;
        Ok(())
    }
}

impl Entry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |byte| *byte == b'\t');
        let mut word = || Some(String::from_utf8_lossy(parts.next()?).into_owned());
        let (at, name) = (word()?, word()?);
        Some(Self { at, name, text: parts.next()?.to_vec() })
    }
}

impl Reader {
    /// Begins with the oldest line that is kept.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let file = File::open(older(&path)).ok().map(BufReader::new);
        Self { path, file, begun: Vec::new() }
    }

    /// The lines that were written since the last call.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn more(&mut self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        loop {
            self.rest_of_file(&mut entries)?;
            let Some(next) = self.next_file()? else { return Ok(entries) };
            self.begun.clear();
            self.file = Some(BufReader::new(next));
        }
    }

    fn rest_of_file(&mut self, entries: &mut Vec<Entry>) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        loop {
            // Bounded, should the file hold no line end.
            let read = file.by_ref().take(MAX_BYTES).read_until(b'\n', &mut self.begun)?;
            if read == 0 || self.begun.last() != Some(&b'\n') {
                return Ok(());
            }
            self.begun.pop();
            entries.extend(Entry::parse(&self.begun));
            self.begun.clear();
        }
    }

    /// The file that is written now, where that is another one than this reader has.
    fn next_file(&self) -> io::Result<Option<File>> {
        let mut current = match File::open(&self.path) {
            // Between two files, or the mesh has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        if let Some(open) = &self.file {
            let (open, now) = (open.get_ref().metadata()?, current.metadata()?);
            if (open.dev(), open.ino()) == (now.dev(), now.ino()) {
                return Ok(None);
            }
        }
        current.seek(SeekFrom::Start(0))?;
        Ok(Some(current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(reader: &mut Reader) -> Vec<String> {
        let entries = reader.more().unwrap();
        entries.into_iter().map(|entry| String::from_utf8(entry.text).unwrap()).collect()
    }

    #[test]
    fn a_reader_gets_every_line_once_as_the_log_grows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(path.clone()).unwrap();
        let now = Timestamp::now();
        log.append(now, "shop/web-0", b"one\twith a tab").unwrap();
        let mut reader = Reader::new(path);
        let first = reader.more().unwrap();
        assert_eq!((&*first[0].name, &*first[0].text), ("shop/web-0", &b"one\twith a tab"[..]));
        assert_eq!(
            first[0].at.parse::<Timestamp>().unwrap().as_millisecond(),
            now.as_millisecond()
        );
        assert_eq!(texts(&mut reader), [""; 0]);
        log.append(now, "leno", b"two").unwrap();
        assert_eq!(texts(&mut reader), ["two"]);
    }

    #[test]
    fn the_log_is_bounded_and_the_newest_lines_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(path.clone()).unwrap();
        let mut reader = Reader::new(path.clone());
        let (now, line) = (Timestamp::now(), vec![b'x'; 1 << 16]);
        let lines = 3 * (MAX_BYTES >> 16);
        let mut read = 0;
        for number in 0..lines {
            log.append(now, "leno", &line).unwrap();
            if number % 10 == 0 {
                read += reader.more().unwrap().len();
            }
        }
        assert_eq!((read + reader.more().unwrap().len()) as u64, lines);
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) <= MAX_BYTES && size(&older(&path)) <= MAX_BYTES);
        // A new reader begins with what is left.
        let left = texts(&mut Reader::new(path));
        assert!(left.len() > 60 && (left.len() as u64) < lines, "{}", left.len());
    }
}
