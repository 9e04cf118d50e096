//! Formats rows as text: aligned for a terminal, or as Markdown. The first row is the heading.

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table, TableStyle};

/// A column: its heading, and its text for an item.
pub type Column<'a, T> = (&'static str, &'a dyn Fn(&T) -> String);

/// The row of headings, and a row for each item.
pub fn rows<'i, T: 'i>(
    items: impl IntoIterator<Item = &'i T>,
    columns: &[Column<'_, T>],
) -> Vec<Vec<String>> {
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let row = |item: &T| columns.iter().map(|(_, text)| text(item)).collect();
    std::iter::once(headings).chain(items.into_iter().map(row)).collect()
}

/// Aligns the columns: the first to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let mut table = table(rows, NOTHING);
    for (nth, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if nth == 0 { 0 } else { 2 }, 0));
        if nth > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

/// A Markdown table, with an empty line before it.
pub fn markdown(rows: &[Vec<String>]) -> String {
    format!("\n{}\n", table(rows, ASCII_MARKDOWN))
}

fn table(rows: &[Vec<String>], style: TableStyle) -> Table {
    let mut table = Table::new();
    table.load_style(style);
    let mut rows = rows.iter();
    if let Some(heading) = rows.next() {
        table.set_header(heading);
    }
    table.add_rows(rows);
    table
}

/// A number in few characters: 1,200 as "1200", 1,200,000 as "1.2 M".
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (divisor, unit) = match size {
        _ if size >= 1e9 => (1e9, " G"),
        _ if size >= 1e6 => (1e6, " M"),
        _ if size >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let scaled = value / divisor;
    let digits = match scaled.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{scaled:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_each_other() {
        let rows = [["MESH", "MS"], ["none", "1.50"], ["a long name", "12.25"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "MESH            MS\nnone          1.50\na long name  12.25\n");
        let text = markdown(&rows);
        assert!(text.starts_with("\n| MESH ") && text.contains("|---"), "{text}");
    }
}
