//! The CPU budget of accounting. When it is exceeded, less is accounted for.
//!
//! ```text
//!          over the budget for `EVIDENCE` rounds, or far over it for one
//!   full ───────────────────► aggregated ───────────────────► off
//!        ◄───────────────────            ◄───────────────────
//!         under half of it for `patience` rounds
//! ```
//! The kernel measures a program's time with a clock, so the time includes interruptions of the program:
//! interrupts, deferred work of the kernel, and time that the host of a virtual machine takes. On an overloaded
//! machine that sometimes exceeds the time of the program itself. So one round over the budget does not prove that
//! the programs exceed it, unless the cost is many times the budget.
//!
//! If payload is sampled, the level after `full` is `packets`: no requests are read. If frames are counted, the next
//! level is `sockets`: all workloads are read from sockets instead.
//!
//! If the level has to be lowered soon after it was raised, the next wait is twice as long, up to a bound, so that a
//! load near the budget does not change the level all the time.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use leno_bpf::flows::{Flows, ProgramRuns};
use leno_bpf::{Error, RunTime, RunTimeCounting};
use leno_bpf_abi::flow::{FlowLevel, FlowProgram};

/// How many rounds in a row under half of the budget raise the level: the first number, and the largest. A round
/// of `leno up` takes 5 s.
const PATIENCE: u32 = 6;
const MOST_PATIENCE: u32 = 120;
/// How many rounds in a row over the budget lower the level, and the multiple of the budget for which one round is
/// enough.
const EVIDENCE: u32 = 3;
const FAR_OVER: f64 = 10.0;
/// The levels, from the highest to the lowest.
const LEVELS: [FlowLevel; 5] = [
    FlowLevel::Full,
    FlowLevel::Packets,
    FlowLevel::Sockets,
    FlowLevel::Aggregated,
    FlowLevel::Off,
];
/// The unit of shares in the kernel.
const MILLION: f64 = 1e6;

/// The time of a program's run that finds nothing to account for, as a share of the time of one that does
/// (docs/decisions/155-a-cap-for-a-workload.md).
const IDLE_RUN: f64 = 0.1;

/// A budget for the kernel's accounting of one workload or of all. It is a share of the CPU time of the whole
/// machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuBudget(f64);

/// The value is never NaN, so equality is an equivalence relation.
impl Eq for CpuBudget {}

/// The error for a text that is not a [`CpuBudget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBudget(String);

/// The value of a flag: a [`CpuBudget`], or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptionalBudget(pub Option<CpuBudget>);

impl OptionalBudget {
    /// Parses `1%`, or `none`.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn of(text: &str) -> Result<Self, UnknownBudget> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|budget| Self(Some(budget))) }
    }
}

impl Default for CpuBudget {
    /// The default is 1 %.
    fn default() -> Self {
        Self(0.01)
    }
}

impl FromStr for CpuBudget {
    type Err = UnknownBudget;

    /// Parses a percentage, such as `1%` or `0.5%`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let share = leno_resources::cpu_share(text).map(Self);
        share.ok_or_else(|| UnknownBudget(text.to_owned()))
    }
}

impl fmt::Display for CpuBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", (self.0 * MILLION).round() / 1e4)
    }
}

impl fmt::Display for UnknownBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a share of the machine's CPU: write for example 1% or 0.5%", self.0)
    }
}

impl std::error::Error for UnknownBudget {}

impl CpuBudget {
    pub(crate) fn share(self) -> f64 {
        self.0
    }

    pub(crate) fn millionths(self) -> u32 {
        millionths(self.0).max(1)
    }
}

/// Converts a share to millionths. The result saturates, because a measurement with another clock may exceed 1.
pub(crate) fn millionths(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * MILLION).round() as u32
}

/// A change of the level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelChange {
    /// The workload, by namespace and name; `None` for the common level of all workloads.
    pub of: Option<(String, String)>,
    /// The level from now on.
    pub level: FlowLevel,
    /// Whether the level was lowered.
    pub down: bool,
    /// The measured cost, as a share of the machine's CPU time.
    pub cost: f64,
    /// The budget.
    pub budget: CpuBudget,
}

impl fmt::Display for LevelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.level {
            FlowLevel::Full => "each connection is counted",
            FlowLevel::Packets => "frames are counted, but no requests are read from them",
            FlowLevel::Sockets => "new connections are counted from sockets, and no frames",
            FlowLevel::Aggregated => {
                "new connections are added to the sums of their pairs, and not listed"
            }
            FlowLevel::Off => "new connections are not counted",
        };
        let cost = (self.cost * MILLION).round() / 1e4;
        if let Some((namespace, workload)) = &self.of {
            write!(f, "for {namespace}/{workload} ")?;
        }
        if self.down {
            return write!(f, "took {cost}% of the CPU, more than {}: {what}", self.budget);
        }
        write!(f, "took {cost}% of the CPU, much less than {}: {what} again", self.budget)
    }
}

