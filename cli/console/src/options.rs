//! The remedy for an option that is typed before the subcommand that it is for.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Adds the remedy to an error of a command that takes either options or a subcommand.
pub(crate) fn hint(error: &mut clap::Error) {
    if error.kind() != ErrorKind::ArgumentConflict {
        return;
    }
    if let Some(ContextValue::String(subcommand)) = error.get(ContextKind::InvalidSubcommand) {
        let tip = StyledStr::from(format!("options of '{subcommand}' go after it"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn an_option_before_its_subcommand_is_told_to_go_after_it() {
        let name = || Arg::new("name").long("name");
        let all = || Arg::new("all").long("all").conflicts_with("name");
        let identity = Command::new("identity")
            .args_conflicts_with_subcommands(true)
            .args([name(), all()])
            .subcommand(Command::new("revoke").args([name(), all()]));
        let parsed = |arguments: &[&str]| {
            let arguments = [&["identity"], arguments].concat();
            let matches = identity.clone().try_get_matches_from(arguments);
            matches.map(drop).map_err(|mut error| {
                hint(&mut error);
                error.to_string()
            })
        };
        let text = parsed(&["--name", "x", "revoke"]).unwrap_err();
        assert!(text.contains("tip: options of 'revoke' go after it"), "{text}");
        assert_eq!(parsed(&["revoke", "--name", "x"]), Ok(()));
        let text = parsed(&["revoke", "--name", "x", "--all", "y"]).unwrap_err();
        assert!(text.contains("cannot be used with") && !text.contains("tip:"), "{text}");
    }
}
