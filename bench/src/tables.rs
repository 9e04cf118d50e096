//! `leno bench tables`: tables from a file of records, of memory or of earlier versions of `http` and `mesh`.

use std::path::Path;

use anyhow::{Context, Result};
use leno_console::{print_line, print_text};
use leno_suite::files;
use leno_suite::record::Record;
use leno_suite::report::{Form, Summary};
use serde_json::Value;

use crate::memory;

/// Fields that have the same name in today's records and in those of earlier versions of `http` and `mesh`.
const SAME: [&str; 10] = [
    "round",
    "connections",
    "duration_s",
    "requests",
    "errors",
    "requests_per_s",
    "cpu_user_us_per_request",
    "cpu_system_us_per_request",
    "latency_us",
    "left_out",
];

pub(crate) fn print(file: &Path) -> Result<bool> {
    let none = || format!("{} has no records of leno bench", file.display());
    let all: Vec<Value> = serde_json::from_str(&files::read(file)?).with_context(none)?;
    let (memory, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| one["bench"] == "memory");
    let others: Vec<Record> =
        others.iter().map(earlier).collect::<Result<_, _>>().with_context(none)?;
    if !others.is_empty() {
        print_line!("{}", Form::TERMINAL.of(&Summary::of(&others), &[]));
    }
    let memory = memory.into_iter().map(serde_json::from_value::<memory::MemoryRecord>);
    let memory = memory.collect::<Result<Vec<_>, _>>().with_context(none)?;
    if !memory.is_empty() {
        print_text!("{}", memory::table(&memory));
    }
    Ok(true)
}

/// Converts a record from a version in which `http` and `mesh` were not yet runs of the suite.
fn earlier(one: &Value) -> serde_json::Result<Record> {
    let same = SAME.iter().filter(|name| !one[**name].is_null());
    let same: serde_json::Map<_, _> =
        same.map(|name| ((*name).to_owned(), one[*name].clone())).collect();
    let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let mesh = text("proxy");
    Ok(Record {
        scenario: format!("{}, {}", text("scenario"), text("pace")),
        proxies: u32::from(mesh != "none"),
        mesh,
        mesh_version: text("version"),
        ..serde_json::from_value(Value::Object(same))?
    })
}
