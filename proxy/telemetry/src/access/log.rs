//! Where the lines of the access log go: a thread of their own, so that a slow disk or terminal
//! never holds a request up.

use std::io::{self, BufWriter, Write};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use super::{Format, Record};
use crate::{Counter, Registry};

/// Lines that may wait to be written, about 300 bytes each: a hundredth of a second at 100,000
/// requests a second. What comes on top is dropped and counted.
const MAX_WAITING: usize = 1024;

/// Takes lines from workers. Cloned for each of them; the writer ends with the last clone.
#[derive(Clone, Debug)]
pub struct Sink {
    lines: SyncSender<String>,
    format: Format,
}

/// One worker's access log.
#[derive(Debug)]
pub struct AccessLog {
    sink: Sink,
    registry: Rc<Registry>,
}

impl Sink {
    /// Starts a thread that writes lines to `out`. It ends, with everything written, when the last
    /// clone of the sink is dropped, or at the first line that cannot be written.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start<W>(out: W, format: Format) -> io::Result<(Self, JoinHandle<io::Result<()>>)>
    where
        W: Write + Send + 'static,
    {
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let thread =
            thread::Builder::new().name("access-log".into()).spawn(move || write(&waiting, out))?;
        Ok((Self { lines, format }, thread))
    }

    /// For a worker, which counts what is dropped.
    #[must_use]
    pub fn log(&self, registry: Rc<Registry>) -> AccessLog {
        AccessLog { sink: self.clone(), registry }
    }
}

impl AccessLog {
    /// Writes a line, or drops it when too many wait.
    pub fn write(&self, record: &Record<'_>) {
        if self.sink.lines.try_send(record.line(self.sink.format)).is_err() {
            self.registry.count(Counter::AccessLogDropped);
        }
    }
}

/// Flushes whenever nothing waits, so that a line is seen at once and a burst is written in one go.
fn write(waiting: &Receiver<String>, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    while let Ok(line) = waiting.recv() {
        out.write_all(line.as_bytes())?;
        loop {
            match waiting.try_recv() {
                Ok(line) => out.write_all(line.as_bytes())?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::{Direction, EdgeLabels};

    /// Hands over what is written, and waits for each to be taken.
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

    fn labels() -> EdgeLabels {
        EdgeLabels {
            direction: Direction::Outbound,
            client: "web-0".into(),
            client_namespace: "shop".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "cart".into(),
            mtls: true,
        }
    }

    fn record(edge: &EdgeLabels) -> Record<'_> {
        Record {
            edge,
            method: "GET",
            target: b"/",
            status: Some(200),
            bytes: (0, 0),
            duration: Duration::ZERO,
            error: None,
        }
    }

    #[test]
    fn lines_are_written_whole_and_the_writer_ends_with_its_sinks() {
        let (gate, written) = mpsc::sync_channel(1024);
        let (sink, thread) = Sink::start(Gate(gate), Format::Text).unwrap();
        let registry = Rc::new(Registry::new());
        let log = sink.log(registry);
        let edge = labels();
        (0..100).for_each(|_| log.write(&record(&edge)));
        drop((log, sink));
        thread.join().unwrap().unwrap();
        let text: Vec<u8> = written.iter().flatten().collect();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), 100);
    }

    #[test]
    fn lines_that_cannot_be_written_in_time_are_dropped_and_counted() {
        let (gate, written) = mpsc::sync_channel(0);
        let (sink, thread) = Sink::start(Gate(gate), Format::Json).unwrap();
        let registry = Rc::new(Registry::new());
        let log = sink.log(Rc::clone(&registry));
        let edge = labels();
        // Nobody takes what is written yet: the queue and one buffer of the writer fill up.
        let lines = 4 * MAX_WAITING;
        (0..lines).for_each(|_| log.write(&record(&edge)));
        let dropped = registry.snapshot().counter(Counter::AccessLogDropped) as usize;
        assert!(dropped > 0 && dropped < lines, "{dropped}");
        drop((log, sink));
        let text: Vec<u8> = written.iter().flatten().collect();
        thread.join().unwrap().unwrap();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), lines - dropped);
    }
}
