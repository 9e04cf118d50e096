//! Keeps the newest lines of a mesh in files of bounded size, for `leno logs`.
//!
//! ```text
//! log      TIME <tab> NAME <tab> TEXT          written until it is full, then renamed to log.1
//! log.1    the lines before, replaced by the next full file
//! leno.log, leno.log.1    the same for the lines of `leno up` itself
//! ```
//!
//! NAME is `namespace/instance`, `namespace/instance proxy`, `controller` or `leno`. The first line of each file
//! has neither time nor name; its TEXT is the number of lines that were written before that file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;

use crate::output::LENO;

/// Largest size of `log` and of `log.1`, in bytes. `/run` is in memory, and about 40,000 lines are enough history.
const MAX_BYTES: u64 = 4 << 20;

/// Largest size of `leno.log` and of `leno.log.1`, in bytes. The lines of `leno up` itself have separate files, so
/// that the output of workloads does not displace them.
const MAX_OWN_BYTES: u64 = 1 << 20;
/// The names under which the mesh's own programs log.
pub const OWN_NAMES: [&str; 3] = [LENO, "controller", "observer"];

/// The log of a mesh, for its writer.
#[derive(Debug)]
pub struct LogFile {
    own: Ring,
    others: Ring,
}

/// A file and the full file before it, which together have the newest lines.
#[derive(Debug)]
struct Ring {
    path: PathBuf,
    max_bytes: u64,
    file: File,
    bytes: u64,
    /// How many lines were written since the log began.
    lines: u64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// When it was printed, in RFC 3339.
    pub at: String,
    /// The name of the process that printed it.
    pub name: String,
    /// The line.
    pub text: Vec<u8>,
}

/// The log of a mesh, for a reader that follows it.
#[derive(Debug)]
pub struct LogReader {
    own: Tail,
    others: Tail,
}

/// How many lines were dropped before a reader could read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedLines {
    /// Lines of `leno up` itself.
    pub own: u64,
    /// Lines of the workloads and of all other processes.
    pub others: u64,
}

/// Reads a ring and follows its end.
#[derive(Debug)]
struct Tail {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// The beginning of a line whose end was not written yet.
    begun: Vec<u8>,
    /// How many lines of the ring were read or dropped so far.
    passed: u64,
    dropped: u64,
}

/// The path of the file that has the lines before those of `path`.
fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// The path of the file for the lines of `leno up` itself, which is beside `path`.
fn own(path: &Path) -> PathBuf {
    path.with_file_name("leno.log")
}

impl LogFile {
    /// Creates an empty log.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let own = Ring::create(own(&path), MAX_OWN_BYTES, 0)?;
        Ok(Self { own, others: Ring::create(path, MAX_BYTES, 0)? })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When the line cannot be written.
    pub fn append(&mut self, at: Timestamp, name: &str, text: &[u8]) -> io::Result<()> {
        let mut line = format!("{at:.3}\t{name}\t").into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        match name {
            LENO => self.own.append(&line),
            _ => self.others.append(&line),
        }
    }
}

impl Ring {
    fn create(path: PathBuf, max_bytes: u64, lines: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // The output of applications may contain secrets.
        let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&path)?;
        let head = format!("\t\t{lines}\n");
        file.write_all(head.as_bytes())?;
        Ok(Self { path, max_bytes, file, bytes: head.len() as u64, lines })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.bytes + length > self.max_bytes {
            std::fs::rename(&self.path, older(&self.path))?;
            *self = Self::create(self.path.clone(), self.max_bytes, self.lines)?;
        }
        self.file.write_all(line)?;
        self.bytes += length;
        self.lines += 1;
        Ok(())
    }
}

impl LogEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |byte| *byte == b'\t');
        let mut word = || Some(String::from_utf8_lossy(parts.next()?).into_owned());
        let (at, name) = (word()?, word()?);
        Some(Self { at, name, text: parts.next()?.to_vec() })
    }
}

impl LogReader {
    /// A reader that starts at the oldest line that the files have.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { own: Tail::new(own(&path)), others: Tail::new(path) }
    }

    /// The lines that were written since the last call, sorted by time.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn more(&mut self) -> io::Result<Vec<LogEntry>> {
        let mut entries = self.others.more()?;
        let own = self.own.more()?;
        if !own.is_empty() {
            entries.extend(own);
            // The sort is stable, so a workload's output stays before messages about its end in the same
            // millisecond.
            entries.sort_by(|one, other| one.at.cmp(&other.at));
        }
        Ok(entries)
    }

    /// How many lines were dropped before they could be read.
    #[must_use]
    pub fn dropped(&self) -> DroppedLines {
        DroppedLines { own: self.own.dropped, others: self.others.dropped }
    }
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        let file = File::open(older(&path)).ok().map(BufReader::new);
        Self { path, file, begun: Vec::new(), passed: 0, dropped: 0 }
    }

    fn more(&mut self) -> io::Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        loop {
            self.rest_of_file(&mut entries)?;
            let Some(next) = self.next_file()? else { return Ok(entries) };
            self.begun.clear();
            self.file = Some(BufReader::new(next));
        }
    }

    fn rest_of_file(&mut self, entries: &mut Vec<LogEntry>) -> io::Result<()> {
        loop {
            let Some(file) = &mut self.file else { return Ok(()) };
            // Bounded, in case the file has no line end.
            let read = file.by_ref().take(MAX_BYTES).read_until(b'\n', &mut self.begun)?;
            if read == 0 || self.begun.last() != Some(&b'\n') {
                return Ok(());
            }
            self.begun.pop();
            self.take(entries);
            self.begun.clear();
        }
    }

    /// Handles the line that was read.
    fn take(&mut self, entries: &mut Vec<LogEntry>) {
        let Some(entry) = LogEntry::parse(&self.begun) else { return };
        if !entry.at.is_empty() {
            self.passed += 1;
            entries.push(entry);
            return;
        }
        // This is a file's first line. Lines that were written before this file and were not read are lost.
        let before = String::from_utf8_lossy(&entry.text).parse().unwrap_or(self.passed);
        self.dropped += before.saturating_sub(self.passed);
        self.passed = self.passed.max(before);
    }

    /// Opens the file that the writer uses now, if this reader has another one open.
    fn next_file(&self) -> io::Result<Option<File>> {
        let mut current = match File::open(&self.path) {
            // The writer is just between two files, or the mesh has ended.
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

    fn texts(reader: &mut LogReader) -> Vec<String> {
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
        let mut reader = LogReader::new(path);
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
        let mut reader = LogReader::new(path.clone());
        let (now, line) = (Timestamp::now(), vec![b'x'; 1 << 16]);
        let lines = 3 * (MAX_BYTES >> 16);
        log.append(now, LENO, b"begun").unwrap();
        let mut read = 0;
        for number in 0..lines {
            log.append(now, "shop/web-0", &line).unwrap();
            if number % 10 == 0 {
                read += reader.more().unwrap().len();
            }
        }
        assert_eq!((read + reader.more().unwrap().len()) as u64, lines + 1);
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) <= MAX_BYTES && size(&older(&path)) <= MAX_BYTES);
        assert_eq!(reader.dropped(), DroppedLines::default());
        // A new reader starts with the remaining lines, which include the line of `leno up`.
        let mut reader = LogReader::new(path);
        let left = reader.more().unwrap();
        assert!(left.len() > 60 && (left.len() as u64) < lines, "{}", left.len());
        assert!(left.iter().any(|entry| entry.name == LENO));
        let dropped = DroppedLines { own: 0, others: lines + 1 - left.len() as u64 };
        assert_eq!(reader.dropped(), dropped);
    }
}
