//! The usage line of an error.

use clap::error::ContextKind;

/// Longest usage line, in bytes, that says something. For some errors clap lists every option of the command.
const LONGEST: usize = 300;

/// Drops a usage line that lists every option: the error itself names the one that is wrong.
pub(crate) fn shorten(error: &mut clap::Error) {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    if usage.is_some_and(|usage| usage.len() > LONGEST) {
        error.remove(ContextKind::Usage);
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, ArgGroup, Command};

    use super::*;

    /// Together longer than a usage line may be.
    const OPTIONS: [&str; 10] = [
        "the-first-of-ten-long-options-of-a-command",
        "the-second-of-ten-long-options-of-a-command",
        "the-third-of-ten-long-options-of-a-command",
        "the-fourth-of-ten-long-options-of-a-command",
        "the-fifth-of-ten-long-options-of-a-command",
        "the-sixth-of-ten-long-options-of-a-command",
        "the-seventh-of-ten-long-options-of-a-command",
        "the-eighth-of-ten-long-options-of-a-command",
        "the-ninth-of-ten-long-options-of-a-command",
        "the-tenth-of-ten-long-options-of-a-command",
    ];

    #[test]
    fn a_usage_of_every_option_is_left_out() {
        let refused = |count: usize| {
            let options = || OPTIONS.into_iter().take(count);
            let args = options().map(|name| Arg::new(name).long(name).action(ArgAction::SetTrue));
            let group = ArgGroup::new("all").multiple(true).args(options());
            // The option before it brings the whole group into the usage.
            let wrong =
                ["up".to_owned(), format!("--{}", OPTIONS[1]), format!("--{}=1", OPTIONS[0])];
            let command = Command::new("up").args(args).group(group);
            let mut error = command.try_get_matches_from(wrong).unwrap_err();
            shorten(&mut error);
            error.to_string()
        };
        let text = refused(OPTIONS.len());
        assert!(text.contains("unexpected value '1' for '--the-first-of-ten"), "{text}");
        assert!(!text.contains("Usage") && !text.contains("the-second"), "{text}");
        assert!(refused(3).contains("Usage: up "), "{}", refused(3));
    }
}
