//! The first bytes of a connection.

use leno_transport::{ClientHello, Hello};
use proptest::prelude::*;

use super::*;

/// The ClientHello, once it is complete.
fn read(first: &[u8]) -> Option<ClientHello> {
    match Hello::read(first) {
        Hello::Read(hello) => Some(hello),
        _ => None,
    }
}

/// The first bytes that a client writes, before it has received anything.
async fn hello(alpn: &[&str]) -> Vec<u8> {
    let (near, far) = pair().await;
    let mut tcp = far.into_parts().1;
    let mut first = Vec::new();
    let writes = async {
        let mut record = [0; 5];
        tcp.read_exact(&mut record).await.unwrap();
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        first.extend_from_slice(&record);
        first.resize(5 + length, 0);
        tcp.read_exact(&mut first[5..]).await.unwrap();
    };
    tokio::select! {
        () = writes => {}
        done = liar::connect(near, None, alpn) => panic!("{done:?}"),
    }
    first
}

#[tokio::test]
async fn mesh_tls_is_told_from_an_applications_own() {
    for (alpn, expected) in [
        (&["leno-h1"][..], Sniffed::Mesh),
        (&["leno-tcp"], Sniffed::Mesh),
        (&["h2", "leno-tcp"], Sniffed::Mesh),
        (&["h2", "http/1.1"], Sniffed::Other),
        (&[], Sniffed::Other),
    ] {
        let hello = hello(alpn).await;
        for n in 0..hello.len() {
            assert_eq!(sniff(&hello[..n]), Sniffed::NeedMore, "{alpn:?} after {n}");
        }
        assert_eq!(sniff(&hello), expected, "{alpn:?}");
        let more = [&hello[..], b"early data"].concat();
        assert_eq!(sniff(&more), expected);
        assert_eq!(read(&hello).unwrap().server_name(), Some("cart.shop"));
    }
}

#[tokio::test]
async fn a_mesh_client_tells_onlookers_no_name() {
    let mesh = Mesh::new();
    let (near, far) = pair().await;
    let mut tcp = far.into_parts().1;
    let cart = identity(CART);
    let connecting = mesh.connector.connect(near, &cart, &[Alpn::Opaque]);
    let mut first = Vec::new();
    tokio::select! {
        done = connecting => panic!("{done:?}"),
        () = async {
            while read(&first).is_none() {
                tcp.read_buf(&mut first).await.unwrap();
            }
        } => {}
    }
    let hello = read(&first).unwrap();
    assert!(hello.protocols().eq([Alpn::Opaque.as_bytes()]) && hello.server_name().is_none());
    // The hybrid group and its key share. Without them the ClientHello would be a quarter of that
    // size.
    assert!(first.len() > 1_200, "{}", first.len());
}

#[test]
fn what_is_not_tls_is_told_at_once() {
    for bytes in [&b"G"[..], b"\0", b"SSH-2.0", b"\x16\x02", b"\x16\x03\x01\x00\x05\x02"] {
        assert_eq!(sniff(bytes), Sniffed::Other, "{bytes:?}");
    }
    assert_eq!(sniff(b""), Sniffed::NeedMore);
    assert_eq!(sniff(b"\x16"), Sniffed::NeedMore);
}

proptest! {
    #[test]
    fn no_bytes_panic_or_wait_for_ever(
        length in 4..=0x4000_u16,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let [high, low] = length.to_be_bytes();
        let mut hello = vec![0x16, 3, 1, high, low, 1];
        hello.extend_from_slice(&bytes);
        let _decided = sniff(&hello);
        hello.resize(16 * 1024 + 5, 0);
        prop_assert_ne!(sniff(&hello), Sniffed::NeedMore);
    }
}
