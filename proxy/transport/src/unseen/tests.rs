use std::io::Read as _;
use std::net::{TcpListener, TcpStream as StdStream};

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use super::*;
use crate::destroyed::follow_destroyed;

/// How long to wait for a proof that must come.
const LIMIT: Duration = Duration::from_secs(60);

/// A blocking listener on this address.
fn listener(address: &str) -> TcpListener {
    TcpListener::bind(address).unwrap()
}

/// One address for each kind of socket that an application may have. The last is a socket of both families, which is
/// reached over IPv4.
const ADDRESSES: [&str; 3] = ["127.0.0.1:0", "[::1]:0", "[::]:0"];

/// This end of a new connection.
async fn connect(listener: &TcpListener) -> Counted {
    let mut address = listener.local_addr().unwrap();
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    let mut own = Counted::new(TcpStream::connect(address).await.unwrap());
    own.begin();
    own
}

/// A connection whose first message has been answered, and its other end.
async fn used(listener: &TcpListener) -> (Counted, StdStream) {
    let mut own = connect(listener).await;
    let (mut other, _) = listener.accept().unwrap();
    own.write_all(b"first").await.unwrap();
    other.read_exact(&mut [0; 5]).unwrap();
    std::io::Write::write_all(&mut other, b"answer").unwrap();
    own.read_exact(&mut [0; 6]).await.unwrap();
    own.begin();
    (own, other)
}

/// Runs a test on a thread that gets the kernel's messages about destroyed sockets.
async fn followed<T>(test: impl AsyncFn() -> T) -> T {
    let run = async || {
        follow_destroyed().unwrap();
        test().await
    };
    LocalSet::new().run_until(run()).await
}

/// Waits until bytes have arrived at this socket.
fn has_come(other: &StdStream) {
    assert_eq!(other.peek(&mut [0]).unwrap(), 1);
}

