//! Prints the output of a mesh's processes, line by line, each line with its origin.
//!
//! One thread writes to the terminal and to the log of `leno logs`. If the terminal is stopped, only the programs
//! that print have to wait, as they would have to without Leno.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use k8s_openapi::jiff::Timestamp;
use leno_observe::escape::escaped;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::log::LogFile;

/// Longest line, in bytes. A longer line is split. So a program that prints no line ends costs a bounded amount of
/// memory, and its output is still shown.
const MAX_LINE: usize = 16 * 1024;
/// Most lines that wait for the terminal. When the queue is full, programs that print wait, but the mesh itself
/// does not.
const QUEUE: usize = 512;
/// Widest column of labels, in characters. A longer label sticks out of the column; a wider column would move the
/// text of all lines too far right.
const MAX_WIDTH: usize = 40;
/// How much of the last line of an origin is kept for `leno check`, in bytes.
const MAX_LAST: usize = 200;
/// Colours that are readable on dark and on light backgrounds. Red is reserved for errors.
const COLOURS: [u8; 5] = [32, 33, 34, 35, 36];
/// The terminal's code for bold, which marks lines of Leno itself.
const OWN: u8 = 1;
/// The label of lines of Leno itself.
pub const LENO: &str = "leno";

/// Accepts lines. It is cheap to clone, and the writer thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct LineOutput {
    messages: mpsc::Sender<Message>,
    waiting: OverflowLines,
    width: Arc<AtomicUsize>,
    style: LineStyle,
}

/// Lines of Leno itself that arrived while lines of programs filled the queue.
type OverflowLines = Arc<Mutex<VecDeque<Line>>>;

/// How lines are shown on the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineStyle {
    /// Whether labels are coloured.
    pub colour: bool,
    /// Whether each line begins with its time.
    pub times: bool,
    /// Whether a line is its text alone, without label and time.
    pub plain: bool,
    /// Whether control sequences in the text are escaped for a terminal. The log always has the original bytes.
    pub escaped: bool,
}

/// Waits for the writer thread, which ends when all lines are written.
#[derive(Debug)]
pub struct LineWriter(JoinHandle<()>);

/// Where lines come from.
#[derive(Clone, Debug)]
pub struct LineOrigin {
    /// The label before each line on the terminal.
    label: Arc<str>,
    /// The name in the log, including the namespace.
    name: Arc<str>,
    colour: Option<u8>,
    last: Arc<Mutex<String>>,
}

#[derive(Debug)]
enum Message {
    Line(Line),
    /// Write all further lines to this file as well.
    Keep(LogFile),
}

#[derive(Debug)]
struct Line {
    at: Timestamp,
    origin: LineOrigin,
    text: Vec<u8>,
}

impl LineOutput {
    /// Starts the thread that writes to standard output.
    #[must_use]
    pub fn start(style: LineStyle) -> (Self, LineWriter) {
        Self::to(Box::new(io::stdout()), style)
    }

    /// Starts a thread that writes to `sink`.
    pub fn to(sink: Box<dyn io::Write + Send>, style: LineStyle) -> (Self, LineWriter) {
        Self::reported(sink, style, None)
    }

    /// Starts a thread that writes plain lines, without label and time, to a file. Errors are printed on `report`.
    pub fn to_file(file: File, path: &Path, report: Self) -> (Self, LineWriter) {
        let style = LineStyle { plain: true, ..LineStyle::default() };
        Self::reported(Box::new(file), style, Some((report, path.display().to_string())))
    }

    fn reported(
        sink: Box<dyn io::Write + Send>,
        style: LineStyle,
        report: Option<(Self, String)>,
    ) -> (Self, LineWriter) {
        let (messages, received) = mpsc::channel(QUEUE);
        let width = Arc::new(AtomicUsize::new(0));
        let waiting = OverflowLines::default();
        let (for_writer, width_of) = (waiting.clone(), width.clone());
        let writing = Writing {
            sink,
            open: true,
            torn: false,
            lost: 0,
            report,
            log: None,
            style,
            width: width_of,
            waiting: for_writer,
        };
        let writer = std::thread::spawn(move || writing.run(received));
        (Self { messages, waiting, width, style }, LineWriter(writer))
    }

