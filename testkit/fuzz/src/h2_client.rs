//! Fuzzes Leno's HTTP/2 client with raw frames of a server, while two requests are in progress.

use std::rc::Rc;

use leno_h2::Head;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::task::{spawn_local, yield_now};

use crate::quiet::{self, PIPE};

/// An empty SETTINGS frame.
const OPENING: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Runs the target. The first byte selects the size of the pieces in which the rest is sent.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&first, frames)) = bytes.split_first() else { return };
    quiet::run(async {
        let (near, mut far) = duplex(PIPE);
        let (client, driver) = leno_h2::client(near, &Rc::new(leno_h2::Limits::default()));
        spawn_local(driver.run());
        for (method, ended) in [("GET", true), ("POST", false)] {
            let fields =
                [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a")];
            let head: Head = fields.into_iter().collect();
            let Ok(mut stream) = client.open(&head, ended) else { return };
            if !ended {
                stream.send_data(&b"a body of some bytes"[..], true);
            }
            spawn_local(read(stream));
        }
        let wire = [OPENING, frames].concat();
        for piece in wire.chunks(usize::from(first) * 8 + 1) {
            if far.write_all(piece).await.is_err() {
                break;
            }
            yield_now().await;
            yield_now().await;
        }
        quiet::settle().await;
    });
}

/// Reads a response: interim heads, one final head, data and trailers.
async fn read(mut stream: leno_h2::Stream) {
    loop {
        let Ok(head) = stream.head().await else { return };
        let status = head.status().expect("a head that was checked");
        assert_eq!(head.is_interim(), (100..200).contains(&status));
        if !head.is_interim() {
            break;
        }
    }
    loop {
        match stream.data().await {
            Ok(Some(piece)) => stream.release(piece.len()),
            Ok(None) => break,
            Err(_) => return,
        }
    }
    let pseudo = |trailers: &Head| trailers.iter().any(|field| field.name().starts_with(b":"));
    assert!(!stream.trailers().is_some_and(|trailers| pseudo(&trailers)));
}
