//! The usage line of an error.

use clap::error::ContextKind;

/// Longest usage line, in bytes, that helps the user. For some errors clap lists every option of the command.
const LONGEST: usize = 300;

/// Drops a usage line that lists every option: the error itself names the wrong option.
pub(crate) fn shorten(error: &mut clap::Error) {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    if usage.is_some_and(|usage| usage.len() > LONGEST) {
        error.remove(ContextKind::Usage);
    }
}

#[cfg(test)]
mod tests {
    use clap::error::{ContextValue, ErrorKind};

    use super::*;

    #[test]
    fn a_usage_of_every_option_is_left_out() {
        let shown = |usage: &str| {
            let mut error =
                clap::Error::new(ErrorKind::TooManyValues).with_cmd(&clap::Command::new("up"));
            let value = |text: &str| ContextValue::String(text.to_owned());
            error.insert(ContextKind::InvalidArg, value("--wait"));
            error.insert(ContextKind::InvalidValue, value("1"));
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage.to_owned().into()));
            shorten(&mut error);
            error.to_string()
        };
        let long = shown(&format!("Usage: up <{}>", "--option|".repeat(40)));
        assert!(long.contains("unexpected value '1' for '--wait'"), "{long}");
        assert!(!long.contains("--option"), "{long}");
        let short = shown("Usage: up [OPTIONS]");
        assert!(short.contains("Usage: up [OPTIONS]"), "{short}");
    }
}
