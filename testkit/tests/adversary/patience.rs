//! Clients stop at every byte of a request, and then end in every way. What they occupied must be released, and
//! other clients must be served meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::requests::{exchange, quoted};
use crate::worlds::ProxyWorld;

/// The first bytes of each protocol. The first two are complete requests.
const BEGINNINGS: [&[u8]; 5] = [
    b"POST /s HTTP/1.1\r\nHost: c1z\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /s HTTP/1.1\r\nHost: c1z\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x01\x05\0\0\0\x01\x82\x86\x84\x41\x03web",
    b"GET /switch HTTP/1.1\r\nHost: c1z\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\nbytes",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
];

/// How a client ends after it has sent a part.
#[derive(Clone, Copy, Debug)]
enum ClientEnd {
    Closes,
    Resets,
    /// Ends its sending direction, and reads to the end.
    Half,
    /// Stays silent until all others have ended, and then closes its connection.
    Stays,
}

const CLIENT_ENDS: [ClientEnd; 4] =
    [ClientEnd::Closes, ClientEnd::Resets, ClientEnd::Half, ClientEnd::Stays];

pub(crate) fn count() -> usize {
    BEGINNINGS.iter().map(|beginning| beginning.len() + 1).sum::<usize>() * CLIENT_ENDS.len()
}

#[test]
fn clients_that_stop_anywhere_keep_nothing_at_the_outbound_side() {
    run(&ProxyWorld::outbound(""));
}

#[test]
fn clients_that_stop_anywhere_keep_nothing_at_the_inbound_side() {
    run(&ProxyWorld::inbound());
}

#[test]
fn clients_that_stop_anywhere_keep_nothing_where_nothing_is_declared() {
    run(&ProxyWorld::bare());
}

fn run(world: &ProxyWorld) {
    let mut silent: Vec<TcpStream> = Vec::new();
    for beginning in BEGINNINGS {
        for length in 0..=beginning.len() {
            for leaving in CLIENT_ENDS {
                let sent = &beginning[..length];
                silent.extend(send(world, sent, leaving));
            }
        }
        let request = "GET /other HTTP/1.1\r\nHost: c2z\r\n\r\n";
        let received = exchange(world.connect(), &[request.as_bytes()]).expect("it is answered");
        assert!(received.windows(10).any(|part| part == b"served c2z"), "{}", quoted(&received));
    }
    drop(silent);
    world.assert_idle();
}

fn send(world: &ProxyWorld, sent: &[u8], leaving: ClientEnd) -> Option<TcpStream> {
    let mut stream = world.connect();
    // Fails if the proxy refuses what it has read and closes the connection.
    let _ = stream.write_all(sent);
    match leaving {
        ClientEnd::Closes => {}
        ClientEnd::Resets => {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket")
        }
        ClientEnd::Half => {
            let _ = stream.shutdown(Shutdown::Write);
            let mut received = Vec::new();
            let read = stream.read_to_end(&mut received);
            let waited = read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!waited, "after {}: it does not end: {}", quoted(sent), quoted(&received));
        }
        ClientEnd::Stays => return Some(stream),
    }
    None
}
