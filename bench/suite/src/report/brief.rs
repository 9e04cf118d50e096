//! The short report of a run for a README: a chart of one scenario, for light and for dark pages, and a small table
//! with the command that measured it.

use anyhow::{Result, bail, ensure};
use minijinja::context;

use super::cell::Cell;
use super::charts::{added_p99, bars, cpu_of_request, meshes, peak_memory};
use super::forms::Form;
use super::summary::Summary;
use crate::chart::{Bars, dark};
use crate::mesh_names::CLUSTER;
use crate::record::Record;
use crate::tabular::{self, Column};

/// The files of a brief report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brief {
    /// The chart for light pages, as SVG.
    pub light: String,
    /// The same chart for dark pages.
    pub dark: String,
    /// The Markdown text with both charts and the table. It names the folder of the charts.
    pub markdown: String,
}

impl Brief {
    /// The names of the files of both charts.
    pub const CHARTS: [&'static str; 2] = ["overhead-light.svg", "overhead-dark.svg"];

    /// The brief report of a run of one scenario. `folder` is the path by which the page names the charts.
    ///
    /// # Errors
    /// If the run has several scenarios, or no mesh has valid figures beside the baseline.
    pub fn of(records: &[Record], folder: &str) -> Result<Self> {
        let summary = Summary::of(records);
        let scenarios = summary.scenarios();
        let [(title, cells)] = &scenarios[..] else {
            let names: Vec<&str> = scenarios.iter().map(|(title, _)| title.as_str()).collect();
            bail!("a brief report is of one scenario, and the run has: {}", names.join(", "));
        };
        let shown: Vec<&Cell> =
            cells.iter().copied().filter(|cell| cell.added_ms.is_some()).collect();
        ensure!(
            !shown.is_empty(),
            "no mesh has valid figures beside those of no mesh: `leno bench report` says why"
        );
        let light = chart(title, &shown, &meshes(&summary));
        let invalid = cells.iter().filter(|cell| !cell.valid);
        let invalid =
            invalid.map(|cell| format!("{} is not shown: {}", cell.mesh, cell.marks.join(", ")));
        let left_out =
            summary.left_out.iter().map(|(_, mesh, why)| format!("{mesh} is not shown: {why}"));
        let caveats = summary.caveats.iter().cloned().chain(invalid).chain(left_out);
        let markdown = Form::BRIEF.render(context! {
            title,
            folder,
            light => Self::CHARTS[0],
            dark => Self::CHARTS[1],
            rows => rows(&shown),
            command => command(records),
            machine => &summary.machine,
            versions => &summary.versions,
            caveats => caveats.collect::<Vec<_>>(),
        });
        Ok(Self { dark: dark(&light), light, markdown })
    }
}

fn chart(title: &str, shown: &[&Cell], meshes: &[String]) -> String {
    let group = |name: &str, unit, figure| {
        let name = name.to_owned();
        bars((shown.iter().copied(), meshes), unit, move |_| name.clone(), figure)
    };
    let groups = [
        group("latency added at p99", "ms", added_p99 as fn(&Cell) -> _),
        group("CPU of all proxies for a request", "us", cpu_of_request),
        group("memory of one proxy", "MB", peak_memory),
    ];
    Bars { title: format!("{title}: what each mesh costs"), bars: groups.concat() }.svg()
}

fn rows(shown: &[&Cell]) -> Vec<Vec<String>> {
    let columns: [Column<'_, Cell>; 4] = [
        ("mesh", &|cell| cell.mesh.clone()),
        ("added at p99, ms", &|cell| {
            cell.added_ms.map_or_else(String::new, |[_, p99]| p99.in_words(2))
        }),
        ("CPU for a request, us", &|cell| format!("{:.0}", cell.cpu_us_in_all())),
        ("memory of a proxy, MB", &|cell| cell.text("peak-memory")),
    ];
    tabular::rows(shown.iter().copied(), &columns)
}

fn command(records: &[Record]) -> String {
    let mut names: Vec<&str> = records.iter().map(|record| record.mesh.as_str()).collect();
    let place = |name: &str| CLUSTER.iter().position(|known| *known == name);
    names.sort_by_key(|name| (place(name).unwrap_or(CLUSTER.len()), *name));
    names.dedup();
    let rounds = records.iter().map(|record| record.round + 1).max().unwrap_or(1);
    let measured = records.iter().find(|record| record.left_out.is_none());
    let Record { scenario, duration_s, scale, cluster, .. } = measured.cloned().unwrap_or_default();
    let place = if cluster.is_some() { " --context NAME --image IMAGE" } else { "" };
    format!(
        "leno bench run {scenario}{place} --mesh {} --rounds {rounds} --duration {duration_s:.0}s --scale {scale}",
        names.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::record;

    #[test]
    fn a_run_without_a_mesh_or_with_several_scenarios_has_no_brief_report() {
        let mut records = vec![record("none", 0, 1000)];
        let none = Brief::of(&records, "x").unwrap_err().to_string();
        assert!(none.contains("no mesh has valid figures"), "{none}");
        records.push(Record { scenario: "push".into(), ..record("none", 0, 1) });
        let several = Brief::of(&records, "x").unwrap_err().to_string();
        assert!(several.contains("http-1k, push"), "{several}");
    }
}
