//! Tests requests that have less time than it takes to open a connection, and clients that leave meanwhile.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use leno_testkit::wait;
use socket2::{Domain, Socket, Type};

use crate::front::{FrontOptions, FrontProxy};
use crate::proxied_servers::get;

const LIMIT: Duration = Duration::from_secs(20);

/// A server whose connection queue is full. The kernel drops each SYN, and the proxy's SYN is sent again after a
/// second. So connecting takes one second, if there is space by then.
pub(crate) struct FullServer {
    listener: TcpListener,
    _queued: TcpStream,
}

impl FullServer {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        // The kernel queues one connection more than this number.
        socket.listen(0).unwrap();
        let listener = TcpListener::from(socket);
        let queued = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Self { listener, _queued: queued }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn front(&self, spec: &str) -> FrontProxy {
        FrontProxy::outbound(spec, &[self.address()], &FrontOptions::default())
    }

    /// Makes space in the queue, and accepts the proxy's connection.
    pub(crate) fn accept(&self) -> TcpStream {
        self.listener.accept().unwrap();
        self.listener.set_nonblocking(true).unwrap();
        let accepted =
            wait::until("the proxy's connection", LIMIT, || match self.listener.accept() {
                Ok((stream, _)) => Ok(Some(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error.into()),
            });
        let stream = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }

    fn assert_no_more(&self) {
        assert_eq!(self.listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

/// Answers one request.
fn answer(mut stream: &TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
}

/// The first request fails at its deadline. The connection that was being opened for it is completed, and is used
/// for the second request.
#[test]
fn a_deadline_shorter_than_connecting_fails_one_request_only() {
    let server = FullServer::new();
    let front = server.front("  timeouts: {request: 150ms}\n");
    let late = get(&front, "1");
    assert_eq!((late.status, late.header("leno-error")), (504, Some("deadline")));
    let accepted = server.accept();
    let serves = std::thread::spawn(move || {
        answer(&accepted);
        accepted
    });
    let served = get(&front, "2");
    assert!(served.is_good(), "{served:?}");
    let _open = serves.join().unwrap();
    server.assert_no_more();
    // Only one of the two requests was sent on a connection.
    assert_eq!(front.metric(&["leno_pool_requests", "outbound"]), 1.0);
}

/// The request of a client that leaves ends at once. The proxy cannot connect before the server makes space.
#[test]
fn a_client_that_leaves_while_the_proxy_connects_ends_its_request() {
    let server = FullServer::new();
    let front = server.front("  timeouts: {}\n");
    let mut client = front.connect();
    client.write_all(b"GET /1 HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    wait::until("the request to be under way", LIMIT, || {
        Ok((front.metric(&["leno_busy"]) == 1.0).then_some(()))
    })
    .unwrap();
    drop(client);
    wait::until("the request to end", LIMIT, || {
        Ok((front.metric(&["leno_errors_total", "\"closed\""]) == 1.0).then_some(()))
    })
    .unwrap();
    // The connection is completed, and used for the next request.
    let accepted = server.accept();
    let serves = std::thread::spawn(move || answer(&accepted));
    assert!(get(&front, "2").is_good());
    serves.join().unwrap();
    server.assert_no_more();
}
