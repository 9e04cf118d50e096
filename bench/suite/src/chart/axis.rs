//! Axes: the positions of values and labels.

/// How values are distributed along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear scale that starts at 0.
    Linear,
    /// Quantiles: each further nine takes the same space.
    LogNines,
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The title, with the unit.
    pub title: String,
    /// How values are distributed along the axis.
    pub scale: Scale,
}

/// The largest number of labels on a linear axis.
const TICKS: f64 = 6.0;
/// The quantiles that are labelled.
const NINES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];

impl Axis {
    /// Creates an axis.
    #[must_use]
    pub fn new(title: &str, scale: Scale) -> Self {
        Self { title: title.to_owned(), scale }
    }

    /// The end of the axis for values up to `most`, such that at least one label fits.
    pub(super) fn end(&self, most: f64) -> f64 {
        match self.scale {
            Scale::LogNines => most.clamp(0.99, 0.99999),
            Scale::Linear if most > 0.0 && most.is_finite() => {
                (most / step(most)).ceil() * step(most)
            }
            Scale::Linear => 1.0,
        }
    }

    /// The positions and texts of the labels.
    pub(super) fn ticks(&self, end: f64) -> Vec<(f64, String)> {
        match self.scale {
            Scale::LogNines => {
                let seen = NINES.iter().filter(|(quantile, _)| *quantile <= end);
                seen.map(|(quantile, label)| (*quantile, (*label).to_owned())).collect()
            }
            Scale::Linear => {
                let step = step(end);
                let count = (end / step).round() as u32;
                (0..=count).map(|nth| f64::from(nth) * step).map(|at| (at, short(at))).collect()
            }
        }
    }
}

impl Scale {
    /// The position of a value on the scale, before it is stretched to the chart.
    #[must_use]
    pub fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::LogNines => -(1.0 - value.clamp(0.0, 0.999_999)).log10(),
        }
    }
}

/// The distance of labels: 1, 2 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let rough = most / TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

/// A number in few characters: 1,200 as "1200", 1,200,000 as "1.2 M".
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (divisor, unit) = match size {
        _ if size >= 1e9 => (1e9, " G"),
        _ if size >= 1e6 => (1e6, " M"),
        _ if size >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let scaled = value / divisor;
    let digits = match scaled.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{scaled:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}
