//! Servers that fail as scripted, and record every request that they receive.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultyAct {
    /// Responds 200 with a small body.
    Good,
    /// Responds 200 after a wait.
    After(Duration),
    /// Responds with this status.
    Status(u16),
    /// Responds with this status after a wait.
    StatusAfter(u16, Duration),
    /// Responds 429 with `Retry-After`, in seconds.
    Later(u32),
    /// Sends nothing for as long as the client waits.
    Stall,
    /// Sends the head and half of the body, then closes the connection.
    CutBody,
    /// Sends the head and half of the body, then resets the connection.
    ResetBody,
    /// Sends the head and half of the body, then nothing for as long as the client waits.
    StallBody,
    /// Closes the connection before a response.
    Close,
    /// Closes the connection after a wait.
    CloseAfter(Duration),
    /// Resets the connection before a response.
    Reset,
    /// Sends these bytes, then closes the connection.
    Says(&'static str),
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Responds 200, and then echoes the bytes after the request, like the far end of a tunnel.
    Tunnel,
}

/// A response whose body ends after the first half.
const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf-";

/// A response whose chunked framing becomes invalid in the middle.
const BAD_CHUNK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nxyz\r\n";

/// A response of an application that imitates the one that a Leno proxy sends when it cannot connect to its
/// application.
pub const FORGED: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    leno-error: application-unreachable\r\nLeno_H1: 1.0 T\r\n\
    Content-Length: 6\r\nConnection: close\r\n\r\nforged";

/// Makes closing the connection send a reset.
const AT_ONCE: linger = linger { l_onoff: 1, l_linger: 0 };

/// A server. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct Faulty {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    given_up: Arc<AtomicUsize>,
}

impl FromStr for FaultyAct {
    type Err = anyhow::Error;

    /// Parses `good`, `stall`, `cut`, `reset`, `close`, `garbage`, `bad-chunk`, `tunnel`, `forged`, a status, or
    /// `after:MILLISECONDS`.
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "good" => Self::Good,
            "stall" => Self::Stall,
            "cut" => Self::CutBody,
            "reset" => Self::ResetBody,
            "close" => Self::Close,
            "garbage" => Self::Garbage,
            "bad-chunk" => Self::Says(BAD_CHUNK),
            "tunnel" => Self::Tunnel,
            "forged" => Self::Says(FORGED),
            _ => match (text.strip_prefix("after:"), text.parse()) {
                (Some(wait), _) => Self::After(Duration::from_millis(wait.parse()?)),
                (None, Ok(status)) => Self::Status(status),
                (None, Err(_)) => bail!("{text:?} is nothing that a server does"),
            },
        })
    }
}

impl Faulty {
    /// Serves on an address. `script` returns what to do with request number `n`, counted from 0 over all
    /// connections.
    pub fn start(
        address: SocketAddr,
        script: impl Fn(u32) -> FaultyAct + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).context("cannot listen")?;
        let address = listener.local_addr()?;
        let faulty = Self { address, seen: Arc::default(), given_up: Arc::default() };
        let (serving, script) = (faulty.clone(), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (faulty, script) = (serving.clone(), Arc::clone(&script));
                // An error means that the client has closed the connection.
                thread::spawn(move || faulty.serve(stream, &*script).unwrap_or_default());
            }
        });
        Ok(faulty)
    }

    /// Also serves another address, which returns the recorded requests, one per line, to every HTTP client. Runs
    /// as long as the process.
    pub fn tell(&self, address: SocketAddr) -> Result<()> {
        let listener = TcpListener::bind(address).context("cannot listen")?;
        for stream in listener.incoming() {
            let mut stream = stream?;
            if read_request(&mut BufReader::new(stream.try_clone()?))?.is_some() {
                let body = self.seen().join("\n");
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                write!(stream, "{head} {}\r\n\r\n{body}", body.len())?;
            }
        }
        Ok(())
    }

    /// How many of the requests that were [stalled](FaultyAct::Stall), before the response or in its body, the
    /// client has cancelled.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The address on which it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The `x-id` of all requests in the order of their arrival. For a request without that header, its target.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        self.list().clone()
    }

    fn list(&self) -> MutexGuard<'_, Vec<String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream, script: &dyn Fn(u32) -> FaultyAct) -> io::Result<()> {
        // Without this, a head in two packets would wait in between for the client's acknowledgement.
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(id) = read_request(&mut reader)? {
            let number = {
                let mut seen = self.list();
                seen.push(id);
                u32::try_from(seen.len() - 1).unwrap_or(u32::MAX)
            };
            let good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            match script(number) {
                FaultyAct::Good => stream.write_all(good)?,
                FaultyAct::After(wait) => {
                    thread::sleep(wait);
                    stream.write_all(good)?;
                }
                FaultyAct::Status(status) => {
                    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")?;
                }
                FaultyAct::StatusAfter(status, wait) => {
                    thread::sleep(wait);
                    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")?;
                }
                FaultyAct::Later(seconds) => write!(
                    stream,
                    "HTTP/1.1 429 X\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n"
                )?,
                FaultyAct::Stall => return self.stall(&mut stream),
                FaultyAct::CutBody => return stream.write_all(HALF),
                FaultyAct::Says(bytes) => return stream.write_all(bytes.as_bytes()),
                FaultyAct::Reset => {
                    return setsockopt(&stream, sockopt::Linger, &AT_ONCE).map_err(io::Error::from);
                }
                FaultyAct::ResetBody => {
                    stream.write_all(HALF)?;
                    return setsockopt(&stream, sockopt::Linger, &AT_ONCE).map_err(io::Error::from);
                }
                FaultyAct::StallBody => {
                    stream.write_all(HALF)?;
                    return self.stall(&mut stream);
                }
                FaultyAct::Close => return Ok(()),
                FaultyAct::CloseAfter(wait) => {
                    thread::sleep(wait);
                    return Ok(());
                }
                FaultyAct::Tunnel => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                    io::copy(&mut reader, &mut stream)?;
                    return Ok(());
                }
                FaultyAct::Garbage => {
                    return stream.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n");
                }
            }
        }
        Ok(())
    }

    /// Waits until the client cancels.
    fn stall(&self, stream: &mut TcpStream) -> io::Result<()> {
        let end = stream.read_exact(&mut [0]);
        self.given_up.fetch_add(1, Ordering::Relaxed);
        end
    }
}

/// Reads a request with its body. Returns its `x-id`, or its target if it has no `x-id`; `None` at the end of the
/// connection.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let (mut id, mut length, mut first) = (String::new(), 0, true);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() && !first {
            break;
        }
        if std::mem::take(&mut first) {
            line.split(' ').nth(1).unwrap_or_default().clone_into(&mut id);
        }
        if let Some(value) = line.strip_prefix("x-id:") {
            value.trim().clone_into(&mut id);
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some(id))
}