    /// Writes all further lines to `log` as well.
    pub async fn keep(&self, log: LogFile) {
        // Sending fails only if the writer has ended, which happens last of all.
        let _ = self.messages.send(Message::Keep(log)).await;
    }

    /// Makes the column of labels wide enough for a label that will come later.
    pub fn reserve(&self, label: &str) {
        self.width.fetch_max(label.len().min(MAX_WIDTH), Ordering::Relaxed);
    }

    /// An origin with this label on the terminal and this name in the log. Origins with the same `group` have the
    /// same colour in every run.
    #[must_use]
    pub fn origin(&self, label: &str, name: &str, group: &str) -> LineOrigin {
        self.reserve(label);
        let hash =
            group.bytes().fold(5381_usize, |hash, byte| hash.wrapping_mul(33) ^ usize::from(byte));
        let colour = self.style.colour.then(|| COLOURS[hash % COLOURS.len()]);
        LineOrigin::new(label, name, colour)
    }

    /// Prints lines of Leno itself. While lines of programs fill the main queue, they wait in a separate queue. If
    /// that is full as well, because the terminal is stopped, they are dropped: the mesh itself never waits for a
    /// terminal.
    pub fn say(&self, text: &str) {
        let origin = LineOrigin::new(LENO, LENO, self.style.colour.then_some(OWN));
        for line in text.lines() {
            let line = Message::Line(Line::new(&origin, line.as_bytes()));
            let Err(TrySendError::Full(Message::Line(line))) = self.messages.try_send(line) else {
                continue;
            };
            // The writer takes lines from this queue before it takes one from the main queue.
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() < QUEUE {
                waiting.push_back(line);
            }
        }
    }

    /// Prints every line of `source`, until it ends.
    pub async fn copy(&self, origin: &LineOrigin, source: impl AsyncRead + Unpin) {
        let mut source = BufReader::with_capacity(MAX_LINE, source);
        let mut line = Vec::new();
        while let Ok(available) = source.fill_buf().await {
            if available.is_empty() {
                break;
            }
            let room = &available[..available.len().min(MAX_LINE - line.len())];
            let end = room.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&room[..end.unwrap_or(room.len())]);
            let used = end.map_or(room.len(), |end| end + 1);
            source.consume(used);
            if end.is_some() || line.len() == MAX_LINE {
                self.line(origin, &line).await;
                line.clear();
            }
        }
        if !line.is_empty() {
            self.line(origin, &line).await;
        }
    }

    async fn line(&self, origin: &LineOrigin, text: &[u8]) {
        origin.remember(text);
        // Sending fails only if the writer has ended, which happens last of all.
        let _ = self.messages.send(Message::Line(Line::new(origin, text))).await;
    }
}

impl LineOrigin {
    fn new(label: &str, name: &str, colour: Option<u8>) -> Self {
        Self { label: label.into(), name: name.into(), colour, last: Arc::default() }
    }

    /// The last non-empty line of this origin, shortened.
    #[must_use]
    pub fn last_line(&self) -> String {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, text: &[u8]) {
        remember(&self.last, text);
    }
}

/// Keeps `text`, shortened, unless it is empty.
fn remember(last: &Mutex<String>, text: &[u8]) {
    let text = text[..text.len().min(MAX_LAST)].trim_ascii();
    if !text.is_empty() {
        *last.lock().unwrap_or_else(PoisonError::into_inner) =
            String::from_utf8_lossy(text).into_owned();
    }
}

/// Reads `source` to its end and keeps its last non-empty line in `last`.
pub(crate) async fn last_line(source: Option<impl AsyncRead + Unpin>, last: Arc<Mutex<String>>) {
    let Some(mut source) = source else { return };
    let (mut line, mut chunk) = (Vec::with_capacity(MAX_LAST), [0; 4096]);
    while let Ok(read @ 1..) = source.read(&mut chunk).await {
        for byte in &chunk[..read] {
            match byte {
                b'\n' => {
                    remember(&last, &line);
                    line.clear();
                }
                byte if line.len() < MAX_LAST => line.push(*byte),
                _ => {}
            }
        }
    }
    remember(&last, &line);
}

