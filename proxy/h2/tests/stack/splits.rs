//! Checks that the result does not depend on how the bytes are split into reads, and that no bytes cause a panic.

use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::task::{spawn_local, yield_now};

use crate::script::*;
use crate::support::{limits, run, server};

/// The requests that a server received: heads, bodies and trailers.
async fn outcome(bytes: &[u8], cuts: &[usize]) -> Vec<String> {
    let (mut io, mut accept, ended) = server(&limits());
    let (mut reader, mut writer) = tokio::io::split(&mut io);
    let seen = spawn_local(async move {
        let mut seen = vec![];
        while let Some(mut request) = accept.accept().await {
            let mut text = String::new();
            for field in request.head.iter() {
                text.push_str(&String::from_utf8_lossy(field.value()));
            }
            let end = loop {
                match request.stream.data().await {
                    Ok(Some(piece)) => {
                        request.stream.release(piece.len());
                        text.push_str(&String::from_utf8_lossy(&piece));
                    }
                    Ok(None) => break None,
                    Err(reset) => break Some(reset.code),
                }
            };
            let trailers = request.stream.trailers().map(|head| head.len());
            // If a request is reset at once, it depends on timing whether the server sees it.
            if end.is_none() {
                seen.push(format!("{text} {trailers:?}"));
            }
        }
        seen
    });
    let write = async {
        let mut from = 0;
        for to in cuts.iter().copied().chain([bytes.len()]) {
            let to = to.clamp(from, bytes.len());
            if writer.write_all(&bytes[from..to]).await.is_err() {
                break;
            }
            from = to;
            yield_now().await;
            yield_now().await;
        }
        drop(writer.shutdown().await);
    };
    let read = async { drop(tokio::io::copy(&mut reader, &mut tokio::io::sink()).await) };
    tokio::join!(write, read);
    let mut seen = seen.await.unwrap();
    seen.push(format!("{:?}", ended.await.unwrap().map_err(|error| error.code)));
    seen
}

/// The bytes of a connection with every kind of message.
fn transcript() -> Vec<u8> {
    let mut encoder = leno_hpack::Encoder::new(4096);
    let mut section = |fields: &[(&str, &str)]| {
        let mut out = vec![];
        encoder.encode(&fields.iter().copied().collect::<leno_hpack::Block>(), &mut out);
        out
    };
    let post =
        [&[(":method", "POST")], &GET[1..], &[("x-name", "a value of some length")]].concat();
    let mut all = PREFACE.to_vec();
    all.extend(frame(SETTINGS, 0, 0, &setting(4, 100_000)));
    all.extend(frame(SETTINGS, ACK, 0, &[]));
    let head = section(&post);
    all.extend(frame(HEADERS, 0, 1, &head[..5]));
    all.extend(frame(CONTINUATION, 0, 1, &head[5..9]));
    all.extend(frame(CONTINUATION, END_HEADERS, 1, &head[9..]));
    all.extend(frame(DATA, 0, 1, b"the first part, "));
    all.extend(frame(HEADERS, END_HEADERS | END_STREAM, 3, &section(&GET)));
    all.extend(frame(DATA, PADDED, 1, b"\x03the second, \0\0\0"));
    all.extend(frame(PING, 0, 0, b"12345678"));
    all.extend(frame(DATA, 0, 1, b""));
    all.extend(frame(HEADERS, END_HEADERS, 5, &section(&post)));
    all.extend(frame(WINDOW_UPDATE, 0, 5, &[0, 0, 1, 0]));
    all.extend(frame(0xbe, 7, 5, b"unknown"));
    all.extend(frame(DATA, 0, 1, &vec![b'z'; 9000]));
    all.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &section(&[("x-sum", "1")])));
    all.extend(frame(RST_STREAM, 0, 5, &[0, 0, 0, 8]));
    all.extend(frame(HEADERS, END_HEADERS, 7, &section(&post)));
    all.extend(frame(DATA, END_STREAM, 7, b"the end"));
    all.extend(frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0]));
    all
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        Just(vec![0x82, 0x86, 0x84, 0x41, 1, b'a']),
        Just(vec![0; 4]),
        Just(vec![0, 0, 0, 0, 0, 0, 0, 1]),
        Just(vec![b'x'; 5000]),
    ];
    let kind = prop_oneof![4 => 0u8..2, 1 => 0u8..11];
    (kind, prop_oneof![Just(0u8), Just(4), Just(5), any::<u8>()], 0u32..8, payload)
        .prop_map(|(kind, flags, id, payload)| frame(kind, flags, id, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn cuts_change_nothing(mut cuts in prop::collection::vec(0usize..9600, 0..40)) {
        cuts.sort_unstable();
        run(async {
            let bytes = transcript();
            let whole = outcome(&bytes, &[]).await;
            assert_eq!(whole.len(), 4);
            assert!(outcome(&bytes, &cuts).await == whole);
        });
    }

    #[test]
    fn any_frames_do_no_harm(frames in prop::collection::vec(any_frame(), 0..30)) {
        run(async {
            let mut bytes = PREFACE.to_vec();
            bytes.extend(frame(SETTINGS, 0, 0, &[]));
            bytes.extend(frames.concat());
            outcome(&bytes, &[]).await;
        });
    }
}
