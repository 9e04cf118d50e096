//! Reports, made from records alone: tables, CSV, Markdown, and one page of HTML with charts.

mod brief;
mod cell;
mod charts;
mod forms;
mod generators;
mod summary;
mod tables;

pub use brief::Brief;
pub use charts::{CaptionedChart, charts};
pub use forms::Form;
pub use summary::Summary;
pub use tables::csv;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::record::Record;

    /// Checks every form of a report except the page, for records that have all parts of a report.
    #[test]
    fn reports_are_those_of_the_golden_file() {
        let records: Vec<Record> =
            serde_saphyr::from_str(include_str!("../data/report.test.yaml")).unwrap();
        let (summary, prices) = (Summary::of(&records), crate::cost::prices(None).unwrap());
        let charts = charts(&summary, &records, &prices);
        let brief = Brief::of(&records, "docs/figures").unwrap();
        // The labels of a chart are on lines of their own.
        let labels = brief.light.lines().filter(|line| !line.starts_with('<'));
        let parts = [
            Form::TERMINAL.of(&summary, &[]),
            Form::MARKDOWN.of(&summary, &[]),
            csv(&records).unwrap(),
            brief.markdown.clone(),
            labels.collect::<Vec<_>>().join("\n"),
            charts.iter().map(|one| format!("{}: {}\n", one.name, one.caption)).collect(),
        ];
        golden::check("report.golden.txt", &parts.join("\n----\n"));
        assert_ne!(brief.light, brief.dark);
    }
}
