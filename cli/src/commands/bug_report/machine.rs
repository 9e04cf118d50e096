//! Writes a report about a mesh of `leno up`: how it runs, its documents, and what its proxies report.
//!
//! Everything passes through the archive, which removes what looks like a secret. Values that are always private,
//! whatever they look like, are removed here.

use std::path::Path;

use anyhow::{Context as _, Result};
use leno_local::admin::Admin;
use leno_local::check::MachineHealth;
use leno_local::layout::Layout;
use leno_local::log::{LogEntry, LogReader};
use leno_local::netns::Netns;
use leno_local::status::{InstanceStatus, MeshStatus};
use leno_operate::Archive;
use serde::Serialize;
use serde_json::Value;

use super::super::block_on;

/// Most lines that are kept of each log; the newest are kept. Reports about clusters have the same limit.
const MAX_LINES: usize = 2_000;
/// The replacement of private values.
const REMOVED: &str = "(removed)";
/// The pages that each proxy is asked for, and the files that they are written to.
const PAGES: [(&str, &str); 3] =
    [("/ready", "ready.txt"), ("/config", "config.json"), ("/metrics", "metrics.txt")];

/// The summary of a report.
#[derive(Serialize)]
struct Summary<'a> {
    leno: &'static str,
    mesh: &'a str,
    instances: usize,
    proxies: usize,
    /// What could not be included, and the reason.
    missing: &'a [String],
}

/// A report that is being written.
struct Report {
    archive: Archive,
    missing: Vec<String>,
}

/// Writes a report about a running mesh; returns what could not be gathered.
pub(super) fn report(name: &str, file: &Path, proxies: usize) -> Result<Vec<String>> {
    let layout = Layout::new(name)?;
    let status = MeshStatus::read(&layout)?;
    let cannot_write = || format!("cannot write {}", file.display());
    let archive = Archive::create(file).with_context(cannot_write)?;
    let mut report = Report { archive, missing: Vec::new() };
    report.gather(&layout, &status, proxies).with_context(cannot_write)?;
    report.archive.finish().with_context(cannot_write)?;
    Ok(report.missing)
}

impl Report {
    /// Adds everything to the report. Fails only if the archive cannot be written; if anything else fails, it is
    /// missing from the archive.
    fn gather(&mut self, layout: &Layout, status: &MeshStatus, proxies: usize) -> Result<()> {
        match block_on(async { Ok(MachineHealth::run(layout).await?) }) {
            Ok(check) => self.found("check.json", &check)?,
            Err(error) => self.lacks("check.json", &error),
        }
        self.found("mesh.json", &without_values(serde_json::to_value(status)?))?;
        let state = layout.state().join("state.yaml");
        if state.exists() {
            match leno_resources::load(&[state]) {
                Ok(documents) => self.objects(&documents)?,
                Err(problems) => {
                    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
                    self.missing.push(format!("objects.json: {}", text.join("; ")));
                }
            }
        }
        self.logs(layout)?;
        // Instances that are not ready come first, because they are probably the reason for the report.
        let mut meshed: Vec<&InstanceStatus> =
            status.instances.iter().filter(|one| one.meshed).collect();
        meshed.sort_by_key(|one| one.ready);
        for instance in meshed.iter().take(proxies) {
            self.states(instance)?;
        }
        let missing = self.missing.clone();
        let summary = Summary {
            leno: env!("CARGO_PKG_VERSION"),
            mesh: &status.mesh,
            instances: status.instances.len(),
            proxies: meshed.len(),
            missing: &missing,
        };
        self.found("report.json", &summary)
    }

    fn objects(&mut self, documents: &leno_resources::Documents) -> Result<()> {
        let mut objects = Vec::new();
        for located in &documents.objects {
            let yaml = leno_resources::to_yaml(&located.value);
            objects.push(without_commands(serde_saphyr::from_str(&yaml)?));
        }
        let has_room = self.archive.objects("objects.json", objects)?;
        self.count("objects.json", has_room);
        Ok(())
    }

    /// Adds the logs of `leno up`, of the control plane and of the proxies. The logs of applications belong to the
    /// user and are left out.
    fn logs(&mut self, layout: &Layout) -> Result<()> {
        let entries = match LogReader::new(layout.log()).more() {
            Ok(entries) => entries,
            Err(error) => {
                self.lacks("logs", &error.into());
                return Ok(());
            }
        };
        let is_own = |entry: &&LogEntry| {
            matches!(&*entry.name, "leno" | "controller") || entry.name.ends_with(" proxy")
        };
        let own: Vec<&LogEntry> = entries.iter().filter(is_own).collect();
        let mut names: Vec<&str> = own.iter().map(|entry| &*entry.name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let lines: Vec<String> = own
                .iter()
                .filter(|entry| entry.name == name)
                .map(|entry| format!("{} {}\n", entry.at, String::from_utf8_lossy(&entry.text)))
                .collect();
            let newest = lines.len().saturating_sub(MAX_LINES);
            let file = format!("logs/{}.log", name.replace(['/', ' '], "-"));
            self.text(&file, &lines[newest..].concat())?;
        }
        Ok(())
    }

    /// Adds what a proxy reports about itself.
    fn states(&mut self, instance: &InstanceStatus) -> Result<()> {
        let folder = format!("states/{}-{}", instance.namespace, instance.name);
        let netns = match Netns::open(&instance.surroundings.netns) {
            Ok(netns) => netns,
            Err(error) => {
                self.lacks(&folder, &error.into());
                return Ok(());
            }
        };
        let admin = Admin::within(&netns);
        for (page, file) in PAGES {
            let file = format!("{folder}/{file}");
            match block_on(async { Ok(admin.get(page).await?) }) {
                Ok(reply) => self.text(&file, &reply.body)?,
                Err(error) => self.lacks(&file, &error),
            }
        }
        Ok(())
    }

    fn found(&mut self, file: &str, value: &impl Serialize) -> Result<()> {
        let has_room = self.archive.found(file, value)?;
        self.count(file, has_room);
        Ok(())
    }

    fn text(&mut self, file: &str, text: &str) -> Result<()> {
        let has_room = self.archive.text(file, text)?;
        self.count(file, has_room);
        Ok(())
    }

    fn count(&mut self, file: &str, has_room: bool) {
        if !has_room {
            self.missing.push(format!(
                "{file}: left out, because the archive has reached its \
                 largest size"
            ));
        }
    }

    fn lacks(&mut self, what: &str, error: &anyhow::Error) {
        self.missing.push(format!("{what}: {error:#}"));
    }
}

/// The status without values of environment variables and without the last output lines of applications.
fn without_values(mut status: Value) -> Value {
    let instances = status.get_mut("instances").and_then(Value::as_array_mut);
    for instance in instances.into_iter().flatten() {
        remove_values(instance.pointer_mut("/surroundings/environment"));
        if let Some(line) = instance.pointer_mut("/trouble/last_line") {
            *line = REMOVED.into();
        }
    }
    status
}

/// An object without values of environment variables, commands, and the data of ConfigMaps.
fn without_commands(mut object: Value) -> Value {
    remove_values(object.pointer_mut("/spec/env"));
    remove_values(object.get_mut("data"));
    for path in ["/spec/command", "/spec/init"] {
        if let Some(command) = object.pointer_mut(path) {
            *command = REMOVED.into();
        }
    }
    object
}

fn remove_values(fields: Option<&mut Value>) {
    let fields = fields.and_then(Value::as_object_mut);
    for (_, value) in fields.into_iter().flatten() {
        *value = REMOVED.into();
    }
}