/// Closes a socket with a reset. An application can do this even after it has read all bytes.
fn abort(other: StdStream) {
    SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn a_message_to_a_closed_socket_was_never_read() {
    let (mut own, other) = used(&listener("127.0.0.1:0")).await;
    drop(other);
    own.write_all(b"second").await.unwrap();
    assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(own.never_read_within(LIMIT).await);
}

#[tokio::test]
async fn a_reset_proves_nothing_if_destroyed_sockets_are_not_followed() {
    let (mut own, other) = used(&listener("127.0.0.1:0")).await;
    own.write_all(b"second").await.unwrap();
    has_come(&other);
    drop(other);
    own.read(&mut [0; 16]).await.unwrap_err();
    assert!(!own.never_read().await);
}

/// A way to close a socket: its name, the code that reads and closes, and whether it leaves the request unread.
type Close = (&'static str, fn(StdStream), bool);

const CLOSES: [Close; 3] = [
    ("closed with the request unread", |other| has_come(&other), true),
    ("closed after a part was read", |mut other| other.read_exact(&mut [0]).unwrap(), false),
    (
        "reset after all was read",
        |mut other| {
            other.read_exact(&mut [0; 6]).unwrap();
            abort(other);
        },
        false,
    ),
];

#[tokio::test]
async fn a_reset_proves_a_request_unread_only_if_no_byte_of_it_was_read() {
    followed(async || {
        for (address, (close, closes, is_unread)) in
            ADDRESSES.into_iter().flat_map(|address| CLOSES.map(|close| (address, close)))
        {
            let (mut own, other) = used(&listener(address)).await;
            own.write_all(b"second").await.unwrap();
            closes(other);
            own.read(&mut [0; 16]).await.unwrap_err();
            let never_read =
                if is_unread { own.never_read_within(LIMIT).await } else { own.never_read().await };
            assert_eq!(never_read, is_unread, "{address}: {close}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_first_request_is_proven_unread_if_the_accepted_connection_is_closed_before_a_read() {
    followed(async || {
        for address in ADDRESSES {
            let listener = listener(address);
            let mut own = connect(&listener).await;
            own.write_all(b"first").await.unwrap();
            let (other, _) = listener.accept().unwrap();
            has_come(&other);
            drop(other);
            own.read(&mut [0; 16]).await.unwrap_err();
            assert!(own.never_read_within(LIMIT).await, "{address}");
        }
    })
    .await;
}

/// The kernel resets such a connection with cleared counts, which are the same as those of a socket that was aborted
/// after everything was read.
#[tokio::test]
async fn a_reset_by_a_closed_listener_proves_nothing() {
    followed(async || {
        let listener = listener("127.0.0.1:0");
        let mut own = connect(&listener).await;
        own.write_all(b"first").await.unwrap();
        drop(listener);
        own.read(&mut [0; 16]).await.unwrap_err();
        assert!(!own.never_read().await);
    })
    .await;
}

#[tokio::test]
async fn a_request_is_proven_unread_if_a_half_closed_socket_is_closed_before_a_read() {
    followed(async || {
        let (mut own, other) = used(&listener("127.0.0.1:0")).await;
        other.shutdown(std::net::Shutdown::Write).unwrap();
        own.write_all(b"second").await.unwrap();
        has_come(&other);
        drop(other);
        assert_eq!(own.read(&mut [0; 16]).await.unwrap_or(0), 0);
        assert!(own.never_read_within(LIMIT).await);
    })
    .await;
}

/// Writes until the kernel reports that the connection is closed.
async fn write_until_refused(own: &mut Counted) -> io::ErrorKind {
    loop {
        if let Err(error) = own.write_all(b"more").await {
            return error.kind();
        }
    }
}

#[tokio::test]
async fn a_message_of_several_writes_to_a_closed_socket_was_never_read() {
    let (mut own, other) = used(&listener("127.0.0.1:0")).await;
    drop(other);
    own.write_all(b"second").await.unwrap();
    assert_eq!(write_until_refused(&mut own).await, io::ErrorKind::BrokenPipe);
    assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(own.never_read_within(LIMIT).await);
}

#[tokio::test]
async fn a_reset_that_a_write_reports_is_not_an_end_although_later_reads_return_nothing() {
    let (mut own, other) = used(&listener("127.0.0.1:0")).await;
    own.write_all(b"second").await.unwrap();
    has_come(&other);
    drop(other);
    assert_eq!(write_until_refused(&mut own).await, io::ErrorKind::ConnectionReset);
    assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(!own.never_read().await);
}

#[tokio::test]
async fn a_half_closed_application_may_have_read_the_request() {
    for is_followed in [false, true] {
        let test = async || {
            let (mut own, mut other) = used(&listener("127.0.0.1:0")).await;
            other.shutdown(std::net::Shutdown::Write).unwrap();
            own.write_all(b"second").await.unwrap();
            assert_eq!(own.read(&mut [0; 16]).await.unwrap(), 0);
            assert!(!own.never_read().await);
            other.read_exact(&mut [0; 6]).unwrap();
        };
        if is_followed { followed(test).await } else { test().await }
    }
}

#[tokio::test]
async fn the_wait_for_a_connection_lasts_until_it_is_accepted() {
    for address in ADDRESSES {
        let listener = listener(address);
        let own = connect(&listener).await;
        let mut accepts = pin!(accepted(&own.stream));
        let early = timeout(ACCEPT_LOOK, accepts.as_mut()).await;
        assert!(early.is_err(), "{address}: not accepted yet");
        let _other = listener.accept().unwrap();
        assert!(accepts.await, "{address}");
    }
}

#[tokio::test]
async fn a_connection_that_its_listener_resets_is_not_accepted() {
    for address in ADDRESSES {
        let listener = listener(address);
        let own = connect(&listener).await;
        let mut accepts = pin!(accepted(&own.stream));
        assert!(timeout(ACCEPT_LOOK, accepts.as_mut()).await.is_err(), "{address}");
        drop(listener);
        assert!(!accepts.await, "{address}");
    }
}

#[tokio::test]
async fn there_is_no_wait_for_a_connection_that_is_accepted_with_its_first_bytes() {
    let listener = listener("127.0.0.1:0");
    let seconds: libc::c_int = 5;
    // SAFETY: the option takes one int, and the pointer to it is valid for the call.
    let set = unsafe {
        let (of, size) = (libc::TCP_DEFER_ACCEPT, size_of_val(&seconds) as libc::socklen_t);
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            of,
            (&raw const seconds).cast(),
            size,
        )
    };
    assert_eq!(set, 0);
    let own = connect(&listener).await;
    assert!(accepted(&own.stream).await);
}
