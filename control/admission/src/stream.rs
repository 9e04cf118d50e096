//! Reads and rewrites texts that contain several documents, in YAML or JSON. Unchanged parts keep their form.

use serde::Deserialize;

use crate::value::JsonValue;

/// Deepest nesting of a document. A pod has about 12 levels.
const MAX_DEPTH: usize = 64;
/// Most values and keys in one document. A complete list of 10,000 pods has fewer.
const MAX_NODES: usize = 4_000_000;
/// Most values that aliases may add. Anchors should save typing, not multiply data.
const MAX_ALIASED_EVENTS: usize = 100_000;

/// The format of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestFormat {
    /// YAML, with `---` between documents.
    Yaml,
    /// JSON, one value after another.
    Json,
}

/// Why a text cannot be parsed or written.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// A document is not YAML, or it exceeds a bound.
    #[error("the document that begins at line {line}: {reason}")]
    Yaml {
        /// The line of the text, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The text begins like JSON but cannot be parsed as JSON.
    #[error("the input is not valid JSON")]
    Json(#[source] serde_json::Error),
    /// A changed document cannot be written.
    #[error("a document cannot be written as YAML: {0}")]
    Write(String),
}

/// Calls `work` for every document of a text, and returns the text with the changes. `work` returns whether it has
/// changed the document. Unchanged documents keep their form, including comments, unless the text is converted to
/// the other format (`wanted`).
///
/// # Errors
/// [`StreamError`] if a document cannot be parsed.
pub fn rewrite(
    text: &str,
    wanted: Option<ManifestFormat>,
    mut work: impl FnMut(&mut JsonValue) -> bool,
) -> Result<String, StreamError> {
    if let Some(values) = json(text) {
        return rewrite_json(text, values, wanted, work);
    }
    let wanted = wanted.unwrap_or(ManifestFormat::Yaml);
    let mut out = String::new();
    for document in documents(text) {
        let mut value = read(&document)?;
        let changed = work(&mut value);
        match wanted {
            ManifestFormat::Yaml if !changed => out += document.text,
            ManifestFormat::Json if matches!(value, JsonValue::Null) => {}
            ManifestFormat::Json => out += &(written_json(&value)? + "\n"),
            ManifestFormat::Yaml => {
                if document.marked {
                    out += "---\n";
                }
                out += &written(&value)?;
            }
        }
    }
    Ok(out)
}

/// The values of a JSON text; `None` for other texts.
fn json(text: &str) -> Option<Vec<JsonValue>> {
    // YAML may begin with a brace as well, so a text that is not valid JSON is parsed as YAML.
    let begins = text.trim_start().starts_with(['{', '[']);
    let values = serde_json::Deserializer::from_str(text).into_iter::<JsonValue>();
    begins.then(|| values.collect::<Result<Vec<_>, _>>().ok()).flatten()
}

fn rewrite_json(
    text: &str,
    mut values: Vec<JsonValue>,
    wanted: Option<ManifestFormat>,
    mut work: impl FnMut(&mut JsonValue) -> bool,
) -> Result<String, StreamError> {
    // `|` and not `||`, so that `work` is called for all values.
    let changed = values.iter_mut().map(&mut work).fold(false, |all, one| all | one);
    let as_yaml = wanted == Some(ManifestFormat::Yaml);
    if !changed && !as_yaml {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    for (at, value) in values.iter().enumerate() {
        if as_yaml {
            out += if at > 0 { "---\n" } else { "" };
            out += &written(value)?;
        } else {
            out += &(written_json(value)? + "\n");
        }
    }
    Ok(out)
}

/// One document of a YAML text, with its `---` line.
struct Document<'t> {
    text: &'t str,
    /// Its first line, counted from 1.
    line: usize,
    /// Whether it begins with `---`.
    marked: bool,
}

/// Splits a text at lines that begin with `---`, which cannot occur inside a document (YAML 1.2, section 9.1.2).
fn documents(text: &str) -> Vec<Document<'_>> {
    let mut starts = vec![(0, 1)];
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marks = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.trim_start() != rest || rest.is_empty());
        if marks && at > 0 {
            starts.push((at, number + 1));
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    let documents = starts.iter().zip(ends).map(|(&(at, line), end)| {
        let text = &text[at..end];
        Document { text, line, marked: text.starts_with("---") }
    });
    documents.collect()
}

fn read(document: &Document<'_>) -> Result<JsonValue, StreamError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 2,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_EVENTS,
        },
        // As `kubectl` parses YAML: 0644 is octal, and yes is true.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Read(JsonValue);
    let wrong = |reason: String| StreamError::Yaml { line: document.line, reason };
    let read: Vec<Read> = serde_saphyr::from_str_multiple_with_options(document.text, options)
        .map_err(|error| wrong(error.to_string()))?;
    let mut read = read.into_iter();
    match (read.next(), read.next()) {
        (None, _) => Ok(JsonValue::Null),
        (Some(Read(value)), None) => Ok(value),
        (Some(_), Some(_)) => Err(wrong("contains two documents: put --- between them".to_owned())),
    }
}

fn written(value: &JsonValue) -> Result<String, StreamError> {
    let options = serde_saphyr::ser_options! { compact_list_indent: true };
    let text = serde_saphyr::to_string_with_options(value, options);
    let mut text = text.map_err(|error| StreamError::Write(error.to_string()))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn written_json(value: &JsonValue) -> Result<String, StreamError> {
    serde_json::to_string_pretty(value).map_err(StreamError::Json)
}