/// What frames are used for at the level `full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameUse {
    pub(crate) counted: bool,
    pub(crate) sampled: bool,
}

/// Decides about the level. It uses no clock and does no I/O.
#[derive(Debug)]
pub(crate) struct Governor {
    budget: CpuBudget,
    level: FlowLevel,
    /// Whether frames are counted, and whether their payload is sampled.
    has: FrameUse,
    /// How many rounds in a row were over the budget.
    over: u32,
    /// How many rounds in a row were under half of the budget.
    calm: u32,
    /// How many such rounds in a row raise the level.
    patience: u32,
    /// How many rounds ago the level was last raised.
    since_return: Option<u32>,
}

impl Governor {
    pub(crate) fn new(budget: CpuBudget) -> Self {
        Self {
            budget,
            level: FlowLevel::Full,
            has: FrameUse::default(),
            over: 0,
            calm: 0,
            patience: PATIENCE,
            since_return: None,
        }
    }

    pub(crate) fn set_frames(&mut self, has: FrameUse) {
        self.has = has;
    }

    pub(crate) fn level(&self) -> FlowLevel {
        self.level
    }

    pub(crate) fn budget(&self) -> CpuBudget {
        self.budget
    }

    /// Sets another budget. The level is kept until the next rounds. Earlier waits do not apply to the new budget.
    pub(crate) fn set_budget(&mut self, budget: CpuBudget) {
        self.budget = budget;
        (self.over, self.calm) = (0, 0);
        (self.patience, self.since_return) = (PATIENCE, None);
    }

    /// Whether the next round must be measured although it is not its turn, because it may change the level.
    pub(crate) fn is_watching(&self) -> bool {
        self.level != FlowLevel::Full || self.over > 0
    }

    /// Handles one measurement.
    pub(crate) fn judge(&mut self, cost: f64) -> Option<LevelChange> {
        self.since_return = self.since_return.map(|rounds| rounds + 1);
        if self.since_return.is_some_and(|rounds| rounds > MOST_PATIENCE) {
            self.patience = PATIENCE;
            self.since_return = None;
        }
        if cost > self.budget.0 {
            (self.over, self.calm) = (self.over + 1, 0);
            if self.over < EVIDENCE && cost <= self.budget.0 * FAR_OVER {
                return None;
            }
            self.over = 0;
            let less = self.levels().find(|level| rank(*level) > rank(self.level))?;
            if self.since_return.take().is_some() {
                self.patience = (self.patience * 2).min(MOST_PATIENCE);
            }
            return Some(self.step(less, true, cost));
        }
        self.over = 0;
        self.calm = if cost < self.budget.0 / 2.0 { self.calm + 1 } else { 0 };
        if self.calm < self.patience {
            return None;
        }
        self.calm = 0;
        let more = self.levels().rfind(|level| rank(*level) < rank(self.level))?;
        self.since_return = Some(0);
        Some(self.step(more, false, cost))
    }

    fn levels(&self) -> impl DoubleEndedIterator<Item = FlowLevel> + use<> {
        let has = self.has;
        LEVELS.into_iter().filter(move |level| match level {
            FlowLevel::Packets => has.sampled,
            FlowLevel::Sockets => has.counted,
            _ => true,
        })
    }

    fn step(&mut self, level: FlowLevel, down: bool, cost: f64) -> LevelChange {
        self.level = level;
        LevelChange { of: None, level, down, cost, budget: self.budget }
    }
}

fn rank(level: FlowLevel) -> Option<usize> {
    LEVELS.iter().position(|one| *one == level)
}

/// A measurement in progress.
#[derive(Debug)]
pub(crate) struct Measurement {
    _counting: RunTimeCounting,
    began: Instant,
    before: BTreeMap<String, RunTime>,
    /// How much CPU time the reading of samples had used at the start.
    reading: Duration,
    /// The workloads whose runs are counted.
    workloads: BTreeMap<u32, ProgramRuns>,
}

/// The cost of the programs during a measurement, and their runs.
#[derive(Debug, Default)]
pub(crate) struct MeasuredCost {
    /// The cost of all programs, as a share of the machine's CPU time.
    pub(crate) total: f64,
    /// The cost of each program, and how many times it ran.
    programs: [(f64, u64); FlowProgram::ALL.len()],
    /// For each workload, how many times the programs have accounted for something of it.
    workloads: BTreeMap<u32, ProgramRuns>,
}

