//! Checks pages of `docs/reference` that are generated from code. A test compares each page with the code, and
//! writes the page if `LENO_UPDATE` is set (`make reference`). Tables of metrics in the guide are compared with
//! what programs expose.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

/// Compares the page `name` with `text`, or writes the page if `LENO_UPDATE` is set.
///
/// # Panics
/// The page differs from the text, or cannot be read or written.
pub fn check(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(&file, text).expect("docs/reference is a folder of the repository");
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == text, "docs/reference/{name} is out of date: make reference");
}

/// Compares the tables of metrics in a page of the guide with `exposed`, the metrics of a program that has counted
/// nothing yet. Both must contain the same names that begin with `prefix`, with the same descriptions. Each metric
/// must have a sample, which is 0 before the first event, except those in `by_object`, whose labels name objects
/// that a new program does not have.
///
/// # Panics
/// If they differ, or a metric has no sample.
pub fn check_metrics(guide: &str, prefix: &str, exposed: &str, by_object: &[&str]) {
    let row = |line| {
        let (name, cells) = str::strip_prefix(line, "| `")?.split_once("` | ")?;
        let help = cells.strip_suffix(" |")?.rsplit_once("| ")?.1;
        name.starts_with(prefix).then_some((name, help))
    };
    let described: BTreeSet<(&str, &str)> = guide.lines().filter_map(row).collect();
    let helps = exposed.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let there: BTreeSet<(&str, &str)> = helps.filter(|one| one.0.starts_with(prefix)).collect();
    let (missing, extra) = (there.difference(&described), described.difference(&there));
    let (missing, extra) = (missing.collect::<Vec<_>>(), extra.collect::<Vec<_>>());
    assert!(
        missing.is_empty() && extra.is_empty(),
        "not in the guide: {missing:?}, not exposed: {extra:?}"
    );
    assert!(!there.is_empty(), "no metric begins with {prefix}");
    for (name, _) in there {
        let is_sample = |line: &str| {
            line.strip_prefix(name).is_some_and(|rest| {
                let parts = ["_sum", "_count", "_bucket"];
                let part = parts.iter().find_map(|part| rest.strip_prefix(part));
                part.unwrap_or(rest).starts_with([' ', '{'])
            })
        };
        let has_sample = exposed.lines().any(is_sample);
        assert_eq!(has_sample, !by_object.contains(&name), "samples of {name}");
    }
}

/// The page of a program: the usage and options of the program and of each of its commands that are not hidden.
pub fn page(command: Command, program: &str) -> String {
    let mut command = command.bin_name(program).term_width(100);
    command.build();
    let mut page = format!(
        "# {program}\n\nWritten by `make reference` from the program's own description of its commands.\n"
    );
    section(&mut page, &mut command, 1);
    page
}

fn section(page: &mut String, command: &mut Command, depth: usize) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    if depth > 1 {
        write!(page, "\n{} {name}\n", "#".repeat(depth.min(4))).expect("a String takes all");
    } else {
        page.push('\n');
    }
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    writeln!(page, "{}\n", prose(&about.unwrap_or_default())).expect("a String takes all");
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>();
    writeln!(page, "```text\n{}\n```", usage.join("\n")).expect("a String takes all");
    options(page, command);
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        examples(page, &after.to_string());
    }
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            section(page, inner, depth + 1);
        }
    }
}

fn options(page: &mut String, command: &Command) {
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|one| !one.is_hide_set() && !matches!(one.get_id().as_str(), "help" | "version"))
        .collect();
    if shown.is_empty() {
        return;
    }
    page.push_str("\n| option | default | |\n|---|---|---|\n");
    for option in shown {
        let defaults: Vec<String> = option
            .get_default_values()
            .iter()
            .filter(|_| takes_value(option))
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        let help = option.get_long_help().or(option.get_help()).map(ToString::to_string);
        let mut help = prose(&help.unwrap_or_default()).replace('\n', " ");
        let values: Vec<String> = option
            .get_possible_values()
            .iter()
            .filter(|value| takes_value(option) && !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() {
            write!(help, ": {}", values.join(", ")).expect("a String takes all");
        }
        if let Some(variable) = option.get_env() {
            write!(help, " (`{}`)", variable.to_string_lossy()).expect("a String takes all");
        }
        writeln!(page, "| {} | {} | {} |", spelling(option), defaults.join(", "), cell(&help))
            .expect("a String takes all");
    }
}

fn takes_value(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

/// How an option is typed, such as `-n`, `--namespace NAME`, or `FILE...` for an argument without a name.
fn spelling(option: &Arg) -> String {
    let mut value = String::new();
    if takes_value(option) {
        let names = option.get_value_names().unwrap_or_default();
        value = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        if value.is_empty() {
            value = option.get_id().as_str().to_uppercase();
        }
    }
    let mut names = Vec::new();
    names.extend(option.get_short().map(|short| format!("-{short}")));
    let long = option.get_long_and_visible_aliases().unwrap_or_default();
    names.extend(long.iter().map(|long| format!("--{long}")));
    if names.is_empty() {
        let many = option.get_num_args().is_some_and(|count| count.max_values() > 1);
        return format!("`{}{}`", cell(&value), if many { "..." } else { "" });
    }
    if let (Some(last), false) = (names.last_mut(), value.is_empty()) {
        write!(last, " {value}").expect("a String takes all");
    }
    names.iter().map(|name| format!("`{}`", cell(name))).collect::<Vec<_>>().join(", ")
}

/// Adds the lines below a help text. Those after a line `Examples:` are commands.
fn examples(page: &mut String, text: &str) {
    let (heads, lines): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .partition(|line| !line.starts_with(' '));
    let head = prose(&heads.join(" "));
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    write!(page, "\n{head}\n").expect("a String takes all");
    if !lines.is_empty() {
        write!(page, "```text\n{}\n```\n", lines.join("\n")).expect("a String takes all");
    }
}

/// Escapes text so that Markdown shows it unchanged.
fn prose(text: &str) -> String {
    text.trim().replace('<', "\\<").replace('*', "\\*")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
