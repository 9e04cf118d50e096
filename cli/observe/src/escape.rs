//! Makes text from others safe for a terminal by escaping what the terminal would take for commands.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Writes control characters (C0, DEL, C1) and characters that change the direction of text as escapes, such as
/// `\x1b`. Line feeds and tabs stay.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        let code = u32::from(one);
        let written = match code {
            _ if !is_escaped(one) => write!(escaped, "{one}"),
            0..=0xff => write!(escaped, "\\x{code:02x}"),
            _ => write!(escaped, "\\u{{{code:x}}}"),
        };
        written.expect("a string takes every write");
    }
    Cow::Owned(escaped)
}

fn is_escaped(one: char) -> bool {
    // The marks, embeddings, overrides and isolates of the bidirectional algorithm (UAX 9).
    let turns = matches!(one,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (one.is_control() && one != '\n' && one != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        let text = "a\x1b[31mb\x07\u{9b}c\x7f\u{202e}d\r\n\te\u{fc}\n";
        assert_eq!(escaped(text), "a\\x1b[31mb\\x07\\x9bc\\x7f\\u{202e}d\\x0d\n\te\u{fc}\n");
        assert!(matches!(escaped("a\n\tü"), Cow::Borrowed(_)));
    }
}
