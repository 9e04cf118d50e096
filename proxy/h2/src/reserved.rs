//! Names of the fields that proxies of the mesh set. Applications and clients may not set them.
//!
//! CGI programs read `_` in a name as `-` (RFC 3875 section 4.1.18), so both spellings of a name
//! are reserved.

use leno_hpack::{Block, Field, Token};

/// Prefix of the mesh's own fields.
const MESH: &[u8] = b"leno-";

/// Fields that tell an application the identity of its client. Istio and Envoy use the first name,
/// Linkerd the second.
const IDENTITY: [&[u8]; 2] = [b"x-forwarded-client-cert", b"l5d-client-id"];

/// Whether a field belongs to the mesh, such as `leno-error`: its name begins with `leno-`, in upper or lower case.
#[must_use]
#[inline]
pub fn is_mesh_field(name: &[u8]) -> bool {
    name.len() >= MESH.len() && begins_with(name, MESH)
}

/// Whether a field tells an application the identity of its client.
#[must_use]
#[inline]
pub fn is_identity_field(name: &[u8]) -> bool {
    IDENTITY.iter().any(|identity| name.len() == identity.len() && begins_with(name, identity))
}

/// Whether a field is reserved, because it belongs to the mesh or tells the identity of the client. Messages must not
/// have such trailers.
#[must_use]
#[inline]
pub fn is_reserved(name: &[u8]) -> bool {
    matches!(name.first(), Some(b'l' | b'L' | b'x' | b'X'))
        && (is_mesh_field(name) || is_identity_field(name))
}

/// Removes the fields whose names `unwanted` selects. If there are none, this costs one check of
/// each name that HPACK has no token for.
pub fn remove_reserved(block: &mut Block, unwanted: impl Fn(&[u8]) -> bool) {
    if has_reserved(block, &unwanted) {
        block.retain(|field| !is_reserved_field(field, &unwanted));
    }
}

/// Whether there is a field whose name `unwanted` selects.
pub fn has_reserved(block: &Block, unwanted: impl Fn(&[u8]) -> bool) -> bool {
    block.iter().any(|field| is_reserved_field(&field, &unwanted))
}

fn is_reserved_field(field: &Field<'_>, unwanted: impl Fn(&[u8]) -> bool) -> bool {
    field.token() == Token::NONE && unwanted(field.name())
}

/// Whether `name` begins with `reserved`, which is in lower case and not longer than `name`.
fn begins_with(name: &[u8], reserved: &[u8]) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.iter().zip(reserved).all(|(byte, expected)| folded(*byte) == *expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reserved_in_every_spelling() {
        for name in ["leno-error", "leno-h1", "leno-", "Leno_Error", "LENO-X"] {
            assert!(is_mesh_field(name.as_bytes()) && is_reserved(name.as_bytes()), "{name}");
        }
        for name in ["x-forwarded-client-cert", "X_Forwarded-Client_Cert", "L5D-CLIENT-ID"] {
            assert!(is_identity_field(name.as_bytes()) && is_reserved(name.as_bytes()), "{name}");
        }
        for name in
            ["leno", "lenox-a", "x-leno-error", "x-forwarded-client-cert2", "l5d-client", ""]
        {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_unwanted_fields_are_removed() {
        let mut block = Block::new();
        for (name, value) in [(":status", "200"), ("leno-error", "a"), ("x", "b"), ("leno_h1", "c")]
        {
            block.push(name.as_bytes(), value.as_bytes());
        }
        remove_reserved(&mut block, is_mesh_field);
        let names: Vec<_> = block.iter().map(|field| field.name().to_vec()).collect();
        assert_eq!(names, [&b":status"[..], b"x"]);
    }
}
