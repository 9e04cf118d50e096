//! Checks that everything that is queued during one wake-up is written with one system call.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_transport::Io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};

use crate::script::{END_HEADERS, END_STREAM, GET, HEADERS, PREFACE, Peer, SETTINGS, frame};
use crate::support::{PIPE, echo, limits, request, run};

/// Requests that arrive together.
const STREAMS: u32 = 20;

/// A pipe that counts its writes.
struct Counted {
    io: DuplexStream,
    writes: Rc<Cell<usize>>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.set(self.writes.get() + 1);
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.set(self.writes.get() + 1);
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Io for Counted {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx)
    }
}

fn counted() -> (DuplexStream, Counted, Rc<Cell<usize>>) {
    let (near, far) = tokio::io::duplex(PIPE);
    let writes = Rc::new(Cell::new(0));
    (far, Counted { io: near, writes: Rc::clone(&writes) }, writes)
}

#[test]
fn responses_to_requests_that_came_together_leave_together() {
    run(async {
        let (far, io, writes) = counted();
        let (accept, driver) = leno_h2::server(io, &[], &limits());
        tokio::task::spawn_local(driver.run());
        tokio::task::spawn_local(echo(accept));
        let mut peer = Peer::over(far);
        peer.raw(PREFACE).await;
        peer.send(SETTINGS, 0, 0, &[]).await;
        peer.get(1).await;
        while peer.any().await.unwrap().kind != HEADERS {}
        let before = writes.get();
        let gets: Vec<u8> = (1..=STREAMS)
            .flat_map(|nth| {
                let section = peer.section(&GET);
                frame(HEADERS, END_STREAM | END_HEADERS, 2 * nth + 1, &section)
            })
            .collect();
        peer.raw(&gets).await;
        let mut answered = 0;
        while answered < STREAMS {
            answered += u32::from(peer.any().await.unwrap().kind == HEADERS);
        }
        assert_eq!(writes.get() - before, 1, "{STREAMS} responses");
    });
}

#[test]
fn requests_that_are_sent_together_leave_together() {
    run(async {
        let (far, io, writes) = counted();
        let (client, driver) = leno_h2::client(io, &limits());
        tokio::task::spawn_local(driver.run());
        let mut far = far;
        far.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
        let mut peer = Peer::over(far);
        peer.send(SETTINGS, 0, 0, &[]).await;
        // Our SETTINGS, and our acknowledgement of the peer's.
        for _ in 0..2 {
            while peer.any().await.unwrap().kind != SETTINGS {}
        }
        let before = writes.get();
        let streams: Vec<_> =
            (0..STREAMS).map(|_| client.open(&request("GET", "/"), true).unwrap()).collect();
        let mut opened = 0;
        while opened < STREAMS {
            opened += u32::from(peer.any().await.unwrap().kind == HEADERS);
        }
        assert_eq!(writes.get() - before, 1, "{} requests", streams.len());
    });
}
