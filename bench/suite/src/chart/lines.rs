//! Dots and lines over a numeric axis.

use std::fmt::Write as _;

use super::axis::Axis;
use super::frame::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, escape, open, rule, text};

/// A chart of lines and dots.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The data series.
    pub series: Vec<Series>,
}

/// One data series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Points, drawn as dots.
    pub points: Vec<(f64, f64)>,
    /// Points, connected by a line.
    pub curve: Vec<(f64, f64)>,
}

/// Maps values to positions: both axes with their ends.
struct Frame<'a> {
    x: (&'a Axis, f64),
    y: (&'a Axis, f64),
}

impl Frame<'_> {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let along = |(axis, end): (&Axis, f64), value: f64| {
            let place = axis.scale.place(value) / axis.scale.place(end);
            if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
        };
        let across = LEFT + along(self.x, x) * (WIDTH - LEFT - RIGHT);
        (across, HEIGHT - BOTTOM - along(self.y, y) * (HEIGHT - TOP - BOTTOM))
    }
}

/// Top of the legend and the height of its lines.
const LEGEND: f64 = 32.0;
const LEGEND_LINE: f64 = 14.0;
/// Lines of the legend above the plot. With more lines the chart is higher and the plot lower.
const LEGEND_LINES: usize = 2;

impl Chart {
    /// The chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|one| one.points.iter().chain(&one.curve));
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let frame = Frame {
            x: (&self.x, self.x.end(most(|point| point.0))),
            y: (&self.y, self.y.end(most(|point| point.1))),
        };
        let (legend, lines) = self.legend();
        let mut plot = self.axes(&frame);
        for series in &self.series {
            plot += &draw(series, &frame);
        }
        let lower = lines.saturating_sub(LEGEND_LINES) as f64 * LEGEND_LINE;
        if lower > 0.0 {
            plot = format!("<g transform=\"translate(0 {lower:.0})\">\n{plot}</g>\n");
        }
        open(&self.title, (WIDTH, HEIGHT + lower)) + &plot + &legend + "</svg>\n"
    }

    fn axes(&self, frame: &Frame<'_>) -> String {
        let (x_end, y_end) = (frame.x.1, frame.y.1);
        let mut svg = String::new();
        for (value, label) in self.y.ticks(y_end) {
            let (x, y) = frame.at((0.0, value));
            svg += &rule((x, y), (WIDTH - RIGHT, y), "#e6e6e6");
            svg += &text((x - 8.0, y + 4.0), "end", &label);
        }
        for (value, label) in self.x.ticks(x_end) {
            let (x, y) = frame.at((value, 0.0));
            svg += &rule((x, y), (x, y + 5.0), "#777");
            svg += &text((x, y + 20.0), "middle", &label);
        }
        let floor = HEIGHT - BOTTOM;
        svg += &rule((LEFT, floor), (WIDTH - RIGHT, floor), "#777");
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        svg += &text((middle, HEIGHT - 16.0), "middle", &self.x.title);
        let _ = writeln!(
            svg,
            "<text transform=\"translate(18 {:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(TOP, floor),
            escape(&self.y.title)
        );
        svg
    }

    /// The names of the series with their colours, and how many lines they take.
    fn legend(&self) -> (String, usize) {
        let mut svg = String::new();
        let (mut x, mut y, mut lines) = (LEFT, LEGEND, 1);
        for series in &self.series {
            // The approximate width of a letter in this font size.
            let width = 40.0 + series.name.chars().count() as f64 * 6.8;
            if x > LEFT && x + width > WIDTH {
                (x, y, lines) = (LEFT, y + LEGEND_LINE, lines + 1);
            }
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"14\" height=\"4\" fill=\"{}\"/>",
                series.colour
            );
            svg += &text((x + 20.0, y + 6.0), "start", &series.name);
            x += width;
        }
        (svg, lines)
    }
}

fn draw(series: &Series, frame: &Frame<'_>) -> String {
    let mut svg = String::new();
    let colour = series.colour;
    if !series.curve.is_empty() {
        let place = |point: &(f64, f64)| {
            let (x, y) = frame.at(*point);
            format!("{x:.1},{y:.1}")
        };
        let places: Vec<String> = series.curve.iter().map(place).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-linejoin=\"round\"/>",
            places.join(" ")
        );
    }
    for point in &series.points {
        let (x, y) = frame.at(*point);
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\"/>");
    }
    svg
}
