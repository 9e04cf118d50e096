//! Checks that exchanges with HTTP/2 on one side or both allocate nothing in steady state.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::pin::pin;
use std::rc::Rc;

use leno_h2::{Accept, Client};
use leno_http::{Call, Conn, Limits, Order, h1_to_h2, h2_to_h1, h2_to_h2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const ROUNDS: usize = 60;
/// How many rounds may allocate, because they need buffers, slots and timers, and fill the tables of header
/// compression.
const FIRST: usize = 30;

const REQUEST: &str = "POST /path?query HTTP/1.1\r\nHost: a\r\nUser-Agent: x\r\nX-Id: 1\r\n\
    Content-Length: 5\r\n\r\nhello";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: y\r\nTransfer-Encoding: chunked\r\n\r\n\
    5\r\nworld\r\n0\r\n\r\n";

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    far.set_nodelay(true).unwrap();
    near.set_nodelay(true).unwrap();
    (far, near)
}

/// Serves one request at the proxy in the middle, between the HTTP/2 connections of the first and the last proxy.
async fn middle(accept: &mut Accept, client: &Client, limits: &Limits) {
    let mut call = Call::from_mesh(accept.accept().await.unwrap());
    let mut order = Order { mesh: true, ..Order::new(limits) };
    let done = h2_to_h2(&mut call, client, &mut order).await;
    assert!(done.failure.is_none(), "{:?}", done.failure);
}

async fn last(accept: &mut Accept, server: &mut Conn<TcpStream>, limits: &Limits) {
    let mut call = Call::from_mesh(accept.accept().await.unwrap());
    let done = h2_to_h1(&mut call, server, &mut Order::new(limits)).await;
    assert!(done.failure.is_none() && done.server_reusable, "{:?}", done.failure);
}

async fn first(client: &mut Conn<TcpStream>, server: &Client, limits: &Limits) {
    let request = client.read_request(limits).await.unwrap().unwrap();
    let mut order = Order { mesh: true, ..Order::new(limits) };
    let done = h1_to_h2(client, &request, server, &mut order).await;
    assert!(done.failure.is_none() && done.client_reusable, "{:?}", done.failure);
}

/// The number of allocations in each round through three proxies, with HTTP/1 at both ends and HTTP/2 between them.
async fn rounds() -> Vec<u64> {
    let limits = Limits::default();
    let h2_limits = Rc::new(leno_h2::Limits::default());
    let (mut user, near) = pair().await;
    let (mut application, far) = pair().await;
    let (to_middle, from_first) = pair().await;
    let (to_last, from_middle) = pair().await;
    let (first_client, first_driver) = leno_h2::client(to_middle, &h2_limits);
    let (mut middle_accept, middle_driver) = leno_h2::server(from_first, &[], &h2_limits);
    let (middle_client, client_driver) = leno_h2::client(to_last, &h2_limits);
    let (mut last_accept, last_driver) = leno_h2::server(from_middle, &[], &h2_limits);
    let mut drivers =
        pin!(async { tokio::join!(first_driver, middle_driver, client_driver, last_driver) });
    let (mut client, mut server) = (Conn::new(near), Conn::new(far));
    let (mut asked, mut answered) = ([0; REQUEST.len()], [0; RESPONSE.len()]);
    let mut counts = Vec::with_capacity(ROUNDS);
    let exchanges = async {
        for _ in 0..ROUNDS {
            let before = ALLOCATIONS.get();
            let peers = async {
                user.write_all(REQUEST.as_bytes()).await.unwrap();
                application.read_exact(&mut asked).await.unwrap();
                application.write_all(RESPONSE.as_bytes()).await.unwrap();
                user.read_exact(&mut answered).await.unwrap();
            };
            tokio::join!(
                first(&mut client, &first_client, &limits),
                middle(&mut middle_accept, &middle_client, &limits),
                last(&mut last_accept, &mut server, &limits),
                peers
            );
            counts.push(ALLOCATIONS.get() - before);
            let unchanged = asked == REQUEST.as_bytes() && answered == RESPONSE.as_bytes();
            assert!(unchanged, "{}", String::from_utf8_lossy(&asked));
        }
    };
    tokio::select! {
        () = exchanges => {}
        ended = &mut drivers => panic!("{ended:?}"),
    }
    counts
}

#[test]
fn steady_exchanges_allocate_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counts = runtime.block_on(rounds());
    assert_eq!(counts[FIRST..], vec![0; ROUNDS - FIRST], "{counts:?}");
}
