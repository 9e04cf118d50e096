//! Tables for a terminal and as Markdown, and all figures as CSV.

use std::fmt::Write as _;

use serde_json::Value;

use super::generators::Agreement;
use super::summary::{Cell, Summary};
use crate::error::{Error, Result};
use crate::record::Record;
use crate::statistics::Interval;
use crate::tabular::markdown as table;

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
    let ratio = |cell: &Cell, nth: usize| {
        let text =
            |ratio: Interval| format!("{:.2} ({:.2} to {:.2})", ratio.value, ratio.low, ratio.high);
        cell.cpu_ratios[nth].map_or_else(|| "-".into(), text)
    };
    let columns: [(&str, OtherColumn); 11] = [
        ("CPU / BEFORE", &|cell| ratio(cell, 0)),
        ("CPU / HAPROXY", &|cell| ratio(cell, 1)),
        ("CPU / ENVOY", &|cell| ratio(cell, 2)),
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

/// One line per record, with the names of the records' own fields.
///
/// # Errors
/// If a line cannot be written, which only happens when memory runs out.
pub fn csv(records: &[Record]) -> Result<String> {
    let failed = |error: csv::Error| Error::Refused(format!("cannot write CSV: {error}"));
    let columns: Vec<&str> = COLUMNS.split_whitespace().collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&columns).map_err(failed)?;
    for record in records {
        let fields = serde_json::to_value(record).expect("a record has only text keys");
        let line = columns.iter().map(|column| value(record, &fields, column));
        writer.write_record(line).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| Error::Refused(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The columns of the CSV. Those that are no field of a record are in [`value`].
const COLUMNS: &str = "scenario step mesh round cluster generator capture valid marks left_out scale \
    requests errors requests_per_s latency_us.mean latency_us.p50 latency_us.p90 latency_us.p99 \
    latency_us.p99_9 latency_us.p99_99 latency_us.max cpu_user_us_per_request cpu_system_us_per_request \
    cpu_ms.proxies cpu_ms.application cpu_ms.generator cpu_ms.control cpu_ms.kernel_threads \
    rss_kib.idle rss_kib.load rss_kib.peak kernel_programs.runs kernel_programs.ms crossing_connections \
    neighbour_requests_per_s revisions revisions_arrived start_up_ms";

fn value(record: &Record, fields: &Value, column: &str) -> String {
    match column {
        "cluster" => record.cluster.as_ref().map(|one| one.context.clone()).unwrap_or_default(),
        "valid" => record.valid().to_string(),
        "marks" => record.marks.iter().map(|m| m.kind.as_str()).collect::<Vec<_>>().join("; "),
        path => match fields.pointer(&format!("/{}", path.replace('.', "/"))) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
    }
}

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
        assert!(
            text.contains("| leno | 100   | 0      | 1.00   |") && text.contains("+1.50"),
            "{text}"
        );
        assert!(text.contains("envoy: missing"), "{text}");
        let lines = csv(&records).unwrap();
        assert_eq!(lines.lines().count(), 4);
        assert!(lines.contains("\"missing, \"\"bring\"\" it\""), "{lines}");
    }
}
