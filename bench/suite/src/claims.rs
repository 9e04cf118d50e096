//! Compares published claims about meshes with what was measured here.
//!
//! The claims and the check of each come from a file that is built into this program. For a claim that cannot be
//! measured, the file says why.

mod claim;
mod evidence;

use std::fmt;

use serde::Serialize;

use crate::cost::Price;
use crate::record::{Record, in_words, of_one_generator};
use crate::{compare, scenario};

pub use claim::{Claim, claims};

/// The result of checking a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The measurement agrees with the claim.
    Holds,
    /// The measurement disagrees with the claim.
    DoesNotHoldHere,
    /// No measurement here can decide.
    NotMeasurableHere,
}

/// A verdict is shown in the words that JSON has, but with spaces.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_words(self))
    }
}

/// A claim and the result of checking it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Short name of the source.
    pub source: String,
    /// The claim as published.
    pub says: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What was measured, or why nothing was measured.
    pub because: String,
}

/// Checks every claim. If several generators made the records, only the records of one generator count.
pub fn check(claims: &[Claim], records: &[Record], prices: &[Price]) -> Vec<Outcome> {
    let records = &of_one_generator(records)[..];
    let bench = evidence::Measured { records, prices };
    let outcome = |claim: &Claim| {
        let (verdict, mut because) = match bench.judge(&claim.check) {
            Ok((holds, because)) if holds => (Verdict::Holds, because),
            Ok((_, because)) => (Verdict::DoesNotHoldHere, because),
            Err(why) => (Verdict::NotMeasurableHere, why),
        };
        if verdict != Verdict::NotMeasurableHere {
            let toy = claim.check.scenario().is_some_and(|name| is_of_toys(name, records));
            let toy = toy.then_some("our own services of its shape, which do less");
            for but in claim.but.as_deref().into_iter().chain(toy) {
                because += &format!("; {but}");
            }
        }
        Outcome { source: claim.source.clone(), says: claim.says.clone(), verdict, because }
    };
    claims.iter().map(outcome).collect()
}

/// Whether a scenario models a real application although all its records were made with the suite's own simple
/// services.
fn is_of_toys(scenario: &str, records: &[Record]) -> bool {
    let real = |record: &Record| record.scenario == scenario && compare::real(record).is_some();
    let found = scenario::find(scenario);
    found.is_ok_and(|one| one.is_an_application()) && !records.iter().any(real)
}

#[cfg(test)]
mod tests;
