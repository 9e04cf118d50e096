use proptest::prelude::*;

use super::*;

/// The content, the trailers, and how many bytes the body occupies; `None` while the body is incomplete.
type Walked = Result<Option<(Vec<u8>, Vec<u8>, usize)>, BodyError>;

fn walk(framing: Framing, bytes: &[u8], cuts: &[usize]) -> Walked {
    let mut walker = BodyWalker::new(framing);
    let (mut content, mut trailers, mut at) = (vec![], vec![], 0);
    let ends = cuts.iter().copied().filter(|cut| *cut < bytes.len()).chain([bytes.len()]);
    for end in ends {
        while at < end {
            let rest = &bytes[at..end];
            let (count, event) = walker.next(rest)?;
            match event {
                Some(Event::Data(range)) => content.extend_from_slice(&rest[range]),
                Some(Event::Trailers(range)) => trailers.extend_from_slice(&rest[range]),
                Some(Event::RemovedTrailer(_) | Event::End) | None => {}
            }
            at += count;
            if walker.is_done() {
                return Ok(Some((content, trailers, at)));
            }
            if count == 0 {
                // The rest is only the beginning of a trailer line.
                break;
            }
        }
    }
    Ok(None)
}

fn chunked(text: &str) -> Result<Option<(String, String, usize)>, BodyError> {
    let walked = walk(Framing::Chunked, text.as_bytes(), &[])?;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ok(walked.map(|(content, trailers, length)| (text(content), text(trailers), length)))
}

#[test]
fn chunks_and_trailers() {
    let cases = [
        ("0\r\n\r\nrest", "", "", 5),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", "", 15),
        ("5;a=\"b c\"\r\nhello\r\n00000\r\n\r\nGET", "hello", "", 27),
        (
            "00A\r\n0123456789\r\n1\r\n!\r\n0\r\na: b\r\nC:\r\n\r\nx",
            "0123456789!",
            "a: b\r\nC:\r\n",
            38,
        ),
    ];
    for (text, content, trailers, length) in cases {
        let expected = Some((content.to_owned(), trailers.to_owned(), length));
        assert_eq!(chunked(text), Ok(expected), "{text:?}");
    }
    assert_eq!(chunked("5\r\nhello\r\n0\r\n\r"), Ok(None));
}

#[test]
fn trailers_that_are_not_forwarded_are_marked() {
    let text =
        "0\r\nTE: x\r\na: b\r\nAuthorization: c\r\nset-cookie: d\r\nC:\r\nif-match: e\r\n\r\n";
    let expected = Some((String::new(), "a: b\r\nC:\r\n".to_owned(), text.len()));
    assert_eq!(chunked(text), Ok(expected));
}

#[test]
fn refused_chunks() {
    use BodyError::*;
    let long_line = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(20_000));
    let long_total = format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "e".repeat(100)).repeat(300));
    let long_trailers = format!("0\r\n{}\r\n", format!("a: {}\r\n", "b".repeat(100)).repeat(200));
    let cases = [
        ("\r\n", ChunkSize),
        ("x\r\n", ChunkSize),
        ("-1\r\n", ChunkSize),
        ("+1\r\n", ChunkSize),
        (" 1\r\n", ChunkSize),
        ("1 \r\n", ChunkSize),
        ("0x1\r\n", ChunkSize),
        (";a\r\n", ChunkSize),
        ("1\n", ChunkSize),
        ("1000000000000000\r\n", ChunkSize),
        ("0000000000000000\r\n", ChunkSize),
        ("1\rx", ChunkLine),
        ("1;a\nb\r\n", ChunkLine),
        ("1;a\0\r\n", ChunkLine),
        ("1\r\nab\r\n", ChunkEnd),
        ("1\r\na\n", ChunkEnd),
        ("1\r\na\rb", ChunkEnd),
        ("1\r\na0\r\n\r\n", ChunkEnd),
        ("0\r\n\n", Trailer),
        ("0\r\n\rx", Trailer),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", Trailer),
        ("0\r\na : b\r\n\r\n", Trailer),
        ("0\r\n: b\r\n\r\n", Trailer),
        ("0\r\na: b\n\r\n", Trailer),
        ("0\r\na: b\r\n c\r\n\r\n", Trailer),
        ("0\r\nContent-LENGTH: 5\r\n\r\n", TrailerForbidden),
        ("0\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n", TrailerForbidden),
        ("0\r\nHost: b\r\n\r\n", TrailerForbidden),
        (&long_line, ChunkExtensions),
        (&long_total, ChunkExtensions),
        (&long_trailers, TrailersTooLarge),
    ];
    for (text, expected) in cases {
        assert_eq!(chunked(text), Err(expected), "{text:?}");
    }
}

