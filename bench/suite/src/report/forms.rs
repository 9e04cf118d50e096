//! The forms of a report, each with a template: text for a terminal, Markdown, an HTML page that loads no script, font
//! or picture from elsewhere, and the short form for a README.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value, context};

use super::cell::Cell;
use super::charts::{CaptionedChart, of_latency};
use super::summary::Summary;
use super::tables::{rows, rows_of_generators, rows_of_other_figures};
use crate::mesh_names::NONE;
use crate::tabular::{aligned, markdown};

const STYLE: &str = include_str!("page.css");
/// The number of caveats that are visible at first; more of them would push the figures off the screen.
const MAX_CAVEATS: usize = 6;

/// The form of a report: the name of its template, and the template. The name decides whether values are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form(&'static str, &'static str);

impl Form {
    /// Tables for a terminal.
    pub const TERMINAL: Self = Self("report.txt", include_str!("report.txt.jinja"));
    /// Tables for a document.
    pub const MARKDOWN: Self = Self("report.md", include_str!("report.md.jinja"));
    /// A page with charts.
    pub const PAGE: Self = Self("report.html", include_str!("report.html"));
    /// The part that a README shows.
    pub(super) const BRIEF: Self = Self("brief.md", include_str!("brief.md.jinja"));

    /// The report in this form. Only the page has charts.
    pub fn of(self, summary: &Summary, charts: &[CaptionedChart]) -> String {
        let scenarios = summary.scenarios();
        let of_scenario = |(title, cells): &(String, Vec<&Cell>)| {
            let chart = charts.iter().find(|one| one.name == of_latency(title));
            context! {
                title,
                tables => [rows(cells), rows_of_other_figures(cells)],
                classes => std::iter::once("").chain(cells.iter().map(|cell| class(cell))).collect::<Vec<_>>(),
                chart => chart.map(of_chart),
            }
        };
        let side_by_side = charts.iter().filter(|one| !one.name.starts_with("latency-"));
        let generators =
            (!summary.generators.is_empty()).then(|| rows_of_generators(&summary.generators));
        self.render(context! {
            style => STYLE,
            machine => &summary.machine,
            caveats => &summary.caveats,
            left_out => &summary.left_out,
            versions => &summary.versions,
            max_caveats => MAX_CAVEATS,
            lead => scenarios.first().map(lead),
            scenarios => scenarios.iter().map(of_scenario).collect::<Vec<_>>(),
            generators,
            charts => side_by_side.map(of_chart).collect::<Vec<_>>(),
        })
    }

    pub(super) fn render(self, values: Value) -> String {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).keep_trailing_newline(true).build();
        environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
        environment.add_filter("aligned", |rows: Vec<Vec<String>>| aligned(&rows));
        environment.add_filter("markdown", |rows: Vec<Vec<String>>| markdown(&rows));
        let text = environment.render_named_str(self.0, self.1, values);
        text.expect("the templates are tested with every part")
    }
}

fn class(cell: &Cell) -> &'static str {
    match cell {
        cell if !cell.valid => "invalid",
        cell if cell.mesh == NONE => "baseline",
        _ => "",
    }
}

fn of_chart(chart: &CaptionedChart) -> Value {
    context! { svg => &chart.svg, caption => &chart.caption }
}

/// The most important figures of a scenario, which are shown large.
fn lead((title, cells): &(String, Vec<&Cell>)) -> Vec<Value> {
    let of_mesh = |cell: &&Cell| {
        let [_, added] = cell.added_ms?;
        Some(context! {
            title,
            mesh => &cell.mesh,
            added => format!("{:+.2} ms", added.value),
            ratio => cell.p99_ratio.map(|ratio| ratio.in_words(2)),
            cpu => format!("{:.0}", cell.cpu_us_in_all()),
            memory => cell.text("peak-memory"),
        })
    };
    cells.iter().filter_map(of_mesh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::charts::charts;
    use crate::report::summary::tests::record;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let mut records = vec![record("none", 0, 1000), record("leno", 0, 2500)];
        records[1].mesh_version = "<b>1</b>".into();
        let summary = Summary::of(&records);
        let prices = crate::cost::prices(None).unwrap();
        let html = Form::PAGE.of(&summary, &charts(&summary, &records, &prices));
        for outside in ["<script", "<link", "<img", "url(", "src="] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(html.matches("<figure>").count(), 5);
        assert!(html.contains("+1.50 ms") && html.contains("&lt;b&gt;1"), "{html}");
        assert!(html.contains("prefers-color-scheme: dark"), "for those who read light on dark");
        assert!(!html.contains("{{") && !html.contains("{%"), "{html}");
    }

    #[test]
    fn many_caveats_do_not_hide_the_figures() {
        let mut summary = Summary::of(&[record("none", 0, 1000)]);
        summary.caveats = vec!["one".into(); MAX_CAVEATS];
        assert!(!Form::PAGE.of(&summary, &[]).contains("<details"));
        summary.caveats.push("another".into());
        assert!(Form::PAGE.of(&summary, &[]).contains("7 things to know"));
    }
}
