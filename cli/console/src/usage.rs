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
    use clap::{Arg, ArgAction, Command};

    use super::*;

    #[test]
    fn a_usage_of_every_option_is_left_out() {
        let command = |options: usize| {
            let all = (0..options).map(|nth| {
                let name = format!("an-option-{nth}");
                Arg::new(name.clone()).long(name).action(ArgAction::SetTrue)
            });
            Command::new("up").args(all).group(
                clap::ArgGroup::new("all")
                    .multiple(true)
                    .args((0..options).map(|nth| format!("an-option-{nth}"))),
            )
        };
        let refused = |options| {
            let wrong = ["up", "--an-option-0=1"];
            let mut error = command(options).try_get_matches_from(wrong).unwrap_err();
            shorten(&mut error);
            error.to_string()
        };
        let text = refused(50);
        assert!(text.contains("unexpected value '1' for '--an-option-0'"), "{text}");
        assert!(!text.contains("--an-option-7"), "{text}");
        assert!(refused(3).contains("Usage: up "), "{}", refused(3));
    }
}
