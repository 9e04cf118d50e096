//! A self-contained page: it loads no script, font or picture from elsewhere.

use std::fmt::Write as _;

use super::charts::{Figure, of_latency};
use super::summary::{Cell, Summary};
use super::text::{rows, rows_of_generators, rows_of_other_figures};
use crate::chart::escape;
use crate::mesh_names::NONE;

/// The page's style.
const STYLE: &str = include_str!("page.css");

/// The number of caveats that are visible at first; more would push the figures off the screen.
const MAX_CAVEATS: usize = 6;

/// The report as a page.
#[must_use]
pub fn page(summary: &Summary, figures: &[Figure]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>leno bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>What the mesh costs</h1>\n<p class=\"where\">Measured by leno bench on {}</p>\n",
        escape(&summary.machine)
    );
    text += &lead(summary);
    text += &caveats(summary);
    for (title, cells) in summary.scenarios() {
        let _ = writeln!(text, "<h2>{}</h2>", escape(&title));
        text += &table(&cells, &rows(&cells));
        text += &table(&cells, &rows_of_other_figures(&cells));
        let own = figures.iter().find(|figure| figure.name == of_latency(&title));
        text += &own.map(figure).unwrap_or_default();
    }
    if !summary.generators.is_empty() {
        text += "<h2>Generators side by side</h2>\n";
        text += &table(&[], &rows_of_generators(&summary.generators));
    }
    text += "<h2>Overhead, side by side</h2>\n";
    for one in figures.iter().filter(|one| !one.name.starts_with("latency-")) {
        text += &figure(one);
    }
    text += &left_out(summary);
    text += &footer(summary);
    text + "</body>\n</html>\n"
}

/// The result of the first scenario as a few large figures.
fn lead(summary: &Summary) -> String {
    let Some((title, cells)) = summary.scenarios().into_iter().next() else { return String::new() };
    let mut text = "<div class=\"lead\">\n".to_owned();
    for cell in cells.iter().filter(|cell| cell.mesh != NONE) {
        let Some([_, added]) = cell.added_ms else { continue };
        let p99 = added.value;
        let interval = cell.p99_ratio.map_or_else(String::new, |ratio| {
            format!(
                ", {:.2} times the baseline ({:.2} to {:.2})",
                ratio.value, ratio.low, ratio.high
            )
        });
        let _ = writeln!(
            text,
            "<div><span>{} &middot; {}</span><b>{p99:+.2} ms</b><span>at p99{interval}; {:.0} us of \
             CPU a request, {:.1} MB a proxy</span></div>",
            escape(&cell.mesh),
            escape(&title),
            cell.cpu_us_in_all(),
            cell.rss_mb[2],
        );
    }
    text + "</div>\n"
}

fn caveats(summary: &Summary) -> String {
    if summary.caveats.is_empty() {
        return String::new();
    }
    let items: String =
        summary.caveats.iter().map(|caveat| format!("<li>{}</li>\n", escape(caveat))).collect();
    let count = summary.caveats.len();
    if count <= MAX_CAVEATS {
        return format!(
            "<div class=\"caveats\"><b>Before any figure</b>\n<ul>\n{items}</ul></div>\n"
        );
    }
    format!(
        "<details class=\"caveats\"><summary>Before any figure: {count} things to know</summary>\n\
         <ul>\n{items}</ul></details>\n"
    )
}

fn table(cells: &[&Cell], rows: &[Vec<String>]) -> String {
    let mut text = "<div class=\"table\"><table>\n".to_owned();
    for (nth, row) in rows.iter().enumerate() {
        let class = match nth.checked_sub(1).and_then(|nth| cells.get(nth)) {
            Some(cell) if !cell.valid => " class=\"invalid\"",
            Some(cell) if cell.mesh == NONE => " class=\"baseline\"",
            _ => "",
        };
        let tag = if nth == 0 { "th" } else { "td" };
        let mut line = String::new();
        for (heading, cell) in rows[0].iter().zip(row) {
            let words = if heading == "MARKS" { " class=\"words\"" } else { "" };
            let _ = write!(line, "<{tag}{words}>{}</{tag}>", escape(cell));
        }
        let _ = writeln!(text, "<tr{class}>{line}</tr>");
    }
    text + "</table></div>\n"
}

fn figure(figure: &Figure) -> String {
    let caption = escape(&figure.caption);
    format!("<figure>\n{}<figcaption>{caption}</figcaption>\n</figure>\n", figure.svg)
}

fn left_out(summary: &Summary) -> String {
    if summary.left_out.is_empty() {
        return String::new();
    }
    let items = summary.left_out.iter().map(|(scenario, mesh, why)| {
        format!("<li>{}, {}: {}</li>\n", escape(scenario), escape(mesh), escape(why))
    });
    format!("<h2>Not measured</h2>\n<ul>\n{}</ul>\n", items.collect::<String>())
}

fn footer(summary: &Summary) -> String {
    let versions: Vec<String> = summary
        .versions
        .iter()
        .map(|(mesh, version)| format!("{}: {}", escape(mesh), escape(version)))
        .collect();
    format!(
        "<footer>Open-loop load: a request counts from the moment it was due, so a stall shows in \
         every request that it delayed. Rounds are interleaved with the baseline in each; figures \
         are medians over rounds, intervals 95 % bootstrap over rounds. Every figure is made from \
         the records beside this page.<br>{}</footer>\n",
        versions.join("<br>")
    )
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
