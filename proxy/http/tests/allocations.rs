//! Checks that a keep-alive exchange in steady state allocates nothing.
#![expect(clippy::unwrap_used, reason = "tests")]

use leno_http::{Conn, Edits, HeaderLine, Limits, Order, exchange};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const POST: &[u8] = b"POST /path?query HTTP/1.1\r\nHost: a\r\nUser-Agent: x\r\n\
    Connection: close, X-Hop\r\nX-Hop: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok";

async fn pair() -> (TcpStream, Conn<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    far.set_nodelay(true).unwrap();
    (far, Conn::new(near))
}

#[test]
fn a_steady_exchange_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counts = runtime.block_on(async {
        let limits = Limits::default();
        let set = [HeaderLine::new("leno-client", b"spiffe://mesh/ns/a/sa/b").unwrap()];
        let (mut user, mut client) = pair().await;
        let (mut application, mut server) = pair().await;
        let mut counts = vec![];
        let mut piece = [0; 1024];
        for _ in 0..20 {
            let before = ALLOCATIONS.get();
            let proxy = async {
                let request = client.read_request(&limits).await.unwrap().unwrap();
                let mut order = Order {
                    request: Edits { set: &set, ..Edits::default() },
                    ..Order::new(&limits)
                };
                assert!(server.is_quiet());
                exchange(&mut client, &request, &mut server, &mut order).await
            };
            let peers = async {
                user.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n").await.unwrap();
                tokio::task::yield_now().await;
                user.write_all(b"\r\n").await.unwrap();
                assert!(application.read(&mut piece).await.unwrap() > 0);
                application.write_all(OK).await.unwrap();
                assert!(user.read(&mut piece).await.unwrap() > 0);
            };
            let (done, ()) = tokio::join!(proxy, peers);
            assert!(done.failure.is_none() && done.client_reusable && done.server_reusable);
            counts.push(ALLOCATIONS.get() - before);
        }
        // The edits of a head with all kinds of headers allocate nothing, too.
        let before = ALLOCATIONS.get();
        let proxy = async {
            let request = client.read_request(&limits).await.unwrap().unwrap();
            exchange(&mut client, &request, &mut server, &mut Order::new(&limits)).await
        };
        let peers = async {
            user.write_all(POST).await.unwrap();
            assert!(application.read(&mut piece).await.unwrap() > 0);
            application.write_all(OK).await.unwrap();
            assert!(user.read(&mut piece).await.unwrap() > 0);
        };
        let (done, ()) = tokio::join!(proxy, peers);
        assert!(done.server_reusable && !done.client_reusable);
        counts.push(ALLOCATIONS.get() - before);
        counts
    });
    // The first exchange allocates the buffers and the timer.
    assert_eq!(counts[1..], vec![0; counts.len() - 1], "{counts:?}");
}
