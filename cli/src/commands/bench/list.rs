//! `leno bench list`.

use anyhow::Result;
use clap::Args;
use leno_suite::generator::Generator;
use leno_suite::mesh::{self, Choices};
use leno_suite::scenario;

use super::{columns, print};

/// Lists scenarios, meshes and generators, and what is missing here
#[derive(Debug, Args)]
pub(super) struct List {}

pub(super) fn run() -> Result<bool> {
    let mut text = "Scenarios\n".to_owned();
    for scenario in scenario::all()? {
        let (name, about, source) = (scenario.name, scenario.about, scenario.source);
        text += &format!("  {name:<14}{about}\n{:16}{source}\n", "");
    }
    text += "\nMeshes\n";
    let mut rows = Vec::new();
    for (name, about) in mesh::KNOWN {
        let state = match mesh::named(name, &Choices::default())?.find() {
            Ok(found) => found.version,
            Err(missing) => missing.to_string(),
        };
        rows.push(format!(
            "  {name:<16}{about}\n{:18}{}\n",
            "",
            if state.is_empty() { "-" } else { &state }
        ));
    }
    text += &rows.concat();
    text += "\nGenerators\n";
    let rows: Vec<Vec<String>> = Generator::ALL
        .iter()
        .map(|generator| {
            let state =
                generator.find().map_or_else(|missing| missing.to_string(), |()| "-".into());
            vec![format!("  {generator:<10}"), state]
        })
        .collect();
    print(&(text + &columns(&rows))).map(|()| true)
}
