//! Whether a `101` grants a protocol that its request asked for.

use super::tokens;

/// Whether a response grants a protocol that the request asks for. `granted` are the values of `Upgrade` in the
/// response, `asked` those in the request. Every granted protocol must be in `asked`, and there must be at least one:
/// "A server MUST NOT switch to a protocol that was not indicated by the client" (RFC 9110 section 7.8).
pub(crate) fn grants<'v>(
    granted: impl Iterator<Item = &'v [u8]>,
    asked: impl Iterator<Item = &'v [u8]> + Clone,
) -> bool {
    let mut protocols = granted.flat_map(tokens).peekable();
    let is_asked = |protocol: &[u8]| {
        asked.clone().flat_map(tokens).any(|other| other.eq_ignore_ascii_case(protocol))
    };
    protocols.peek().is_some() && protocols.all(is_asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_granted(granted: &[&str], asked: &[&str]) -> bool {
        grants(granted.iter().map(|it| it.as_bytes()), asked.iter().map(|it| it.as_bytes()))
    }

    #[test]
    fn only_protocols_of_the_request_are_granted() {
        assert!(is_granted(&["WebSocket"], &["websocket"]));
        assert!(is_granted(&["b"], &["a, b"]) && is_granted(&["b", "a"], &["a", "b"]));
        assert!(!is_granted(&["c"], &["a, b"]) && !is_granted(&["a, c"], &["a, b"]));
        assert!(!is_granted(&[], &["a"]) && !is_granted(&[" , "], &["a"]));
    }
}
