//! One mistake, and the list of findings.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use leno_resources::{
    Documents, IgnoredDocument, Located, Object, ObjectKey, Position, Problem, one_line,
};
use serde::Serialize;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// What the document says works, but its effect is probably not intended.
    Warning,
    /// What the document says cannot work.
    Error,
}

/// One mistake. `Display` prints one line: `file:line:column: path: severity[code]: reason; remedy`. For an object
/// without a file, the object is printed in place of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// The kind of mistake: a name that stays the same in later versions.
    pub code: &'static str,
    /// The file, as given by the user; empty for an object of a cluster.
    #[serde(serialize_with = "text")]
    pub file: Arc<str>,
    /// The line, from 1; 0 means the file as a whole.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
    /// The object, such as `HTTPRoute shop/cart`; empty if the document is not one.
    pub object: String,
    /// The field, for example `spec.rules[0].backendRefs[1]`; empty for a document as a whole.
    pub path: String,
    /// What is wrong.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    /// A mistake that concerns a whole file or folder.
    #[must_use]
    pub fn of_file(severity: Severity, code: &'static str, file: &str, reason: &str) -> Self {
        let problem = Problem::of_file(file, reason);
        Self { severity, code, ..Self::from(&problem) }
    }
}

/// What is wrong with a part of a document.
pub(super) struct Mistake {
    pub(super) severity: Severity,
    pub(super) code: &'static str,
    pub(super) reason: String,
    pub(super) remedy: String,
}

impl Mistake {
    pub(super) fn error(code: &'static str, reason: String, remedy: String) -> Self {
        Self { severity: Severity::Error, code, reason, remedy }
    }

    pub(super) fn warning(code: &'static str, reason: String, remedy: String) -> Self {
        Self { severity: Severity::Warning, code, reason, remedy }
    }
}

/// Collects the findings about some documents.
pub(super) struct Findings<'d> {
    pub(super) documents: &'d Documents,
    /// The position of each object among the documents.
    positions: HashMap<ObjectKey, usize>,
    /// The findings, each with the position of its document, by which they are sorted.
    found: Vec<(usize, Finding)>,
}

impl From<&Problem> for Finding {
    /// The finding for a document that cannot be parsed. The problem's reason includes the remedy.
    fn from(problem: &Problem) -> Self {
        Self {
            severity: Severity::Error,
            code: "invalid-document",
            file: Arc::clone(&problem.file),
            line: problem.place.line,
            column: problem.place.column,
            object: String::new(),
            path: problem.path.clone(),
            reason: problem.reason.clone(),
            remedy: String::new(),
        }
    }
}

impl Finding {
    /// The finding for an object of a cluster that cannot be parsed.
    #[must_use]
    pub fn unread(key: &ObjectKey, reason: &str) -> Self {
        let problem = Problem::of_file("", reason);
        Self { object: key.to_string(), ..Self::from(&problem) }
    }
}

impl<'d> Findings<'d> {
    pub(super) fn new(documents: &'d Documents) -> Self {
        let objects = documents.objects.iter().enumerate();
        let positions = objects.map(|(at, located)| (located.value.key(), at)).collect();
        Self { documents, positions, found: Vec::new() }
    }

    /// The objects as written, with their positions.
    pub(super) fn objects(&self) -> impl Iterator<Item = (usize, &'d Object)> + use<'d> {
        self.documents.objects.iter().map(|located| &located.value).enumerate()
    }

    /// The position of an object among the documents; `None` for an object that is implied and not written.
    pub(super) fn position(&self, key: &ObjectKey) -> Option<usize> {
        self.positions.get(key).copied()
    }

    /// The file and position of a part of an object.
    pub(super) fn place(&self, at: usize, path: &str) -> (Arc<str>, Position) {
        let located = &self.documents.objects[at];
        let place = self.documents.outlines.get(at).map(|outline| outline.place(path));
        (Arc::clone(&located.file), place.unwrap_or(located.place))
    }

    pub(super) fn push(&mut self, at: usize, path: &str, wrong: Mistake) {
        let (file, place) = self.place(at, path);
        let Mistake { severity, code, reason, remedy } = wrong;
        let object = self.documents.objects[at].value.key().to_string();
        let outline = self.documents.outlines.get(at);
        let path = outline.map_or_else(|| path.to_owned(), |outline| outline.field(path));
        let (line, column) = (place.line, place.column);
        let finding = Finding { severity, code, file, line, column, object, path, reason, remedy };
        self.found.push((at, finding));
    }

    /// Adds a mistake in a document that is not an object of Leno; these findings come last.
    pub(super) fn push_ignored(&mut self, located: &Located<IgnoredDocument>, wrong: Mistake) {
        let Mistake { severity, code, reason, remedy } = wrong;
        let (object, path) = (located.value.kind.clone(), String::new());
        let (file, line, column) =
            (Arc::clone(&located.file), located.place.line, located.place.column);
        let finding = Finding { severity, code, file, line, column, object, path, reason, remedy };
        self.found.push((self.documents.objects.len(), finding));
    }

    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.found.sort_by(|(a, x), (b, y)| {
            (a, x.line, x.column, x.code).cmp(&(b, y.line, y.column, y.code))
        });
        self.found.into_iter().map(|(_, finding)| finding).collect()
    }
}

fn text<S: serde::Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(if self.file.is_empty() { &self.object } else { &self.file }))?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", one_line(&self.path))?;
        }
        write!(f, ": {}[{}]: {}", self.severity, self.code, self.reason)?;
        match self.remedy.as_str() {
            "" => Ok(()),
            remedy => write!(f, "; {remedy}"),
        }
    }
}
