//! Reads from the API server's audit log what clients have read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The names of two files in the server's directory: the audit policy and the log.
pub(crate) const POLICY: &str = "audit.json";
pub(crate) const LOG: &str = "audit.log";

/// A list or a watch that the API server has begun to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRead {
    /// The path of the kind's objects.
    pub path: String,
    /// The query of the request.
    pub query: String,
    /// Whether it is a list; a watch otherwise.
    pub is_list: bool,
}

impl LoggedRead {
    /// Whether the client reads all objects: with a list, or at the beginning of a watch.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_list || self.query.contains("sendInitialEvents=true")
    }
}

/// Writes an audit policy that records lists and watches, with one line when the answer begins and one when it
/// ends.
pub(crate) fn write_policy(directory: &Path) {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "verbs": ["list", "watch"]}, {"level": "None"}]});
    fs::write(directory.join(POLICY), policy.to_string()).unwrap();
}

pub(crate) fn reads(directory: &Path, program: &str) -> Vec<LoggedRead> {
    let text = fs::read_to_string(directory.join(LOG)).unwrap_or_default();
    let mut seen = BTreeSet::new();
    // A server that was killed may have left half a line at the end.
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_program = events.filter(|event| {
        let agent = event["userAgent"].as_str().unwrap_or_default();
        let good = event["responseStatus"]["code"] == 200;
        good && agent.split_once('/').is_some_and(|(name, _)| name == program)
    });
    let first = of_program.filter(|event| seen.insert(event["auditID"].to_string()));
    let read = |event: Value| {
        let uri = event["requestURI"].as_str().unwrap_or_default();
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let is_list = event["verb"] == "list";
        LoggedRead { path: path.to_owned(), query: query.to_owned(), is_list }
    };
    first.map(read).collect()
}
