//! A proxy of another mesh that the lab runs beside each workload, as the file of meshes describes it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use leno_measure::load::Protocol;
use nix::sys::signal::Signal;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::hop::{Configuration, Hop, STREAM};
use crate::scenario::{Disturbance, Scenario};
use crate::tools::{self, Missing, Tool};

/// How many bytes of a script's first line Linux reads to find the interpreter (BINPRM_BUF_SIZE).
const SHEBANG: usize = 256;

/// The program of a mesh, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshPrograms {
    /// The proxy; `None` if there is none.
    pub program: Option<PathBuf>,
    /// The version, as the program prints it.
    pub version: String,
}

/// A proxy that runs beside each workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    tool: Tool,
    /// If pip installs a start script for the program: Python code that prints the path of the program itself.
    python: Option<String>,
    /// The flag with which the program prints its version; `None` if its file name serves as its version.
    version: Option<String>,
    /// The name of the file with the configuration of the proxy.
    file: String,
    /// The names of more files. A file whose template renders to an empty text in a scenario is not written.
    #[serde(default)]
    others: Vec<String>,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// The signal on which the proxy reads its files again; `None` if it notices changes itself.
    #[serde(default, deserialize_with = "parsed_if_any")]
    signal: Option<Signal>,
    /// If other proxies connect directly to the proxy beside an application: its port. Connections to the application
    /// are not captured then.
    pub(super) port: Option<u16>,
    /// Whether the proxy needs the stand-in for Linkerd's control plane.
    #[serde(default)]
    pub(super) control: bool,
}

/// Scenarios that a mesh cannot carry, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exclusion {
    when: Condition,
    why: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Condition {
    /// Services call other services.
    Calls,
    Disturbed,
    Pushed,
    /// Endpoints come and go.
    Churned,
    /// Any configuration changes.
    Revised,
    Upgraded,
    /// The load is TCP, and nginx lacks a module for it.
    NoRelay,
}

impl Exclusion {
    /// Returns the reason if the mesh cannot carry this scenario.
    pub(crate) fn why(&self, scenario: &Scenario) -> Option<&str> {
        let disturbance = scenario.disturbance;
        let is_one = match self.when {
            Condition::Calls => !scenario.calls.is_empty(),
            Condition::Disturbed => disturbance.is_some(),
            Condition::Churned => scenario.churns(),
            Condition::Pushed => matches!(disturbance, Some(Disturbance::Push { .. })),
            Condition::Revised => disturbance.is_some_and(|one| one.period().is_some()),
            Condition::Upgraded => scenario.websockets > 0,
            Condition::NoRelay => scenario.protocol == Protocol::Tcp && !Path::new(STREAM).exists(),
        };
        is_one.then_some(&self.why)
    }
}

pub(super) fn parsed<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn parsed_if_any<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    parsed(from).map(Some)
}

impl Peer {
    /// Finds the program for the mesh with this name, or checks the program that the user named.
    pub(super) fn find(&self, named: (&str, Option<&Path>)) -> Result<MeshPrograms, Missing> {
        let program = self.tool.find(named)?;
        let python = self.python.as_deref();
        let program = python.and_then(|code| behind(&program, code)).unwrap_or(program);
        let version = match &self.version {
            Some(flag) => tools::version(&program, flag),
            None => program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        Ok(MeshPrograms { program: Some(program), version })
    }

    pub(super) fn configure(&'static self, hop: &Hop) -> Configuration {
        let others = self.others.iter().map(|file| (&**file, hop.file(file)));
        let environment = self.environment.iter();
        Configuration {
            file: &self.file,
            text: hop.file(&self.file),
            others: others.filter(|(_, text)| !text.trim().is_empty()).collect(),
            arguments: self.arguments.iter().map(|one| hop.render("", one)).collect(),
            environment: environment.map(|(name, of)| (&**name, hop.render("", of))).collect(),
            told_by: self.signal.filter(|_| hop.is_revised()),
        }
    }
}

/// Returns the program that a start script of pip would run, which is the output of `code` in the script's Python.
/// `None` if the file is not such a script.
fn behind(script: &Path, code: &str) -> Option<PathBuf> {
    let mut head = [0; SHEBANG];
    let count = File::open(script).ok()?.read(&mut head).ok()?;
    let line = head[..count].split(|byte| *byte == b'\n').next()?;
    let mut words = str::from_utf8(line).ok()?.strip_prefix("#!")?.split_whitespace();
    let said = Command::new(words.next()?).args(words).args(["-c", code]).output().ok()?;
    let binary = PathBuf::from(str::from_utf8(&said.stdout).ok()?.trim_end());
    binary.is_file().then_some(binary)
}
