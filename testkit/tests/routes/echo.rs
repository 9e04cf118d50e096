//! A server that responds to every request with the request that it received.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// A server that runs until the test process ends. Each connection has its own thread.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<EchoedRequest>>>,
}

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
pub(crate) struct EchoedRequest {
    pub(crate) line: String,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl EchoedRequest {
    /// The values of a header, joined.
    pub(crate) fn header(&self, name: &str) -> String {
        let of_name = self.headers.iter().filter(|(given, _)| given == name);
        of_name.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(",")
    }
}

impl Echo {
    pub(crate) fn start(name: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let echo = Self { address: listener.local_addr()?, seen: Arc::default() };
        let of_thread = echo.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let echo = of_thread.clone();
                // If a connection breaks, its client notices.
                thread::spawn(move || echo.serve(name, stream).ok());
            }
        });
        Ok(echo)
    }

    /// How many requests the server has received.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no holder panics").len()
    }

    /// The requests; the oldest comes first.
    pub(crate) fn seen(&self) -> Vec<EchoedRequest> {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// How many requests with this target the server has received.
    pub(crate) fn tries(&self, target: &str) -> usize {
        self.seen().iter().filter(|seen| seen.line.split(' ').nth(1) == Some(target)).count()
    }

    /// Whether a request must fail, and how. `after=N` fails the first N requests with the same target: with the
    /// status in `code`, or without `code` by closing the connection.
    fn fails(&self, target: &str) -> Option<Option<u64>> {
        let after = number(target, "after")?;
        (self.tries(target) as u64 <= after).then(|| number(target, "code"))
    }

    fn serve(&self, name: &str, stream: TcpStream) -> Result<()> {
        let mut out = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        loop {
            let Some(seen) = read(&mut reader)? else { return Ok(()) };
            self.seen.lock().expect("no holder panics").push(seen.clone());
            let path = seen.line.split(' ').nth(1).unwrap_or_default();
            if let Some(delay) = path.strip_prefix("/delay/") {
                thread::sleep(Duration::from_millis(delay.parse()?));
            }
            if let Some(failing) = self.fails(path) {
                if let Some(delay) = number(path, "delay") {
                    thread::sleep(Duration::from_millis(delay));
                }
                // Without a status, the server closes the connection.
                let Some(status) = failing else { return Ok(()) };
                write!(out, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            let mut body = format!("{name}\n{}\n", seen.line);
            for (name, value) in &seen.headers {
                body.push_str(&format!("{name}: {value}\n"));
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Header-Remove: here\r\n\
                 X-Header-Set: original\r\nX-Header-Add: original\r\n\r\n",
                body.len()
            );
            out.write_all(head.as_bytes())?;
            out.write_all(body.as_bytes())?;
        }
    }
}

/// A number in the query of a target.
fn number(target: &str, key: &str) -> Option<u64> {
    let (_, query) = target.split_once('?')?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == key).find_map(|(_, value)| value.parse().ok())
}

fn read(reader: &mut BufReader<TcpStream>) -> Result<Option<EchoedRequest>> {
    let mut seen = EchoedRequest::default();
    if reader.read_line(&mut seen.line)? == 0 {
        return Ok(None);
    }
    seen.line.truncate(seen.line.trim_end().len());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        seen.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = seen.header("content-length").parse().unwrap_or(0);
    seen.body = vec![0; length];
    reader.read_exact(&mut seen.body)?;
    Ok(Some(seen))
}
