//! Prints tables whose columns are as wide as their content.

/// The gap between two columns.
const GAP: &str = "  ";

/// A column: its heading and its alignment.
pub(crate) type Column = (&'static str, Alignment);

/// The side to which the cells of a column are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    Left,
    Right,
}

/// The lines of a table, with the headings in the first line. Each row has a cell for every column.
pub(crate) fn lines(columns: &[Column], rows: &[Vec<String>]) -> String {
    let width = |(nth, (heading, _)): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count());
        cells.chain([heading.len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    let headings: Vec<String> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let mut text = String::new();
    for row in [&headings].into_iter().chain(rows) {
        let cells =
            row.iter().zip(columns).zip(&widths).map(|((cell, (_, side)), width)| match side {
                Alignment::Left => format!("{cell:<width$}"),
                Alignment::Right => format!("{cell:>width$}"),
            });
        text += cells.collect::<Vec<_>>().join(GAP).trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["web", "1.0", ""], ["customer", "120.5", "late"]]
            .map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            lines(
                &[("NAME", Alignment::Left), ("RATE", Alignment::Right), ("WHY", Alignment::Left)],
                &rows
            ),
            "NAME       RATE  WHY\nweb         1.0\ncustomer  120.5  late\n"
        );
    }
}
