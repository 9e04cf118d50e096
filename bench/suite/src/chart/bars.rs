//! Horizontal bars in groups, each with its value and interval.

use std::fmt::Write as _;

use super::axis::short;
use super::frame::{RIGHT, WIDTH, escape, open, rule, text};

/// Height of a bar, and the gap between bars.
const BAR: f64 = 18.0;
const GAP: f64 = 7.0;
/// Space above the name of a group.
const GROUP: f64 = 30.0;
/// Left margin: the names of the bars.
const NAMES: f64 = 150.0;
/// Space to the right of the longest bar, for its value.
const VALUE: f64 = 110.0;

/// A bar chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// The unit of all bars.
    pub unit: String,
    /// The bars; those of one group are adjacent.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The group it belongs to.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Its length; a negative value is drawn as 0, with its number.
    pub value: f64,
    /// The bounds of its interval.
    pub interval: Option<(f64, f64)>,
}

impl Bars {
    /// The chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let most = self.bars.iter().map(|bar| bar.interval.map_or(bar.value, |(_, high)| high));
        let most = most.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let along = |value: f64| NAMES + value.max(0.0) / most * (WIDTH - NAMES - RIGHT - VALUE);
        let (mut body, mut y, mut group) = (String::new(), 34.0, None);
        for bar in &self.bars {
            if group != Some(&bar.group) {
                y += GROUP;
                let _ = writeln!(
                    body,
                    "<text x=\"{NAMES:.0}\" y=\"{:.1}\" font-weight=\"600\">{}</text>",
                    y - 8.0,
                    escape(&bar.group)
                );
                group = Some(&bar.group);
            }
            body += &text((NAMES - 8.0, y + BAR - 5.0), "end", &bar.name);
            let _ = writeln!(
                body,
                "<rect x=\"{NAMES:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR:.0}\" rx=\"2\" \
                 fill=\"{}\"/>",
                along(bar.value) - NAMES,
                bar.colour
            );
            let mut end = along(bar.value);
            if let Some((low, high)) = bar.interval {
                let middle = y + BAR / 2.0;
                body += &rule((along(low), middle), (along(high), middle), "#222");
                for bound in [low, high] {
                    let x = along(bound);
                    body += &rule((x, middle - 4.0), (x, middle + 4.0), "#222");
                }
                end = end.max(along(high));
            }
            let value = format!("{} {}", precise(bar.value), self.unit);
            body += &text((end + 8.0, y + BAR - 5.0), "start", value.trim_end());
            y += BAR + GAP;
        }
        open(&self.title, (WIDTH, y + 14.0)) + &body + "</svg>\n"
    }
}

/// A number with three significant digits.
fn precise(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => short(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
