//! Reads the fields of a service. The translation takes each field that it uses; the remaining fields are rejected
//! or ignored.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use leno_resources::Position;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::interpolation::{Variables, filled};
use super::{Draft, Name, Service, place};

/// Fields that have no effect on a mesh, or that describe what `leno up` does anyway.
const IGNORED: [&str; 15] = [
    "annotations",
    "attach",
    "container_name",
    "develop",
    "domainname",
    "hostname",
    "init",
    "labels",
    "logging",
    "networks",
    "platform",
    "pull_policy",
    "stdin_open",
    "storage_opt",
    "tty",
];

/// The fields of a service that the translation has not taken yet.
pub(super) struct Fields<'a> {
    draft: &'a mut Draft,
    service: &'a str,
    place: Position,
    left: BTreeMap<&'a str, &'a Spanned<Value>>,
    variables: &'a Variables,
}

impl<'a> Fields<'a> {
    pub(super) fn new(
        draft: &'a mut Draft,
        name: &'a Name,
        fields: &'a Service,
        variables: &'a Variables,
    ) -> Self {
        let left = fields.iter().map(|(name, value)| (name.as_str(), value)).collect();
        Self { draft, service: &name.text, place: name.place, left, variables }
    }

    /// Takes a field, with its variables replaced; `None` if the service does not have it.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let field = self.left.remove(name)?;
        self.place = place(field);
        match filled(&field.value, self.variables) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.refuse(name, reason);
                None
            }
        }
    }

    /// Rejects the field that was taken last.
    pub(super) fn refuse(&mut self, name: &str, reason: impl Into<String>) {
        let path = format!("services.{}.{name}", self.service);
        self.draft.problem(self.place, &path, reason.into());
    }

    /// Whether a field of the service was rejected.
    pub(super) fn has_refused(&self, name: &str) -> bool {
        let path = format!("services.{}.{name}", self.service);
        self.draft.problems.iter().any(|problem| problem.path == path)
    }

    /// Resolves a path that is relative to the Compose file.
    pub(super) fn beside(&self, path: &str) -> PathBuf {
        let place = Path::new(&self.draft.file).parent().unwrap_or(Path::new("")).join(path);
        // Drops the `.` that `join` leaves, for better messages.
        place.components().filter(|part| *part != Component::CurDir).collect()
    }

    /// Takes a field that is a text or a number.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.take(name)?;
        let text = scalar(&value);
        if text.is_none() {
            self.refuse(name, "it is not a string: write one string");
        }
        text
    }

    /// Takes a field that is a list of texts, or one text.
    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let items = match self.take(name) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(one) => vec![one],
        };
        let texts: Option<Vec<String>> = items.iter().map(scalar).collect();
        if texts.is_none() {
            self.refuse(name, "it is not a list of strings: write one");
        }
        texts.unwrap_or_default()
    }

    /// Rejects or ignores the fields that were not taken.
    pub(super) fn rest(&mut self) {
        for (name, value) in std::mem::take(&mut self.left) {
            self.place = place(value);
            let path = format!("services.{}.{name}", self.service);
            if IGNORED.contains(&name) || name.starts_with("x-") {
                self.draft.ignore(self.place, &path);
            } else {
                self.refuse(name, format!("leno up does not support {name}: remove it"));
            }
        }
    }
}

/// Formats a scalar as text.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}
