//! Regular expressions that match a whole text and have a limited size.

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::Extractor;

/// How much memory one compiled expression may take, in bytes. It is enough for paths and headers, and keeps a table of
/// many rules small. Every expression matches in linear time.
pub const MAX_PATTERN_BYTES: usize = 64 << 10;
/// The deepest nesting of groups.
const MAX_NESTING: u32 = 32;
/// If an expression stands for a few fixed texts, how many these may be.
const MAX_TEXTS: usize = 64;
/// The longest of these texts, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// The text before an expression that anchors it at the beginning.
const BEFORE: &str = "^(?:";
/// The text after an expression that anchors it at the end.
const AFTER: &str = ")$";

/// A regular expression in the dialect of RE2, over bytes; classes such as `\d` and `\w` are ASCII.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// Why a text is not a usable expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a regular expression that can be used: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: String,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`PatternError`] if it does not parse or needs more than [`MAX_PATTERN_BYTES`].
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let error = |reason: String| PatternError { pattern: pattern.to_owned(), reason };
        // The expression is first parsed without anchors, because between the anchors `a)(b` would be a different
        // expression.
        let build = |text: &str| {
            RegexBuilder::new(text)
                .unicode(false)
                .size_limit(MAX_PATTERN_BYTES)
                .nest_limit(MAX_NESTING)
                .build()
        };
        build(pattern)
            .and_then(|_| build(&format!("{BEFORE}{pattern}{AFTER}")))
            .map(Self)
            .map_err(|cause| error(last_line(&cause.to_string())))
    }

    /// The expression as given.
    #[must_use]
    pub fn text(&self) -> &str {
        let anchored = self.0.as_str();
        anchored.strip_prefix(BEFORE).and_then(|rest| rest.strip_suffix(AFTER)).unwrap_or(anchored)
    }

    /// If the expression matches exactly the texts with a certain prefix, as `/a.*` does, that prefix.
    pub(crate) fn literal_prefix(&self) -> Option<&str> {
        let literal = self.text().strip_suffix(".*")?;
        let plain = |c: char| !r"\.+*?()|[]{}^$".contains(c);
        literal.chars().all(plain).then_some(literal)
    }

    /// Texts that include all texts that the expression matches, if these are few: `v1` and `v2` for `v[12]`. Some of
    /// the result may not match, because conditions such as `\b` are left out. `None` if the texts are too many or too
    /// long.
    pub(crate) fn texts(&self) -> Option<Vec<Vec<u8>>> {
        let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
        let parsed = parser.parse(self.text()).ok()?;
        let mut extractor = Extractor::new();
        extractor.limit_total(MAX_TEXTS).limit_literal_len(MAX_TEXT_BYTES);
        let texts = extractor.extract(&parsed);
        let literals = texts.literals().filter(|all| !all.is_empty() && texts.is_exact())?;
        Some(literals.iter().map(|one| one.as_bytes().to_vec()).collect())
    }

    /// Whether the expression matches the whole text.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }
}

/// The last line of an error from the parser. The lines before it are a drawing, and the last line is the message.
fn last_line(text: &str) -> String {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_text_is_matched() {
        let pattern = Pattern::new("/v[12]|/old").unwrap();
        for (text, expected) in
            [("/v1", true), ("/v2", true), ("/old", true), ("/v1/x", false), ("x/old", false)]
        {
            assert_eq!(pattern.matches(text.as_bytes()), expected, "{text}");
        }
        assert!(Pattern::new(r"\d+").unwrap().matches(b"123"));
        assert!(!Pattern::new(".*").unwrap().matches(b"a\nb"));
    }

    #[test]
    fn few_texts_are_told() {
        let texts = |pattern: &str| {
            let texts = Pattern::new(pattern).unwrap().texts()?;
            Some(texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect::<Vec<_>>())
        };
        let some = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(texts("v[12]"), some(&["v1", "v2"]));
        assert_eq!(texts("/a/(b|c)/d"), some(&["/a/b/d", "/a/c/d"]));
        assert_eq!(texts("ab?"), some(&["ab", "a"]));
        for many in ["a+", ".*", "[a-z]{3}", "a.*|b"] {
            assert_eq!(texts(many), None, "{many}");
        }
    }

    #[test]
    fn bad_and_large_ones_are_refused() {
        for pattern in ["(", "a)(b", "[", "a{1000}{1000}", &"(".repeat(40), "(?=a)", r"(a)\1"] {
            let error = Pattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains("is not a regular expression"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
