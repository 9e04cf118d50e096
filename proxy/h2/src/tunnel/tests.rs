use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::{Accept, Client, Head, Limits, client, server};

fn head(fields: &[(&str, &str)]) -> Head {
    let mut head = Head::new();
    for (name, value) in fields {
        head.push(name.as_bytes(), value.as_bytes());
    }
    head
}

fn ends() -> (Client, Accept) {
    let (near, far): (DuplexStream, DuplexStream) = duplex(256 * 1024);
    let limits = Rc::new(Limits::default());
    let (client, at_client) = client(near, &limits);
    let (accept, at_server) = server(far, &[], &limits);
    spawn_local(async move { at_client.run().await });
    spawn_local(async move { at_server.run().await });
    (client, accept)
}

/// Both ends of a tunnel.
async fn tunnel(client: &Client, accept: &mut Accept) -> (Tunnel, Tunnel) {
    let asked = head(&[(":method", "CONNECT"), (":authority", "10.0.0.1:80")]);
    let mut near = client.open(&asked, false).unwrap();
    let mut request = accept.accept().await.unwrap();
    assert!(request.stream.send_head(&head(&[(":status", "200")]), false));
    assert_eq!(near.head().await.unwrap().status(), Some(200));
    (Tunnel::new(near), Tunnel::new(request.stream))
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn more_than_all_windows_passes_both_ways_and_ends_in_order() {
    run(async {
        let (client, mut accept) = ends();
        let (near, far) = tunnel(&client, &mut accept).await;
        let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let echo = spawn_local(async move {
            let (mut reader, mut writer) = tokio::io::split(far);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let (mut reader, mut writer) = tokio::io::split(near);
        let write = spawn_local(async move {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
            assert!(writer.write_all(b"x").await.is_err(), "after its end nothing is sent");
            writer
        });
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).await.unwrap();
        assert!(heard == expected, "the bytes differ");
        drop(write.await.unwrap());
        echo.await.unwrap();
        drop(reader);
        assert!(client.is_open());
        assert_eq!(client.streams(), 0);
    });
}

#[test]
fn a_cut_tunnel_is_reset_as_a_connection_was() {
    run(async {
        let (client, mut accept) = ends();
        for cut_first in [true, false] {
            let (near, far) = tunnel(&client, &mut accept).await;
            let (mut cut, mut other) = if cut_first { (near, far) } else { (far, near) };
            cut.write_all(b"part").await.unwrap();
            let mut part = [0; 4];
            other.read_exact(&mut part).await.unwrap();
            assert_eq!(other.presence(), Presence::Here);
            cut.reset_on_drop();
            drop(cut);
            let error = other.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert!(error.to_string().contains("connect-error"), "{error}");
            assert_eq!(other.presence(), Presence::Left);
        }
    });
}

#[test]
fn a_tunnel_that_is_dropped_without_an_end_is_not_taken_for_whole() {
    run(async {
        let (client, mut accept) = ends();
        let (mut near, mut far) = tunnel(&client, &mut accept).await;
        near.write_all(b"part").await.unwrap();
        let mut part = [0; 4];
        far.read_exact(&mut part).await.unwrap();
        drop(near);
        let error = far.read_u8().await.unwrap_err();
        assert!(error.to_string().contains("connect-error"), "{error}");
    });
}
