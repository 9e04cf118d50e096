//! How a check is written, and how its result is printed and serialised.
//!
//! ```text
//!  Check { name, asks } ── good | warning | bad | unknown ──► CheckResult ──► table, JSON, exit status
//! ```
//! A [`Check`] is a name and a question. The code that answers the question turns the check into a [`CheckResult`],
//! with a remedy if there is a problem. `leno check` prints the results for a machine, a kernel, a mesh or a cluster as
//! a [`table`], and derives its exit status from [`is_well`]. This crate does not know what is checked.

use serde::Serialize;

/// A check: its name, and the question that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    name: String,
    asks: &'static str,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// The name of the check, or of the one object that was checked.
    pub subject: String,
    /// The question that the check answers.
    pub asks: &'static str,
    /// The result.
    pub level: Level,
    /// The result in words.
    pub text: String,
    /// What to do, if there is a problem and its remedy is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The level of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Good,
    /// Something that was checked does not work completely, or only by a substitute. The user can proceed.
    Warning,
    /// What was checked does not work.
    Bad,
    /// The check was not possible.
    Unknown,
}

impl Level {
    /// Whether a user can proceed. With an unknown result, the user cannot.
    #[must_use]
    pub const fn is_well(self) -> bool {
        matches!(self, Self::Good | Self::Warning)
    }

    const fn mark(self) -> &'static str {
        match self {
            Self::Good => "ok  ",
            Self::Warning => "warn",
            Self::Bad => "BAD ",
            Self::Unknown => "????",
        }
    }
}

impl Check {
    /// A check with this name, which answers this question.
    #[must_use]
    pub fn new(name: impl Into<String>, asks: &'static str) -> Self {
        Self { name: name.into(), asks }
    }

    /// A result without a problem.
    #[must_use]
    pub fn good(self, text: impl Into<String>) -> CheckResult {
        self.result(Level::Good, text)
    }

    /// The result if something does not work completely, or only by a substitute.
    #[must_use]
    pub fn warning(self, text: impl Into<String>) -> CheckResult {
        self.result(Level::Warning, text)
    }

    /// The result if what was checked does not work.
    #[must_use]
    pub fn bad(self, text: impl Into<String>) -> CheckResult {
        self.result(Level::Bad, text)
    }

    /// The result if the check was not possible.
    #[must_use]
    pub fn unknown(self, text: impl Into<String>) -> CheckResult {
        self.result(Level::Unknown, text)
    }

    /// A result in words, at a level that the caller has determined.
    #[must_use]
    pub fn result(self, level: Level, text: impl Into<String>) -> CheckResult {
        CheckResult { subject: self.name, asks: self.asks, level, text: text.into(), remedy: None }
    }
}

impl CheckResult {
    /// Adds the remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The result in words, followed by the remedy if there is one.
    #[must_use]
    pub fn words(&self) -> String {
        match &self.remedy {
            Some(remedy) => format!("{}: {remedy}", self.text),
            None => self.text.clone(),
        }
    }
}

/// Whether a user can proceed with all these results.
#[must_use]
pub fn is_well(findings: &[CheckResult]) -> bool {
    findings.iter().all(|finding| finding.level.is_well())
}

/// A table with a line for each result: mark, subject, text and remedy. All subjects are padded to the same width, and
/// further lines of a text begin below its first line.
#[must_use]
pub fn table(findings: &[CheckResult]) -> String {
    let width = findings.iter().map(|one| one.subject.chars().count()).max().unwrap_or_default();
    let next_line = format!("\n{}", " ".repeat(width.saturating_add(7)));
    let row = |one: &CheckResult| {
        let words = one.words().replace('\n', &next_line);
        format!("{} {:width$}  {words}\n", one.level.mark(), one.subject)
    };
    findings.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &str = "Does it run?";

    #[test]
    fn rows_have_marks_and_remedies_and_long_subjects_keep_their_distance() {
        let findings = [
            Check::new("web", ASKS).good("runs"),
            Check::new("w".repeat(70), ASKS).bad("waits").remedy("start it"),
            Check::new("api", ASKS).unknown("forbidden"),
        ];
        let gap = " ".repeat(67);
        let expected = format!(
            "ok   web{gap}  runs\nBAD  {}  waits: start it\n???? api{gap}  forbidden\n",
            "w".repeat(70)
        );
        assert_eq!(table(&findings), expected);
        let of_two_lines =
            [Check::new("ebpf", ASKS).bad("not usable:\nEPERM").remedy("run as root")];
        let expected = "BAD  ebpf  not usable:\n           EPERM: run as root\n";
        assert_eq!(table(&of_two_lines), expected);
        assert_eq!(findings.each_ref().map(|one| one.level.is_well()), [true, false, false]);
        assert!(!is_well(&findings) && is_well(&findings[..1]) && is_well(&[]));
        assert!(is_well(&[Check::new("web", ASKS).warning("slow")]));
    }
}
