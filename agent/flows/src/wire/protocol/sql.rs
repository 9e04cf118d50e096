//! Determines the kind of an SQL statement, which is its first word.

use super::known;

/// The words that are counted by name. A statement with another first word is counted under `other`.
const WORDS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "BEGIN",
    "CALL",
    "CLOSE",
    "COMMIT",
    "COPY",
    "CREATE",
    "DEALLOCATE",
    "DECLARE",
    "DELETE",
    "DISCARD",
    "DO",
    "DROP",
    "END",
    "EXECUTE",
    "EXPLAIN",
    "FETCH",
    "GRANT",
    "INSERT",
    "LISTEN",
    "LOAD",
    "LOCK",
    "MERGE",
    "NOTIFY",
    "PREPARE",
    "RELEASE",
    "REPLACE",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START",
    "TABLE",
    "TRUNCATE",
    "UNLISTEN",
    "UPDATE",
    "USE",
    "VACUUM",
    "VALUES",
    "WITH",
];

/// The first word of a statement, after spaces, comments and parentheses.
pub(super) fn kind(statement: &[u8]) -> &'static str {
    let mut rest = statement;
    loop {
        rest = rest.trim_ascii_start();
        let skipped = if let Some(comment) = rest.strip_prefix(b"--") {
            comment.iter().position(|byte| *byte == b'\n').and_then(|end| comment.get(end..))
        } else if let Some(comment) = rest.strip_prefix(b"/*") {
            let end = comment.windows(2).position(|two| two == b"*/");
            end.and_then(|end| comment.get(end + 2..))
        } else {
            rest.strip_prefix(b"(")
        };
        match skipped {
            Some(skipped) => rest = skipped,
            None => break,
        }
    }
    let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(rest.len());
    known(WORDS, rest.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_the_kind_of_their_first_word() {
        for (statement, expected) in [
            ("select 1", "SELECT"),
            ("\n  -- why\n(SELECT 1)", "SELECT"),
            ("/* a */ /* b */insert into t", "INSERT"),
            ("/* not closed select", "other"),
            ("", "other"),
            ("selects", "other"),
            ("with a as (select 1) delete from t", "WITH"),
        ] {
            assert_eq!(kind(statement.as_bytes()), expected, "{statement}");
        }
    }
}
