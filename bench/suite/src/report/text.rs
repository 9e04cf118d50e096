//! Tables for a terminal and as Markdown, and all figures as CSV.

use std::fmt::Write as _;

use super::generators::Agreement;
use super::summary::{Cell, Summary};
use crate::error::{Error, Result};
use crate::record::Record;

/// The headings of [`rows`].
const HEADINGS: [&str; 13] = [
    "MESH",
    "REQ/S",
    "ERRORS",
    "P50 MS",
    "P95 MS",
    "P99 MS",
    "P99.9 MS",
    "+P50",
    "+P99",
    "CPU US/REQ",
    "IDLE MB",
    "PEAK MB",
    "MARKS",
];

/// The table of one scenario, heading first; latencies in milliseconds, memory of one proxy.
#[must_use]
pub fn rows(cells: &[&Cell]) -> Vec<Vec<String>> {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(cells.iter().map(|cell| row(cell)));
    rows
}

fn row(cell: &Cell) -> Vec<String> {
    let added = |nth: usize| {
        cell.added_ms.map_or_else(|| "-".into(), |ms| format!("{:+.2}", ms[nth].value))
    };
    let proxies = |text: String| if cell.rss_mb[0] > 0.0 { text } else { "-".to_owned() };
    let [p50, p95, p99, p99_9] = cell.latency_ms;
    let cpu = format!("{:.0} + {:.0}", cell.cpu_us[0], cell.cpu_us[1]);
    vec![
        if cell.valid { cell.mesh.clone() } else { format!("{} (invalid)", cell.mesh) },
        format!("{:.0}", cell.requests_per_s),
        cell.errors.to_string(),
        format!("{p50:.2}"),
        format!("{p95:.2}"),
        format!("{p99:.2}"),
        format!("{p99_9:.2}"),
        added(0),
        added(1),
        proxies(cpu),
        proxies(format!("{:.1}", cell.rss_mb[0])),
        proxies(format!("{:.1}", cell.rss_mb[2])),
        if cell.marks.is_empty() { "-".into() } else { cell.marks.join(", ") },
    ]
}

/// The table of one scenario, heading first; columns without figures are left out.
#[must_use]
pub fn rows_of_other_figures(cells: &[&Cell]) -> Vec<Vec<String>> {
    let known = |figure: f64, text: String| if figure > 0.0 { text } else { "-".to_owned() };
    let columns: [(&str, OtherColumn); 8] = [
        ("CONNECTIONS", &|cell| {
            known(cell.beside.connections, format!("{:.0}", cell.beside.connections))
        }),
        ("PROGRAMS US/REQ", &|cell| {
            known(cell.beside.programs_us, format!("{:.2}", cell.beside.programs_us))
        }),
        ("SWITCHES/REQ", &|cell| {
            known(cell.beside.switches, format!("{:.2}", cell.beside.switches))
        }),
        ("START-UP MS", &|cell| {
            cell.start_up_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0}"))
        }),
        ("CONTROL MB", &|cell| {
            known(cell.beside.control_mb, format!("{:.1}", cell.beside.control_mb))
        }),
        ("NEIGHBOUR REQ/S", &|cell| {
            cell.beside
                .neighbour_requests_per_s
                .map_or_else(|| "-".into(), |rate| format!("{rate:.0}"))
        }),
        ("REVISIONS", &|cell| {
            known(cell.beside.revisions, format!("{:.0}", cell.beside.revisions))
        }),
        ("ARRIVED", &|cell| {
            cell.beside.arrived.map_or_else(|| "-".into(), |count| format!("{count:.0}"))
        }),
    ];
    let mut rows = vec![vec!["MESH".to_owned()]];
    rows.extend(cells.iter().map(|cell| vec![cell.mesh.clone()]));
    for (heading, value) in columns {
        let values: Vec<String> = cells.iter().map(|cell| value(cell)).collect();
        if values.iter().any(|value| value != "-") {
            let column = std::iter::once(heading.to_owned()).chain(values);
            rows.iter_mut().zip(column).for_each(|(row, value)| row.push(value));
        }
    }
    rows
}

/// Returns the text of a cell in a column.
type OtherColumn<'a> = &'a dyn Fn(&Cell) -> String;

/// The table, heading first; the ratio is the report's generator divided by the other.
#[must_use]
pub fn rows_of_generators(all: &[Agreement]) -> Vec<Vec<String>> {
    let headings = [
        "SCENARIO",
        "MESH",
        "GENERATOR",
        "REQ/S",
        "P50 MS",
        "P99 MS",
        "P50 RATIO",
        "WITHIN 10 %",
        "MARKS",
    ];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for one in all {
        let figure = |text: String| if one.rounds > 0 { text } else { "-".to_owned() };
        let ratio = one.p50_ratio.map_or_else(
            || "-".to_owned(),
            |ratio| format!("{:.3} ({:.3} to {:.3})", ratio.value, ratio.low, ratio.high),
        );
        let close = one.is_close().map_or("-", |close| if close { "yes" } else { "NO" });
        let said = one.marks.iter().copied().chain(one.apart.as_deref());
        let said = said.collect::<Vec<_>>().join(", ");
        let marks = if said.is_empty() { "-".to_owned() } else { said };
        rows.push(vec![
            one.title.clone(),
            one.mesh.clone(),
            one.generator.clone(),
            figure(format!("{:.0}", one.requests_per_s)),
            figure(format!("{:.2}", one.latency_ms[0])),
            figure(format!("{:.2}", one.latency_ms[1])),
            ratio,
            close.to_owned(),
            one.left_out.clone().unwrap_or(marks),
        ]);
    }
    rows
}

