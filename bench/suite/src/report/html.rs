//! A self-contained page: it loads no script, font or picture from elsewhere.

use minijinja::{Environment, UndefinedBehavior, Value, context};

use super::charts::{Figure, of_latency};
use super::summary::{Cell, Summary};
use super::text::{rows, rows_of_generators, rows_of_other_figures};
use crate::mesh_names::NONE;

/// The page, and its style.
const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// The number of caveats that are visible at first; more would push the figures off the screen.
const MAX_CAVEATS: usize = 6;

/// The report as a page.
pub fn page(summary: &Summary, figures: &[Figure]) -> String {
    let scenarios = summary.scenarios();
    let of_scenario = |(title, cells): &(String, Vec<&Cell>)| {
        let figure = figures.iter().find(|figure| figure.name == of_latency(title));
        context! {
            title,
            tables => [rows(cells), rows_of_other_figures(cells)],
            classes => std::iter::once("").chain(cells.iter().map(|cell| class(cell))).collect::<Vec<_>>(),
            figure => figure.map(of_figure),
        }
    };
    let side_by_side = figures.iter().filter(|one| !one.name.starts_with("latency-"));
    let generators =
        (!summary.generators.is_empty()).then(|| rows_of_generators(&summary.generators));
    let values = context! {
        style => STYLE,
        summary => context! {
            machine => &summary.machine,
            caveats => &summary.caveats,
            left_out => &summary.left_out,
            versions => &summary.versions,
        },
        max_caveats => MAX_CAVEATS,
        lead => scenarios.first().map(lead),
        scenarios => scenarios.iter().map(of_scenario).collect::<Vec<_>>(),
        generators,
        figures => side_by_side.map(of_figure).collect::<Vec<_>>(),
    };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    // The ending of its name has values escaped.
    let text = environment.render_named_str("page.html", PAGE, values);
    text.expect("the template is tested with every part") + "\n"
}

/// The class of a row.
fn class(cell: &Cell) -> &'static str {
    match cell {
        cell if !cell.valid => "invalid",
        cell if cell.mesh == NONE => "baseline",
        _ => "",
    }
}

fn of_figure(figure: &Figure) -> Value {
    context! { svg => &figure.svg, caption => &figure.caption }
}

/// The result of a scenario as a few large figures.
fn lead((title, cells): &(String, Vec<&Cell>)) -> Vec<Value> {
    let of_mesh = |cell: &&Cell| {
        let [_, added] = cell.added_ms?;
        let ratio =
            cell.p99_ratio.map(|ratio| format!(", {} times the baseline", ratio.in_words(2)));
        Some(context! {
            title,
            mesh => &cell.mesh,
            added => format!("{:+.2} ms", added.value),
            ratio => ratio.unwrap_or_default(),
            used => format!("{:.0} us of CPU a request, {:.1} MB a proxy", cell.cpu_us_in_all(), cell.rss_mb[2]),
        })
    };
    cells.iter().filter_map(of_mesh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::charts::figures;
    use crate::report::summary::tests::record;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let mut records = vec![record("none", 0, 1000), record("leno", 0, 2500)];
        records[1].mesh_version = "<b>1</b>".into();
        let summary = Summary::of(&records);
        let prices = crate::cost::prices(None).unwrap();
        let html = page(&summary, &figures(&summary, &records, &prices));
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
        assert!(!page(&summary, &[]).contains("<details"));
        summary.caveats.push("another".into());
        assert!(page(&summary, &[]).contains("7 things to know"));
    }
}
