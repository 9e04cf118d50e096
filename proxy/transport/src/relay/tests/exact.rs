//! Tests that an end is passed on as an end and a reset as a reset: in the middle of much data, after a half-close, and
//! when the other side does not read.

use std::io::ErrorKind;
use std::os::fd::AsFd;

use proptest::prelude::*;
use socket2::{SockRef, Socket};

use super::*;
use crate::budget::{self, Budget, Charge, MIN_BUDGET};

/// This is more than a direction copies before it splices, and more than the kernel's buffers accept at once.
const BULK: usize = 3 * 1024 * 1024;

#[tokio::test]
async fn half_closes_pass_in_the_middle_of_bulk() {
    let Chain { mut client, mut server, relay } = chain().await;
    let sent = pattern(BULK);
    let (question, answer) = (sent.clone(), sent.clone());
    let ask = async move {
        client.write_all(&question).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let reply = async move {
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.unwrap();
        server.write_all(&answer).await.unwrap();
        question
    };
    let (at_client, at_server) = tokio::join!(ask, reply);
    assert!(at_client == sent && at_server == sent);
    let done = relay.await.unwrap();
    assert_eq!((done.a_to_b, done.b_to_a), (BULK as u64, BULK as u64));
    assert_eq!(done.ended.reason(), "closed");
}

#[tokio::test]
async fn a_stream_is_spliced_once_it_is_bulk_and_no_sooner() {
    for (bytes, pipes) in [(64 * 1024, 0), (BULK, 1)] {
        let Chain { mut client, mut server, relay } = chain().await;
        let sent = tokio::spawn(async move {
            client.write_all(&pattern(bytes)).await.unwrap();
            client
        });
        let mut received = vec![0; bytes];
        server.read_exact(&mut received).await.unwrap();
        assert!(received == pattern(bytes));
        drop((sent.await.unwrap(), server));
        relay.await.unwrap();
        assert_eq!(pipe::free(), pipes, "after {bytes} bytes");
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_bulk_stays_a_reset() {
    for from_client in [true, false] {
        let Chain { client, server, relay } = chain().await;
        let (mut aborting, mut other) =
            if from_client { (client, server) } else { (server, client) };
        let writer = tokio::spawn(async move {
            aborting.write_all(&pattern(BULK)).await.unwrap();
            aborting
        });
        let mut half = vec![0; BULK / 2];
        other.read_exact(&mut half).await.unwrap();
        let drain = tokio::spawn(async move {
            let mut rest = Vec::new();
            other.read_to_end(&mut rest).await.unwrap_err()
        });
        let mut aborting = writer.await.unwrap();
        aborting.reset_on_drop();
        drop(aborting);
        assert_eq!(drain.await.unwrap().kind(), ErrorKind::ConnectionReset);
        let expected = if from_client { Side::A } else { Side::B };
        let done = relay.await.unwrap();
        assert_eq!(done.ended.reason(), "reset");
        assert!(matches!(done.ended, Ended::Failed { side, .. } if side == expected));
    }
}

#[tokio::test]
async fn a_server_that_closes_with_bytes_unread_resets_the_client() {
    let Chain { mut client, server, relay } = chain().await;
    client.write_all(b"never read").await.unwrap();
    server.peek(&mut [0]).await.unwrap();
    drop(server);
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(relay.await.unwrap().ended.reason(), "reset");
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_noticed_although_the_other_side_does_not_read() {
    let Chain { mut client, server, relay } = chain().await;
    // Write until a write would block, because an error is noticed late only if the writer is blocked.
    let mut sent = 0;
    let chunk = pattern(64 * 1024);
    while let Ok(wrote) = tokio::time::timeout(Duration::from_millis(1), client.write(&chunk)).await
    {
        sent += wrote.unwrap();
    }
    assert!(sent > BULK, "{sent}");
    client.reset_on_drop();
    drop(client);
    let done = relay.await.unwrap();
    assert_eq!(done.ended.reason(), "reset");
    assert!(matches!(done.ended, Ended::Failed { side: Side::A, .. }));
    assert_eq!(
        SockRef::from(&server).take_error().unwrap().unwrap().kind(),
        ErrorKind::ConnectionReset
    );
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_noticed_after_a_half_close() {
    for from_client in [true, false] {
        let Chain { client, server, relay } = chain().await;
        let (mut aborting, mut other) =
            if from_client { (client, server) } else { (server, client) };
        aborting.shutdown().await.unwrap();
        assert_eq!(other.read(&mut [0]).await.unwrap(), 0);
        aborting.reset_on_drop();
        drop(aborting);
        let done = relay.await.unwrap();
        assert_eq!(done.ended.reason(), "reset");
        assert!(SockRef::from(&other).take_error().unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_sockets_of_a_long_lived_relay_get_keep_alive_probes() {
    let (_client, a) = pair().await;
    let (b, _server) = pair().await;
    let socket = |tcp: &TcpStream| Socket::from(tcp.as_fd().try_clone_to_owned().unwrap());
    let sockets = [socket(&a), socket(&b)];
    let relay = tokio::spawn(relay(a.into(), b.into(), RELAY_IDLE, ()));
    // An accepted socket inherits keep-alive from its listener.
    assert_eq!(sockets.each_ref().map(|socket| socket.keepalive().unwrap()), [true, false]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(sockets.iter().all(|socket| socket.keepalive().unwrap()));
    relay.abort();
}

/// Runs a test on a thread of its own, because charges to a budget count for a thread.
fn in_thread<F: Future<Output = ()>>(act: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(act());
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn while_memory_is_short_bytes_still_move_and_little_is_held() {
    in_thread(|| async {
        Budget::new(MIN_BUDGET).enter();
        let _others = Charge::new(MIN_BUDGET);
        let before = budget::charged();
        let Chain { mut client, mut server, relay } = chain().await;
        let sent = pattern(8 * BULK);
        let bytes = sent.clone();
        let writer = tokio::spawn(async move { client.write_all(&bytes).await });
        for _ in 0..2_000 {
            tokio::task::yield_now().await;
        }
        assert!(!writer.is_finished(), "no back-pressure");
        let held = budget::charged() - before;
        assert!((1..=16 * 1024).contains(&held), "{held}");
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        drop(server);
        relay.await.unwrap();
        assert_eq!(budget::charged(), before);
    });
}

/// When all bytes have moved, the relay holds no memory although both connections are open. Tested for copied and for
/// spliced streams, and with bytes in a pipe while the reader stalls.
#[test]
fn an_idle_relay_holds_no_buffer() {
    in_thread(|| async {
        Budget::new(MIN_BUDGET).enter();
        let (before, mut most) = (budget::charged(), 0);
        let Chain { mut client, mut server, relay } = chain().await;
        for bytes in [1_000, 100_000, 8 * BULK] {
            let sent = tokio::spawn(async move {
                client.write_all(&pattern(bytes)).await.unwrap();
                client
            });
            // Let the relay block before the reader reads anything.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
                most = most.max(budget::charged());
            }
            let mut received = vec![0; bytes];
            server.read_exact(&mut received).await.unwrap();
            client = sent.await.unwrap();
            let start = std::time::Instant::now();
            while budget::charged() > before && start.elapsed() < Duration::from_secs(20) {
                tokio::task::yield_now().await;
            }
            assert_eq!(budget::charged(), before, "after {bytes} bytes");
        }
        assert!(most > before, "it was never seen to hold anything");
        relay.abort();
    });
}

/// The actions of one side: it writes pieces of these sizes, and then ends.
fn script() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![1..200usize, 1..200_000usize], 0..12)
}

async fn play(stream: TcpStream, script: Vec<usize>) -> Vec<u8> {
    let (mut from, mut to) = stream.into_split();
    let write = async move {
        for size in script {
            to.write_all(&pattern(size)).await.unwrap();
        }
        to.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let (read, ()) = tokio::join!(from.read_to_end(&mut received), write);
    read.unwrap();
    received
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn whatever_both_sides_do_every_byte_and_both_ends_arrive(up in script(), down in script()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let Chain { client, server, relay } = chain().await;
            let all = |script: &[usize]| script.iter().flat_map(|n| pattern(*n)).collect::<Vec<u8>>();
            let (sent_up, sent_down) = (all(&up), all(&down));
            let (at_client, at_server) = tokio::join!(play(client, up), play(server, down));
            prop_assert!(at_client == sent_down && at_server == sent_up);
            let done = relay.await.unwrap();
            prop_assert_eq!(done.ended.reason(), "closed");
            let moved = (sent_up.len() as u64, sent_down.len() as u64);
            prop_assert_eq!((done.a_to_b, done.b_to_a), moved);
            Ok(())
        })?;
    }
}
