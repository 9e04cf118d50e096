//! How long something takes, as the median of rounds.

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests of a round
    #[arg(long, default_value_t = 200_000)]
    pub(super) requests: usize,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 9)]
    pub(super) rounds: usize,
}

/// The median of rounds, each of which returns its time for one.
pub(super) fn median(args: Args, round: impl FnMut() -> f64) -> f64 {
    let mut rounds: Vec<f64> = std::iter::repeat_with(round).take(args.rounds.max(1)).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
