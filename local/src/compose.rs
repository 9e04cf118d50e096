//! Compose files, as the documents that `leno up` runs.
//!
//! A service becomes a Workload. Its document is written on the line of the service, so that whatever is found in
//! it later has that line. What Leno cannot do as the file says is refused, each with its line and a remedy;
//! what has no effect on a mesh is listed as ignored.

mod fields;
mod interpolation;
mod service;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use leno_resources::{Documents, Ignored, Located, MAX_FILE_BYTES, Position, Problem, STDIN};
use serde_json::Value;
use serde_saphyr::Spanned;

use fields::Fields;

/// Fields of a Compose file, with what they have in `leno up`.
const TOP: [&str; 4] = ["name", "version", "networks", "volumes"];

/// Reads the documents of files, among them Compose files.
///
/// # Errors
/// All problems of all files.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Documents, Vec<Problem>> {
    let sources: Vec<Source> = paths.iter().map(|path| Source::of(path)).collect();
    if sources.iter().all(|source| matches!(source, Source::Documents)) {
        return leno_resources::load(paths);
    }
    let (mut documents, mut problems) = (Documents::default(), Vec::new());
    for (path, source) in paths.iter().zip(sources) {
        let found = match source {
            Source::Compose(file) => file.documents(),
            Source::Once(text) => {
                let file = path.to_string_lossy();
                let unreadable = |error: io::Error| {
                    vec![Problem::of_file(&file, format!("cannot be read: {error}"))]
                };
                text.map_err(unreadable).and_then(|text| leno_resources::parse(&file, &text))
            }
            Source::Documents => leno_resources::load(&[path]),
        };
        match found {
            Ok(found) => {
                documents.objects.extend(found.objects);
                documents.ignored.extend(found.ignored);
                documents.outlines.extend(found.outlines);
            }
            Err(found) => problems.extend(found),
        }
    }
    let mut keys = HashSet::new();
    for object in &documents.objects {
        if !keys.insert(object.value.key()) {
            let Located { file, place, .. } = object;
            let reason = format!("{} is defined in two files", object.value.key());
            let (file, place, path) = (file.clone(), *place, "metadata.name".to_owned());
            problems.push(Problem { file, place, path, reason });
        }
    }
    if problems.is_empty() { Ok(documents) } else { Err(problems) }
}

/// What a path holds.
enum Source {
    Compose(File),
    /// The text of a file that can be read once, such as a pipe, and is no Compose file.
    Once(io::Result<String>),
    /// What the reader of documents reads.
    Documents,
}

impl Source {
    fn of(path: &Path) -> Self {
        // Mistakes in what cannot be looked at are found by the reader of documents.
        let Ok(of) = std::fs::metadata(path) else { return Self::Documents };
        if path == Path::new(STDIN) || of.is_dir() {
            return Self::Documents;
        }
        let text = std::fs::File::open(path).and_then(|file| {
            let mut text = String::new();
            file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
            Ok(text)
        });
        let composed = text.as_ref().ok().and_then(|text| File::read(path, text));
        match composed {
            Some(file) => Self::Compose(file),
            None if of.is_file() => Self::Documents,
            None => Self::Once(text),
        }
    }
}

/// A Compose file.
struct File {
    path: PathBuf,
    top: BTreeMap<String, Spanned<Value>>,
    services: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Value>>>>,
}

/// What is found out while a file is translated.
struct Draft {
    file: String,
    problems: Vec<Problem>,
    ignored: Vec<Located<Ignored>>,
}

impl File {
    /// `None` for a path that is no Compose file: one without `services`, or with a `kind`. Mistakes in it are
    /// found by the reader of documents.
    fn read(path: &Path, text: &str) -> Option<Self> {
        let mut top: BTreeMap<String, Spanned<Value>> = serde_saphyr::from_str(text).ok()?;
        if top.contains_key("kind") || top.remove("services").is_none() {
            return None;
        }
        #[derive(serde::Deserialize)]
        struct Services {
            services: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Value>>>>,
        }
        let Services { services } = serde_saphyr::from_str(text).ok()?;
        Some(Self { path: path.to_owned(), top, services })
    }

    fn documents(&self) -> Result<Documents, Vec<Problem>> {
        let file = self.path.to_string_lossy().into_owned();
        let mut draft = Draft { file: file.clone(), problems: Vec::new(), ignored: Vec::new() };
        for (name, value) in &self.top {
            if !TOP.contains(&&**name) && !name.starts_with("x-") {
                let reason = format!("leno up has nothing for {name}: remove it");
                draft.problem(place(value), name, reason);
            } else if name != "name" {
                draft.ignore(place(value), name);
            }
        }
        let (variables, project) = (interpolation::variables(&self.path), self.project());
        // One document on the line of each service.
        let mut lines: BTreeMap<u64, String> = BTreeMap::new();
        for (name, service) in &self.services {
            let mut fields =
                Fields::new(&mut draft, name, place(service), &service.value, &variables);
            let workload = service::workload(&mut fields, name, &project);
            let mut line = place(service).line.max(1);
            while lines.contains_key(&line) {
                line += 1;
            }
            lines.insert(line, format!("--- {workload}"));
        }
        let last = lines.keys().last().copied().unwrap_or(0);
        let text: Vec<&str> =
            (1..=last).map(|line| lines.get(&line).map_or("", String::as_str)).collect();
        let Draft { mut problems, ignored, .. } = draft;
        match leno_resources::parse(&file, &(text.join("\n") + "\n")) {
            Ok(mut documents) if problems.is_empty() => {
                documents.ignored.extend(ignored);
                return Ok(documents);
            }
            Ok(_) => {}
            Err(found) => problems.extend(found),
        }
        problems.sort_by_key(|problem| problem.place);
        Err(problems)
    }

    /// The namespace: the project's name, else that of the folder, as Compose forms it.
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

impl Draft {
    fn problem(&mut self, place: Position, path: &str, reason: String) {
        let file = self.file.as_str().into();
        self.problems.push(Problem { file, place, path: path.to_owned(), reason });
    }

    /// Lists what has no effect.
    fn ignore(&mut self, place: Position, path: &str) {
        let value = Ignored { api_version: "compose".to_owned(), kind: path.to_owned() };
        self.ignored.push(Located { value, file: self.file.as_str().into(), place });
    }
}

fn place<T>(value: &Spanned<T>) -> Position {
    Position { line: value.referenced.line(), column: value.referenced.column() }
}
