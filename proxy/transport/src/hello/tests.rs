//! Reads ClientHellos that these tests build and split in every way.

use proptest::prelude::*;

use super::*;

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn vector8(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(body)].concat()
}

fn named(name: &[u8]) -> Vec<u8> {
    extension(SERVER_NAME, &vector16(&[&[HOST_NAME][..], &vector16(name)].concat()))
}

fn offering(names: &[&[u8]]) -> Vec<u8> {
    extension(ALPN, &vector16(&names.iter().flat_map(|name| vector8(name)).collect::<Vec<u8>>()))
}

/// A handshake message: a ClientHello with these extensions.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &vector8(&[9; 32]),
        &vector16(&[0x13, 1, 0x13, 2]),
        &vector8(&[0]),
        &vector16(extensions),
    ]
    .concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[CLIENT_HELLO][..], &length[1..], &body].concat()
}

/// The message in records of at most `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[HANDSHAKE, 3, 1][..], &vector16(part)].concat();
    message.chunks(size).flat_map(record).collect()
}

/// A ClientHello in one record, with a name and protocols.
pub(crate) fn whole() -> Vec<u8> {
    let extensions = [named(b"web.example"), offering(&[b"h2", b"http/1.1"])].concat();
    records(&hello(&extensions), MAX_RECORD)
}

