//! Charts as SVG: lines and dots over a numeric axis, and bars with their intervals.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::tabular::short;

/// Width of every chart in pixels; browsers scale it.
const WIDTH: u32 = 760;
/// The height of a chart with two axes. Its legend has room for `NAMES` series; each additional series adds `NAME`
/// pixels.
const HEIGHT: u32 = 400;
const NAMES: usize = 12;
const NAME: u32 = 20;
/// The height of a bar with the gap to the next bar, and of the name of a group.
const BAR: i32 = 25;
const GROUP: i32 = 30;
/// The space for the names to the left of bars, and for the value to the right of the longest bar.
const BEFORE: i32 = 150;
const BEHIND: i32 = 144;
/// The largest number of labels on a linear axis.
const TICKS: usize = 7;
/// The quantiles that are labelled.
const NINES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];

/// Colours that stay distinguishable for colour-blind readers and in print. The first six are of the palette of Okabe
/// and Ito (2008); grey and brown replace its black and its yellow.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x5f, 0x5f, 0x5f),
    RGBColor(0x8c, 0x6d, 0x00),
];
/// The colour of the baseline without a mesh.
const BASELINE: RGBColor = RGBColor(0x8a, 0x8a, 0x8a);
/// The colours of text, of grid lines, and of the axes.
const TEXT: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const RULE: RGBColor = RGBColor(0x77, 0x77, 0x77);
/// Colours of the background, text and lines on a light page, each with its replacement on a dark page. Curves and bars
/// keep their colours, which have enough contrast on both.
const DARK: [(&str, &str); 4] = [
    ("#FFFFFF", "#14181D"),
    ("#333333", "#D3DAE1"),
    ("#E6E6E6", "#2C343C"),
    ("#777777", "#8D97A1"),
];

/// The colour of a mesh or of a series of measurements, the same in all charts of a report. `nth` is its position in
/// the report. The name `none` stands for the baseline without a mesh.
pub(crate) fn colour(name: &str, nth: usize) -> RGBColor {
    if name == "none" { BASELINE } else { COLOURS[nth % COLOURS.len()] }
}

/// How values are distributed along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A linear scale that starts at 0.
    Linear,
    /// Quantiles, on a scale where 90 %, 99 %, 99.9 % and so on are equally far apart.
    LogNines,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The title of the horizontal axis, with the unit.
    pub(crate) x: String,
    pub(crate) scale: Scale,
    /// The title of the vertical axis, with the unit.
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// The name of the series in the legend.
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    /// Points, drawn as dots.
    pub(crate) points: Vec<(f64, f64)>,
    /// Points, connected by a line.
    pub(crate) curve: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// The bars; those of one group must be adjacent.
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    /// The length of the bar. A negative value has no bar, only its number. Bars with the same unit have the same
    /// scale.
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) interval: Option<(f64, f64)>,
}

/// A linear axis for values up to `most`.
fn linear(most: f64) -> Range<f64> {
    0.0..if most > 0.0 && most.is_finite() { most * 1.02 } else { 1.0 }
}

/// The place of a quantile on the axis of `LogNines`: the `n` for which one of `n` requests is above the quantile. 10
/// for 0.9, 100 for 0.99, at most 1,000,000.
fn one_of(quantile: f64) -> f64 {
    1.0 / (1.0 - quantile.clamp(0.0, 0.999_999))
}

