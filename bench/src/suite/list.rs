//! `leno bench list`.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::Result;
use clap::Args;
use leno_console::print;
use leno_suite::cluster::Mesh;
use leno_suite::generator::Generator;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::real_application::images;
use leno_suite::scenario::{self, Scenario};

/// Lists scenarios, meshes and load generators, and how to get those that are missing on this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leno bench list\n  leno bench list --application faces >images.yaml"
)]
pub(crate) struct List {
    /// Prints the file of images of this scenario's real application instead, to edit and pass with --application to
    /// `leno bench run` in a cluster
    #[arg(long, value_name = "SCENARIO")]
    application: Option<String>,
}

pub(super) fn run(args: &List) -> Result<bool> {
    if let Some(scenario) = &args.application {
        return print(images::printed(scenario)?).map(|()| true);
    }
    let scenarios = scenario::all()?;
    let mut text = "Scenarios\n".to_owned();
    for one in &scenarios {
        let real = format!("the real one: leno bench list --application {}", one.name);
        let real = one.is_an_application().then_some(&*real);
        text += &entry(&one.name, [&*one.about, &one.source].into_iter().chain(real));
    }
    text += "\nMeshes\n";
    for name in mesh::names() {
        let mesh = mesh::named(name, &Choices::default())?;
        let found = mesh.find().map(|found| found.version);
        text += &entry(name, [mesh.about(), &state(found)]);
        text.extend(cannot(&scenarios, |scenario| mesh.unable(scenario)));
    }
    text += "\nMeshes in a cluster (--context)\n";
    for mesh in Mesh::ALL {
        let found = mesh
            .find()
            .map(|tool| tool.map_or_else(String::new, |tool| tool.display().to_string()));
        text += &entry(mesh.name(), [mesh.about(), &state(found)]);
        text.extend(cannot(&scenarios, |scenario| mesh.unable(scenario)));
    }
    text += "\nGenerators\n";
    for generator in Generator::ALL {
        text += &entry(generator.name(), [&*state(generator.find().map(|()| String::new()))]);
    }
    print(&text).map(|()| true)
}

/// A name, with lines about it to its right.
fn entry<'l>(name: &str, lines: impl IntoIterator<Item = &'l str>) -> String {
    let mut text = format!("  {name:<20}");
    for (nth, line) in lines.into_iter().enumerate() {
        let indent = if nth == 0 { 0 } else { 22 };
        text += &format!("{:indent$}", "");
        text += line;
        text.push('\n');
    }
    text
}

/// The version or the path of a program, or how to get it.
fn state(found: Result<String, impl Display>) -> String {
    let text = found.unwrap_or_else(|missing| missing.to_string());
    if text.is_empty() { "-".to_owned() } else { text }
}

/// The scenarios that a mesh cannot carry, one line for each reason.
fn cannot<'a>(
    scenarios: &'a [Scenario],
    unable: impl Fn(&'a Scenario) -> Option<&'static str>,
) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for scenario in scenarios {
        if let Some(why) = unable(scenario) {
            found.entry(why).or_default().push(&scenario.name);
        }
    }
    let line = |(why, of): (&str, Vec<&str>)| format!("{:22}not {}: {why}\n", "", of.join(", "));
    found.into_iter().map(line).collect()
}
