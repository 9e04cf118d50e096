//! The charts of a report.

use plotters::style::RGBColor;

use super::cell::Cell;
use super::summary::Summary;
use crate::chart::{Bar, Bars, Chart, Scale, Series, as_preferred, colour};
use crate::cost::{self, Price};
use crate::figures;
use crate::mesh_names::NONE;
use crate::record::{Record, of_one_generator};
use crate::statistics::fitted;

/// A chart with its file name and a caption.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptionedChart {
    /// The file name without extension.
    pub name: String,
    /// What the chart shows and how it was made, in one sentence.
    pub caption: String,
    /// The chart.
    pub svg: String,
    /// Whether the records contain nothing that could be drawn.
    is_empty: bool,
}

impl CaptionedChart {
    fn of_bars(name: &str, caption: String, bars: Bars) -> Self {
        let (name, svg) = (name.to_owned(), as_preferred(&bars.svg()));
        Self { name, caption, svg, is_empty: bars.bars.is_empty() }
    }

    fn of_curves(name: &str, caption: &str, chart: &Chart) -> Self {
        let is_empty = chart.series.iter().all(|one| one.curve.is_empty());
        let (name, caption) = (name.to_owned(), caption.to_owned());
        Self { name, caption, svg: as_preferred(&chart.svg()), is_empty }
    }
}

/// All charts for which the records have enough data.
pub fn charts(summary: &Summary, records: &[Record], prices: &[Price]) -> Vec<CaptionedChart> {
    let mut found = Vec::new();
    let meshes = meshes(summary);
    for (title, cells) in summary.scenarios() {
        found.push(latency(&title, &cells, &meshes));
    }
    found.extend(side_by_side(summary, &meshes));
    found.extend(by_rate(summary, &meshes));
    found.extend(costs(records, prices, &meshes));
    found.retain(|chart| !chart.is_empty);
    found
}

/// The meshes in the order in which they get colours, which is the same in all charts.
pub(super) fn meshes(summary: &Summary) -> Vec<String> {
    let mut names: Vec<String> = summary.cells.iter().map(|cell| cell.mesh.clone()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| name != NONE);
    names
}

fn colour_of(mesh: &str, meshes: &[String]) -> RGBColor {
    colour(mesh, meshes.iter().position(|name| name == mesh).unwrap_or_default())
}

