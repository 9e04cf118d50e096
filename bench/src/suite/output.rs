//! What the commands print alike.

use leno_suite::compare::{real_applications, within};
use leno_suite::record::Record;

/// Aligned columns: the first to the left, the others to the right.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |nth: usize| {
        rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|nth| width(nth).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (nth, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let width = *width;
            match nth {
                0 => line += &format!("{cell:<width$}"),
                _ => line += &format!("  {cell:>width$}"),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// What readers must know before they compare figures of a run, one line each.
pub(super) fn caveats(records: &[Record]) -> String {
    let differ = within(records).into_iter().map(|what| format!("NOT THE SAME: {what}\n"));
    let real = real_applications(records).into_iter().map(|what| format!("! {what}\n"));
    differ.chain(real).collect()
}

pub(super) fn say_scale(scale: f64) {
    eprintln!("rates are the published ones times {scale} (--scale)");
}
