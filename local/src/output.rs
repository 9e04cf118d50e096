//! What a mesh's processes print, line by line, each with its origin before it.
//!
//! One thread writes; a terminal that is stopped holds up the programs that print, as it would
//! without Leno, and nothing else.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::mpsc;

/// Longest line, in bytes: a longer one is broken here, so that a program that never ends its line
/// costs a bounded amount of memory and still shows what it prints.
const MAX_LINE: usize = 16 * 1024;
/// Lines waiting for the terminal. When it is full the programs wait, not the mesh.
const QUEUE: usize = 512;
/// Widest column of labels, in characters: longer ones stick out, instead of pushing every line of
/// the others off the screen.
const MAX_WIDTH: usize = 40;
/// Foreground colours that are readable on dark and on light.
const COLOURS: [u8; 6] = [32, 33, 34, 35, 36, 31];

/// Where lines go. Cheap to clone; the writer ends when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Output {
    lines: mpsc::Sender<Vec<u8>>,
    width: Arc<AtomicUsize>,
    colour: bool,
}

/// Ends the writer thread: waits until everything is written.
#[derive(Debug)]
pub struct Writer(JoinHandle<()>);

/// Before whose lines a name stands.
#[derive(Clone, Debug)]
pub struct Origin {
    label: String,
    colour: Option<u8>,
}

impl Output {
    /// Starts the thread that writes to standard output.
    #[must_use]
    pub fn start(colour: bool) -> (Self, Writer) {
        Self::to(Box::new(io::stdout()), colour)
    }

    fn to(mut sink: Box<dyn io::Write + Send>, colour: bool) -> (Self, Writer) {
        let (lines, mut received) = mpsc::channel::<Vec<u8>>(QUEUE);
        let writer = std::thread::spawn(move || {
            let mut open = true;
            while let Some(line) = received.blocking_recv() {
                // A reader that is gone (`| head`) stops the printing, not the mesh.
                open = open && sink.write_all(&line).and_then(|()| sink.flush()).is_ok();
            }
        });
        let output = Self { lines, width: Arc::new(AtomicUsize::new(0)), colour };
        (output, Writer(writer))
    }

    /// Keeps room for a label that comes later.
    pub fn reserve(&self, label: &str) {
        self.width.fetch_max(label.len().min(MAX_WIDTH), Ordering::Relaxed);
    }

    /// The origin called `label`; the same `group` has the same colour in every run.
    #[must_use]
    pub fn origin(&self, label: &str, group: &str) -> Origin {
        self.reserve(label);
        let hash =
            group.bytes().fold(5381_usize, |hash, byte| hash.wrapping_mul(33) ^ usize::from(byte));
        Origin {
            label: label.to_owned(),
            colour: self.colour.then(|| COLOURS[hash % COLOURS.len()]),
        }
    }

    /// Prints lines of Leno's own. While the terminal is stopped and the queue full they are
    /// dropped: the mesh itself never waits for a terminal.
    pub fn say(&self, text: &str) {
        let origin = Origin { label: "leno".into(), colour: self.colour.then_some(1) };
        for line in text.lines() {
            let _ = self.lines.try_send(self.whole(&origin, line.as_bytes()));
        }
    }

    /// Prints every line that `source` gives, until it ends.
    pub async fn copy(&self, origin: &Origin, source: impl AsyncRead + Unpin) {
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

    async fn line(&self, origin: &Origin, text: &[u8]) {
        // Only at the very end is there no writer any more.
        let _ = self.lines.send(self.whole(origin, text)).await;
    }

    fn whole(&self, origin: &Origin, text: &[u8]) -> Vec<u8> {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let width = self.width.load(Ordering::Relaxed);
        let mut whole = match origin.colour {
            Some(colour) => format!("\x1b[{colour}m{:width$} |\x1b[0m ", origin.label),
            None => format!("{:width$} | ", origin.label),
        }
        .into_bytes();
        whole.extend_from_slice(text);
        whole.push(b'\n');
        whole
    }
}

impl Writer {
    /// Waits until everything is written; every [`Output`] must be dropped before.
    pub fn finish(self) {
        // A panic of the writer has been printed by itself.
        let _ = self.0.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

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

    async fn printed(source: &[u8], colour: bool) -> String {
        let sink = Sink::default();
        let (output, writer) = Output::to(Box::new(sink.clone()), colour);
        let origin = output.origin("web-0", "web");
        output.copy(&origin, source).await;
        drop(output);
        writer.finish();
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[tokio::test]
    async fn every_line_says_whose_it_is() {
        assert_eq!(printed(b"one\r\n\ntwo", false).await, "web-0 | one\nweb-0 | \nweb-0 | two\n");
    }

    #[tokio::test]
    async fn colours_end_before_the_text() {
        let text = printed(b"one\n", true).await;
        assert!(text.ends_with("web-0 |\x1b[0m one\n"), "{text:?}");
    }

    #[tokio::test]
    async fn a_line_without_end_is_broken() {
        let text = printed(&vec![b'x'; MAX_LINE + 1], false).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], "web-0 | x");
    }
}
