//! Means, medians, least squares and bootstrap intervals.

/// The number of draws for an interval: outside of a 95 % interval there are then 100 draws on each side.
const DRAWS: usize = 4000;
/// The seed of the draws. It is fixed, so that a report is the same each time it is made.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of points with which a parabola is drawn.
const FITTED: u32 = 60;

/// The mean; 0 if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard deviation of the whole population (division by n); 0 if there are no values.
pub fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - middle).powi(2)).collect();
    mean(&squares).sqrt()
}

/// The median, which for an even number of values is the mean of the two in the middle; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (len, middle) if len % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The coefficients `[c0, c1, c2]` of the parabola c0 + c1 x + c2 x² with the least sum of squared distances in y;
/// `None` if there are fewer than three different x.
pub fn quadratic(points: &[(f64, f64)]) -> Option<[f64; 3]> {
    // Orthogonal polynomials over the points (Forsythe 1957). The normal equations would lose half
    // of the digits if x reaches thousands.
    let n = points.len() as f64;
    let distinct = |index: &usize| !points[..*index].iter().any(|(x, _)| *x == points[*index].0);
    if (0..points.len()).filter(distinct).count() < 3 {
        return None;
    }
    let centre = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let line = |x: f64| x - centre;
    let line_norm: f64 = points.iter().map(|(x, _)| line(*x).powi(2)).sum();
    let shift = points.iter().map(|(x, _)| x * line(*x).powi(2)).sum::<f64>() / line_norm;
    let curve = |x: f64| (x - shift) * line(x) - line_norm / n;
    let curve_norm: f64 = points.iter().map(|(x, _)| curve(*x).powi(2)).sum();
    let a = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let b = points.iter().map(|(x, y)| y * line(*x)).sum::<f64>() / line_norm;
    let c = points.iter().map(|(x, y)| y * curve(*x)).sum::<f64>() / curve_norm;
    // The polynomial a + b (x - centre) + c ((x - shift)(x - centre) - line_norm / n), sorted by powers of x.
    Some([a - b * centre + c * (shift * centre - line_norm / n), b - c * (shift + centre), c])
}

/// Points of the parabola that fits these points best, for a chart; the points themselves if there is no such parabola.
pub fn fitted(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let Some([c0, c1, c2]) = quadratic(points) else { return points.to_vec() };
    let low = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let at = |step| low + (high - low) * f64::from(step) / f64::from(FITTED);
    (0..=FITTED).map(at).map(|x| (x, c0 + c1 * x + c2 * x * x)).collect()
}

/// A value and the interval that contains 95 % of the draws.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The value.
    pub value: f64,
    /// 2.5 % of the draws are below this.
    pub low: f64,
    /// 2.5 % of the draws are above this.
    pub high: f64,
}

impl Interval {
    /// For example `1.50 (1.40 to 1.60)`, with the given number of digits after the decimal point.
    pub fn in_words(self, digits: usize) -> String {
        let Self { value, low, high } = self;
        format!("{value:.digits$} ({low:.digits$} to {high:.digits$})")
    }
}

/// The ratio of two means, `over` divided by `under`, with its bootstrap interval. Both slices have one value per
/// round, in the same order. Rounds are drawn in pairs, because a disturbance in a round affects both values. `None` if
/// there is no round, or if the mean of `under` is 0.
pub fn ratio(over: &[f64], under: &[f64]) -> Option<Interval> {
    bootstrap(over.len().min(under.len()), |picked| {
        let sum = |values: &[f64]| picked.iter().map(|round| values[*round]).sum::<f64>();
        sum(over) / sum(under)
    })
}

/// The mean difference, `from` minus `less`, with its bootstrap interval over the same rounds.
pub fn difference(from: &[f64], less: &[f64]) -> Option<Interval> {
    bootstrap(from.len().min(less.len()), |picked| {
        let sum: f64 = picked.iter().map(|round| from[*round] - less[*round]).sum();
        sum / picked.len() as f64
    })
}

/// The value of `of` for all rounds. The interval is that of its values for rounds that are drawn with repetition.
fn bootstrap(rounds: usize, of: impl Fn(&[usize]) -> f64) -> Option<Interval> {
    let all: Vec<usize> = (0..rounds).collect();
    let value = of(&all);
    if rounds == 0 || !value.is_finite() {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut draw = || of(&(0..rounds).map(|_| random.usize(..rounds)).collect::<Vec<_>>());
    let mut drawn: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    drawn.retain(|value| value.is_finite());
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn[((drawn.len() - 1) as f64 * share).round() as usize];
    Some(Interval { value, low: at(0.025), high: at(0.975) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parabola_is_found_again_far_from_zero() {
        let truth = |x: f64| 5.0e6 - 300.0 * x + 0.25 * x * x;
        let points: Vec<_> =
            [60.0, 120.0, 240.0, 600.0, 1200.0].iter().map(|x| (*x, truth(*x))).collect();
        let [c0, c1, c2] = quadratic(&points).unwrap();
        assert!((c0 - 5.0e6).abs() < 1e-3 && (c1 + 300.0).abs() < 1e-6, "{c0} {c1}");
        assert!((c2 - 0.25).abs() < 1e-9, "{c2}");
    }

    #[test]
    fn points_with_noise_get_the_least_squares_parabola() {
        // y = 1, 0, 0, 1 at x = 0, 1, 2, 3 gives 1 - 1.5 x + 0.5 x², calculated by hand.
        let [c0, c1, c2] = quadratic(&[(0.0, 1.0), (1.0, 0.0), (2.0, 0.0), (3.0, 1.0)]).unwrap();
        for (found, wanted) in [(c0, 1.0), (c1, -1.5), (c2, 0.5)] {
            assert!((found - wanted).abs() < 1e-12, "{found} is not {wanted}");
        }
    }

    #[test]
    fn two_rates_give_no_parabola() {
        assert_eq!(quadratic(&[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0)]), None);
        assert_eq!(quadratic(&[]), None);
    }

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_when_rounds_agree() {
        let same = ratio(&[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0]).unwrap();
        assert_eq!((same.low, same.value, same.high), (2.0, 2.0, 2.0));
        let wide = ratio(&[1.0, 2.0, 6.0, 3.0], &[1.0, 1.0, 1.0, 1.0]).unwrap();
        assert_eq!(wide.value, 3.0);
        assert!(wide.low < 2.0 && wide.high > 4.0, "{wide:?}");
    }

    #[test]
    fn a_disturbance_of_a_whole_round_does_not_widen_the_interval() {
        let paired = ratio(&[2.0, 20.0, 4.0], &[1.0, 10.0, 2.0]).unwrap();
        assert_eq!((paired.low, paired.high), (2.0, 2.0));
        let added = difference(&[2.0, 11.0, 5.0], &[1.0, 10.0, 4.0]).unwrap();
        assert_eq!((added.low, added.value, added.high), (1.0, 1.0, 1.0));
        assert_eq!(ratio(&[], &[]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn median_and_deviation() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert_eq!(deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), 2.0);
        assert_eq!((median(&[]), mean(&[]), deviation(&[])), (0.0, 0.0, 0.0));
    }
}
