//! Reads the steps that a page tells its reader to take, and checks whether a command prints what the page shows.
//!
//! - A fenced block whose first line is `# NAME.EXTENSION` is a file of that name.
//! - A block of `console` has commands after `$ ` (continued after `> `), each followed by what it
//!   prints. A command without output has to succeed.
//! - All other blocks, such as commands for a cluster in a block of `sh`, are for reading only.

/// A step that a page tells its reader to take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    File {
        name: String,
        text: String,
    },
    Command {
        /// The command's line in the page, from 1.
        line: usize,
        command: String,
        /// The output that the page shows.
        shown: Option<Vec<String>>,
    },
}

/// The steps of a page, in order.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: Vec<(usize, &str)> =
            lines.by_ref().take_while(|(_, line)| *line != "```").collect();
        match block.first() {
            Some(_) if language == "console" => commands(&block, &mut steps),
            Some((_, first)) => {
                let name = first.strip_prefix("# ").filter(|name| is_file_name(name));
                let text = block.iter().flat_map(|(_, line)| [line, "\n"]).collect();
                steps.extend(name.map(|name| Step::File { name: name.to_owned(), text }));
            }
            None => {}
        }
    }
    steps
}

fn is_file_name(text: &str) -> bool {
    text.contains('.') && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn commands(block: &[(usize, &str)], steps: &mut Vec<Step>) {
    for (number, text) in block {
        if let Some(command) = text.strip_prefix("$ ") {
            let command = command.to_owned();
            steps.push(Step::Command { line: number + 1, command, shown: None });
            continue;
        }
        let Some(Step::Command { command, shown, .. }) = steps.last_mut() else {
            panic!("line {}: output before any command: {text}", number + 1);
        };
        match text.strip_prefix("> ").filter(|_| shown.is_none()) {
            Some(more) => *command += &format!("\n{more}"),
            None => shown.get_or_insert_default().push((*text).to_owned()),
        }
    }
}

/// Whether the output `printed` is what the page shows. In the page, `...` stands for any text within a line, or,
/// as a line by itself, for any lines; `~90` stands for a number from 45 to 180. Any white space counts as a
/// single space.
pub(crate) fn shows(shown: &[String], printed: &str) -> bool {
    let one_space = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: Vec<String> = shown.iter().map(|line| one_space(line)).collect();
    let printed: Vec<String> = printed.lines().map(one_space).collect();
    lines_match(&shown, &printed)
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "..." => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        [line, rest @ ..] => printed
            .split_first()
            .is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others)),
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    if let Some(rest) = shown.strip_prefix("...") {
        return printed
            .char_indices()
            .map(|(at, _)| at)
            .chain([printed.len()])
            .any(|at| line_matches(rest, &printed[at..]));
    }
    if let Some((about, rest)) = shown.strip_prefix('~').and_then(number) {
        return number(printed).is_some_and(|(value, others)| {
            (about / 2..=about * 2).contains(&value) && line_matches(rest, others)
        });
    }
    let mut rest = shown.chars();
    match rest.next() {
        None => printed.is_empty(),
        Some(c) => {
            printed.strip_prefix(c).is_some_and(|others| line_matches(rest.as_str(), others))
        }
    }
}

/// The number at the beginning of a text, and the rest of the text.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[test]
fn a_page_is_files_and_commands() {
    let page = "# Title\n```yaml\n# a.yaml\nkind: A\n```\n```sh\n# not a file\nkubectl\n```\n\
                ```console\n$ one \\\n> two\n$ three\n  4 rows\n> kept\n```\n";
    let command = |line, command: &str, shown: Option<&[&str]>| Step::Command {
        line,
        command: command.to_owned(),
        shown: shown.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect()),
    };
    assert_eq!(
        steps(page),
        [
            Step::File { name: "a.yaml".into(), text: "# a.yaml\nkind: A\n".into() },
            command(11, "one \\\ntwo", None),
            command(13, "three", Some(&["  4 rows", "> kept"])),
        ]
    );
}

#[test]
fn output_has_to_be_what_the_page_shows() {
    let matches = |shown: &str, printed: &str| {
        let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
        shows(&shown, printed)
    };
    assert!(matches("up (process ...), 3 of 3", "up (process 17),  3 of 3\n"));
    assert!(!matches("up (process ...), 3 of 3", "up (process 17), 2 of 3\n"));
    assert!(matches("...\nb\n...", "a\na\nb\n") && !matches("...\nb\n...", "a\nbb\n"));
    assert!(matches("   ~90 v1", "45 v1") && matches("~90 v1", "180 v1"));
    assert!(
        !matches("~90 v1", "44 v1") && !matches("~90 v1", "181 v1") && !matches("~90 v1", "v1")
    );
    assert!(!matches("a", "a\nb") && !matches("a\nb", "a") && !matches("a", ""));
}