impl Line {
    fn new(origin: &LineOrigin, text: &[u8]) -> Self {
        let text = text.strip_suffix(b"\r").unwrap_or(text).to_vec();
        Self { at: Timestamp::now(), origin: origin.clone(), text }
    }
}

/// The state of the writer thread.
struct Writing {
    sink: Box<dyn io::Write + Send>,
    /// Whether standard output still has a reader. If the reader is gone (`| head`), printing stops, but the mesh
    /// continues.
    open: bool,
    /// Whether the last line was only partly written.
    torn: bool,
    /// How many lines were lost since the last complete one, for example because the disk is full.
    lost: u64,
    /// Where lost lines are reported, and the name of the file for the report.
    report: Option<(LineOutput, String)>,
    log: Option<LogFile>,
    style: LineStyle,
    width: Arc<AtomicUsize>,
    waiting: OverflowLines,
}

impl Writing {
    fn run(mut self, mut received: mpsc::Receiver<Message>) {
        while let Some(message) = received.blocking_recv() {
            self.write_waiting();
            match message {
                Message::Line(line) => self.write(&line),
                Message::Keep(log) => self.log = Some(log),
            }
        }
        self.write_waiting();
        self.say_lost("is closed");
    }

    fn write_waiting(&mut self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut *waiting);
        drop(waiting);
        for line in lines {
            self.write(&line);
        }
    }

    fn write(&mut self, line: &Line) {
        let kept = self.log.as_mut().map(|log| log.append(line.at, &line.origin.name, &line.text));
        if let Some(Err(error)) = kept {
            self.log = None;
            let text = format!(
                "the log cannot be written ({error}): `leno logs` misses all lines \
                 from here on"
            );
            self.show(&Line::new(&LineOrigin::new(LENO, LENO, None), text.as_bytes()));
        }
        self.show(line);
    }

    fn show(&mut self, line: &Line) {
        if !self.open {
            return;
        }
        match self.append(&self.whole(line)) {
            Ok(()) => {
                self.say_lost("can be written again");
                self.lost = 0;
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.open = false,
            Err(error) => {
                if let (0, Some((output, name))) = (self.lost, &self.report) {
                    output.say(&format!("{name} cannot be written ({error}): its lines are lost"));
                }
                self.lost += 1;
            }
        }
    }

    /// Writes a line. If the last line was only partly written, ends that line first.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.sink.write_all(b"\n")?;
            self.torn = false;
        }
        let mut left = line;
        while !left.is_empty() {
            match self.sink.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.torn = !left.is_empty();
        }
        self.sink.flush()
    }

    /// Reports how many lines were lost, if any.
    fn say_lost(&self, what: &str) {
        if let (1.., Some((output, name))) = (self.lost, &self.report) {
            output.say(&format!("{name} {what}; {} lines were lost", self.lost));
        }
    }

    fn whole(&self, line: &Line) -> Vec<u8> {
        let Line { at, origin, text } = line;
        let mut whole = Vec::with_capacity(text.len() + 2 * MAX_WIDTH);
        if !self.style.plain {
            let width = self.width.load(Ordering::Relaxed);
            if self.style.times {
                whole.extend_from_slice(format!("{at:.3} ").as_bytes());
            }
            let label = &origin.label;
            let label = match origin.colour {
                Some(colour) => format!("\x1b[{colour}m{label:width$} |\x1b[0m "),
                None => format!("{label:width$} | "),
            };
            whole.extend_from_slice(label.as_bytes());
        }
        match self.style.escaped {
            true => whole.extend(escaped(&String::from_utf8_lossy(text)).bytes()),
            false => whole.extend_from_slice(text),
        }
        whole.push(b'\n');
        whole
    }
}

