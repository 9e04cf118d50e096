//! Runs h2spec and parses its JUnit report.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::{command, tools};

/// How long a case may wait for an expected frame. A case that passes does not wait, so the limit can be long
/// enough for a busy machine.
const CASE_LIMIT: Duration = Duration::from_secs(5);
/// How long a run may take if every case takes its limit.
pub(crate) const RUN_LIMIT: Duration = Duration::from_secs(900);

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Requirements on every server.
    Generic,
    /// RFC 9113 by section.
    Http2,
    /// RFC 7541 by section.
    Hpack,
}

impl Group {
    pub(crate) const ALL: [Group; 3] = [Group::Generic, Group::Http2, Group::Hpack];

    /// The smallest plausible number of cases in the group. A run with fewer proves nothing.
    fn cases(self) -> usize {
        match self {
            Group::Generic => 44,
            Group::Http2 => 94,
            Group::Hpack => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Group::Generic => "generic",
            Group::Http2 => "http2",
            Group::Hpack => "hpack",
        }
    }
}

/// Cases by name, such as `http2/5.1: idle: Sends a DATA frame`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: BTreeSet<String>,
    /// The failed cases by name, each with the expected and the actual result.
    pub(crate) failed: BTreeMap<String, String>,
}

/// An installed h2spec.
pub(crate) struct Suite {
    program: PathBuf,
}

impl Suite {
    /// `None` if h2spec cannot be installed; the reason has been printed.
    pub(crate) fn install() -> Result<Option<Self>> {
        let directory = tools::install_or_skip("h2spec")?;
        Ok(directory.map(|directory| Suite { program: directory.join("h2spec") }))
    }

    /// Runs all cases of `groups`, including the strict ones, with prior knowledge.
    pub(crate) fn run(&self, server: SocketAddr, groups: &[Group]) -> Result<Outcome> {
        let server = (&*server.ip().to_string(), server.port());
        self.run_by(server, groups, |arguments| {
            command::run(Command::new(&arguments[0]).args(&arguments[1..]), RUN_LIMIT)
        })
    }

    /// Like [`Self::run`], but `run` executes the command. The first word of the command is the program.
    pub(crate) fn run_by(
        &self,
        (host, port): (&str, u16),
        groups: &[Group],
        run: impl FnOnce(&[String]) -> Result<Output>,
    ) -> Result<Outcome> {
        let directory = tempfile::tempdir()?;
        let report = directory.path().join("report.xml");
        let mut arguments = vec![self.program.display().to_string()];
        arguments.extend(groups.iter().map(|group| group.name().to_string()));
        let (port, limit) = (port.to_string(), CASE_LIMIT.as_secs().to_string());
        let options = ["--strict", "--host", host, "--port", &port, "--timeout", &limit];
        arguments.extend(options.map(String::from));
        arguments.extend(["--junit-report".into(), report.display().to_string()]);
        // The exit status is ignored, because it only states whether all cases passed.
        let output = run(&arguments)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let xml = std::fs::read_to_string(&report)
            .with_context(|| format!("h2spec wrote no report: {said}"))?;
        let outcome = read(&xml);
        let count = outcome.passed.len() + outcome.failed.len();
        let total = format!("{count} tests, {} passed, 0 skipped", outcome.passed.len());
        ensure!(said.contains(&total), "the report is of {total}, h2spec says: {said}");
        let fewest: usize = groups.iter().map(|group| group.cases()).sum();
        ensure!(count >= fewest, "{count} cases, where {groups:?} have {fewest}: {said}");
        Ok(outcome)
    }
}

/// Parses a report. A case with a failure, error or skip element has not passed.
fn read(xml: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for case in xml.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or_default();
        let attribute = |name: &str| {
            let value = case.split_once(&format!("{name}=\"")).map(|(_, rest)| rest);
            value.and_then(|value| value.split('"').next()).unwrap_or_default()
        };
        let name = format!("{}: {}", attribute("package"), attribute("classname"));
        let bad = ["<failure", "<error", "<skipped"].iter().find_map(|mark| case.find(mark));
        // Two cases of a section may have the same title, so a number is added.
        let mut unique = name.clone();
        let mut nth = 1;
        while outcome.passed.contains(&unique) || outcome.failed.contains_key(&unique) {
            nth += 1;
            unique = format!("{name} ({nth})");
        }
        match bad {
            Some(at) => drop(outcome.failed.insert(unique, case[at..].trim().to_string())),
            None => drop(outcome.passed.insert(unique)),
        }
    }
    outcome
}

#[test]
fn a_report_is_read_case_by_case() {
    let xml = "<testsuite><testcase package=\"hpack/4.2\" classname=\"Sends &quot;x&quot;\" \
        time=\"0.1\"></testcase>\n<testcase package=\"http2/5.1\" classname=\"idle\" time=\"2\">\
        <error>GOAWAY\nTimeout</error></testcase>\n\
        <testcase package=\"http2/5.1\" classname=\"idle\" time=\"2\"><failure>x</failure>\
        </testcase></testsuite>";
    let outcome = read(xml);
    assert_eq!(outcome.passed, BTreeSet::from(["hpack/4.2: Sends &quot;x&quot;".to_string()]));
    let failed: Vec<&str> = outcome.failed.keys().map(String::as_str).collect();
    assert_eq!(failed, ["http2/5.1: idle", "http2/5.1: idle (2)"]);
    assert_eq!(outcome.failed["http2/5.1: idle"], "<error>GOAWAY\nTimeout</error>");
}
