//! The remedy for a command or a request that is typed without `--` before it.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds the remedy to an error of a command whose last arguments follow `--`.
pub(crate) fn hint(error: &mut clap::Error) {
    let text = |kind| error.get(kind).map(ToString::to_string);
    let (Some(word), Some(usage)) = (text(ContextKind::InvalidArg), text(ContextKind::Usage))
    else {
        return;
    };
    if error.kind() == ErrorKind::UnknownArgument
        && !word.starts_with('-')
        && usage.contains(" -- ")
    {
        let tip = StyledStr::from(format!("write '--' before it: '-- {word}'"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn a_command_without_dashes_before_it_is_told_of_them() {
        let exec = Command::new("exec")
            .arg(Arg::new("workload"))
            .arg(Arg::new("command").last(true).num_args(1..).required(true));
        let refused = |arguments: &[&str]| {
            let arguments = [&["exec"], arguments].concat();
            let mut error = exec.clone().try_get_matches_from(arguments).unwrap_err();
            hint(&mut error);
            error.to_string()
        };
        let text = refused(&["web", "true"]);
        assert!(text.contains("tip: write '--' before it: '-- true'"), "{text}");
        let text = refused(&["web", "--all"]);
        assert!(!text.contains("write '--'"), "{text}");
    }
}
