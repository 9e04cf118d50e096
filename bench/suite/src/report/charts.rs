//! The charts of a report.

use plotters::style::RGBColor;

use super::summary::{Cell, Summary};
use crate::chart::{Axis, Bar, Bars, Chart, Scale, Series, colour};
use crate::cost::{self, Price};
use crate::mesh_names::NONE;
use crate::record::{Record, of_one_generator};
use crate::statistics::fitted;

/// A chart with its file name and a caption.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The file name without extension.
    pub name: String,
    /// What the chart shows and how it was made, in one sentence.
    pub caption: String,
    /// The chart.
    pub svg: String,
    /// Whether the records have nothing to draw in it.
    is_empty: bool,
}

/// All charts that the records have enough data for.
#[must_use]
pub fn figures(summary: &Summary, records: &[Record], prices: &[Price]) -> Vec<Figure> {
    let mut found = Vec::new();
    let meshes = meshes(summary);
    for (title, cells) in summary.scenarios() {
        found.push(latency(&title, &cells, &meshes));
    }
    found.push(added(summary, &meshes));
    found.push(bars(summary, &meshes, ResourceKind::Cpu));
    found.push(bars(summary, &meshes, ResourceKind::Memory));
    found.extend(by_rate(summary, &meshes));
    found.extend(costs(records, prices, &meshes));
    found.retain(|figure| !figure.is_empty);
    found
}

/// The meshes in the order of their colours, which is the same in all charts.
fn meshes(summary: &Summary) -> Vec<String> {
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

/// The file name of the chart of a scenario's latency.
pub(super) fn of_latency(title: &str) -> String {
    format!("latency-{}", file(title))
}

fn latency(title: &str, cells: &[&Cell], meshes: &[String]) -> Figure {
    let series = cells.iter().map(|cell| Series {
        name: if cell.valid { cell.mesh.clone() } else { format!("{} (invalid)", cell.mesh) },
        colour: colour_of(&cell.mesh, meshes),
        points: Vec::new(),
        curve: cell.spectrum.iter().map(|q| (q.quantile, q.us as f64 / 1000.0)).collect(),
    });
    let chart = Chart {
        title: format!("{title}: latency by percentile"),
        x: Axis("share of requests that were at least this fast".into(), Scale::LogNines),
        y: Axis("latency, ms".into(), Scale::Linear),
        series: series.collect(),
    };
    Figure {
        name: of_latency(title),
        is_empty: chart.series.iter().all(|one| one.curve.is_empty()),
        caption:
            "From the moment a request was due to its last byte; median of the rounds at each \
                  percentile. Each further nine takes the same room, so the right is what the \
                  slowest requests saw."
                .to_owned(),
        svg: chart.svg(),
    }
}

fn added(summary: &Summary, meshes: &[String]) -> Figure {
    let mut all = Vec::new();
    for (title, cells) in summary.scenarios() {
        for cell in cells {
            let Some([_, p99]) = cell.added_ms else { continue };
            all.push(Bar {
                group: title.clone(),
                name: cell.mesh.clone(),
                colour: colour_of(&cell.mesh, meshes),
                value: p99.value,
                interval: (cell.rounds > 1).then_some((p99.low, p99.high)),
            });
        }
    }
    Figure {
        name: "added-p99".to_owned(),
        is_empty: all.is_empty(),
        caption:
            "What each mesh adds to the 99th percentile of the baseline in the same round, with \
                  the 95 % bootstrap interval over the rounds."
                .to_owned(),
        svg: Bars { title: "Added latency at p99".into(), unit: "ms".into(), bars: all }.svg(),
    }
}

/// The figure that a bar chart shows.
#[derive(Clone, Copy)]
enum ResourceKind {
    Cpu,
    Memory,
}

fn bars(summary: &Summary, meshes: &[String], kind: ResourceKind) -> Figure {
    let mut all = Vec::new();
    for (title, cells) in summary.scenarios() {
        for cell in cells.into_iter().filter(|cell| cell.rss_mb[0] > 0.0) {
            let (value, interval) = match kind {
                ResourceKind::Cpu => (cell.cpu_us_in_all(), None),
                ResourceKind::Memory => (cell.rss_mb[2], Some((cell.rss_mb[0], cell.rss_mb[2]))),
            };
            let colour = colour_of(&cell.mesh, meshes);
            all.push(Bar {
                group: title.clone(),
                name: cell.mesh.clone(),
                colour,
                value,
                interval,
            });
        }
    }
    let (name, title, unit, caption) = match kind {
        ResourceKind::Cpu => (
            "cpu",
            "CPU of all proxies for a request",
            "us",
            "User and system time of every proxy together, divided by the requests.",
        ),
        ResourceKind::Memory => (
            "memory",
            "Memory of one proxy",
            "MB",
            "Resident memory: the bar is the peak under load, the line begins where it was idle.",
        ),
    };
    let is_empty = all.is_empty();
    let svg = Bars { title: title.into(), unit: unit.into(), bars: all }.svg();
    Figure { name: name.to_owned(), caption: caption.to_owned(), svg, is_empty }
}

/// CPU and memory over the rate, for scenarios with several rates.
fn by_rate(summary: &Summary, meshes: &[String]) -> Vec<Figure> {
    let mut names: Vec<&str> =
        summary.cells.iter().filter(|c| c.step.is_some()).map(|c| c.scenario.as_str()).collect();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        for (kind, title, unit) in [
            (ResourceKind::Cpu, "CPU of all proxies", "processors"),
            (ResourceKind::Memory, "memory of a proxy", "MB"),
        ] {
            let series = meshes.iter().map(|mesh| {
                let cells = summary
                    .cells
                    .iter()
                    .filter(|c| c.scenario == name && c.mesh == *mesh && c.latency_ms[0] > 0.0);
                let points: Vec<(f64, f64)> = cells
                    .map(|cell| match kind {
                        ResourceKind::Cpu => (cell.requests_per_s, cell.cpus),
                        ResourceKind::Memory => (cell.requests_per_s, cell.rss_mb[1]),
                    })
                    .collect();
                let curve = fitted(&points);
                Series { name: mesh.clone(), colour: colour_of(mesh, meshes), points, curve }
            });
            let chart = Chart {
                title: format!("{name}: {title} by requests/s"),
                x: Axis("requests/s".into(), Scale::Linear),
                y: Axis(format!("{title}, {unit}"), Scale::Linear),
                series: series.collect(),
            };
            found.push(Figure {
                name: file(&format!("{name}-{unit}-by-rate")),
                caption: "Dots are medians of the rounds, lines the least-squares parabola."
                    .to_owned(),
                svg: chart.svg(),
                is_empty: chart.series.iter().all(|one| one.curve.is_empty()),
            });
        }
    }
    found
}