fn file(title: &str) -> String {
    title.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// The name of the file with the chart of a scenario's latency.
pub(super) fn of_latency(title: &str) -> String {
    format!("latency-{}", file(title))
}

fn latency(title: &str, cells: &[&Cell], meshes: &[String]) -> CaptionedChart {
    let series = cells.iter().map(|cell| Series {
        name: if cell.valid { cell.mesh.clone() } else { format!("{} (invalid)", cell.mesh) },
        colour: colour_of(&cell.mesh, meshes),
        points: Vec::new(),
        curve: cell.spectrum().iter().map(|q| (q.quantile, q.us as f64 / 1000.0)).collect(),
    });
    let chart = Chart {
        title: format!("{title}: latency by percentile"),
        x: "share of requests that were at least this fast".into(),
        scale: Scale::LogNines,
        y: "latency, ms".into(),
        series: series.collect(),
    };
    CaptionedChart::of_curves(
        &of_latency(title),
        "From the moment a request was due to its last byte; median of the rounds at each \
         percentile. Each further nine takes the same room, so the right is what the slowest \
         requests saw.",
        &chart,
    )
}

/// The length of a bar, and the ends of the line that is drawn across it.
pub(super) type Length = (f64, Option<(f64, f64)>);

/// Returns the latency that the mesh adds to the 99th percentile, in milliseconds, with its interval.
pub(super) fn added_p99(cell: &Cell) -> Option<Length> {
    let [_, p99] = cell.added_ms?;
    Some((p99.value, (cell.rounds.len() > 1).then_some((p99.low, p99.high))))
}

/// CPU of all proxies for a request, in microseconds.
pub(super) fn cpu_of_request(cell: &Cell) -> Option<Length> {
    cell.has_proxies().then(|| (cell.cpu_us_in_all(), None))
}

/// Returns the highest memory of a proxy in MB. The line across the bar begins at the memory without load.
pub(super) fn peak_memory(cell: &Cell) -> Option<Length> {
    let (idle, peak) = (cell.median("idle-memory")?, cell.median("peak-memory")?);
    Some((peak, Some((idle, peak))))
}

/// A bar for each cell that has this figure. Bars with the same title are a group.
pub(super) fn bars<'c>(
    (cells, meshes): (impl IntoIterator<Item = &'c Cell>, &[String]),
    unit: &'static str,
    title: impl Fn(&Cell) -> String,
    figure: fn(&Cell) -> Option<Length>,
) -> Vec<Bar> {
    let bar = |cell: &Cell| {
        let (value, interval) = figure(cell)?;
        let (name, colour) = (cell.mesh.clone(), colour_of(&cell.mesh, meshes));
        Some(Bar { group: title(cell), name, colour, value, unit, interval })
    };
    cells.into_iter().filter_map(bar).collect()
}

/// Charts of one figure each, with bars for all scenarios.
fn side_by_side(summary: &Summary, meshes: &[String]) -> [CaptionedChart; 3] {
    type Figures = fn(&Cell) -> Option<Length>;
    let figure = |(name, unit): (&str, &'static str),
                  title: &str,
                  caption: &str,
                  length: Figures| {
        let bars = bars((&summary.cells, meshes), unit, Cell::title, length);
        CaptionedChart::of_bars(name, caption.to_owned(), Bars { title: title.to_owned(), bars })
    };
    [
        figure(
            ("added-p99", "ms"),
            "Added latency at p99",
            "What each mesh adds to the 99th percentile of the baseline in the same round, with the 95 % bootstrap \
             interval over the rounds.",
            added_p99,
        ),
        figure(
            ("cpu", "us"),
            "CPU of all proxies for a request",
            "User and system time of every proxy together, divided by the requests.",
            cpu_of_request,
        ),
        figure(
            ("memory", "MB"),
            "Memory of one proxy",
            "Resident memory: the bar is the peak under load, the line begins where it was idle.",
            peak_memory,
        ),
    ]
}

/// CPU and memory by rate, for scenarios with several rates.
fn by_rate(summary: &Summary, meshes: &[String]) -> Vec<CaptionedChart> {
    let kinds = [("CPU of all proxies", "cpus"), ("memory of a proxy", "load-memory")];
    let mut names: Vec<&str> =
        summary.cells.iter().filter(|c| c.step.is_some()).map(|c| c.scenario.as_str()).collect();
    names.dedup();
    let chart = |name: &str, (title, figure): (&str, &str)| {
        let unit = &figures::named(figure).unit;
        let series = meshes.iter().map(|mesh| {
            let is_of = |cell: &&Cell| {
                let is_served = cell.median("p50").is_some_and(|ms| ms > 0.0);
                cell.scenario == name && cell.mesh == *mesh && is_served
            };
            let cells = summary.cells.iter().filter(is_of);
            let point = |cell: &Cell| Some((cell.median("rate")?, cell.median(figure)?));
            let points: Vec<(f64, f64)> = cells.filter_map(point).collect();
            let curve = fitted(&points);
            Series { name: mesh.clone(), colour: colour_of(mesh, meshes), points, curve }
        });
        let chart = Chart {
            title: format!("{name}: {title} by requests/s"),
            x: "requests/s".into(),
            scale: Scale::Linear,
            y: format!("{title}, {unit}"),
            series: series.collect(),
        };
        CaptionedChart::of_curves(
            &file(&format!("{name}-{unit}-by-rate")),
            "Dots are medians of the rounds, lines the least-squares parabola.",
            &chart,
        )
    };
    names.iter().flat_map(|name| kinds.map(|kind| chart(name, kind))).collect()
}

/// The cost of 100 sidecars for a year, on the first machine of the table.
fn costs(records: &[Record], prices: &[Price], meshes: &[String]) -> Option<CaptionedChart> {
    let price = prices.first()?;
    let records = of_one_generator(records);
    let costs = cost::costs(&records, std::slice::from_ref(price));
    let uncounted = cost::uncounted(&records).into_iter().map(|line| format!(" {line}."));
    let bar = |cost: &cost::Cost| Bar {
        group: cost.scenario.clone(),
        name: cost.mesh.clone(),
        colour: colour_of(&cost.mesh, meshes),
        value: cost.dollars_per_100_sidecars_year,
        unit: "$",
        interval: None,
    };
    let caption = format!(
        "The larger of a sidecar's two shares of a machine with {} processors and {} GiB, at \
         {} dollars an hour (leno bench cost).{}",
        price.cpus,
        price.memory_gib,
        price.dollars_per_hour,
        uncounted.collect::<String>()
    );
    let title = format!("100 sidecars a year on {}, {}", price.name, price.place);
    Some(CaptionedChart::of_bars(
        "cost",
        caption,
        Bars { title, bars: costs.iter().map(bar).collect() },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::record;

    #[test]
    fn a_scenario_with_several_rates_has_charts_by_rate() {
        let at = |step| Record { step: Some(step), requests_per_s: step, ..record("leno", 0, 10) };
        let records = [60.0, 120.0, 240.0].map(at);
        let charts = charts(&Summary::of(&records), &records, &cost::prices(None).unwrap());
        assert!(charts.iter().any(|one| one.name == "http-1k-MB-by-rate"), "{charts:?}");
    }
}
