//! The application behind the proxy. It parses strictly, records what it receives, and answers each request with a
//! unique number or with the bytes that a case has set.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use socket2::SockRef;

use crate::strict::{self, Message};

/// How a connection continues or ends after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The connection stays open.
    KeepAlive,
    Close,
    Reset,
    /// The application ends its sending direction but continues to read.
    Half,
}

/// A request that reached the application, or the beginning of one.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) message: Message,
    /// The number in its answer.
    pub(crate) serial: usize,
}

/// A running application, which serves until the test program ends.
#[derive(Clone)]
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The requests, by the marker of their case.
    seen: Mutex<HashMap<String, Vec<ReceivedRequest>>>,
    /// The connections with bytes that are not requests: the marker, the reason and the bytes.
    faults: Mutex<Vec<(String, &'static str, Vec<u8>)>>,
    /// The answers to requests with these markers.
    answers: Mutex<HashMap<String, (Vec<u8>, End)>>,
    serial: AtomicUsize,
}

impl Application {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let application = Self { address, state: Arc::default() };
        let serving = application.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(stream));
            }
        });
        application
    }

    /// Sets the bytes with which requests with this marker are answered, if their target begins with `/answer`.
    pub(crate) fn answer(&self, marker: &str, bytes: Vec<u8>, end: End) {
        self.state.answers.lock().expect("no panic").insert(marker.to_owned(), (bytes, end));
    }

    /// The requests of a case, in order.
    pub(crate) fn seen(&self, marker: &str) -> Vec<ReceivedRequest> {
        self.state.seen.lock().expect("no panic").get(marker).cloned().unwrap_or_default()
    }

    /// Everything that arrived and was not a request: the marker, the reason, and the bytes.
    pub(crate) fn faults(&self) -> Vec<(String, &'static str, Vec<u8>)> {
        self.state.faults.lock().expect("no panic").clone()
    }

    fn record(&self, message: Message, marker: String) -> usize {
        let serial = self.state.serial.fetch_add(1, Ordering::Relaxed);
        let seen = ReceivedRequest { message, serial };
        self.state.seen.lock().expect("no panic").entry(marker).or_default().push(seen);
        serial
    }

    fn serve(&self, stream: TcpStream) {
        let mut first = [0; 14];
        if stream.peek(&mut first).is_ok_and(|read| read == 14) && &first == b"PRI * HTTP/2.0" {
            crate::application_h2::serve(self, stream);
        } else {
            self.serve_http1(stream);
        }
    }

    fn serve_http1(&self, mut stream: TcpStream) {
        let (mut held, mut part) = (Vec::new(), [0; 16 * 1024]);
        loop {
            match strict::request(&held) {
                Err(fault) => {
                    let mut faults = self.state.faults.lock().expect("no panic");
                    faults.push((marker(&held), fault, held));
                    return;
                }
                Ok(Some((message, used))) if message.is_whole => {
                    let marker = marker(&held[..used]);
                    held.drain(..used);
                    if !self.respond(&mut stream, message, marker) {
                        return;
                    }
                }
                begun => {
                    let Ok(read @ 1..) = stream.read(&mut part) else {
                        if let Ok(Some((message, _))) = begun {
                            self.record(message, marker(&held));
                        }
                        return;
                    };
                    held.extend(&part[..read]);
                }
            }
        }
    }

    /// Answers a request. Returns whether the connection stays open.
    fn respond(&self, stream: &mut TcpStream, message: Message, marker: String) -> bool {
        let (method, target) = (message.method().to_owned(), message.target().to_owned());
        let wants_switch = target == "/switch" && message.field("upgrade").is_some();
        let is_last = message.field("connection").is_some_and(|value| value.contains("close"));
        let hostile = self.hostile(&marker, &target);
        let echo = marker.clone();
        let serial = self.record(message, marker);
        if let Some((bytes, end)) = hostile {
            // Fails if the proxy has closed the connection.
            let _ = stream.write_all(&bytes);
            return match end {
                End::KeepAlive => true,
                End::Close => false,
                End::Half => stream.shutdown(Shutdown::Write).is_ok(),
                End::Reset => {
                    let _ = SockRef::from(&*stream).set_linger(Some(std::time::Duration::ZERO));
                    false
                }
            };
        }
        let body = body(&echo, serial);
        let head = if wants_switch || method == "CONNECT" {
            let status = if wants_switch { "101 Switching Protocols" } else { "200 OK" };
            let switch = if wants_switch { "Connection: Upgrade\r\nUpgrade: chat\r\n" } else { "" };
            format!("HTTP/1.1 {status}\r\nX-Serial: {serial}\r\n{switch}\r\n")
        } else {
            format!(
                "HTTP/1.1 200 OK\r\nX-Serial: {serial}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )
        };
        let is_tunnel = wants_switch || method == "CONNECT";
        let content = if is_tunnel || method == "HEAD" { "" } else { &body };
        let sent = stream.write_all(&[head.as_bytes(), content.as_bytes()].concat());
        if is_tunnel {
            // From here on, the client sends bytes that are not HTTP.
            let _ = std::io::copy(&mut stream.try_clone().expect("a socket"), stream);
            return false;
        }
        sent.is_ok() && !is_last
    }

    fn hostile(&self, marker: &str, target: &str) -> Option<(Vec<u8>, End)> {
        let answers = self.state.answers.lock().expect("no panic");
        answers.get(marker).filter(|_| target.starts_with("/answer")).cloned()
    }

    /// Records an HTTP/2 request. Returns the body of its answer, which a case may have set.
    pub(crate) fn take(&self, message: Message, raw: &[u8]) -> Bytes {
        let marker = marker(raw);
        let echo = marker.clone();
        body(&echo, self.record(message, marker)).into()
    }
}

fn body(marker: &str, serial: usize) -> String {
    format!("served {marker} {serial}\n")
}

/// The first marker in these bytes: `c`, digits and `z`.
pub(crate) fn marker(bytes: &[u8]) -> String {
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'c') {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 && bytes.get(at + 1 + digits) == Some(&b'z') {
            return String::from_utf8_lossy(&bytes[at..at + digits + 2]).into_owned();
        }
    }
    String::new()
}
