//! Fuzzes HTTP/1 messages, heads and bodies. However the input is cut into pieces, the parser must find the same
//! messages or the same error; and requests that it accepts must mean the same to httparse.

use leno_http::{BodyError, BodyWalker, Framing, HeadError, Limits, RequestHead, ResponseHead};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseOutcome {
    /// The lengths of a head and of its body.
    Message(usize, usize),
    Unfinished,
    Head(HeadError),
    Body(BodyError),
}

/// Runs the target. The first byte selects the kind of messages, and the size of the pieces.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&first, stream)) = bytes.split_first() else { return };
    // An error within a line is reported at the end of the line at the latest, so the input must end a line.
    let mut stream = stream.to_vec();
    if stream.last() != Some(&b'\n') {
        stream.push(b'\n');
    }
    let find = if first & 1 == 0 { requests } else { responses };
    let step = usize::from(first >> 1) % 31 + 1;
    let whole = find(&stream, usize::MAX);
    assert_eq!(find(&stream, step), whole, "in pieces of {step}");
    if first & 1 == 0 {
        assert_httparse_agrees(&stream, &whole);
    }
}

/// The requests in a stream that is read in pieces of `step` bytes.
pub(crate) fn requests(stream: &[u8], step: usize) -> Vec<ParseOutcome> {
    messages(stream, step, RequestHead::default, RequestHead::parse, |head| {
        (head.len(), head.framing())
    })
}

fn responses(stream: &[u8], step: usize) -> Vec<ParseOutcome> {
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
) -> Vec<ParseOutcome> {
    let limits = Limits { headers: 8, request_line_bytes: 200, ..Limits::default() };
    let mut found = vec![];
    let mut rest = stream;
    while !rest.is_empty() {
        let mut head = make();
        let mut ends = (1..=rest.len()).filter(|end| end % step == 0 || *end == rest.len());
        let verdict = ends.find_map(|end| {
            Some(parse(&mut head, &rest[..end], &limits)).filter(|v| *v != Ok(false))
        });
        match verdict {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                found.push(ParseOutcome::Head(error));
                return found;
            }
            None => {
                found.push(ParseOutcome::Unfinished);
                return found;
            }
        }
        let (length, framing) = framing(&head);
        match body(&rest[length..], framing, step) {
            Ok(Some(body)) => {
                found.push(ParseOutcome::Message(length, body));
                rest = &rest[length + body..];
            }
            Ok(None) => {
                found.push(ParseOutcome::Unfinished);
                return found;
            }
            Err(error) => {
                found.push(ParseOutcome::Body(error));
                return found;
            }
        }
    }
    found
}

/// The length of a body with this framing; `None` if the body does not end within the bytes.
fn body(bytes: &[u8], framing: Framing, step: usize) -> Result<Option<usize>, BodyError> {
    let mut walker = BodyWalker::new(framing);
    let mut length = 0;
    for end in (step..bytes.len()).step_by(step).chain([bytes.len()]) {
        length += walker.walk(&bytes[length..end])?;
        if walker.is_done() {
            break;
        }
    }
    Ok(walker.finish().then_some(length))
}

/// Compares the heads of the requests with the results of httparse. httparse rejects targets that are not UTF-8,
/// which many servers accept.
fn assert_httparse_agrees(stream: &[u8], found: &[ParseOutcome]) {
    if std::str::from_utf8(stream).is_err() {
        return;
    }
    let mut rest = stream;
    for found in found {
        let ParseOutcome::Message(head, body) = *found else { return };
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut other = httparse::Request::new(&mut headers);
        let complete = Ok(httparse::Status::Complete(head));
        assert_eq!(other.parse(rest), complete, "{}", rest.escape_ascii());
        rest = &rest[head + body..];
    }
}
