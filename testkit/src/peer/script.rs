//! Follows a list of steps on a connection, and records a transcript of what was received.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use crate::http1::ResponseReader;
use crate::wait;

/// How long a step waits for the other side: much longer than a busy machine needs, and longer than the mesh needs to
/// notice that a server has lost power.
const STEP_LIMIT: Duration = Duration::from_secs(40);
/// The reason why a script ends early if the other side sends nothing.
const SILENCE: &str = "nothing came in time";
/// How long a script waits for a file. The test may create the file only after it has itself waited for something.
const FILE_LIMIT: Duration = Duration::from_mins(5);
/// Most bytes that one step reads.
const MAX_READ: usize = 64 * 1024 * 1024;
/// Most received bytes that a transcript contains as text.
const MAX_QUOTE: usize = 16 * 1024;

/// A step: one action on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Send this text.
    Send(String),
    /// Send this text this many times, in large writes.
    SendTimes(String, usize),
    /// Read one HTTP response. The flag is true if the request was HEAD.
    Response(bool),
    /// Read exactly this many bytes.
    Read(usize),
    /// Read until the other side closes its sending direction.
    ReadToEnd,
    /// Read exactly this text; otherwise fail.
    Expect(String),
    /// Shut down the sending direction, but keep reading.
    ShutdownWrite,
    /// Abort the connection, so that the other side sees a reset.
    Reset,
    /// Create an empty file, to tell another process that this step was reached.
    Touch(PathBuf),
    /// Wait until that file exists.
    WaitFor(PathBuf),
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One HTTP response.
    Response {
        /// The status code.
        status: u16,
        /// The status codes of interim responses before it.
        interim: Vec<u16>,
        /// The header fields, with names in lower case.
        headers: Vec<(String, String)>,
        /// The trailer fields, with names in lower case.
        trailers: Vec<(String, String)>,
        /// The length of the body in bytes.
        body_len: u64,
        /// The [`checksum`] of the body.
        body_sum: u64,
        /// The beginning of the body, as text.
        body: String,
        /// Whether the connection may carry another request.
        keep_alive: bool,
    },
    /// Bytes that were read.
    Bytes {
        /// Their number.
        len: u64,
        /// Their [`checksum`].
        sum: u64,
        /// Their beginning, as text.
        text: String,
    },
    /// The other side reset the connection or closed it too soon. No later step was executed.
    Failed(String),
}

/// The results of a whole script, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// The remote address of the connection, as `getpeername` returns it.
    pub remote: String,
    /// The address of this side.
    pub local: String,
    /// One event for each step that reads.
    pub events: Vec<Event>,
}

impl Transcript {
    /// The status codes of all responses.
    #[must_use]
    pub fn statuses(&self) -> Vec<u16> {
        self.events
            .iter()
            .filter_map(|e| match e {
                Event::Response { status, .. } => Some(*status),
                _ => None,
            })
            .collect()
    }

    /// The reason why the script ended early; `None` if it did not.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.events.iter().find_map(|e| match e {
            Event::Failed(why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// Whether the other side ended the connection before the script did. A silent other side does not count.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.failure().is_some_and(|why| why != SILENCE)
    }
}

/// The FNV-1a hash, which is enough to distinguish a body from any other that a bug would produce.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Connects to `host:port` and follows `steps`. Fails only if it cannot connect. A connection that is reset before
/// `connect` returns counts as connected, because this may happen to a denied connection.
pub fn talk(address: &str, steps: &[Step]) -> Result<Transcript> {
    let mut last = None;
    for candidate in
        address.to_socket_addrs().with_context(|| format!("cannot resolve {address}"))?
    {
        match TcpStream::connect_timeout(&candidate, STEP_LIMIT) {
            Ok(stream) => return follow(stream, steps),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                let events = vec![Event::Failed(error.to_string())];
                let (remote, local) = (candidate.to_string(), String::new());
                return Ok(Transcript { remote, local, events });
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("cannot connect to {address}")),
        None => bail!("{address} has no address"),
    }
}

