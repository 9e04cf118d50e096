//! `leno bench list`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use leno_console::print;
use leno_suite::cluster::Mesh;
use leno_suite::generator::Generator;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::real_application::images;
use leno_suite::scenario;

use leno_suite::tabular::aligned;

/// Lists scenarios, meshes and generators, and what is missing here
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leno bench list\n  leno bench list --application faces >images.yaml"
)]
pub(crate) struct List {
    /// Prints the file of images for a scenario's real application instead, for you to edit and
    /// pass to `leno bench run` with --application in a cluster
    #[arg(long, value_name = "SCENARIO")]
    application: Option<String>,
}

pub(super) fn run(args: &List) -> Result<bool> {
    if let Some(scenario) = &args.application {
        return print(images::printed(scenario)?).map(|()| true);
    }
    let mut text = "Scenarios\n".to_owned();
    for scenario in scenario::all()? {
        let real = scenario.is_an_application();
        let (name, about, source) = (scenario.name, scenario.about, scenario.source);
        text += &format!("  {name:<20}{about}\n{:22}{source}\n", "");
        if real {
            text += &format!("{:22}the real one: leno bench list --application {name}\n", "");
        }
    }
    text += "\nMeshes\n";
    let mut rows = Vec::new();
    let scenarios = scenario::all()?;
    for name in mesh::names() {
        let mesh = mesh::named(name, &Choices::default())?;
        let state = match mesh.find() {
            Ok(found) => found.version,
            Err(missing) => missing.to_string(),
        };
        rows.push(format!(
            "  {name:<16}{}\n{:18}{}\n",
            mesh.about(),
            "",
            if state.is_empty() { "-" } else { &state }
        ));
        rows.extend(cannot(&scenarios, |scenario| mesh.unable(scenario)));
    }
    text += &rows.concat();
    text += &in_cluster(&scenarios);
    text += "\nGenerators\n";
    let rows: Vec<Vec<String>> = Generator::ALL
        .iter()
        .map(|generator| {
            let state =
                generator.find().map_or_else(|missing| missing.to_string(), |()| "-".into());
            vec![format!("  {generator:<10}"), state]
        })
        .collect();
    print(&(text + &aligned(&rows))).map(|()| true)
}

/// The scenarios that a mesh cannot carry, one line for each reason.
fn cannot<'a>(
    scenarios: &'a [scenario::Scenario],
    unable: impl Fn(&'a scenario::Scenario) -> Option<&'static str>,
) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for scenario in scenarios {
        if let Some(why) = unable(scenario) {
            found.entry(why).or_default().push(&scenario.name);
        }
    }
    let line = |(why, of): (&str, Vec<&str>)| format!("{:18}not {}: {why}\n", "", of.join(", "));
    found.into_iter().map(line).collect()
}

/// The meshes of clusters.
fn in_cluster(scenarios: &[scenario::Scenario]) -> String {
    let mut text = "\nMeshes in a cluster (--context)\n".to_owned();
    for mesh in Mesh::ALL {
        let state = match mesh.find() {
            Ok(Some(tool)) => tool.display().to_string(),
            Ok(None) => "-".to_owned(),
            Err(missing) => missing.to_string(),
        };
        text += &format!("  {:<16}{}\n{:18}{state}\n", mesh.name(), mesh.about(), "");
        text.extend(cannot(scenarios, |scenario| mesh.unable(scenario)));
    }
    text
}
