//! Measurements in rounds, and their medians.
//!
//! A disturbance affects everything that is measured in the same round. So each round measures everything, in another
//! order, and ratios compare measurements of one round. The result is the median of the ratios.

use std::time::Instant;

use anyhow::Result;
use leno_suite::statistics::median;
use leno_suite::tabular::markdown;

/// A column of a table: its heading, and the figure of one measurement, if it has one.
pub(crate) type CostFigure<T> = (&'static str, fn(&T) -> Option<f64>);

/// How often a decision is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DecisionRounds {
    /// Number of requests in a round
    #[arg(long, default_value_t = 200_000)]
    pub(crate) requests: usize,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 9)]
    pub(crate) rounds: usize,
}

/// Measures each of `count` things once in every round, and returns the results of each by round.
pub(crate) fn in_turns<T>(
    count: usize,
    rounds: u32,
    mut measure: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for turn in 0..count {
            let nth = (round + turn) % count;
            results[nth].push(measure(nth)?);
        }
    }
    Ok(results)
}

/// Runs the rounds, each of which returns its time, and returns the median. There must be at least one round.
pub(crate) fn median_of(rounds: usize, round: impl FnMut() -> f64) -> f64 {
    median(&std::iter::repeat_with(round).take(rounds.max(1)).collect::<Vec<_>>())
}

/// Returns the median, over the rounds, of the nanoseconds of one call. A round makes `calls` of them.
pub(crate) fn nanos_of(rounds: usize, calls: usize, mut call: impl FnMut(usize)) -> f64 {
    median_of(rounds, || {
        let started = Instant::now();
        (0..calls).for_each(&mut call);
        started.elapsed().as_nanos() as f64 / calls as f64
    })
}

/// A row for each of `all`: the median of every figure, and of its ratio to that of the first row.
pub(crate) fn table<T>(what: &str, figures: &[CostFigure<T>], all: &[(&str, &[T])]) -> String {
    let headings = figures.iter().flat_map(|(heading, _)| [*heading, "ratio"]);
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once(what).chain(headings).map(str::to_owned).collect()];
    let base = all.first().map_or(&[][..], |(_, rounds)| *rounds);
    for (name, rounds) in all {
        let mut row = vec![(*name).to_owned()];
        for (_, figure) in figures {
            let values: Vec<f64> = rounds.iter().filter_map(figure).collect();
            let pairs = rounds.iter().zip(base);
            let ratios = pairs.filter_map(|(one, base)| Some(figure(one)? / figure(base)?));
            let ratio = median(&ratios.collect::<Vec<_>>());
            row.extend(match values.is_empty() {
                true => ["-".to_owned(), "-".to_owned()],
                false => [format!("{:.2}", median(&values)), format!("{ratio:.3}")],
            });
        }
        rows.push(row);
    }
    markdown(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_begins_with_another_one() {
        let mut order = Vec::new();
        let results = in_turns(3, 2, |nth| {
            order.push(nth);
            Ok(order.len())
        });
        assert_eq!(results.unwrap(), [[1, 6], [2, 4], [3, 5]]);
        assert_eq!(order, [0, 1, 2, 1, 2, 0]);
    }

    #[test]
    fn ratios_are_made_within_a_round_and_a_figure_may_be_missing() {
        let figures: [CostFigure<(f64, Option<f64>)>; 2] =
            [("us", |one| Some(one.0)), ("redis", |one| one.1)];
        let base = [1.0, 10.0, 2.0].map(|us| (us, None));
        let other = [2.0, 11.0, 4.0].map(|us| (us, None));
        let table = table("accounting", &figures, &[("none", &base), ("sockets", &other)]);
        let cells = |line: &str| line.split('|').map(str::trim).collect::<Vec<_>>().join("|");
        let lines: Vec<String> = table.trim().lines().map(cells).collect();
        assert_eq!(lines[0], "|accounting|us|ratio|redis|ratio|");
        assert_eq!(lines[2..], ["|none|2.00|1.000|-|-|", "|sockets|4.00|2.000|-|-|"]);
    }
}
