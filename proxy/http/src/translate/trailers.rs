//! Translates trailer sections.

use leno_h2::{Head, may_be_trailer};
use leno_hpack::Block;
use smallvec::SmallVec;

use super::lines::check;
use crate::head::{split_once, trim};

/// Converts the trailers after chunks to fields. Their lines were checked when they arrived.
pub(crate) fn to_h2(lines: &[u8]) -> Head {
    let mut block = Head::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some((name, value)) = split_once(line, b':') else { continue };
        let name = name.to_ascii_lowercase();
        if may_be_trailer(&name) {
            block.push(&name, trim(value.strip_suffix(b"\r").unwrap_or(value)));
        }
    }
    block
}

/// Converts fields to the trailers that follow the last chunk. Fields that are permitted only in a head are left out.
pub(crate) fn to_h1(block: &Block, out: &mut SmallVec<[u8; 16]>) {
    for field in block {
        let name = field.name();
        if may_be_trailer(name) && !field.is_pseudo() && check(&field).is_ok() {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value());
            out.extend_from_slice(b"\r\n");
        }
    }
}
