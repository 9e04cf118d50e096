//! The program that generates load and reads counters where the bench itself does not run: in the workloads of a lab,
//! and in pods. The bench attaches to a pod like `kubectl attach`. The program reads requests from its standard input
//! and answers on its standard output.
//!
//! ```text
//! stdin    {"number": 7, "task": {"look": ...}}           a line for each request
//! stdout   {"number": 7, "answer": {"Ok": ...}}           the answer to it; load and probes answer twice
//!          {"number": 7, "answer": {"Err": "..."}}
//! ```
//! It handles one request after the other. If a line arrives during load or a probe, the load or probe is stopped; the
//! end of the input does not stop it.

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

/// The command of `leno-bench` that starts this program.
pub(crate) const POD: &str = "pod";
/// How long a container may take to run again after it was killed.
pub(crate) const RUNS_AGAIN: Duration = Duration::from_secs(30);
/// How many requests can wait for the one before them. The bench sends at most two at once.
const WAITING: usize = 16;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodRequest {
    /// The number of the request, which its answers repeat.
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
    /// The number of the request; 0 if a line was not a request.
    pub(crate) number: u64,
    /// The result of the task, or why it failed.
    pub(crate) answer: Result<Value, String>,
}

/// What the program should do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PodTask {
    /// Answer, and do nothing else.
    Greet,
    /// Reads counters. The answer is `NodeCounters`.
    Look(CounterQuestion),
    /// Kills all processes of containers. If one of the containers has no process, kills nothing, and the answer is a
    /// text that says which.
    Kill(Vec<String>),
    /// Kills a container. Answers when its program runs again in another container of the pod, with the time in
    /// nanoseconds of CLOCK_MONOTONIC; or with nothing after 30 s.
    Restart(String),
    /// Generates load. Answers when it begins, and with a `Report` when it ends.
    Load(Vec<Plan>),
    /// Sends requests until one succeeds, then until one fails, then until one succeeds again. Answers at both
    /// successes with the time in nanoseconds of CLOCK_MONOTONIC. Fails after the limit.
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
    // The thread ends with the input, or with the program. An error while reading counts as the end of the input.
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

/// Does a task; `say` receives its answers. `counting` makes the kernel measure the run time of its eBPF programs, from
/// the first question about the whole kernel until this program ends.
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
                // If the kernel cannot measure the run time of its eBPF programs, it counts as 0.
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