impl Chart {
    pub(crate) fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|one| one.points.iter().chain(&one.curve));
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let (x, y) = (most(|point| point.0), linear(most(|point| point.1)));
        let higher = self.series.len().saturating_sub(NAMES) as u32 * NAME;
        draw(&self.title, HEIGHT + higher, |area| match self.scale {
            Scale::Linear => self.draw_on(area, (linear(x), y), |x| x, &|x| short(*x)),
            Scale::LogNines => {
                let end = one_of(x.clamp(0.99, 0.999_99));
                let nines = NINES.map(|(quantile, _)| one_of(quantile)).into_iter();
                let nines = nines.filter(|at| *at <= end).collect();
                let label = |x: &f64| {
                    let found = NINES.iter().find(|(quantile, _)| one_of(*quantile) == *x);
                    found.map_or_else(String::new, |(_, label)| (*label).to_owned())
                };
                self.draw_on(
                    area,
                    ((1.0..end).log_scale().with_key_points(nines), y),
                    one_of,
                    &label,
                )
            }
        })
    }

    /// Draws the chart on these axes. `place` converts a value to a place on the horizontal axis, and `label` returns
    /// the text for such a place.
    fn draw_on<X>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        (x, y): (X, Range<f64>),
        place: fn(f64) -> f64,
        label: &dyn Fn(&f64) -> String,
    ) -> Painted
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let place = |(x, y): &(f64, f64)| (place(*x), *y);
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(34)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(RULE)
            .label_style(text(12, FontStyle::Normal))
            .x_desc(&self.x)
            .x_labels(TICKS)
            .x_label_formatter(label)
            .y_desc(&self.y)
            .y_labels(TICKS)
            .y_label_formatter(&|y| short(*y))
            .draw()?;
        for series in &self.series {
            let colour = series.colour;
            let curve = LineSeries::new(series.curve.iter().map(place), colour.stroke_width(2));
            let swatch =
                move |(x, y)| Rectangle::new([(x, y - 2), (x + 14, y + 2)], colour.filled());
            chart.draw_series(curve)?.label(&series.name).legend(swatch);
            let dots =
                series.points.iter().map(|point| Circle::new(place(point), 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        if self.series.is_empty() {
            return Ok(());
        }
        // Curves of latencies are low on the left, so the legend hides nothing there.
        let legend = SeriesLabelPosition::UpperLeft;
        chart
            .configure_series_labels()
            .position(legend)
            .label_font(text(12, FontStyle::Normal))
            .draw()
    }
}

impl Bars {
    pub(crate) fn svg(&self) -> String {
        let most = |unit: &str| {
            let bars = self.bars.iter().filter(|bar| bar.unit == unit);
            let ends = bars.map(|bar| bar.interval.map_or(bar.value, |(_, high)| high));
            ends.fold(f64::MIN_POSITIVE, f64::max)
        };
        let wide = f64::from(WIDTH as i32 - BEFORE - BEHIND);
        let mut groups: Vec<&str> = self.bars.iter().map(|bar| bar.group.as_str()).collect();
        groups.dedup();
        let height = self.bars.len() as i32 * BAR + groups.len() as i32 * GROUP + 48;
        draw(&self.title, height.cast_unsigned(), |area| {
            let at = |h_pos| text(12, FontStyle::Normal).pos(Pos::new(h_pos, VPos::Center));
            let (mut y, mut group) = (0, None);
            for bar in &self.bars {
                if group != Some(&bar.group) {
                    let bold = text(12, FontStyle::Bold);
                    area.draw(&Text::new(bar.group.as_str(), (BEFORE, y + 8), bold))?;
                    (y, group) = (y + GROUP, Some(&bar.group));
                }
                let (middle, most) = (y + 9, most(bar.unit));
                let along = |value: f64| BEFORE + (value.max(0.0) / most * wide).round() as i32;
                area.draw(&Text::new(bar.name.as_str(), (BEFORE - 8, middle), at(HPos::Right)))?;
                let corners = [(BEFORE, y), (along(bar.value), y + 18)];
                area.draw(&Rectangle::new(corners, bar.colour.filled()))?;
                let mut end = along(bar.value);
                if let Some((low, high)) = bar.interval.map(|(low, high)| (along(low), along(high)))
                {
                    area.draw(&PathElement::new([(low, middle), (high, middle)], TEXT))?;
                    for x in [low, high] {
                        area.draw(&PathElement::new([(x, middle - 4), (x, middle + 4)], TEXT))?;
                    }
                    end = end.max(high);
                }
                let value = format!("{} {}", precise(bar.value), bar.unit);
                area.draw(&Text::new(
                    value.trim_end().to_owned(),
                    (end + 8, middle),
                    at(HPos::Left),
                ))?;
                y += BAR;
            }
            Ok(())
        })
    }
}

/// Draws a chart of this height with background and title, and returns it as SVG. `paint` draws the rest, in the area
/// below the title.
fn draw(
    title: &str,
    height: u32,
    paint: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Painted,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let painted = root
        .fill(&WHITE)
        .and_then(|()| root.draw(&Text::new(title, (16, 10), text(15, FontStyle::Bold))))
        .and_then(|()| paint(&root.margin(40, 0, 0, 0)))
        .and_then(|()| root.present());
    painted.expect("text in memory takes everything");
    drop(root);
    let start = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(title));
    svg.replacen("<svg ", &start, 1)
}

