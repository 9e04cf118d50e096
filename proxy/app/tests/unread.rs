//! Tests requests that an application leaves unread when it closes its connections, through the real proxy.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leno_testkit::proxy::free_address;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const LIMIT: Duration = Duration::from_secs(60);
/// How often a test has the application close a connection. The proxy waits only briefly for the kernel to report
/// what was read, and on a busy machine that wait sometimes ends too early.
const ROUNDS: usize = 20;

/// A proxy, the listener of its application, and one connection of a client.
struct Bed {
    child: Child,
    application: TcpListener,
    address: SocketAddr,
    client: TcpStream,
    directory: tempfile::TempDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects once the proxy listens.
fn connect(address: SocketAddr) -> TcpStream {
    let begun = Instant::now();
    let stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
        thread::yield_now();
    };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

impl Bed {
    /// Starts the proxy. The client's connection must be the first one that the proxy accepts: the proxy connects to
    /// the application even for a client that sends nothing, so a connection that only probes the port, as in
    /// leno-testkit, would leave one more connection in the application's listener.
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let application = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, admin) = (free_address().unwrap(), free_address().unwrap());
        let document = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web-0, namespace: t}}\n\
             spec:\n  admin: \"{admin}\"\n  mtls: disabled\n  \
             inbound: {{listen: \"{address}\", application: \"{}\"}}\n",
            application.local_addr().unwrap()
        );
        std::fs::write(directory.path().join("proxy.yaml"), document).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .arg("--static")
            .arg(directory.path().join("proxy.yaml"))
            .arg("--admin-socket")
            .arg(directory.path().join("admin.sock"))
            .args(["--drain-timeout-s", "60"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let client = connect(address);
        Self { child, application, address, client, directory }
    }

    fn admin(&self, line: &str) -> String {
        let mut admin = UnixStream::connect(self.directory.path().join("admin.sock")).unwrap();
        let request = format!("{line} HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n");
        admin.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        admin.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer
    }

    /// The number of requests that were sent again because the application had not read them.
    fn sent_again(&self) -> usize {
        let metrics = self.admin("GET /metrics");
        let name = "leno_requests_unread_total ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    }

    fn accept(&self) -> TcpStream {
        let (stream, _) = self.application.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Accepts a new connection, which stays open, and serves its next request.
    fn serve(&self) -> TcpStream {
        let mut stream = self.accept();
        serve_on(&mut stream);
        stream
    }
}

fn send(client: &mut TcpStream) {
    client.write_all(b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\nbody").unwrap();
}

/// Reads one message. Its body, if it has one, must be `body`.
fn receive(stream: &mut TcpStream, body: &[u8]) -> String {
    let mut message = Vec::new();
    while !message.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        message.extend(byte);
    }
    let head = String::from_utf8(message).unwrap();
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")
            .map(|length| length.parse().unwrap())
    });
    let mut rest = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut rest).unwrap();
    if head.starts_with("HTTP/1.1 200 ") || head.starts_with("POST ") {
        assert_eq!(rest, body);
    }
    head
}

fn serve_on(stream: &mut TcpStream) {
    receive(stream, b"body");
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole").unwrap();
}

/// Waits until a request has arrived on this connection.
fn has_come(stream: &TcpStream) {
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
}

fn is_answered(head: &str) -> bool {
    let lost = head.starts_with("HTTP/1.1 502 ");
    assert!(lost || head.starts_with("HTTP/1.1 200 "), "{head}");
    !lost
}

#[test]
fn an_unread_post_on_a_pooled_connection_is_answered_over_the_next() {
    let mut bed = Bed::start();
    let mut answered = 0;
    for _ in 0..ROUNDS {
        send(&mut bed.client);
        let pooled = bed.serve();
        assert!(is_answered(&receive(&mut bed.client, b"whole")));
        send(&mut bed.client);
        has_come(&pooled);
        let before = bed.sent_again();
        drop(pooled);
        if bed.comes_again() {
            drop(bed.serve());
            assert_eq!(bed.sent_again() - before, 1);
        }
        answered += usize::from(is_answered(&receive(&mut bed.client, b"whole")));
    }
    assert!(answered > 0, "of {ROUNDS} none was sent again");
}

#[test]
fn an_unread_post_on_a_new_connection_is_answered_over_the_next() {
    let mut bed = Bed::start();
    let mut answered = 0;
    for _ in 0..ROUNDS {
        send(&mut bed.client);
        let unread = bed.accept();
        has_come(&unread);
        drop(unread);
        if bed.comes_again() {
            drop(bed.serve());
        }
        answered += usize::from(is_answered(&receive(&mut bed.client, b"whole")));
    }
    assert!(answered > 0, "of {ROUNDS} none was sent again");
}

#[test]
fn a_post_that_is_never_read_is_sent_a_few_times() {
    let mut bed = Bed::start();
    send(&mut bed.client);
    let mut tries = 0;
    while bed.comes_again() {
        let unread = bed.accept();
        has_come(&unread);
        drop(unread);
        tries += 1;
    }
    assert!(tries <= 3, "{tries}");
    assert!(!is_answered(&receive(&mut bed.client, b"")));
}

#[test]
fn a_post_that_was_read_in_part_is_not_sent_again() {
    let mut bed = Bed::start();
    for _ in 0..ROUNDS {
        send(&mut bed.client);
        let mut read = bed.accept();
        read.read_exact(&mut [0; 4]).unwrap();
        drop(read);
        let head = receive(&mut bed.client, b"");
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    }
    assert_eq!(bed.sent_again(), 0);
}

/// A request must not be lost if the application closes its listener during a drain. The proxy answers with a 503
/// that says that the application received nothing, so the client's proxy may send it to another instance.
#[test]
fn a_post_of_a_drain_waits_until_it_is_accepted_and_is_not_lost_with_the_listener() {
    let mut bed = Bed::start();
    // A request in progress keeps the proxy from ending.
    send(&mut bed.client);
    let held = bed.accept();
    bed.admin("POST /drain");
    // Send at once: the proxy connects to the application for a client that sends nothing, too, and that connection
    // would be mistaken for the expected one.
    let mut late = connect(bed.address);
    send(&mut late);
    assert!(is_readable(&[&bed.application]));
    // Closes the application's listener, so that connections to its port are refused.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    drop(std::mem::replace(&mut bed.application, free));
    let head = receive(&mut late, b"");
    assert!(
        head.starts_with("HTTP/1.1 503 ") && head.contains("application-unreachable"),
        "{head}"
    );
    drop(held);
}

/// Waits until one of the sockets can be read: for a listener, until a connection waits in it.
fn is_readable(sockets: &[&dyn AsFd]) -> bool {
    let mut waiting: Vec<_> =
        sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    let limit = PollTimeout::try_from(LIMIT).unwrap();
    assert!(poll(&mut waiting, limit).unwrap() > 0, "nothing came");
    waiting.first().and_then(PollFd::any).unwrap()
}

impl Bed {
    /// Waits until the request reaches the application again, or the client gets an error response. Returns true in the
    /// first case.
    fn comes_again(&self) -> bool {
        is_readable(&[&self.application, &self.client])
    }
}
