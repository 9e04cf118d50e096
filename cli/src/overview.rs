//! The text of `leno --help`: the commands in sections, by their purpose.
//!
//! clap has headings for options, but not for commands. Each section is therefore a list of commands that clap
//! itself renders, with its own wrapping and styles, and the template of the help text contains these lists.

use std::fmt::Write as _;

use clap::Command;

/// A heading, and the commands below it in order.
type Section = (&'static str, &'static [&'static str]);

/// The sections. Every command that is not hidden is in exactly one of them.
const SECTIONS: [Section; 6] = [
    (
        "Run a mesh on this machine",
        &["demo", "up", "down", "ps", "logs", "restart", "exec", "open", "port-forward", "cleanup"],
    ),
    (
        "See what happens in it",
        &[
            "stat",
            "top",
            "edges",
            "routes",
            "tap",
            "trace-request",
            "flows",
            "dashboard",
            "slo",
            "mcp",
        ],
    ),
    ("Find out why", &["why", "check", "explain", "analyze", "diagnostics", "ebpf", "bug-report"]),
    ("Identities and permissions", &["authz", "identity"]),
    ("Run it on Kubernetes", &["install", "upgrade", "uninstall", "inject", "uninject"]),
    ("More", &["bench", "completion", "version"]),
];

/// The text below the sections.
const FURTHER: &str = "`leno COMMAND --help` and `leno help COMMAND` print the options of a command and examples. \
                       Most commands\nthat read a mesh work both on a mesh of `leno up` and on a cluster.";

/// The command, with a help text in sections.
pub(crate) fn in_sections(command: Command) -> Command {
    let heading = *command.get_styles().get_header();
    let mut page = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for section in &SECTIONS {
        let commands = list(command.clone(), section);
        write!(page, "\n{heading}{}:{heading:#}\n{commands}\n", section.0)
            .expect("a String takes every write");
    }
    write!(page, "\n{FURTHER}\n\n{heading}Options:{heading:#}\n{{options}}{{after-help}}")
        .expect("a String takes every write");
    command.help_template(page)
}

/// The lines of the commands of a section.
fn list(command: Command, (_, names): &Section) -> String {
    let of_section = |one: Command| match names.iter().position(|name| *name == one.get_name()) {
        Some(nth) => one.display_order(nth),
        None => one.hide(true),
    };
    let command = command.disable_help_subcommand(true).mut_subcommands(of_section);
    command.help_template("{subcommands}").render_help().ansi().to_string().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_command_is_in_one_section_and_on_the_page() {
        let command = crate::Cli::command();
        let shown: Vec<&str> = command
            .get_subcommands()
            .filter(|one| !one.is_hide_set())
            .map(Command::get_name)
            .collect();
        let mut listed: Vec<&str> =
            SECTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let page = in_sections(command.clone()).term_width(100).render_long_help().to_string();
        for name in &shown {
            let lines = page.lines().filter(|line| line.trim().split("  ").next() == Some(*name));
            assert_eq!(lines.count(), 1, "{name} is on one line of\n{page}");
        }
        listed.sort_unstable();
        let mut all = shown.clone();
        all.sort_unstable();
        assert_eq!(listed, all);
        for part in ["Find out why:\n  why ", "Options:\n  -h, --help", "First steps:\n"] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
    }
}
