//! Parses a corpus of requests and responses, and all variants that differ by one byte. However the bytes are split,
//! the same messages or the same fault must be found. The head of an accepted request must end at the same byte for
//! httparse.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use leno_http::{BodyError, BodyWalker, Framing, HeadError, Limits, RequestHead, ResponseHead};

/// Bytes that parsers often handle wrongly.
const BYTES: &[u8] = b"\r\n\0\t :;,0a\x0b\x7f\xff";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The lengths of a head and of the body after it.
    Message(usize, usize),
    Unfinished,
    Head(HeadError),
    Body(BodyError),
}

/// The messages in a stream that arrives in pieces of `step` bytes.
fn requests(stream: &[u8], step: usize) -> Vec<Found> {
    messages(stream, step, RequestHead::default, RequestHead::parse, |head| {
        (head.len(), head.framing())
    })
}

fn responses(stream: &[u8], step: usize) -> Vec<Found> {
    messages(stream, step, ResponseHead::default, ResponseHead::parse, |head| {
        (head.len(), head.framing(false))
    })
}

fn messages<H>(
    stream: &[u8],
    step: usize,
    make: impl Fn() -> H,
    parse: impl Fn(&mut H, &[u8], &Limits) -> Result<bool, HeadError>,
    framing: impl Fn(&H) -> (usize, Framing),
) -> Vec<Found> {
    let limits = Limits { headers: 8, request_line_bytes: 200, ..Limits::default() };
    let mut found = vec![];
    let mut rest = stream;
    while !rest.is_empty() {
        let mut head = make();
        let ends = (1..=rest.len()).filter(|end| end % step == 0 || *end == rest.len());
        let complete = ends.map(|end| parse(&mut head, &rest[..end], &limits));
        let verdict = complete.into_iter().find(|verdict| *verdict != Ok(false));
        match verdict {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                found.push(Found::Head(error));
                return found;
            }
            None => {
                found.push(Found::Unfinished);
                return found;
            }
        }
        let (length, framing) = framing(&head);
        let mut walker = BodyWalker::new(framing);
        let mut body = 0;
        let bytes = &rest[length..];
        let ends = (step..bytes.len()).step_by(step).chain([bytes.len()]);
        for end in ends {
            match walker.walk(&bytes[body..end]) {
                Ok(count) => body += count,
                Err(error) => {
                    found.push(Found::Body(error));
                    return found;
                }
            }
            if walker.is_done() {
                break;
            }
        }
        if !walker.finish() {
            found.push(Found::Unfinished);
            return found;
        }
        found.push(Found::Message(length, body));
        rest = &rest[length + body..];
    }
    found
}

/// `bytes`, and all variants with one byte changed, removed or doubled.
fn one_byte_away(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let changed = (0..bytes.len()).flat_map(move |at| {
        let replaced = BYTES.iter().map(move |byte| {
            let mut copy = bytes.to_vec();
            copy[at] = *byte;
            copy
        });
        let left_out = [&bytes[..at], &bytes[at + 1..]].concat();
        let doubled = [&bytes[..=at], &bytes[at..]].concat();
        replaced.chain([left_out, doubled])
    });
    std::iter::once(bytes.to_vec()).chain(changed)
}

fn replay(folder: &str, find: impl Fn(&[u8], usize) -> Vec<Found>) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let expected_good = path.file_name().unwrap().to_str().unwrap().starts_with("good");
        let found = find(&bytes, usize::MAX);
        let good = found.iter().all(|found| matches!(found, Found::Message(..)));
        assert_eq!(good, expected_good, "{}: {found:?}", path.display());
        for mut stream in one_byte_away(&bytes) {
            // A fault within a line is noticed when the line ends, if not earlier.
            if stream.last() != Some(&b'\n') {
                stream.push(b'\n');
            }
            let whole = find(&stream, usize::MAX);
            for step in [1, 2, 7] {
                assert_eq!(find(&stream, step), whole, "{}", stream.escape_ascii());
            }
            count += 1;
        }
    }
    count
}

/// Parses the heads of the requests with another parser. That parser refuses targets that are not UTF-8, although many
/// servers accept them.
fn assert_httparse_agrees(stream: &[u8]) {
    if std::str::from_utf8(stream).is_err() {
        return;
    }
    let mut rest = stream;
    for found in requests(stream, usize::MAX) {
        let Found::Message(head, body) = found else { return };
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut other = httparse::Request::new(&mut headers);
        let complete = Ok(httparse::Status::Complete(head));
        assert_eq!(other.parse(rest), complete, "{}", rest.escape_ascii());
        rest = &rest[head + body..];
    }
}

#[test]
fn requests_mean_the_same_in_any_pieces() {
    let count = replay("requests", |stream, step| {
        if step == usize::MAX {
            assert_httparse_agrees(stream);
        }
        requests(stream, step)
    });
    assert!(count > 10_000, "the corpus is missing or too small");
}

#[test]
fn responses_mean_the_same_in_any_pieces() {
    assert!(replay("responses", responses) > 5_000, "the corpus is missing or too small");
}
