//! Servers that do as they are told, and remember every request that reached them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a server does with request number `n` of its own, from 0.
pub(crate) type Script = fn(u32) -> Act;

/// One way to treat a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// 200 with a small body.
    Good,
    /// Another status.
    Status(u16),
    /// 429 with `Retry-After`, in seconds.
    Later(u32),
    /// Nothing, for as long as the client waits.
    Stall,
    /// The head and half of the body, then a reset.
    CutBody,
    /// The connection is closed before a response.
    Close,
    /// Bytes that are no HTTP.
    Garbage,
}

/// A server on loopback; its threads end with the process.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Backend {
    pub(crate) fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let backend = Self { address, seen };
        let serving = backend.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let backend = serving.clone();
                // An error is the proxy that has left.
                thread::spawn(move || backend.serve(stream, script).unwrap_or_default());
            }
        });
        backend
    }

    /// The `x-id` of all requests that came, in their order.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }

    fn serve(&self, stream: TcpStream, script: Script) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        while let Some(id) = read_request(&mut reader)? {
            let number = {
                let mut seen = self.seen.lock().expect("no panic");
                seen.push(id);
                u32::try_from(seen.len() - 1).expect("few")
            };
            match script(number) {
                Act::Good => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?,
                Act::Status(status) => {
                    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")?;
                }
                Act::Later(seconds) => write!(
                    stream,
                    "HTTP/1.1 429 X\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n"
                )?,
                // Until the proxy gives up.
                Act::Stall => return stream.read_exact(&mut [0]),
                Act::CutBody => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf-")?;
                    return Ok(());
                }
                Act::Close => return Ok(()),
                Act::Garbage => {
                    stream.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n")?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Reads a request with its body; its `x-id`, or none at the end.
fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<String>> {
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
        first = false;
        if let Some(value) = line.strip_prefix("x-id:") {
            value.trim().clone_into(&mut id);
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(id))
}
