//! Translates heads from one version of HTTP to the other, directly between bytes and fields.
//!
//! ```text
//! HTTP/1 ── request::to_h2 ──► fields ── request::to_h1 ──► HTTP/1
//! HTTP/1 ◄── response::to_h1 ── fields ◄── response::to_h2 ── HTTP/1
//! ```

mod carried;
mod lines;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod trailers;
pub(crate) mod websocket;

pub(crate) use carried::{Carried, SWITCHED};

use leno_hpack::Block;
use smallvec::SmallVec;

use crate::edit::{Edits, ends_at_hop, named};
use crate::head::{Header, Headers, Known, Meaning, Transfer, tokens};

/// Space for a header's name in lower case, usually without an allocation.
type Name = SmallVec<[u8; 64]>;

/// Appends those header lines of an HTTP/1 head that are not for one hop only, as fields. `edits` decide which of the
/// headers that only the mesh may set are forwarded.
fn push_headers(
    block: &mut Block,
    (headers, meaning): (&Headers, &Meaning),
    bytes: &[u8],
    edits: &Edits<'_>,
) {
    let mut scratch = Name::new();
    let mut length_seen = meaning.transfer != Transfer::Absent;
    for header in headers {
        let value = header.value.of(bytes);
        match header.known {
            Known::Connection
            | Known::Host
            | Known::Http2Settings
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade => {}
            Known::Te if tokens(value).any(|token| token.eq_ignore_ascii_case(b"trailers")) => {
                block.push(b"te", b"trailers");
            }
            Known::Te => {}
            Known::Mesh if !edits.keep_mesh => {}
            Known::Identity if edits.remove_identity => {}
            Known::ContentLength => {
                if !std::mem::replace(&mut length_seen, true) {
                    block.push(b"content-length", value);
                }
            }
            Known::Expect | Known::Mesh | Known::Identity | Known::Other => {
                if meaning.connection.others && named(headers, header, bytes) {
                    continue;
                }
                push_lower(block, header, bytes, &mut scratch);
            }
        }
    }
}

fn push_lower(block: &mut Block, header: &Header, bytes: &[u8], scratch: &mut Name) {
    let mut name = header.name.of(bytes);
    if name.iter().any(u8::is_ascii_uppercase) {
        scratch.clear();
        scratch.extend_from_slice(name);
        scratch.make_ascii_lowercase();
        name = scratch;
    }
    if !ends_at_hop(name) {
        block.push(name, header.value.of(bytes));
    }
}

#[cfg(test)]
mod tests;