impl Measurement {
    /// Starts a measurement, which also counts the runs for these workloads.
    pub(crate) fn start(
        flows: &Flows,
        workloads: impl Iterator<Item = u32>,
        reading: Duration,
    ) -> Result<Self, Error> {
        let counting = RunTimeCounting::start()?;
        let runs = |workload| Ok((workload, flows.runs(workload)?));
        let workloads = workloads.map(runs).collect::<Result<_, Error>>()?;
        let before = flows.run_times()?;
        Ok(Self { before, reading, workloads, began: Instant::now(), _counting: counting })
    }

    /// Ends the measurement. `reading` is the CPU time that the reading of samples has used so far, which is a
    /// part of the total cost.
    pub(crate) fn end(self, flows: &Flows, reading: Duration) -> Result<MeasuredCost, Error> {
        let after = flows.run_times()?;
        let processors = available_parallelism().map_or(1, std::num::NonZero::get) as f64;
        let passed = self.began.elapsed().max(Duration::from_micros(1)).as_secs_f64();
        let read = reading.saturating_sub(self.reading).as_secs_f64() / passed / processors;
        let mut measured = MeasuredCost { total: read, ..MeasuredCost::default() };
        for (name, now) in after {
            let before = self.before.get(&name).copied().unwrap_or_default();
            // The counters of a program that was replaced in the meantime have started at zero.
            let since = if now.took >= before.took { before } else { RunTime::default() };
            let share = (now.took - since.took).as_secs_f64() / passed / processors;
            measured.total += share;
            let is_it = |program: &&FlowProgram| program.name().starts_with(&name);
            if let Some(program) = FlowProgram::ALL.iter().find(is_it) {
                let runs = now.runs.saturating_sub(since.runs);
                measured.programs[*program as usize] = (share, runs);
            }
        }
        for (workload, before) in self.workloads {
            let mut runs = flows.runs(workload)?;
            runs.iter_mut().zip(before).for_each(|(now, before)| *now = now.wrapping_sub(before));
            measured.workloads.insert(workload, runs);
        }
        Ok(measured)
    }
}

