//! The command line of the broker.

use std::ffi::OsString;

pub(crate) const USAGE: &str = "\
Creates sockets in this network namespace for a node proxy outside of it, on the orders of a supervisor at the other
end of standard input, a Unix socket; `leno up` and `leno-agent` start it in this way

Usage: leno-broker [OPTIONS]

Options:
      --supervised  Lets another proxy of the workload listen on the same ports later
      --succeeds    Takes the workload over from another proxy; needs --supervised
  -h, --help        Print help
  -V, --version     Print version
";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Whether another proxy of the workload may listen on the same ports later, so that they must not be bound
    /// exclusively.
    pub(crate) supervised: bool,
    /// Whether another proxy still serves the workload. The broker then only binds its listeners, and the node proxy
    /// that gets them makes them listen when it takes over.
    pub(crate) succeeds: bool,
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Run(Flags),
    Help,
    Version,
}

impl Command {
    /// # Errors
    ///
    /// A message that names the invalid argument.
    pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut flags = Flags::default();
        for argument in arguments {
            match argument.to_str() {
                Some("--supervised") => flags.supervised = true,
                Some("--succeeds") => flags.succeeds = true,
                Some("--help" | "-h") => return Ok(Self::Help),
                Some("--version" | "-V") => return Ok(Self::Version),
                _ => return Err(format!("unexpected argument {argument:?}")),
            }
        }
        match flags {
            Flags { supervised: false, succeeds: true } => {
                Err("--succeeds needs --supervised".to_owned())
            }
            flags => Ok(Self::Run(flags)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_unknown_ones_are_rejected() {
        let parse = |line: &str| Command::parse(line.split_whitespace().map(OsString::from));
        let run = |supervised, succeeds| Ok(Command::Run(Flags { supervised, succeeds }));
        assert_eq!(parse(""), run(false, false));
        assert_eq!(parse("--supervised"), run(true, false));
        assert_eq!(parse("--supervised --succeeds"), run(true, true));
        assert_eq!(parse("--supervised --version"), Ok(Command::Version));
        assert_eq!(parse("-h"), Ok(Command::Help));
        assert_eq!(parse("--succeeds").unwrap_err(), "--succeeds needs --supervised");
        let wrong = parse("--supervised --broker").unwrap_err();
        assert_eq!(wrong, r#"unexpected argument "--broker""#);
    }

    #[test]
    fn the_help_has_every_option() {
        for option in ["--supervised", "--succeeds", "--help", "--version"] {
            assert!(USAGE.contains(option), "{option}");
        }
    }
}
