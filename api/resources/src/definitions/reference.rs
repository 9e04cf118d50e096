//! `docs/reference/resources.md`: every field of Leno's resources, from the schemas of their definitions.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{Definition, definitions};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/resources.md");
const HEAD: &str = "\
# Fields of Leno's resources

Written by `make reference` from the types that parse the documents. The definitions in a cluster are generated from the same
types, so `kubectl explain` prints the same texts. All resources are `leno.dev/v1alpha1`.
[The documents](../guide/documents.md), [traffic policies](../guide/traffic.md) and [authorization](../guide/authorization.md)
have examples. `[]` stands for each element of a list, `*` for each key of a map. A **bold** field is required if the object
around it is present.
";
/// Part of the pattern that schemas have for durations (`duration.rs`), by which durations are recognised.
const DURATION: &str = "(h|m|s|ms)";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut all = definitions();
    all.sort_by_key(|definition| definition.kind);
    for definition in &all {
        section(&mut page, definition);
    }
    page
}

fn section(page: &mut String, definition: &Definition) {
    let Definition { kind, about, short, .. } = definition;
    write!(page, "\n## {kind}\n{about} `kubectl get {short}` lists them.\n").unwrap();
    for (part, schema) in [("spec", Some(&definition.spec)), ("status", definition.status.as_ref())]
    {
        let Some(schema) = schema else { continue };
        page.push_str("\n| field | type | |\n|---|---|---|\n");
        rows(page, part, schema);
    }
}

/// One row for each field below `path`.
fn rows(page: &mut String, path: &str, schema: &Value) {
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let is_required = required.is_some_and(|names| names.iter().any(|one| one == name));
        let shown = if is_required { format!("**`{path}`**") } else { format!("`{path}`") };
        let text = field["description"].as_str().unwrap_or_default();
        writeln!(page, "| {shown} | {} | {} |", kind(field), text.replace('|', "\\|")).unwrap();
        let (mut path, mut inner) = (path, field);
        loop {
            if let Some(items) = inner.get("items") {
                (path, inner) = (path + "[]", items);
            } else if let Some(values) = inner.get("additionalProperties") {
                (path, inner) = (path + ".*", values);
            } else {
                break;
            }
        }
        rows(page, &path, inner);
    }
}

/// The name of a field's type on the page.
fn kind(schema: &Value) -> String {
    let text = |field: &str| schema[field].as_str().unwrap_or_default();
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    match text("type") {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema.get("additionalProperties").is_some() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        "string" if text("pattern").contains(DURATION) => "duration".to_owned(),
        "string" if text("format") == "date-time" => "time".to_owned(),
        "integer" => format!("integer{}", bounds(schema.as_object().unwrap())),
        other => other.to_owned(),
    }
}

fn bounds(schema: &Map<String, Value>) -> String {
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(low), Some(high)) => format!(", {low} to {high}"),
        (Some(low), None) => format!(", from {low}"),
        (None, Some(high)) => format!(", up to {high}"),
        (None, None) => String::new(),
    }
}

#[test]
fn the_reference_has_the_fields_of_the_types() {
    let page = page();
    assert!(page.contains("| `spec.retries.perTryTimeout` | duration |"), "{page}");
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(FILE, &page).unwrap();
    }
    let there = std::fs::read_to_string(FILE).unwrap();
    assert!(there == page, "docs/reference/resources.md is out of date: make reference");
}

/// Regression: `kubectl explain` had no text for the fields of a policy's status.
#[test]
fn every_field_has_a_description() {
    let page = page();
    let without: Vec<&str> = page.lines().filter(|line| line.ends_with("|  |")).collect();
    assert!(without.is_empty(), "{without:#?}");
}
