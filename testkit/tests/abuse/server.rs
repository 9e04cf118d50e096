//! The server behind the proxy. It records every byte, and responds only to the requests that a row expects.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A recording server on a free port of 127.0.0.1. Dropping the value ends the server.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Mutex<ServerState>>,
    thread: Option<JoinHandle<()>>,
}

/// The bytes that the server received.
#[derive(Clone, Default)]
pub(crate) struct ReceivedBytes {
    /// The requests that it responded to, in order.
    pub(crate) requests: Vec<Vec<u8>>,
    /// All other bytes, one entry for each connection.
    pub(crate) fragments: Vec<Vec<u8>>,
}

impl std::fmt::Debug for ReceivedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |all: &[Vec<u8>]| -> Vec<String> {
            all.iter().map(|bytes| bytes.escape_ascii().to_string()).collect()
        };
        write!(f, "requests {:?}, besides {:?}", text(&self.requests), text(&self.fragments))
    }
}

#[derive(Debug, Default)]
struct ServerState {
    /// The requests that the server answers, in this order.
    script: VecDeque<Vec<u8>>,
    requests: Vec<Vec<u8>>,
    /// The unanswered bytes of closed connections.
    abandoned: Vec<Vec<u8>>,
    /// The unanswered bytes of open connections.
    unanswered: Vec<Vec<u8>>,
    ended: bool,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::<Mutex<ServerState>>::default();
        let state = Arc::clone(&shared);
        let thread = std::thread::spawn(move || serve(&listener, &state));
        Ok(Server { address, shared, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the requests that are answered with 200 from now on, in this order. Other requests are not answered.
    pub(crate) fn answer(&self, requests: &[Vec<u8>]) {
        lock(&self.shared).script = requests.iter().cloned().collect();
    }

    /// The bytes received since the last call, up to the last request that was answered.
    pub(crate) fn take(&self) -> ReceivedBytes {
        let mut shared = lock(&self.shared);
        let mut fragments = std::mem::take(&mut shared.abandoned);
        fragments.append(&mut shared.unanswered);
        ReceivedBytes { requests: std::mem::take(&mut shared.requests), fragments }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        lock(&self.shared).ended = true;
        // Wakes the server's thread.
        let _connection = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            // A panic of the server has printed its own message.
            let _ = thread.join();
        }
    }
}

struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
    ended: bool,
    /// Whether a response must be sent.
    due: bool,
}

fn lock(shared: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves all connections on one thread. When a request is answered, all bytes that were sent before it have
/// therefore been read.
fn serve(listener: &TcpListener, shared: &Mutex<ServerState>) {
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        wait(listener, &connections);
        while accept(listener, &mut connections) | receive(&mut connections) {}
        let mut shared = lock(shared);
        if shared.ended {
            return;
        }
        for connection in &mut connections {
            if shared.script.front() == Some(&connection.bytes) {
                shared.script.pop_front();
                shared.requests.push(std::mem::take(&mut connection.bytes));
                connection.due = true;
            }
        }
        let unused = |ended: bool| {
            let kept = connections.iter().filter(move |c| c.ended == ended && !c.bytes.is_empty());
            kept.map(|connection| connection.bytes.clone())
        };
        shared.abandoned.extend(unused(true));
        shared.unanswered = unused(false).collect();
        connections.retain_mut(|connection| {
            if std::mem::take(&mut connection.due) {
                // If the proxy has closed the connection, the test fails elsewhere.
                let _ = connection.stream.write_all(OK);
            }
            !connection.ended
        });
    }
}

fn wait(listener: &TcpListener, connections: &[Connection]) {
    let readable = PollFlags::POLLIN;
    let mut all = vec![PollFd::new(listener.as_fd(), readable)];
    all.extend(connections.iter().map(|c| PollFd::new(c.stream.as_fd(), readable)));
    // If a signal interrupts the call, the loop polls again.
    let _ = poll(&mut all, PollTimeout::NONE);
}

/// Accepts a connection; returns whether there was one.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> bool {
    let Ok((stream, _)) = listener.accept() else { return false };
    stream.set_nonblocking(true).expect("a socket can be set so");
    connections.push(Connection { stream, bytes: Vec::new(), ended: false, due: false });
    true
}

/// Reads from all connections; returns whether any bytes or the end of a connection arrived.
fn receive(connections: &mut [Connection]) -> bool {
    let mut any = false;
    let mut piece = [0_u8; 64 * 1024];
    for connection in connections.iter_mut().filter(|connection| !connection.ended) {
        match connection.stream.read(&mut piece) {
            Ok(count) if count > 0 => connection.bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            _ => connection.ended = true,
        }
        any = true;
    }
    any
}
