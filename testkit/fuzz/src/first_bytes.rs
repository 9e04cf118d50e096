//! Fuzzes protocol detection and the ClientHello parser with longer and longer beginnings of the input. A verdict
//! must not change when more bytes follow, and there must be a verdict once the limit of peeked bytes is reached.

use std::time::Duration;

use leno_transport::{Hello, MAX_PEEKED, Opening, Speaker, Verdict, Waits, judge};
use leno_types::Protocol;

/// To save time, beginnings longer than 64 bytes are tried only at multiples of this length.
const STEP: usize = 97;

const EXPECTED: [Protocol; 4] =
    [Protocol::Detect, Protocol::Http1, Protocol::Http2, Protocol::Opaque];

pub(crate) fn run(bytes: &[u8]) {
    let mut verdicts: [Option<Verdict>; EXPECTED.len()] = Default::default();
    let mut hello = None;
    let cuts = (1..=bytes.len()).filter(|cut| *cut < 64 || cut % STEP == 0 || *cut == bytes.len());
    for cut in cuts {
        let (speaker, elapsed) = (Speaker::Client, Duration::ZERO);
        let opening = Opening { speaker, bytes: &bytes[..cut], ended: false, elapsed };
        for (expected, verdict) in EXPECTED.into_iter().zip(&mut verdicts) {
            let now = judge(expected, &Waits::OUTBOUND, opening);
            let is_final = !matches!(now, Verdict::Wait(_));
            assert!(is_final || cut < MAX_PEEKED, "undecided at the bound");
            match verdict {
                Some(before) => assert_eq!(now, *before, "another verdict after {cut} bytes"),
                None if is_final => *verdict = Some(now),
                None => {}
            }
        }
        let now = Hello::read(&bytes[..cut]);
        assert!(now != Hello::NeedMore || cut < MAX_PEEKED, "an endless ClientHello");
        match &hello {
            Some(before) => assert_eq!(&now, before, "another ClientHello after {cut} bytes"),
            None if now != Hello::NeedMore => hello = Some(now),
            None => {}
        }
    }
    if let Some(Hello::Read(read)) = hello {
        if let Some(name) = read.server_name() {
            let allowed = |b: u8| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.')
            };
            assert!(!name.is_empty() && name.bytes().all(allowed), "{name:?}");
        }
        assert!(read.protocols().all(|protocol| !protocol.is_empty()));
        assert_eq!(verdicts[0], Some(Verdict::Tls(Some(read))));
    }
}