fn read(bytes: &[u8]) -> ClientHello {
    match Hello::read(bytes) {
        Hello::Read(hello) => hello,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_name_and_the_protocols_are_read() {
    let other = extension(43, &[2, 3, 4]);
    let extensions = [other, named(b"Web.Example"), offering(&[b"h2", b"http/1.1"])].concat();
    let bytes = records(&hello(&extensions), MAX_RECORD);
    let read = read(&bytes);
    assert_eq!(read.server_name(), Some("web.example"));
    assert_eq!(read.protocols().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
}

#[test]
fn a_hello_may_have_no_server_name() {
    let read = read(&records(&hello(&[]), MAX_RECORD));
    assert_eq!((read.server_name(), read.protocols().count()), (None, 0));
    // In RFC 5246 section 7.4.1.2, even the length of the extensions may be missing.
    let mut old = hello(&[]);
    old.truncate(old.len() - 2);
    old[3] -= 2;
    assert!(matches!(Hello::read(&records(&old, 64)), Hello::Read(_)));
}

#[test]
fn a_name_that_is_not_a_host_is_ignored() {
    for name in [&b"a b"[..], b"a\0b", b"\xc3\xa4", b"a/b", b"", &[b'a'; MAX_NAME + 1]] {
        let read = read(&records(&hello(&named(name)), MAX_RECORD));
        assert_eq!(read.server_name(), None, "{name:?}");
    }
    let name = [b'a'; MAX_NAME];
    let read = read(&records(&hello(&named(&name)), MAX_RECORD));
    assert_eq!(read.server_name().map(str::len), Some(MAX_NAME));
}

#[test]
fn an_ambiguous_hello_is_unreadable() {
    let twice = [named(b"one"), named(b"two")].concat();
    let list = [&[HOST_NAME][..], &vector16(b"one"), &[HOST_NAME], &vector16(b"two")].concat();
    let two_names = extension(SERVER_NAME, &vector16(&list));
    let mut after_name = named(b"one");
    after_name[3] += 1;
    after_name.push(0);
    let offered_twice = [offering(&[b"h2"]), offering(&[b"h2"])].concat();
    let empty_protocol = extension(ALPN, &vector16(&[0]));
    for extensions in [twice, two_names, after_name, offered_twice, empty_protocol] {
        let bytes = records(&hello(&extensions), MAX_RECORD);
        assert_eq!(Hello::read(&bytes), Hello::Unreadable, "{extensions:?}");
    }
    let mut trailing = hello(&named(b"one"));
    trailing.push(0);
    trailing[3] += 1;
    assert_eq!(Hello::read(&records(&trailing, MAX_RECORD)), Hello::Unreadable);
}

#[test]
fn other_bytes_are_not_a_hello() {
    let message = hello(&named(b"web"));
    for (at, byte) in [(0, 23), (1, 2), (2, 5), (5, 2)] {
        let mut bytes = records(&message, MAX_RECORD);
        bytes[at] = byte;
        assert_eq!(Hello::read(&bytes), Hello::Unreadable, "byte {at}");
        assert_eq!(Hello::read(&bytes[..=at]), Hello::Unreadable, "byte {at}");
    }
    assert_eq!(Hello::read(&[HANDSHAKE, 3, 1, 0, 0]), Hello::Unreadable);
    assert_eq!(Hello::read(&[HANDSHAKE, 3, 1, 0x40, 1]), Hello::Unreadable);
    assert_eq!(Hello::read(&[HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 1, 0, 0]), Hello::Unreadable);
    assert_eq!(Hello::read(b""), Hello::NeedMore);
}

#[test]
fn a_hello_that_is_too_long_is_unreadable() {
    let padding = extension(21, &vec![0; 2 * MAX_PEEKED / 3]);
    let fits = records(&hello(&[padding.clone(), named(b"web")].concat()), MAX_RECORD);
    assert_eq!(read(&fits).server_name(), Some("web"));
    let message = hello(&[padding.clone(), padding, named(b"web")].concat());
    let mut bytes = records(&message, MAX_RECORD);
    assert_eq!(Hello::read(&bytes), Hello::Unreadable);
    bytes.truncate(7);
    assert_eq!(Hello::read(&bytes), Hello::NeedMore);
    // With one byte in each record, the message is sent in six times as many bytes.
    let thin = records(&hello(&extension(21, &[0; 4000])), 1);
    assert_eq!(Hello::read(&thin), Hello::Unreadable);
}

fn hellos() -> impl Strategy<Value = (Vec<u8>, String)> {
    let name = "[a-z][a-z0-9.-]{0,60}";
    let other =
        proptest::collection::vec((50u16..60, proptest::collection::vec(any::<u8>(), 0..40)), 0..6);
    (name, other, any::<prop::sample::Index>(), 1..400usize).prop_map(|(name, other, at, size)| {
        let mut extensions: Vec<Vec<u8>> =
            other.iter().map(|(kind, body)| extension(*kind, body)).collect();
        extensions.insert(at.index(extensions.len() + 1), named(name.as_bytes()));
        (records(&hello(&extensions.concat()), size), name)
    })
}

proptest! {
    #[test]
    fn the_name_is_found_however_the_hello_is_split((bytes, name) in hellos(), more in any::<[u8; 4]>()) {
        for n in 0..bytes.len() {
            prop_assert_eq!(Hello::read(&bytes[..n]), Hello::NeedMore, "after {} bytes", n);
        }
        let longer = [&bytes[..], &more].concat();
        for bytes in [&bytes, &longer] {
            let hello = read(bytes);
            prop_assert_eq!(hello.server_name(), Some(name.as_str()));
        }
    }

    #[test]
    fn a_verdict_is_final_and_is_reached_within_the_limit(
        (bytes, _) in hellos(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        filler in any::<u8>(),
    ) {
        let mut bytes = bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let cut = cut.index(bytes.len() + 1);
        let early = Hello::read(&bytes[..cut]);
        let late = Hello::read(&bytes);
        prop_assert!(early == Hello::NeedMore || early == late, "{:?} {:?}", early, late);
        bytes.resize(MAX_PEEKED, filler);
        prop_assert_ne!(Hello::read(&bytes), Hello::NeedMore);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        size in 1..200usize,
    ) {
        let _any = Hello::read(&bytes);
        let message = [&[CLIENT_HELLO, 0][..], &vector16(&bytes)].concat();
        if let Hello::Read(hello) = Hello::read(&records(&message, size)) {
            prop_assert!(hello.protocols().all(|name| !name.is_empty()));
        }
    }
}