impl LineWriter {
    /// Waits until everything is written; every [`LineOutput`] must be dropped before.
    pub fn finish(self) {
        // The runtime has printed the panic of the writer.
        let _ = self.0.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn printed(source: &[u8], style: LineStyle) -> String {
        let sink = Sink::default();
        let (output, writer) = LineOutput::to(Box::new(sink.clone()), style);
        let origin = output.origin("web-0", "shop/web-0", "web");
        output.copy(&origin, source).await;
        drop(output);
        writer.finish();
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[tokio::test]
    async fn every_line_says_whose_it_is() {
        assert_eq!(
            printed(b"one\r\n\ntwo", LineStyle::default()).await,
            "web-0 | one\nweb-0 | \nweb-0 | two\n"
        );
    }

    #[tokio::test]
    async fn colours_end_before_the_text() {
        let text = printed(b"one\n", LineStyle { colour: true, ..LineStyle::default() }).await;
        assert!(text.ends_with("web-0 |\x1b[0m one\n"), "{text:?}");
    }

    #[test]
    fn no_label_has_the_colour_of_errors() {
        let (red, bright_red) = (31, 91);
        assert!(COLOURS.iter().chain([&OWN]).all(|colour| ![red, bright_red].contains(colour)));
    }

    #[tokio::test]
    async fn a_line_without_end_is_broken() {
        let text = printed(&vec![b'x'; MAX_LINE + 1], LineStyle::default()).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], "web-0 | x");
    }

    #[tokio::test]
    async fn a_plain_line_is_its_text_alone() {
        let style = LineStyle { plain: true, times: true, colour: true, escaped: false };
        assert_eq!(printed(b"{\"status\":200}\n", style).await, "{\"status\":200}\n");
    }

    /// A disk with limited room, which counts how many times it was full.
    #[derive(Clone, Default)]
    struct Disk {
        written: Sink,
        room: Arc<AtomicUsize>,
        refused: Arc<AtomicUsize>,
    }

    impl io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.room.load(Ordering::SeqCst).min(bytes.len());
            if room == 0 {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room.fetch_sub(room, Ordering::SeqCst);
            self.written.write(&bytes[..room])
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_full_disk_costs_lines_that_are_counted() {
        let (disk, said) = (Disk::default(), Sink::default());
        let (report, reporter) = LineOutput::to(Box::new(said.clone()), LineStyle::default());
        let style = LineStyle { plain: true, ..LineStyle::default() };
        let report = Some((report, "log.json".to_owned()));
        let (output, writer) = LineOutput::reported(Box::new(disk.clone()), style, report);
        let origin = output.origin("web-0", "shop/web-0", "web");
        let text = |sink: &Sink| String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        disk.room.store(7, Ordering::SeqCst);
        output.copy(&origin, &b"one\ntwo three\nfour\n"[..]).await;
        while disk.refused.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        disk.room.store(1000, Ordering::SeqCst);
        output.copy(&origin, &b"five\nsix\n"[..]).await;
        drop(output);
        writer.finish();
        reporter.finish();
        assert_eq!(text(&disk.written), "one\ntwo\nfive\nsix\n");
        let said = text(&said);
        assert!(
            said.contains("log.json cannot be written (no storage space): its lines are lost"),
            "{said}"
        );
        assert!(said.ends_with("log.json can be written again; 2 lines were lost\n"), "{said}");
    }

    #[tokio::test]
    async fn a_workload_cannot_command_the_terminal() {
        let style = LineStyle { colour: true, escaped: true, ..LineStyle::default() };
        let text = printed(b"\x1b[2Jone\rtwo\x9b\tthree\n", style).await;
        assert!(text.ends_with("|\x1b[0m \\x1b[2Jone\\x0dtwo\u{fffd}\tthree\n"), "{text:?}");
        let raw = printed(b"\x1b[2Jone\n", LineStyle::default()).await;
        assert_eq!(raw, "web-0 | \x1b[2Jone\n", "a file or a pipe has the bytes");
    }

    #[tokio::test]
    async fn a_line_may_begin_with_its_time() {
        let text = printed(b"one\n", LineStyle { times: true, ..LineStyle::default() }).await;
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.len() == 24 && time.parse::<Timestamp>().is_ok(), "{text:?}");
        assert_eq!(rest, "web-0 | one\n");
    }

    #[tokio::test]
    async fn the_last_line_is_remembered() {
        let (output, writer) = LineOutput::to(Box::new(Sink::default()), LineStyle::default());
        let origin = output.origin("web-0", "shop/web-0", "web");
        output.copy(&origin, &b"one\n two \n\n"[..]).await;
        assert_eq!(origin.last_line(), "two");
        drop(output);
        writer.finish();
    }
}