/// A chart that is light or dark, whichever the reader's browser prefers. `light` is the chart for light pages; styles
/// for dark pages are added to it.
pub(crate) fn as_preferred(svg: &str) -> String {
    let rules = DARK.map(|(light, dark)| {
        format!("[fill='{light}'] {{ fill: {dark} }} [stroke='{light}'] {{ stroke: {dark} }} ")
    });
    let style =
        format!("<style>@media (prefers-color-scheme: dark) {{ {}}}</style>\n", rules.concat());
    svg.replacen(">\n", &format!(">\n{style}"), 1)
}

/// A version of the chart for dark pages.
pub(crate) fn dark(svg: &str) -> String {
    DARK.iter().fold(svg.to_owned(), |svg, (light, dark)| svg.replace(light, dark))
}

/// What the drawing functions of `plotters` return.
type Painted = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

fn text(size: u32, style: FontStyle) -> TextStyle<'static> {
    let family = FontFamily::Name("system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif");
    // The library draws letters smaller than requested, by this factor.
    FontDesc::new(family, f64::from(size) * 1.24, style).color(&TEXT)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The number in about three digits: 123, 12.3, 1.23, 0.12. From 10,000 on as [`short`] writes it.
fn precise(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => short(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    fn chart(scale: Scale, series: usize) -> Chart {
        let points = vec![(0.5, 1.0), (0.99, 5.0)];
        let one = |nth| Series {
            name: "one & two".into(),
            colour: colour("one", nth),
            curve: points.clone(),
            points: points.clone(),
        };
        Chart {
            title: "a < b".into(),
            x: "x".into(),
            scale,
            y: "y".into(),
            series: (0..series).map(one).collect(),
        }
    }

    fn bars(bars: Vec<Bar>) -> Bars {
        Bars { title: "t".into(), bars }
    }

    fn bar(group: &str, value: f64, unit: &'static str) -> Bar {
        let interval = Some((value * 0.75, value * 1.25));
        Bar {
            group: group.into(),
            name: "leno".into(),
            colour: colour("leno", 0),
            value,
            unit,
            interval,
        }
    }

    /// Compares text only. When the golden file changes, look at it in a browser: the quantiles 90 %, 99 % and so on
    /// must be equally far apart, and bars with the same unit must have the same scale.
    #[test]
    fn charts_are_those_of_the_golden_file() {
        let all = [
            chart(Scale::Linear, 2).svg(),
            chart(Scale::LogNines, 1).svg(),
            bars(vec![bar("p99", 2.0, "ms"), bar("p50", 1.0, "ms"), bar("peak", 900.0, "MB")])
                .svg(),
        ];
        golden::check("charts.golden.svg", &all.concat());
        for empty in [chart(Scale::Linear, 0).svg(), bars(Vec::new()).svg()] {
            assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
        }
    }

    #[test]
    fn a_long_legend_makes_the_chart_higher() {
        let height = |count| chart(Scale::Linear, count).svg().contains("height=\"400\"");
        assert!(height(NAMES) && !height(NAMES + 1));
    }

    #[test]
    fn every_colour_of_the_frame_has_one_for_dark_pages() {
        let svg = chart(Scale::Linear, 1).svg();
        let (preferred, dark) = (as_preferred(&svg), dark(&svg));
        for (light, other) in DARK {
            let is_there = |svg: &str, colour: &str| svg.contains(&format!("=\"{colour}\""));
            assert!(is_there(&svg, light) && !is_there(&svg, other), "{light}: {svg}");
            assert!(is_there(&dark, other) && !dark.contains(light), "{light}: {dark}");
            assert!(preferred.contains(&format!("[fill='{light}'] {{ fill: {other} }}")));
        }
        assert_eq!(preferred.matches("<style>").count(), 1);
    }
}