/// Yearly cost of 100 sidecars on the first machine of the table.
fn costs(records: &[Record], prices: &[Price], meshes: &[String]) -> Option<Figure> {
    let price = prices.first()?;
    let records = of_one_generator(records);
    let costs = cost::costs(&records, std::slice::from_ref(price));
    let uncounted = cost::uncounted(&records).into_iter().map(|line| format!(" {line}."));
    let bar = |cost: &cost::Cost| Bar {
        group: cost.scenario.clone(),
        name: cost.mesh.clone(),
        colour: colour_of(&cost.mesh, meshes),
        value: cost.dollars_per_100_sidecars_year,
        interval: None,
    };
    let bars: Vec<Bar> = costs.iter().map(bar).collect();
    let title = format!("100 sidecars a year on {}, {}", price.name, price.place);
    Some(Figure {
        name: "cost".to_owned(),
        is_empty: bars.is_empty(),
        caption: format!(
            "The larger of a sidecar's two shares of a machine with {} processors and {} GiB, at \
             {} dollars an hour (leno bench cost).{}",
            price.cpus,
            price.memory_gib,
            price.dollars_per_hour,
            uncounted.collect::<String>()
        ),
        svg: Bars { title, unit: "$".into(), bars }.svg(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::record;

    #[test]
    fn a_run_has_the_charts_that_its_records_are_enough_for() {
        let mut records = vec![record("none", 0, 1000), record("leno", 0, 2500)];
        let names = |records: &[Record]| -> Vec<String> {
            let prices = cost::prices(None).unwrap();
            figures(&Summary::of(records), records, &prices).into_iter().map(|f| f.name).collect()
        };
        let plain = ["latency-http-1k", "added-p99", "cpu", "memory", "cost"];
        assert_eq!(names(&records), plain);
        for (nth, one) in records.iter_mut().enumerate() {
            one.step = Some(nth as f64);
        }
        let mut steps = record("leno", 0, 10);
        for step in [60.0, 120.0, 240.0] {
            steps.step = Some(step);
            steps.requests_per_s = step;
            records.push(steps.clone());
        }
        assert!(names(&records).contains(&"http-1k-MB-by-rate".to_owned()));
    }
}
