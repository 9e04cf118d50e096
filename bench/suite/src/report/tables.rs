//! The tables of a report, and all figures as CSV.

use anyhow::{Result, anyhow};
use serde_json::Value;

use super::cell::{Cell, REFERENCES};
use super::generators::Agreement;
use crate::figures;
use crate::record::Record;
use crate::tabular::{self, Column};

/// The table of one scenario, with the heading first. Latencies are in milliseconds, and memory is that of one proxy.
pub(super) fn rows(cells: &[&Cell]) -> Vec<Vec<String>> {
    let heading = |figure| figures::named(figure).heading.as_str();
    let of = |figure: &'static str| move |cell: &Cell| cell.text(figure);
    let added = |nth: usize| {
        move |cell: &Cell| or_dash(cell.added_ms.map(|ms| format!("{:+.2}", ms[nth].value)))
    };
    let columns: [Column<'_, Cell>; 13] = [
        ("MESH", &|cell| match cell.valid {
            true => cell.mesh.clone(),
            false => format!("{} (invalid)", cell.mesh),
        }),
        (heading("rate"), &of("rate")),
        ("ERRORS", &|cell| cell.errors.to_string()),
        (heading("p50"), &of("p50")),
        (heading("p95"), &of("p95")),
        (heading("p99"), &of("p99")),
        (heading("p99.9"), &of("p99.9")),
        ("+P50", &added(0)),
        ("+P99", &added(1)),
        ("CPU US/REQ", &|cell| {
            let cpu = ["cpu-user", "cpu-system"].map(|figure| cell.text(figure));
            or_dash(cell.has_proxies().then(|| cpu.join(" + ")))
        }),
        (heading("idle-memory"), &of("idle-memory")),
        (heading("peak-memory"), &of("peak-memory")),
        ("MARKS", &|cell| or_dash((!cell.marks.is_empty()).then(|| cell.marks.join(", ")))),
    ];
    tabular::rows(cells.iter().copied(), &columns)
}

/// The second table of a scenario, with the heading first. Columns without figures are left out.
pub(super) fn rows_of_other_figures(cells: &[&Cell]) -> Vec<Vec<String>> {
    let column = |heading: &str, text: &dyn Fn(&Cell) -> String| {
        let texts = cells.iter().map(|cell| text(cell));
        std::iter::once(heading.to_owned()).chain(texts).collect::<Vec<_>>()
    };
    let ratios = REFERENCES.iter().enumerate().map(|(nth, name)| {
        let heading = format!("CPU / {}", name.to_uppercase());
        column(&heading, &|cell| or_dash(cell.cpu_ratios[nth].map(|ratio| ratio.in_words(2))))
    });
    let others = figures::second().map(|one| column(&one.heading, &|cell| cell.text(&one.name)));
    let has_figures = |column: &Vec<String>| column[1..].iter().any(|text| text != "-");
    let mut columns = vec![column("MESH", &|cell| cell.mesh.clone())];
    columns.extend(ratios.chain(others).filter(has_figures));
    (0..=cells.len()).map(|row| columns.iter().map(|all| all[row].clone()).collect()).collect()
}

/// The table of generators, with the heading first. The ratio is the report's generator divided by the other.
pub(super) fn rows_of_generators(all: &[Agreement]) -> Vec<Vec<String>> {
    let heading = |figure| figures::named(figure).heading.as_str();
    let of = |figure: &'static str| move |one: &Agreement| one.cell.text(figure);
    let columns: [Column<'_, Agreement>; 9] = [
        ("SCENARIO", &|one| one.cell.title()),
        ("MESH", &|one| one.cell.mesh.clone()),
        ("GENERATOR", &|one| one.generator.clone()),
        (heading("rate"), &of("rate")),
        (heading("p50"), &of("p50")),
        (heading("p99"), &of("p99")),
        ("P50 RATIO", &|one| or_dash(one.p50_ratio.map(|ratio| ratio.in_words(3)))),
        ("WITHIN 10 %", &|one| {
            or_dash(one.is_close().map(|close| if close { "yes" } else { "NO" }.to_owned()))
        }),
        ("MARKS", &|one| {
            let marks: Vec<&str> =
                one.cell.marks.iter().chain(&one.apart).map(String::as_str).collect();
            let marks = (!marks.is_empty()).then(|| marks.join(", "));
            or_dash(one.left_out.clone().or(marks))
        }),
    ];
    tabular::rows(all, &columns)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
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

/// The columns of the CSV. [`value`] calculates those that are not fields of a record.
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
        "marks" => {
            record.marks.iter().map(|mark| mark.kind.to_string()).collect::<Vec<_>>().join("; ")
        }
        path => match fields.pointer(&format!("/{}", path.replace('.', "/"))) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        },
    }
}
