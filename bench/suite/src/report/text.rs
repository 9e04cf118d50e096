//! Tables for a terminal and as Markdown, and all figures as CSV.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};

use serde_json::Value;

use super::generators::Agreement;
use super::other_figures::FIGURES;
use super::summary::{Cell, REFERENCES, Summary};
use crate::record::Record;
use crate::tabular::{self, Column, markdown as table};

/// The table of one scenario, heading first; latencies in milliseconds, memory of one proxy.
pub fn rows(cells: &[&Cell]) -> Vec<Vec<String>> {
    let ms = |nth: usize| move |cell: &Cell| format!("{:.2}", cell.latency_ms[nth]);
    let added = |nth: usize| {
        move |cell: &Cell| or_dash(cell.added_ms.map(|ms| format!("{:+.2}", ms[nth].value)))
    };
    let of_proxies = |cell: &Cell, text: String| or_dash((cell.rss_mb[0] > 0.0).then_some(text));
    let columns: [Column<'_, Cell>; 13] = [
        ("MESH", &|cell| match cell.valid {
            true => cell.mesh.clone(),
            false => format!("{} (invalid)", cell.mesh),
        }),
        ("REQ/S", &|cell| format!("{:.0}", cell.requests_per_s)),
        ("ERRORS", &|cell| cell.errors.to_string()),
        ("P50 MS", &ms(0)),
        ("P95 MS", &ms(1)),
        ("P99 MS", &ms(2)),
        ("P99.9 MS", &ms(3)),
        ("+P50", &added(0)),
        ("+P99", &added(1)),
        ("CPU US/REQ", &|cell| {
            of_proxies(cell, format!("{:.0} + {:.0}", cell.cpu_us[0], cell.cpu_us[1]))
        }),
        ("IDLE MB", &|cell| of_proxies(cell, format!("{:.1}", cell.rss_mb[0]))),
        ("PEAK MB", &|cell| of_proxies(cell, format!("{:.1}", cell.rss_mb[2]))),
        ("MARKS", &|cell| or_dash((!cell.marks.is_empty()).then(|| cell.marks.join(", ")))),
    ];
    tabular::rows(cells.iter().copied(), &columns)
}

/// The table of one scenario, heading first; columns without figures are left out.
pub fn rows_of_other_figures(cells: &[&Cell]) -> Vec<Vec<String>> {
    let column = |heading: String, text: &dyn Fn(&Cell) -> Option<String>| {
        let texts = cells.iter().map(|cell| or_dash(text(cell)));
        std::iter::once(heading).chain(texts).collect::<Vec<_>>()
    };
    let ratios = REFERENCES.iter().enumerate().map(|(nth, name)| {
        let heading = format!("CPU / {}", name.to_uppercase());
        column(heading, &|cell| Some(cell.cpu_ratios[nth]?.in_words(2)))
    });
    let others = FIGURES.iter().enumerate().map(|(nth, (heading, digits, _))| {
        column((*heading).to_owned(), &|cell| Some(format!("{:.digits$}", cell.others[nth]?)))
    });
    let meshes = column("MESH".to_owned(), &|cell| Some(cell.mesh.clone()));
    let has_figures = |column: &Vec<String>| column[1..].iter().any(|text| text != "-");
    let columns = std::iter::once(meshes).chain(ratios.chain(others).filter(has_figures));
    let columns: Vec<Vec<String>> = columns.collect();
    (0..=cells.len()).map(|row| columns.iter().map(|all| all[row].clone()).collect()).collect()
}

/// The table, heading first; the ratio is the report's generator divided by the other.
pub fn rows_of_generators(all: &[Agreement]) -> Vec<Vec<String>> {
    let figure = |one: &Agreement, text: String| or_dash((one.rounds > 0).then_some(text));
    let columns: [Column<'_, Agreement>; 9] = [
        ("SCENARIO", &|one| one.title.clone()),
        ("MESH", &|one| one.mesh.clone()),
        ("GENERATOR", &|one| one.generator.clone()),
        ("REQ/S", &|one| figure(one, format!("{:.0}", one.requests_per_s))),
        ("P50 MS", &|one| figure(one, format!("{:.2}", one.latency_ms[0]))),
        ("P99 MS", &|one| figure(one, format!("{:.2}", one.latency_ms[1]))),
        ("P50 RATIO", &|one| or_dash(one.p50_ratio.map(|ratio| ratio.in_words(3)))),
        ("WITHIN 10 %", &|one| {
            or_dash(one.is_close().map(|close| if close { "yes" } else { "NO" }.to_owned()))
        }),
        ("MARKS", &|one| {
            let marks: Vec<&str> = one.marks.iter().copied().chain(one.apart.as_deref()).collect();
            let marks = (!marks.is_empty()).then(|| marks.join(", "));
            or_dash(one.left_out.clone().or(marks))
        }),
    ];
    tabular::rows(all, &columns)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// The report as Markdown.
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
pub fn csv(records: &[Record]) -> Result<String> {
    let failed = |error: csv::Error| anyhow!("cannot write CSV: {error}");
    let columns: Vec<&str> = COLUMNS.split_whitespace().collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&columns).map_err(failed)?;
    for record in records {
        let fields = serde_json::to_value(record).expect("a record has only text keys");
        let line = columns.iter().map(|column| value(record, &fields, column));
        writer.write_record(line).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| anyhow!("{error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The columns of the CSV. Those that are no field of a record are in [`value`].
const COLUMNS: &str = "scenario step mesh round cluster generator capture valid marks left_out scale \
    requests errors requests_per_s latency_us.mean latency_us.p50 latency_us.p90 latency_us.p99 \
    latency_us.p99_9 latency_us.p99_99 latency_us.max cpu_user_us_per_request cpu_system_us_per_request \
    cpu_ms.proxies cpu_ms.application cpu_ms.generator cpu_ms.control cpu_ms.kernel_threads \
    rss_kib.idle rss_kib.load rss_kib.peak kernel_programs.runs kernel_programs.ms crossing_connections \
    neighbour_requests_per_s alone_latency_us.p99 websockets.cut websockets.errors websockets.longest_us revisions \
    revisions_arrived start_up_ms idle_memory.proxies.private_kib idle_memory.proxies.pss_kib \
    idle_memory.agent.private_kib";

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
