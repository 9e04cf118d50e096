//! Checks of `ServiceLevelObjective`.

use std::time::Duration as Time;

use super::traffic::{metadata, target_kind};
use super::{Check, Cursor};
use crate::objective::ServiceLevelObjective;

/// The shortest window. Burn rates are computed over parts of the window, and the history has steps of 5 s.
const MIN_WINDOW: Time = Time::from_secs(5 * 60);
/// The longest window, which is as long as the history: a day.
const MAX_WINDOW: Time = Time::from_secs(24 * 3600);
/// The largest percentage. With a larger one, a single failure in a million requests would use up the budget.
const MAX_PERCENT: f64 = 99.9999;

pub(super) fn check(check: &mut Check<'_>, at: &Cursor<'_>, object: &ServiceLevelObjective) {
    metadata(check, at, &object.metadata);
    let at = at.key("spec");
    let spec = &object.spec;
    let target = at.key("targetRef");
    target_kind(check, &target, &spec.target_ref, &[("", "Service"), ("leno.dev", "Workload")]);
    if spec.target_ref.section_name.is_some() {
        check.fail(&target.key("sectionName"), "is not used: requests are counted by workload");
    }
    if let Some(window) = spec.window
        && !(MIN_WINDOW..=MAX_WINDOW).contains(&window.0)
    {
        check.fail(&at.key("window"), "is not from 5m to 24h: the history is a day");
    }
    if spec.success_percent.is_none() && spec.latency.is_none() {
        check.fail(&at, "has no objective: use successPercent, latency, or both");
    }
    if let Some(share) = spec.success_percent {
        percent(check, &at.key("successPercent"), share);
    }
    if let Some(latency) = &spec.latency {
        let at = at.key("latency");
        if latency.below.0.is_zero() {
            check.fail(&at.key("below"), "is 0: use 1ms or more");
        }
        percent(check, &at.key("percent"), latency.percent);
    }
}

fn percent(check: &mut Check<'_>, at: &Cursor<'_>, share: f64) {
    if !(0.0..=MAX_PERCENT).contains(&share) || share <= 0.0 {
        let reason = format!("{share} is not above 0 and at most {MAX_PERCENT}");
        check.fail(at, reason);
    }
}