/// Follows `steps` on an open connection.
pub fn follow(stream: TcpStream, steps: &[Step]) -> Result<Transcript> {
    stream.set_read_timeout(Some(STEP_LIMIT))?;
    stream.set_write_timeout(Some(STEP_LIMIT))?;
    stream.set_nodelay(true)?;
    let mut transcript = Transcript {
        remote: stream.peer_addr()?.to_string(),
        local: stream.local_addr()?.to_string(),
        events: Vec::new(),
    };
    let mut line = Line { stream: Some(stream), unread: Vec::new() };
    for step in steps {
        match line.step(step) {
            Ok(event) => transcript.events.extend(event),
            Err(error) => {
                transcript.events.push(Event::Failed(format!("{error:#}")));
                break;
            }
        }
    }
    Ok(transcript)
}

/// A connection, and the bytes that were read from it but not used yet.
struct Line {
    stream: Option<TcpStream>,
    unread: Vec<u8>,
}

impl Line {
    fn step(&mut self, step: &Step) -> Result<Option<Event>> {
        match step {
            Step::Send(text) => self.send(text.as_bytes())?,
            Step::SendTimes(text, count) => self.send_times(text, *count)?,
            Step::Response(head) => return self.response(*head).map(Some),
            Step::Read(count) => {
                let bytes = self.read(*count)?;
                return Ok(Some(quote(&bytes)));
            }
            Step::ReadToEnd => {
                while self.more()? {}
                return Ok(Some(quote(&std::mem::take(&mut self.unread))));
            }
            Step::Expect(text) => {
                let bytes = self.read(text.len())?;
                if bytes != text.as_bytes() {
                    bail!("expected {text:?}, got {:?}", String::from_utf8_lossy(&bytes));
                }
            }
            Step::ShutdownWrite => self.stream()?.shutdown(Shutdown::Write)?,
            Step::Reset => {
                let stream = self.stream.take().context("the connection has ended")?;
                setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
            }
            Step::Touch(path) => drop(std::fs::File::create(path)?),
            Step::WaitFor(path) => {
                wait::until("a file", FILE_LIMIT, || Ok(path.exists().then_some(())))?;
            }
        }
        Ok(None)
    }

    fn stream(&mut self) -> Result<&mut TcpStream> {
        self.stream.as_mut().context("the connection has ended")
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream()?.write_all(bytes).context("sending")
    }

    fn send_times(&mut self, text: &str, count: usize) -> Result<()> {
        // Writes about 64 KiB at once, as a real program does for a large upload.
        let batch = (64 * 1024 / text.len().max(1)).max(1);
        let mut left = count;
        while left > 0 {
            let now = left.min(batch);
            self.send(text.repeat(now).as_bytes())?;
            left -= now;
        }
        Ok(())
    }

    /// Reads once; returns false if the other side has shut down its sending direction.
    fn more(&mut self) -> Result<bool> {
        if self.unread.len() > MAX_READ {
            bail!("more than {MAX_READ} bytes in one step");
        }
        let mut piece = [0_u8; 64 * 1024];
        loop {
            match self.stream()?.read(&mut piece) {
                Ok(n) => {
                    self.unread.extend_from_slice(&piece[..n]);
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => bail!(SILENCE),
                Err(e) => return Err(e).context("reading"),
            }
        }
    }

    fn read(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.unread.len() < count {
            if !self.more()? {
                bail!("the connection ended after {} of {count} bytes", self.unread.len());
            }
        }
        Ok(self.unread.drain(..count).collect())
    }

    fn response(&mut self, head: bool) -> Result<Event> {
        let mut reader = ResponseReader::new(head, true);
        let response = loop {
            let (used, response) = reader.read(&self.unread)?;
            self.unread.drain(..used);
            if let Some(response) = response {
                break response;
            }
            if !self.more()? {
                break reader.finish()?.context("the connection ended before a response")?;
            }
        };
        Ok(Event::Response {
            status: response.status,
            interim: reader.interim().to_vec(),
            body: String::from_utf8_lossy(&response.body[..response.body.len().min(MAX_QUOTE)])
                .into_owned(),
            body_len: response.body_len,
            body_sum: checksum(&response.body),
            headers: response.headers,
            trailers: response.trailers,
            keep_alive: response.keep_alive,
        })
    }
}

fn quote(bytes: &[u8]) -> Event {
    Event::Bytes {
        len: bytes.len() as u64,
        sum: checksum(bytes),
        text: String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_QUOTE)]).into_owned(),
    }
}
