//! Translates Compose files into documents for `leno up`.
//!
//! Each service becomes a Workload. For each part of the Workload, the translation records the field and line of
//! the Compose file that it comes from, so that later errors can name these. Fields that Leno cannot honour are
//! rejected, each with its line and a remedy. Fields without an effect on a mesh are listed as ignored.

mod fields;
mod interpolation;
mod origins;
mod service;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use leno_resources::{DocumentOrigin, Documents, IgnoredDocument, Located, Position, Problem};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::Spanned;

use fields::Fields;

/// The `apiVersion` under which ignored fields of a Compose file are listed among the ignored documents.
pub(crate) const COMPOSE: &str = "compose";
/// The top-level fields of a Compose file that have no effect on a mesh or are handled separately.
const TOP: [&str; 4] = ["name", "version", "networks", "volumes"];

/// Reads the documents of files, folders and standard input, among them Compose files. A file that is named twice, or
/// also as part of its folder, is read once.
///
/// # Errors
/// All problems of all files.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Documents, Vec<Problem>> {
    let mut known = BTreeSet::new();
    leno_resources::load_with(paths, |file, text| {
        if !known.insert(resolved(Path::new(file))) {
            return Ok(Documents::default());
        }
        match File::read(Path::new(file), text) {
            Some(read) => read.map_err(|problem| vec![problem])?.documents(),
            None => leno_resources::parse(file, text),
        }
    })
}

/// The canonical path, which is the same for all names of a file. Standard input and missing files keep the name
/// that was given.
pub(crate) fn resolved(file: &Path) -> PathBuf {
    std::fs::canonicalize(file).unwrap_or_else(|_gone| file.to_owned())
}

/// The fields of a service by their names.
type Service = BTreeMap<String, Spanned<Value>>;

/// A Compose file.
struct File {
    path: PathBuf,
    top: BTreeMap<String, Spanned<Value>>,
    services: BTreeMap<Name, Service>,
}

/// The name of a service, and its place in the file.
#[derive(Clone, Debug)]
struct Name {
    text: String,
    place: Position,
}

/// The state of a translation.
struct Draft {
    file: String,
    problems: Vec<Problem>,
    ignored: Vec<Located<IgnoredDocument>>,
}

impl File {
    /// Reads a Compose file. `None` if the text is not one: it has no `services`, or it has a `kind`. In that case
    /// the parser of documents reports its mistakes.
    fn read(path: &Path, text: &str) -> Option<Result<Self, Problem>> {
        #[derive(Deserialize)]
        struct Services {
            services: BTreeMap<Name, Service>,
        }
        // A quick check first: a text without this word is not a Compose file, and most documents do not have it.
        if !text.contains("services") {
            return None;
        }
        let mut top: BTreeMap<String, Spanned<Value>> = serde_saphyr::from_str(text).ok()?;
        if top.contains_key("kind") || top.contains_key("apiVersion") {
            return None;
        }
        let services = top.remove("services")?;
        Some(match serde_saphyr::from_str(text) {
            Ok(Services { services }) => Ok(Self { path: path.to_owned(), top, services }),
            Err(error) => Err(Problem {
                file: path.to_string_lossy().into(),
                place: error.location().map_or(place(&services), at),
                path: "services".to_owned(),
                reason: "write each service as a name with fields below it".to_owned(),
            }),
        })
    }

    fn documents(&self) -> Result<Documents, Vec<Problem>> {
        let file = self.path.to_string_lossy().into_owned();
        let mut draft = Draft { file: file.clone(), problems: Vec::new(), ignored: Vec::new() };
        for (name, value) in &self.top {
            if !TOP.contains(&&**name) && !name.starts_with("x-") {
                let reason = format!("leno up does not support {name}: remove it");
                draft.problem(place(value), name, reason);
            } else if name != "name" {
                draft.ignore(place(value), name);
            }
        }
        let (variables, project) = (interpolation::variables(&self.path), self.project());
        let mut documents = Documents::default();
        for (name, service) in &self.services {
            let mut fields = Fields::new(&mut draft, name, service, &variables);
            let workload = service::workload(&mut fields, &name.text, &project);
            let origins = origins::of(name, service, self.top.get("name").map(place));
            match leno_resources::parse(&file, &workload.to_string()) {
                Ok(made) => add(&mut documents, made, &origins),
                Err(found) => draft.add(found, &origins),
            }
        }
        let Draft { mut problems, ignored, .. } = draft;
        if problems.is_empty() {
            documents.ignored.extend(ignored);
            return Ok(documents);
        }
        problems.sort_by_key(|problem| problem.place);
        Err(problems)
    }

    /// The namespace for the services: the project's name or, without one, the name of the folder, in the form
    /// that Compose gives it.
    fn project(&self) -> String {
        let named = self.top.get("name").and_then(|name| name.value.as_str().map(str::to_owned));
        let folder = || {
            let path = std::path::absolute(&self.path).ok()?;
            Some(path.parent()?.file_name()?.to_string_lossy().into_owned())
        };
        let name = named.or_else(folder).unwrap_or_default().to_ascii_lowercase();
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        match name.trim_matches('-') {
            "" => "default".to_owned(),
            name => name.to_owned(),
        }
    }
}

/// Adds documents that were translated from a file.
fn add(documents: &mut Documents, made: Documents, origins: &[DocumentOrigin]) {
    for (object, outline) in made.objects.into_iter().zip(made.outlines) {
        let outline = outline.made_from(origins.to_vec());
        documents.objects.push(Located { place: outline.place(""), ..object });
        documents.outlines.push(outline);
    }
}

impl Draft {
    fn problem(&mut self, place: Position, path: &str, reason: String) {
        let file = self.file.as_str().into();
        self.problems.push(Problem { file, place, path: path.to_owned(), reason });
    }

    /// Reports the problems of a translated document at the fields that it was made from. Problems of a field that
    /// was already rejected are only consequences, and are dropped.
    fn add(&mut self, found: Vec<Problem>, origins: &[DocumentOrigin]) {
        let refused: Vec<String> = self.problems.iter().map(|one| one.path.clone()).collect();
        for problem in found {
            let Some(origin) = DocumentOrigin::of(&problem.path, origins) else { continue };
            if !refused.contains(&origin.field) {
                self.problem(origin.place, &origin.field, problem.reason);
            }
        }
    }

    /// Lists a field that has no effect.
    fn ignore(&mut self, place: Position, path: &str) {
        let value = IgnoredDocument { api_version: COMPOSE.to_owned(), kind: path.to_owned() };
        self.ignored.push(Located { value, file: self.file.as_str().into(), place });
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Spanned::<String>::deserialize(deserializer)?;
        Ok(Self { place: place(&name), text: name.value })
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

fn place<T>(value: &Spanned<T>) -> Position {
    at(value.referenced)
}

fn at(location: serde_saphyr::Location) -> Position {
    Position { line: location.line(), column: location.column() }
}
