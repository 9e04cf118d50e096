//! How a claim is checked: which records are evidence, and what they show.

use super::claim::{Bound, Check, Evidence, FigureCheck};
use crate::cost::{Price, SidecarUse};
use crate::figures;
use crate::measurement::figures::MAX_ERRORS;
use crate::mesh_names::NONE;
use crate::record::{MarkKind, Record};
use crate::scenario;

/// A claimed figure holds if the measured figure differs from it by at most this factor. The published machines differ
/// from this one, and a claim that only holds on one machine helps no reader.
const WITHIN: f64 = 1.5;
/// The scenario that is preferred as evidence about idle memory, start-up and file sizes.
const USUAL: &str = "http-1k";
/// The share of a rate that must be answered for the rate to count as sustained. It is below 1 because the last
/// requests of a run are not answered in time.
const KEPT: f64 = 0.95;
/// Names of lab meshes, and of the cluster meshes that run the same proxy.
const IN_A_CLUSTER: [(&str, &str); 3] =
    [("envoy", "istio"), ("linkerd2-proxy", "linkerd"), ("ztunnel", "istio-ambient")];

/// Whether the claim holds, with what was measured; or why this cannot be decided.
type CheckOutcome = Result<(bool, String), String>;

pub(super) struct Measured<'a> {
    pub(super) records: &'a [Record],
    pub(super) prices: &'a [Price],
}

struct MeasuredFigure {
    value: f64,
    unit: String,
    mesh: String,
    /// The load of the measurement, if it was not the published one.
    load: Option<String>,
}

impl Measured<'_> {
    pub(super) fn judge(&self, check: &Check) -> CheckOutcome {
        match check {
            Check::Figure(check) => self.figure(check),
            Check::Keeps { by, kept } => self.keeps(by, *kept),
            Check::Dollars { machine, cpus, mb, near } => {
                self.dollars(machine, SidecarUse { cpus: *cpus, rss_kib: mb * 1e6 / 1024.0 }, *near)
            }
            Check::Unmeasurable(why) => Err(why.clone()),
        }
    }

    fn figure(&self, check: &FigureCheck) -> CheckOutcome {
        let mut own = self.median(check, &check.by.mesh, &[])?;
        Ok(match &check.is {
            Bound::Near(claimed) => (is_near(own.value, *claimed), own.text()),
            Bound::AtMost(claimed) => (own.value <= claimed * WITHIN, own.text()),
            Bound::Over { mesh, by } => {
                let base = self.median(check, mesh, &[])?;
                own.value -= base.value;
                own.unit = format!("{} over {}", own.unit, base.mesh);
                (is_near(own.value, *by), own.text())
            }
            Bound::Under { mesh, percent } => {
                let other = self.median(check, mesh, &[])?;
                let seen = (1.0 - own.value / other.value) * 100.0;
                let text = format!("{} % less: {} and {}", digits(seen), own.text(), other.text());
                (is_near(seen, *percent), text)
            }
            Bound::Rising(others) => {
                let meshes: Vec<&String> = [&check.by.mesh].into_iter().chain(others).collect();
                let all = meshes.iter().map(|mesh| self.median(check, mesh, &meshes));
                let all = all.collect::<Result<Vec<_>, String>>()?;
                let text: Vec<String> = all.iter().map(MeasuredFigure::text).collect();
                (all.is_sorted_by(|one, next| one.value < next.value), text.join(", "))
            }
        })
    }

    fn dollars(&self, machine: &str, used: SidecarUse, claimed: f64) -> CheckOutcome {
        let price = self.prices.iter().find(|price| price.name == machine);
        let price = price.ok_or_else(|| format!("{machine} is not in the table of prices"))?;
        let value = price.a_year(used);
        let text = format!("{} dollars (by the use it states itself)", digits(value));
        Ok((is_near(value, claimed), text))
    }

    /// Whether a mesh sustains a step, over all rounds. A round with too many errors is evidence that it does not. A
    /// round whose generator was the bottleneck is no evidence.
    fn keeps(&self, wanted: &Evidence, claimed: bool) -> CheckOutcome {
        let tells = |record: &&Record| {
            record.left_out.is_none()
                && record.marks.iter().all(|mark| {
                    matches!(mark.kind, MarkKind::Errors | MarkKind::DeadTarget)
                        || !mark.kind.invalidates()
                })
        };
        let mut runs: Vec<&Record> = self.named(wanted, &wanted.mesh).filter(tells).collect();
        let Some(first) = runs.first().copied() else {
            return Err(self.missing(wanted, &wanted.mesh));
        };
        runs.retain(|record| record.mesh == first.mesh);
        let kept = |record: &&&Record| {
            let failed = record.errors as f64 / record.requests.max(1) as f64;
            let asked = record.rate_per_s.unwrap_or(record.requests_per_s);
            record.requests_per_s * (1.0 - failed) >= asked * KEPT && failed <= MAX_ERRORS
        };
        let (good, all) = (runs.iter().filter(kept).count(), runs.len());
        let (mesh, scale) = (&first.mesh, first.scale);
        let asked = first.rate_per_s.unwrap_or_default();
        let text = format!("kept in {good} of {all} rounds at {asked:.0}/s ({mesh})");
        let is_kept = good * 2 > all;
        if is_kept && scale < 1.0 {
            // A sustained fraction of the rate does not prove that the whole rate is sustained.
            return Err(format!("{text}, {scale} of the published rate: run it with --scale 1"));
        }
        Ok((is_kept == claimed, text))
    }

    /// Returns the median of a figure over all valid rounds of a mesh. Only loads at which each of `meshes` has valid
    /// records count: otherwise a mesh that fails at the highest load would seem to use the least memory.
    fn median(
        &self,
        check: &FigureCheck,
        mesh: &str,
        meshes: &[&String],
    ) -> Result<MeasuredFigure, String> {
        let mut runs = self.evidence(&check.by, mesh)?;
        let others = meshes.iter().map(|mesh| self.evidence(&check.by, mesh));
        for others in others.collect::<Result<Vec<_>, String>>()? {
            runs.retain(|record| others.iter().any(|other| other.step == record.step));
        }
        let Some(first) = runs.first() else {
            let meshes: Vec<&str> = meshes.iter().map(|mesh| mesh.as_str()).collect();
            return Err(format!(
                "there is no load that {} have valid records of",
                meshes.join(", ")
            ));
        };
        let (mesh, load) =
            (first.mesh.clone(), load(first).filter(|_| check.by.scenario.is_some()));
        let figure = figures::find(&check.of).map_err(|error| error.to_string())?;
        let value = figure.median(runs.iter().copied());
        let value = value.ok_or_else(|| format!("the records of {mesh} have no {}", check.of))?;
        let unit = figure.unit.clone();
        Ok(MeasuredFigure { value: value * check.times, unit, mesh, load })
    }

    /// The valid rounds of a mesh, at least one. Their records have the mesh's own name or its name in a cluster;
    /// `leno` also means Leno with any capture.
    fn evidence(&self, wanted: &Evidence, mesh: &str) -> Result<Vec<&Record>, String> {
        let mut valid: Vec<&Record> =
            self.named(wanted, mesh).filter(|record| record.valid()).collect();
        let usual = valid.iter().find(|record| record.scenario == USUAL).or(valid.first()).copied();
        let first = usual.ok_or_else(|| self.missing(wanted, mesh))?;
        valid.retain(|one| (&one.scenario, &one.mesh) == (&first.scenario, &first.mesh));
        let Some(rate) = wanted.reached else { return Ok(valid) };
        let reached = |record: &Record| record.requests_per_s / f64::from(record.services.max(1));
        let most = valid.iter().map(|record| reached(record)).fold(0.0, f64::max);
        if most < rate * KEPT {
            let published = scenario::find(&first.scenario).ok();
            let published = published.and_then(|one| one.rate_per_service(1.0));
            let scale = published.map_or(1.0, |published| rate / published);
            let run = command(&first.scenario, mesh, &format!(" --scale {scale}"));
            return Err(format!(
                "no record of so many: {most:.0}/s to each service is the most of {mesh}: {run}"
            ));
        }
        valid.retain(|record| reached(record) >= rate * KEPT);
        Ok(valid)
    }

    /// The records of a mesh, whether they are valid or not.
    fn named(&self, wanted: &Evidence, mesh: &str) -> impl Iterator<Item = &Record> {
        let (scenario, step) = (wanted.scenario.as_ref(), wanted.step);
        let is_own = move |name: &str| {
            name == mesh
                || (mesh == "leno" && name.starts_with("leno-"))
                || IN_A_CLUSTER.contains(&(mesh, name))
        };
        self.records.iter().filter(move |record| {
            is_own(&record.mesh)
                && scenario.is_none_or(|scenario| record.scenario == *scenario)
                && (step.is_none() || record.step == step)
        })
    }

    /// Why there is no evidence, and a command that would produce it.
    fn missing(&self, wanted: &Evidence, mesh: &str) -> String {
        let measured = self.named(wanted, mesh).filter(|record| record.left_out.is_none());
        let measured: Vec<&Record> = measured.collect();
        let mut marks = measured.iter().flat_map(|record| &record.marks);
        if let Some(mark) = marks.find(|one| one.kind.invalidates()) {
            let (kind, why, count) = (mark.kind, &mark.why, measured.len());
            return format!("no valid record: of {count} of {mesh} each is marked ({kind}: {why})");
        }
        if let Some(why) = self.named(wanted, mesh).find_map(|record| record.left_out.as_deref()) {
            return format!("not measured: {why}");
        }
        let at = wanted.step.map_or_else(String::new, |step| format!(" at {step}/s"));
        let scenario = wanted.scenario.as_deref().unwrap_or(USUAL);
        format!("no valid record{at}: {}", command(scenario, mesh, ""))
    }
}