/// The report as Markdown.
#[must_use]
pub fn markdown(summary: &Summary) -> String {
    let mut text = format!("# leno bench\n\n{}\n", summary.machine);
    if !summary.caveats.is_empty() {
        text += "\n## Before any figure\n";
        for caveat in &summary.caveats {
            let _ = writeln!(text, "- {caveat}");
        }
    }
    for (title, cells) in summary.scenarios() {
        let _ = writeln!(text, "\n## {title}");
        text += &table(&rows(&cells));
        text += &table(&rows_of_other_figures(&cells));
    }
    if !summary.generators.is_empty() {
        text += "\n## Generators side by side\n";
        text += &table(&rows_of_generators(&summary.generators));
    }
    if !summary.left_out.is_empty() {
        text += "\n## Not measured\n";
        for (scenario, mesh, why) in &summary.left_out {
            let _ = writeln!(text, "- {scenario}, {mesh}: {why}");
        }
    }
    text += "\n## Versions\n";
    for (mesh, version) in &summary.versions {
        let _ = writeln!(text, "- {mesh}: {version}");
    }
    text
}

/// A Markdown table.
fn table(rows: &[Vec<String>]) -> String {
    let mut text = "\n".to_owned();
    for (nth, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if nth == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text
}

/// One line per record, with the names of the records' own fields.
///
/// # Errors
/// If a line cannot be written, which only happens when memory runs out.
pub fn csv(records: &[Record]) -> Result<String> {
    let failed = |error: csv::Error| Error::Refused(format!("cannot write CSV: {error}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS.map(|(name, _)| name)).map_err(failed)?;
    for record in records {
        writer.write_record(COLUMNS.map(|(_, value)| value(record))).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| Error::Refused(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn known(figure: Option<impl std::fmt::Display>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}

/// The name of a column, and the function that reads its value from a record.
type Column = (&'static str, fn(&Record) -> String);

const COLUMNS: [Column; 38] = [
    ("scenario", |r| r.scenario.clone()),
    ("step", |r| r.step.map_or_else(String::new, |step| step.to_string())),
    ("mesh", |r| r.mesh.clone()),
    ("round", |r| r.round.to_string()),
    ("cluster", |r| r.cluster.as_ref().map_or_else(String::new, |one| one.context.clone())),
    ("generator", |r| r.generator.clone()),
    ("capture", |r| r.capture.clone()),
    ("valid", |r| r.valid().to_string()),
    ("marks", |r| r.marks.iter().map(|m| m.kind.as_str()).collect::<Vec<_>>().join("; ")),
    ("left_out", |r| r.left_out.clone().unwrap_or_default()),
    ("scale", |r| r.scale.to_string()),
    ("requests", |r| r.requests.to_string()),
    ("errors", |r| r.errors.to_string()),
    ("requests_per_s", |r| r.requests_per_s.to_string()),
    ("latency_us.mean", |r| r.latency_us.mean.to_string()),
    ("latency_us.p50", |r| r.latency_us.p50.to_string()),
    ("latency_us.p90", |r| r.latency_us.p90.to_string()),
    ("latency_us.p99", |r| r.latency_us.p99.to_string()),
    ("latency_us.p99_9", |r| r.latency_us.p99_9.to_string()),
    ("latency_us.p99_99", |r| r.latency_us.p99_99.to_string()),
    ("latency_us.max", |r| r.latency_us.max.to_string()),
    ("cpu_user_us_per_request", |r| format!("{:.2}", r.cpu_user_us_per_request)),
    ("cpu_system_us_per_request", |r| format!("{:.2}", r.cpu_system_us_per_request)),
    ("cpu_ms.proxies", |r| format!("{:.1}", r.cpu_ms.proxies)),
    ("cpu_ms.application", |r| format!("{:.1}", r.cpu_ms.application)),
    ("cpu_ms.generator", |r| format!("{:.1}", r.cpu_ms.generator)),
    ("cpu_ms.control", |r| format!("{:.1}", r.cpu_ms.control)),
    ("cpu_ms.kernel_threads", |r| {
        r.cpu_ms.kernel_threads.map_or_else(String::new, |ms| format!("{ms:.1}"))
    }),
    ("rss_kib.idle", |r| r.rss_kib.idle.to_string()),
    ("rss_kib.load", |r| r.rss_kib.load.to_string()),
    ("rss_kib.peak", |r| r.rss_kib.peak.to_string()),
    ("kernel_programs.runs", |r| r.kernel_programs.runs.to_string()),
    ("kernel_programs.ms", |r| format!("{:.3}", r.kernel_programs.ms)),
    ("crossing_connections", |r| r.crossing_connections.to_string()),
    ("neighbour_requests_per_s", |r| known(r.neighbour_requests_per_s)),
    ("revisions", |r| r.revisions.to_string()),
    ("revisions_arrived", |r| known(r.revisions_arrived)),
    ("start_up_ms", |r| r.start_up_ms.map_or_else(String::new, |ms| format!("{ms:.1}"))),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::record;

    #[test]
    fn every_form_has_every_mesh() {
        let mut missing = record("envoy", 0, 0);
        missing.left_out = Some("missing, \"bring\" it".into());
        let records = [record("none", 0, 1000), record("leno", 0, 2500), missing];
        let text = markdown(&Summary::of(&records));
        assert!(text.contains("| leno | 100 | 0 | 1.00 |") && text.contains("+1.50"), "{text}");
        assert!(text.contains("envoy: missing"), "{text}");
        let lines = csv(&records).unwrap();
        assert_eq!(lines.lines().count(), 4);
        assert!(lines.contains("\"missing, \"\"bring\"\" it\""), "{lines}");
    }
}
