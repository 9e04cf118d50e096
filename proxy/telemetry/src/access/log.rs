//! Writes the access log in a thread of its own, so that a slow disk or terminal never delays a
//! request.

use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::{Form, Layout, Record};

/// How many lines may wait to be written, about 300 bytes each. This is a burst of some hundredths of a second at
/// 100,000 requests per second. Further lines are dropped and counted, because a log that is written too slowly must
/// not slow requests down.
const MAX_WAITING: usize = 4096;

/// Receives the lines of all workers. Each worker has a clone.
#[derive(Clone, Debug)]
pub struct Log {
    form: Form,
    layout: Layout,
    lines: SyncSender<String>,
}

impl Log {
    /// Starts the thread that writes lines of this form, text or JSON, to standard output. It ends with the process, or
    /// when standard output is closed and no program can read it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(form: Form, layout: Layout) -> io::Result<Self> {
        let (log, _ends_with_the_process) = Self::to(io::stdout(), (form, layout))?;
        Ok(log)
    }

    /// Starts a thread that writes to `out`. It ends when the last clone of the log is dropped and all lines are
    /// written, or at the first line that cannot be written.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to<W>(
        out: W,
        (form, layout): (Form, Layout),
    ) -> io::Result<(Self, JoinHandle<io::Result<()>>)>
    where
        W: Write + Send + 'static,
    {
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let thread =
            thread::Builder::new().name("access-log".into()).spawn(move || write(&waiting, out))?;
        Ok((Self { form, layout, lines }, thread))
    }

    /// Queues a line. `false` means that the queue is full and the line was dropped.
    #[must_use]
    pub fn write(&self, record: &Record<'_>) -> bool {
        self.lines.try_send(record.line(self.form, &self.layout)).is_ok()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Flushes whenever the queue is empty, so that a single line appears at once and a burst is
/// written together.
fn write(waiting: &Receiver<String>, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    while let Ok(line) = waiting.recv() {
        out.write_all(line.as_bytes())?;
        while let Ok(line) = waiting.try_recv() {
            out.write_all(line.as_bytes())?;
        }
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Direction, EdgeLabels};

    /// Passes each write to the test, and waits until the test has received it.
    struct Gate(mpsc::SyncSender<Vec<u8>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes this many lines to the log. Returns how many were accepted.
    fn write_lines(log: &Log, lines: usize) -> usize {
        let edge = EdgeLabels {
            direction: Direction::Outbound,
            client: "web-0".into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "cart".into(),
            mtls: true,
        };
        let record = Record {
            edge: &edge,
            method: "GET",
            protocol: Some("HTTP/1.1"),
            target: b"/",
            status: Some(200),
            ..Record::of(&edge)
        };
        (0..lines).filter(|_| log.write(&record)).count()
    }

    fn lines_of(written: &mpsc::Receiver<Vec<u8>>) -> usize {
        let text: Vec<u8> = written.iter().flatten().collect();
        String::from_utf8(text).unwrap().lines().count()
    }

    #[test]
    fn lines_are_written_whole_and_the_writer_ends_with_its_logs() {
        let (gate, written) = mpsc::sync_channel(1024);
        let (log, thread) = Log::to(Gate(gate), (Form::Text, Layout::default())).unwrap();
        assert_eq!(write_lines(&log, 100), 100);
        drop(log);
        thread.join().unwrap().unwrap();
        assert_eq!(lines_of(&written), 100);
    }

    #[test]
    fn lines_that_cannot_be_written_in_time_are_dropped() {
        let (gate, written) = mpsc::sync_channel(0);
        let (log, thread) = Log::to(Gate(gate), (Form::Json, Layout::default())).unwrap();
        // The test does not receive anything yet, so the queue and one buffer of the writer fill up.
        let taken = write_lines(&log, 4 * MAX_WAITING);
        assert!((MAX_WAITING..2 * MAX_WAITING).contains(&taken), "{taken}");
        drop(log);
        assert_eq!(lines_of(&written), taken);
        thread.join().unwrap().unwrap();
    }
}
