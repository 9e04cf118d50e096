//! Tests by which first bytes TLS of the mesh is distinguished from an application's own.

use leno_transport::{ClientHello, Hello};

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
    let (near, mut tcp) = pair().await;
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
        (&["leno-h1"][..], true),
        (&["leno-tcp"], true),
        (&["h2", "leno-tcp"], true),
        (&["h2", "http/1.1"], false),
        (&[], false),
    ] {
        let hello = hello(alpn).await;
        for n in 0..hello.len() {
            assert_eq!(Hello::read(&hello[..n]), Hello::NeedMore, "{alpn:?} after {n}");
        }
        let more = [&hello[..], b"early data"].concat();
        for bytes in [&hello, &more] {
            let hello = read(bytes).unwrap();
            assert_eq!(offers_mesh(&hello), expected, "{alpn:?}");
            assert_eq!(hello.server_name(), Some("cart.shop"));
        }
    }
}

#[tokio::test]
async fn a_mesh_client_tells_onlookers_no_name() {
    let mesh = Mesh::new();
    let (near, mut tcp) = pair().await;
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
    // The ClientHello contains the hybrid group and its key share. Without these it would be a quarter of this size.
    assert!(first.len() > 1_200, "{}", first.len());
}
