//! Generates `docs/reference/errors.md`: the causes for messages that are not valid HTTP, and for streams that are
//! reset. Their descriptions come from the code.

use std::fmt::Write as _;
use std::io;

use leno_h2::{Code, Reset, ResetBy};

use super::{Cause, Failure, Party};
use crate::body::BodyError;
use crate::head::HeadError;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
const HEAD: &str = "\
# Causes of refused messages

Written by `make reference` from the code. These are the *others* of the
[table of causes](../guide/metrics.md#causes): the head or the body of a message is not HTTP/1 (RFC 9112), or a stream of
HTTP/2 was reset. The first status is the answer if the client's request is at fault, the second if the server's response
is. No answer is sent where none can be: the client has gone, or the response has begun.

| cause | request | response | |
|---|---|---|---|
";

pub(super) const HEADS: [HeadError; 25] = [
    HeadError::RequestLine,
    HeadError::RequestLineTooLong,
    HeadError::StatusLine,
    HeadError::Version,
    HeadError::TooLarge,
    HeadError::TooManyHeaders,
    HeadError::BareLf,
    HeadError::BareCr,
    HeadError::Folded,
    HeadError::Name,
    HeadError::SpaceBeforeColon,
    HeadError::Control,
    HeadError::Target,
    HeadError::HostMissing,
    HeadError::HostRepeated,
    HeadError::HostMalformed,
    HeadError::HostConflict,
    HeadError::LengthMalformed,
    HeadError::LengthConflict,
    HeadError::LengthAndTransferEncoding,
    HeadError::TransferEncoding,
    HeadError::TransferCoding,
    HeadError::TransferEncodingIn10,
    HeadError::ConnectionOption,
    HeadError::Connect,
];

pub(super) const BODIES: [BodyError; 8] = [
    BodyError::ChunkSize,
    BodyError::ChunkEnd,
    BodyError::ChunkLine,
    BodyError::ChunkExtensions,
    BodyError::TrailersTooLarge,
    BodyError::Trailer,
    BodyError::TrailerForbidden,
    BodyError::Length,
];

/// The HTTP/2 codes that RFC 9113 defines, without `NO_ERROR`.
const CODES: std::ops::Range<u32> = 1..14;

fn row(page: &mut String, make: impl Fn() -> Cause, text: &str) {
    let status = |place| match Failure::new(place, make()).status() {
        Some(status) => status.to_string(),
        None => "-".to_owned(),
    };
    let (request, response) = (status(Party::Client), status(Party::Server));
    let label = make().label();
    writeln!(page, "| `{label}` | {request} | {response} | {text} |").expect("a String takes all");
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for error in HEADS {
        row(&mut page, || Cause::Head(error), &error.to_string());
    }
    for error in BODIES {
        row(&mut page, || Cause::Body(error), &error.to_string());
    }
    for code in CODES.map(Code) {
        let make = || Cause::Reset(Reset { code, by: ResetBy::Peer, unprocessed: false });
        let text =
            format!("the peer reset the stream with code {:#x} (RFC 9113 section 7)", code.0);
        row(&mut page, make, &text);
    }
    page
}

/// How many variants `source` declares between the line `begin` and the end of that block.
fn variants(source: &str, begin: &str) -> usize {
    let rest = source.split_once(begin).expect("the enumeration is there").1;
    let block = rest.split_once("\n}").expect("an enumeration ends").0;
    block.matches("#[error(").count()
}

#[test]
fn the_reference_has_every_cause_of_refused_messages() -> io::Result<()> {
    assert_eq!(variants(include_str!("../head.rs"), "pub enum HeadError {"), HEADS.len());
    assert_eq!(variants(include_str!("../body.rs"), "pub enum BodyError {"), BODIES.len());
    let page = page();
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(FILE, &page)?;
    }
    assert!(
        std::fs::read_to_string(FILE)? == page,
        "docs/reference/errors.md is out of date: make reference"
    );
    Ok(())
}
