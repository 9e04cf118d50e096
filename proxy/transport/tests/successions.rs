//! Listeners that replace each other under load. This is a test binary of its own: the kernel announces each destroyed
//! socket to the tests of this crate that follow the announcements, and with so many sockets they would be late.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leno_transport::Listener;
use tokio::net::TcpStream;

/// Regression: the kernel reset connections whose handshake was completed at the moment when a listener was closed.
#[tokio::test]
async fn listeners_that_follow_each_other_lose_no_connection() {
    const SUCCESSIONS: usize = 40;
    let is_over = Arc::new(AtomicBool::new(false));
    let serve = |stream: TcpStream, _| {
        let mut stream = stream.into_std().unwrap();
        stream.write_all(b"x").unwrap();
    };
    let mut current = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = current.address();
    let client = || {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || -> io::Result<usize> {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                count += std::net::TcpStream::connect(address)?.read_to_end(&mut Vec::new())?;
            }
            Ok(count)
        })
    };
    let clients: Vec<_> = (0..3).map(|_| client()).collect();
    for _ in 0..SUCCESSIONS {
        let next = Listener::bind(address).unwrap();
        let accept = async {
            loop {
                let (stream, client) = next.accept().await.unwrap();
                serve(stream, client);
            }
        };
        let before = async {
            current.pass_on(1, serve).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        tokio::select! { never = accept => never, () = before => {} }
        current = next;
    }
    is_over.store(true, Ordering::Relaxed);
    let accept = async {
        loop {
            let (stream, client) = current.accept().await.unwrap();
            serve(stream, client);
        }
    };
    let served = async {
        let join = || clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>();
        tokio::task::spawn_blocking(join).await.unwrap()
    };
    let served = tokio::select! { never = accept => never, served = served => served };
    for served in served {
        assert!(served.unwrap() > SUCCESSIONS);
    }
}
