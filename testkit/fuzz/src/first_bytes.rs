//! Protocol detection and the ClientHello: a verdict must not change when more bytes follow, and
//! there must be one once the bound is reached.

use leno_transport::{Detected, Hello, MAX_DETECT, MAX_FIRST, detect};

/// Long inputs are only cut at every such position and at each of the first 64, to save time.
const STEP: usize = 97;

pub(crate) fn run(bytes: &[u8]) {
    let (mut detected, mut hello) = (None, None);
    let cuts = (0..=bytes.len()).filter(|cut| *cut < 64 || cut % STEP == 0 || *cut == bytes.len());
    for cut in cuts {
        let now = detect(&bytes[..cut]);
        assert!(now != Detected::NeedMore || cut < MAX_DETECT, "undecided at the bound");
        match detected {
            Some(before) => assert_eq!(now, before, "another verdict after {cut} bytes"),
            None if now != Detected::NeedMore => detected = Some(now),
            None => {}
        }
        let now = Hello::read(&bytes[..cut]);
        assert!(now != Hello::NeedMore || cut < MAX_FIRST, "an endless ClientHello");
        match &hello {
            Some(before) => assert_eq!(&now, before, "another ClientHello after {cut} bytes"),
            None if now != Hello::NeedMore => hello = Some(now),
            None => {}
        }
    }
    if let Some(Hello::Read(read)) = hello {
        assert_eq!(detected, Some(Detected::TlsClientHello));
        if let Some(name) = read.server_name() {
            let allowed = |b: u8| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.')
            };
            assert!(!name.is_empty() && name.bytes().all(allowed), "{name:?}");
        }
        assert!(read.protocols().all(|protocol| !protocol.is_empty()));
    }
}