/// The command that measures a mesh, complete except for placeholders that the user must fill in.
fn command(scenario: &str, mesh: &str, more: &str) -> String {
    let others = if mesh == NONE { String::new() } else { format!(",{mesh}") };
    let cluster = IN_A_CLUSTER.iter().any(|(_, name)| *name == mesh);
    let place = if cluster { " --context NAME --image IMAGE" } else { "" };
    // These programs have no installer.
    let program = match mesh {
        "linkerd2-proxy" => " --linkerd2-proxy PATH",
        "ztunnel" => " --ztunnel PATH",
        _ => "",
    };
    format!("leno bench run {scenario}{place} --mesh none{others}{program}{more} --out DIR")
}

impl MeasuredFigure {
    fn text(&self) -> String {
        let load = self.load.as_ref().map_or_else(String::new, |load| format!(", {load}"));
        format!("{} {} ({}{load})", digits(self.value), self.unit, self.mesh)
    }
}

/// The rate and the scale of a record whose load was not the published one. Old records have no
/// scale.
fn load(record: &Record) -> Option<String> {
    let rate = record.rate_per_s.unwrap_or(record.requests_per_s);
    let scale = record.scale;
    (scale > 0.0 && scale != 1.0).then(|| format!("at {rate:.0}/s, scale {scale}"))
}

fn is_near(seen: f64, claimed: f64) -> bool {
    seen > 0.0 && seen <= claimed * WITHIN && seen >= claimed / WITHIN
}

/// The number without decimals from 100 on, with one decimal from 1 on, otherwise with three: `123`, `12.3`, `0.123`.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
