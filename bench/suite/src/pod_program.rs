//! The program that makes load and reads counters where the bench itself does not run: in the workloads of a lab, and in
//! pods, to which the bench attaches like `kubectl attach`. It reads requests from its standard input, and answers on its
//! standard output.
//!
//! ```text
//! stdin    {"number": 7, "task": {"look": ...}}           a line for each request
//! stdout   {"number": 7, "answer": {"Ok": ...}}           the answer to it; load and probes answer twice
//!          {"number": 7, "answer": {"Err": "..."}}
//! ```
//! It carries out one request after the other. If a line arrives during load or a probe, it stops that; the end of the
//! input does not stop it.

mod container_start;
mod containers;
pub(crate) mod counters;

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_bpf::RunTimeCounting;
use leno_measure::load::{self, Plan, Stop};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::measurement::probe::probe;
use container_start::{KilledContainer, kill};
use counters::CounterQuestion;

/// The command of `leno-bench` that is this program.
pub(crate) const POD: &str = "pod";
/// How long a container may take to run again after it was killed.
pub(crate) const RUNS_AGAIN: Duration = Duration::from_secs(30);
/// How many requests can wait for the one before them. The bench sends no more than one or two at once.
const WAITING: usize = 16;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodRequest {
    /// Its answers have this number too.
    pub(crate) number: u64,
    pub(crate) task: PodTask,
}

impl PodRequest {
    pub(crate) fn line(number: u64, task: PodTask) -> Result<String> {
        Ok(serde_json::to_string(&Self { number, task })? + "\n")
    }
}

/// An answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodAnswer {
    /// The number of the request; 0 for a line that is no request.
    pub(crate) number: u64,
    /// What the task returned, or why it failed.
    pub(crate) answer: Result<Value, String>,
}

/// What the program is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PodTask {
    /// Only answers.
    Greet,
    /// Reads counters: `NodeCounters`.
    Look(CounterQuestion),
    /// Kills all processes of containers. If one of them has no process, kills none and says which: an optional text.
    Kill(Vec<String>),
    /// Kills a container. Answers when its program runs again in another container of the pod: the time in nanoseconds of
    /// CLOCK_MONOTONIC, or nothing after 30 s.
    Restart(String),
    /// Makes load. Answers when it begins, and when it ends: `Report`.
    Load(Vec<Plan>),
    /// Sends requests until one succeeds, then until one fails, then until one succeeds again. Answers at both successes:
    /// the time in nanoseconds of CLOCK_MONOTONIC. Fails after the limit.
    Probe(Plan, Duration),
}

/// Answers requests until the input ends.
///
/// # Errors
/// If the output cannot be written.
pub fn answer(input: impl BufRead + Send + 'static, output: &mut impl Write) -> Result<()> {
    let current = Arc::new(Mutex::new(Stop::default()));
    let (sender, requests) = mpsc::sync_channel(WAITING);
    let running = current.clone();
    let end = move || running.lock().unwrap_or_else(PoisonError::into_inner).stop();
    // The thread ends with the input, or with the program. An error of the input counts as its end.
    thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            end();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut counting = None;
    for line in requests {
        let mut say = |number, answer| -> Result<()> {
            writeln!(output, "{}", serde_json::to_string(&PodAnswer { number, answer })?)?;
            Ok(output.flush()?)
        };
        match serde_json::from_str::<PodRequest>(&line) {
            Ok(PodRequest { number, task }) => {
                let stop = Stop::default();
                *current.lock().unwrap_or_else(PoisonError::into_inner) = stop.clone();
                let done = carry_out(task, &mut counting, &stop, |answer| say(number, Ok(answer)));
                if let Err(error) = done {
                    say(number, Err(format!("{error:#}")))?;
                }
            }
            Err(error) => say(0, Err(format!("this is no request: {error}")))?,
        }
    }
    Ok(())
}

/// Carries out a task; `say` receives its answers. From the first question about the whole kernel on, `counting` makes
/// the kernel time its programs, until this program ends.
fn carry_out(
    task: PodTask,
    counting: &mut Option<RunTimeCounting>,
    stop: &Stop,
    mut say: impl FnMut(Value) -> Result<()>,
) -> Result<()> {
    match task {
        PodTask::Greet => say(Value::Null),
        PodTask::Look(question) => {
            if question.whole && counting.is_none() {
                // If the kernel cannot time its programs, their run time counts as 0.
                *counting = RunTimeCounting::start().ok();
            }
            say(serde_json::to_value(counters::read(&question)?)?)
        }
        PodTask::Kill(containers) => say(json!(kill(&containers)?)),
        PodTask::Restart(id) => say(json!(KilledContainer::now(&id)?.follow(RUNS_AGAIN)?)),
        PodTask::Load(plans) => {
            say(Value::Null)?;
            say(serde_json::to_value(load::run_until(&plans, stop)?)?)
        }
        PodTask::Probe(plan, limit) => {
            let goes_on = || {
                ensure!(!stop.is_stopped(), "it was told to end");
                Ok(())
            };
            probe(plan, limit, goes_on, |at| say(json!(u64::try_from(at.as_nanos())?)))
        }
    }
}

#[cfg(test)]
mod tests;