impl MeasuredCost {
    /// The part of the cost that one workload causes: of each program's cost, the share of the workload in what
    /// that program has accounted for.
    pub(crate) fn of(&self, workload: u32) -> f64 {
        let Some(own) = self.workloads.get(&workload) else { return 0.0 };
        let mut part = 0.0;
        for (nth, (share, runs)) in self.programs.iter().enumerate() {
            let busy: u64 = self.workloads.values().map(|of| of[nth]).sum();
            let weight = busy as f64 + IDLE_RUN * runs.saturating_sub(busy) as f64;
            if own[nth] > 0 {
                part += share * own[nth] as f64 / weight;
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn governor() -> Governor {
        Governor::new("1%".parse().unwrap())
    }

    /// How many rounds at this cost it takes until the level changes.
    fn rounds_until(governor: &mut Governor, cost: f64, level: FlowLevel) -> u32 {
        for round in 1..1000 {
            if let Some(step) = governor.judge(cost) {
                assert_eq!(step.level, level);
                return round;
            }
        }
        panic!("the level stays {:?}", governor.level());
    }

    #[test]
    fn it_steps_down_once_there_is_evidence_and_comes_back_after_calm_rounds() {
        let mut governor = governor();
        assert_eq!(governor.judge(0.009), None);
        assert!(!governor.is_watching());
        // One or two expensive rounds may be due to interruptions.
        for rounds in [1, 2, 2] {
            for _ in 0..rounds {
                assert_eq!(governor.judge(0.011), None);
                assert!(governor.is_watching());
            }
            assert_eq!(governor.judge(0.009), None);
            assert!(!governor.is_watching());
        }
        assert_eq!(rounds_until(&mut governor, 0.011, FlowLevel::Aggregated), EVIDENCE);
        assert_eq!(rounds_until(&mut governor, 0.101, FlowLevel::Off), 1);
        assert_eq!(governor.judge(0.5), None, "there is no less");
        // Between half of the budget and the whole budget, nothing changes.
        assert!((0..500).all(|_| governor.judge(0.007).is_none()));
        assert_eq!(rounds_until(&mut governor, 0.0, FlowLevel::Aggregated), PATIENCE);
        assert_eq!(rounds_until(&mut governor, 0.001, FlowLevel::Full), PATIENCE);
        assert!((0..500).all(|_| governor.judge(0.0).is_none()));
    }

    #[test]
    fn sockets_stand_in_for_frames_first() {
        let mut governor = governor();
        governor.set_frames(FrameUse { counted: true, sampled: false });
        for level in &LEVELS[2..] {
            assert_eq!(rounds_until(&mut governor, 0.011, *level), EVIDENCE);
        }
        for level in [FlowLevel::Aggregated, FlowLevel::Sockets, FlowLevel::Full] {
            assert_eq!(rounds_until(&mut governor, 0.0, level), PATIENCE);
        }
        assert!((0..500).all(|_| governor.judge(0.0).is_none()), "there is no more");
    }

    #[test]
    fn where_payload_is_sampled_requests_go_first_and_come_last() {
        let mut governor = governor();
        governor.set_frames(FrameUse { counted: true, sampled: true });
        for level in &LEVELS[1..] {
            assert_eq!(rounds_until(&mut governor, 0.011, *level), EVIDENCE);
        }
        for level in LEVELS[..4].iter().rev() {
            assert_eq!(rounds_until(&mut governor, 0.0, *level), PATIENCE);
        }
    }

    #[test]
    fn a_return_that_fails_makes_the_next_one_later_up_to_a_bound() {
        let mut governor = governor();
        rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
        let mut waits = Vec::new();
        for _ in 0..7 {
            waits.push(rounds_until(&mut governor, 0.0, FlowLevel::Full));
            let down = rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
            assert_eq!(down, EVIDENCE);
        }
        assert_eq!(waits, [6, 12, 24, 48, 96, 120, 120]);
        // If the level is not lowered again after it was raised, the wait becomes short again.
        rounds_until(&mut governor, 0.0, FlowLevel::Full);
        assert!((0..=MOST_PATIENCE).all(|_| governor.judge(0.006).is_none()));
        rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
        assert_eq!(rounds_until(&mut governor, 0.0, FlowLevel::Full), PATIENCE);
    }

    #[test]
    fn another_budget_keeps_the_level_and_forgets_returns_that_failed() {
        let mut governor = governor();
        rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
        for _ in 0..3 {
            rounds_until(&mut governor, 0.0, FlowLevel::Full);
            rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
        }
        governor.set_budget("2%".parse().unwrap());
        assert_eq!(governor.level(), FlowLevel::Aggregated);
        assert_eq!(rounds_until(&mut governor, 0.009, FlowLevel::Full), PATIENCE);
        // Waits under an earlier budget do not count for this one.
        governor.set_budget("1%".parse().unwrap());
        rounds_until(&mut governor, 0.011, FlowLevel::Aggregated);
        assert_eq!(rounds_until(&mut governor, 0.0, FlowLevel::Full), PATIENCE);
    }

    #[test]
    fn the_cost_is_shared_out_by_runs_and_idle_runs_weigh_little() {
        let mut measured = MeasuredCost { total: 0.03, ..MeasuredCost::default() };
        measured.programs[0] = (0.01, 100);
        measured.programs[1] = (0.02, 1_000);
        measured.workloads = [(3, [75, 0, 0, 0]), (4, [25, 100, 0, 0])].into();
        assert!((measured.of(3) - 0.0075).abs() < 1e-9, "{}", measured.of(3));
        // 900 idle runs cost as much as 90 others.
        let frames = 0.02 * 100.0 / 190.0;
        assert!((measured.of(4) - 0.0025 - frames).abs() < 1e-9, "{}", measured.of(4));
        assert_eq!(measured.of(5), 0.0);
    }

    #[test]
    fn budgets_are_shares_of_the_machine() {
        for (text, millionths) in [("1%", 10_000), ("0.5%", 5_000), ("100%", 1_000_000)] {
            let budget: CpuBudget = text.parse().unwrap();
            assert_eq!((budget.to_string().as_str(), budget.millionths()), (text, millionths));
        }
        for text in ["1", "0%", "101%", "-1%", "x%", "%"] {
            assert!(text.parse::<CpuBudget>().is_err(), "{text}");
        }
        let mut step = LevelChange {
            of: None,
            level: FlowLevel::Aggregated,
            down: true,
            cost: 0.0134,
            budget: CpuBudget::default(),
        };
        assert_eq!(
            step.to_string(),
            "took 1.34% of the CPU, more than 1%: new connections are added to the sums of their \
             pairs, and not listed"
        );
        step.of = Some(("shop".to_owned(), "web".to_owned()));
        assert!(step.to_string().starts_with("for shop/web took 1.34% of the CPU, more than 1%: "));
    }
}
