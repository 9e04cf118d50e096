//! Sends odd beginnings of TLS to an inbound side with mTLS. In `strict` mode the application must receive nothing
//! of them. In `permissive` mode it must receive them unchanged, or nothing.

use crate::requests::{exchange, quoted};
use crate::worlds::ProxyWorld;

/// The values that replace each byte of a ClientHello.
const BYTES: [u8; 3] = [0, 0x7f, 0xff];
/// The number of bytes at the beginning that are replaced, one per case.
const REPLACED: usize = 64;
/// The sizes of the records into which a ClientHello is split.
const RECORDS: [usize; 6] = [1, 2, 3, 5, 40, 100];

pub(crate) fn count() -> usize {
    hellos("a", "leno-h2").len() * 2
}

#[test]
fn odd_beginnings_of_tls_do_not_pass_strict_mtls() {
    let world = ProxyWorld::mesh("strict");
    send_all(&world);
    assert!(world.application.faults().is_empty(), "{:?}", world.application.faults());
    world.assert_idle();
}

#[test]
fn odd_beginnings_of_tls_are_relayed_as_they_are_or_refused() {
    let world = ProxyWorld::mesh("permissive");
    let sent = send_all(&world);
    for (_, fault, raw) in world.application.faults() {
        let is_relayed = sent.iter().any(|sent| sent.starts_with(&raw));
        assert!(is_relayed, "{fault}: {}", quoted(&raw));
    }
    world.assert_idle();
}

fn send_all(world: &ProxyWorld) -> Vec<Vec<u8>> {
    let mut all = hellos("web.t.svc.cluster.local", "h2");
    all.extend(hellos("web.t.svc.cluster.local", "leno-h2"));
    for bytes in &all {
        let stream = std::net::TcpStream::connect(world.proxy().address()).expect("it listens");
        stream.set_read_timeout(Some(crate::worlds::LIMIT)).expect("a socket");
        let ended = exchange(stream, &[bytes]);
        assert!(ended.is_ok(), "{}: {ended:?}", quoted(bytes));
    }
    all
}

/// A ClientHello of TLS 1.3: truncated, with replaced bytes, in small records, and with odd extensions.
fn hellos(name: &str, protocol: &str) -> Vec<Vec<u8>> {
    let good = record(22, &handshake(name, protocol, &[]));
    let mut all = vec![good.clone()];
    all.extend((1..REPLACED).map(|length| good[..length].to_vec()));
    for at in 0..REPLACED {
        for byte in BYTES {
            let mut bytes = good.clone();
            bytes[at] = byte;
            all.push(bytes);
        }
    }
    let body = handshake(name, protocol, &[]);
    for size in RECORDS {
        all.push(body.chunks(size).flat_map(|part| record(22, part)).collect());
    }
    // Empty records, records of other types, a record that is too large, and invalid names.
    all.push([record(22, &[]), good.clone()].concat());
    all.push(record(22, &[]).repeat(200));
    all.extend([20, 21, 23, 24, 0].map(|kind| [record(kind, &[1, 0]), good.clone()].concat()));
    all.push(record(22, &[1; 17_000]));
    all.push(record(22, &handshake(name, protocol, &[0; 15_000])));
    for name in ["", "..", "a\0b", "\u{fc}", "10.0.0.1", "[::1]", &"a".repeat(300), "web\r\nX: y"] {
        all.push(record(22, &handshake(name, protocol, &[])));
    }
    for protocol in ["", "leno-h1", "leno-tcp", "leno-x", &"p".repeat(255)] {
        all.push(record(22, &handshake(name, protocol, &[])));
    }
    // SSL 2, and lengths that do not fit.
    all.push(b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10".to_vec());
    all.push([&good[..3], &[0xff, 0xff], &good[5..]].concat());
    all
}

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &length(body), body].concat()
}

fn handshake(name: &str, protocol: &str, padding: &[u8]) -> Vec<u8> {
    let listed = |inner: &[u8]| [&length(inner)[..], inner].concat();
    let extension = |kind: u16, inner: &[u8]| [&kind.to_be_bytes()[..], &listed(inner)].concat();
    let server_name = [&[0][..], &listed(name.as_bytes())].concat();
    let offered = [&[protocol.len() as u8][..], protocol.as_bytes()].concat();
    let extensions = [
        extension(0, &listed(&server_name)),
        extension(16, &listed(&offered)),
        extension(43, &[2, 3, 4]),
        extension(10, &listed(&[0, 29])),
        extension(13, &listed(&[4, 3])),
        extension(51, &listed(&[&[0, 29, 0, 32][..], &[7; 32]].concat())),
        extension(21, padding),
    ]
    .concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &listed(&extensions)].concat();
    [&[1, 0][..], &length(&body), &body].concat()
}

fn length(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes()
}