#[test]
fn small_chunks_and_short_extensions_are_accepted_without_end() {
    let text = "1;ext=12345678\r\nx\r\n".repeat(100_000) + "0\r\n\r\n";
    assert_eq!(chunked(&text).unwrap().unwrap().0.len(), 100_000);
}

#[test]
fn length_and_close() {
    assert!(BodyWalker::new(Framing::None).is_done());
    assert!(BodyWalker::new(Framing::Length(0)).is_done());
    let walked = walk(Framing::Length(3), b"abcdef", &[1, 2]);
    assert_eq!(walked, Ok(Some((b"abc".to_vec(), vec![], 3))));
    let mut walker = BodyWalker::new(Framing::Length(3));
    assert_eq!(walker.walk(b"ab"), Ok(2));
    assert!(!walker.finish(), "the end of the stream is not the end of this body");
    let mut walker = BodyWalker::new(Framing::UntilClose);
    assert_eq!(walker.walk(b"ab"), Ok(2));
    assert!(!walker.is_done() && walker.finish());
    assert_eq!(walker.next(b"x"), Ok((0, Some(Event::End))));
}

/// A chunked body with more bytes after it. The body is valid in most cases.
fn near_chunked() -> impl Strategy<Value = Vec<u8>> {
    let chunk =
        (prop::collection::vec(any::<u8>(), 1..40), prop::sample::select(&["", ";a=b"][..]))
            .prop_map(|(content, extension)| {
                [format!("{:x}{extension}\r\n", content.len()).as_bytes(), &content, b"\r\n"]
                    .concat()
            });
    let noise = prop::collection::vec(prop::sample::select(&b"\r\n0;:a \0"[..]), 0..3);
    let end = prop::sample::select(
        &["0\r\n\r\n", "0\r\nT: x\r\n\r\n", "0\r\na:\r\nb: c\r\n\r\n", "0\r\n\n"][..],
    );
    let body = prop::collection::vec(prop_oneof![9 => chunk, 1 => noise.boxed()], 0..8);
    (body, end, prop::collection::vec(any::<u8>(), 0..9))
        .prop_map(|(chunks, end, rest)| [&chunks.concat(), end.as_bytes(), &rest].concat())
}

proptest! {
    #[test]
    fn the_way_the_bytes_are_split_makes_no_difference(bytes in near_chunked(), mut cuts in prop::collection::vec(1usize..400, 0..9)) {
        cuts.sort_unstable();
        let whole = walk(Framing::Chunked, &bytes, &[]);
        let every: Vec<usize> = (1..bytes.len()).collect();
        prop_assert_eq!(&walk(Framing::Chunked, &bytes, &cuts), &whole);
        prop_assert_eq!(&walk(Framing::Chunked, &bytes, &every), &whole);
        // `walk` finds the same end as `next`.
        let mut walker = BodyWalker::new(Framing::Chunked);
        match whole {
            Ok(Some((_, _, length))) => prop_assert_eq!(walker.walk(&bytes), Ok(length)),
            Ok(None) => {
                // The rest is at most the beginning of a trailer line.
                let length = walker.walk(&bytes).unwrap();
                let rest = &bytes[length..];
                prop_assert!(!walker.is_done() && !rest.contains(&b'\n'), "{:?}", rest);
            }
            Err(error) => prop_assert_eq!(walker.walk(&bytes), Err(error)),
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = walk(Framing::Chunked, &bytes, &[]);
    }
}
