//! Headers of requests, and conditions on headers.
//!
//! CGI, WSGI, PHP and others pass headers on as variables, in whose names every character besides letters and digits
//! becomes an underscore. For these, `x-role` and `x_role` are the same header.

use leno_types::authorization::HeaderMatch;

use super::AuthorizationRequest;

/// Whether some servers treat the two names as the same header.
#[must_use]
pub fn is_spelling(name: &str, given: &str) -> bool {
    let folded = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => byte.to_ascii_lowercase(),
        _ => b'-',
    };
    name.len() == given.len() && name.bytes().map(folded).eq(given.bytes().map(folded))
}

/// Whether a request fulfils a condition. Without values, the condition requires only that the header is present.
/// Otherwise a whole line may be one of the values, or an element of a line that is a comma-separated list.
///
/// If `of_all` is true, each line, or each of its elements, must be one of the values, and no line may have another
/// spelling of the name, because it is not known which of them the server uses. Otherwise one element of one line, with
/// any spelling of the name, is enough.
pub(super) fn has_header(
    request: &impl AuthorizationRequest,
    HeaderMatch { name, values }: &HeaderMatch,
    of_all: bool,
) -> bool {
    let is_value = |text: &[u8]| values.iter().any(|value| value.as_bytes() == text);
    let (mut any, mut all, mut is_present) = (false, true, false);
    request.each_line(&|given| is_spelling(name, given), &mut |given, line| {
        is_present = true;
        let mut elements = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        if of_all && !given.eq_ignore_ascii_case(name) {
            all = false;
        } else if is_value(line) {
            any = true;
        } else if of_all && !values.is_empty() {
            all &= elements.all(is_value);
        } else {
            any |= elements.any(is_value);
        }
    });
    match (values.is_empty(), of_all) {
        (true, false) => is_present,
        (_, true) => is_present && all,
        (false, false) => any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_become_one_variable_are_spellings_of_each_other() {
        for given in ["x-role", "X-Role", "x_role", "X_ROLE", "x.role", "x~role"] {
            assert!(is_spelling("x-role", given), "{given}");
            assert!(is_spelling("x_role", given), "{given}");
        }
        for given in ["xrole", "x--role", "x-role-", "x-rule", "xxrole", ""] {
            assert!(!is_spelling("x-role", given), "{given}");
        }
    }
}
