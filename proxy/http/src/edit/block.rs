//! Edits of HTTP/2 heads.

use leno_h2::{is_identity_field, is_mesh_field, remove_reserved};
use leno_hpack::{Block, Token};

use super::{Edits, HeaderLine, TRACE_NAME};
use crate::head::absolute;

/// The header in which proxies of the mesh pass on the details of an HTTP/1 head that HTTP/2 cannot express.
pub(crate) const INTERNAL: &[u8] = b"leno-h1";

/// Whether a field with this name (in lower case) concerns one HTTP/1 connection only and is not permitted in HTTP/2
/// (RFC 9113 section 8.2.2), or is the internal header [`INTERNAL`].
pub(crate) fn ends_at_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"http2-settings"
            | b"keep-alive"
            | b"proxy-connection"
            | b"transfer-encoding"
            | b"upgrade"
            | INTERNAL
    )
}

/// Applies `edits` to a head. `Host` means `:authority`, which can be set but not removed.
pub(crate) fn edit_block(block: &mut Block, edits: &Edits<'_>) {
    edit_fields(block, edits);
    add_trace(block, edits);
}

/// Makes the same edits, but without the new `traceparent`, which the caller adds with [`add_trace`].
pub(crate) fn edit_fields(block: &mut Block, edits: &Edits<'_>) {
    if !edits.keep_mesh {
        remove_reserved(block, is_mesh_field);
    }
    if edits.remove_identity {
        remove_reserved(block, is_identity_field);
    }
    if edits.is_empty() {
        return;
    }
    if !edits.only_adds(|| block.position_of(Token::TRACEPARENT).is_some()) {
        block.retain(|field| {
            let framing = matches!(field.token(), Token::CONTENT_LENGTH | Token::HOST);
            field.is_pseudo() || framing || !edits.removes(field.name())
        });
    }
    if let Some(target) = edits.target {
        set_target(block, target);
    }
    for line in edits.set.iter().chain(edits.add) {
        add(block, line);
    }
}

/// Adds the new `traceparent`, if there is one. It is the last field, because it is the only one that differs between
/// otherwise equal requests: both ends of a connection can then reuse the encoding of all fields before it.
pub(crate) fn add_trace(block: &mut Block, edits: &Edits<'_>) {
    if let Some(line) = edits.trace {
        block.push(TRACE_NAME, line.value());
    }
}

fn add(block: &mut Block, line: &HeaderLine) {
    let name = line.lower_name();
    let te = name == b"te" && !line.value().eq_ignore_ascii_case(b"trailers");
    if name == b"host" {
        block.remove_all(b"host");
        block.set(b":authority", line.value());
    } else if !ends_at_hop(name) && !te {
        block.push(name, line.value());
    }
}

fn set_target(block: &mut Block, target: &[u8]) {
    let (path, authority) = match absolute(target) {
        Some((_, authority, path)) => (if path.is_empty() { b"/" } else { path }, Some(authority)),
        None => (target, None),
    };
    if let Some(index) = block.position_of(Token::PATH) {
        block.set_value(index, path);
    }
    if let Some(authority) = authority {
        block.set(b":authority", authority);
    }
}
