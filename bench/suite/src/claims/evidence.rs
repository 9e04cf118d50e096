//! How a claim is checked: which records are evidence, and what they show.

use super::claim::{Check, MemoryMoment, Percentile};
use crate::cost::{Price, Use};
use crate::measurement::figures::MAX_ERRORS;
use crate::record::Record;
use crate::statistics::median;

/// A figure holds if the measured one is within this factor of it, in either direction. The
/// published machines differ from this one, and a claim that only holds on one machine helps no
/// reader.
const WITHIN: f64 = 1.5;
/// The preferred scenario for idle memory, start-up and file sizes.
const USUAL: &str = "http-1k";
/// The share of a rate that must be answered for the rate to count as sustained; the missing part
/// is the last requests of a run.
const KEPT: f64 = 0.95;
/// A figure that only records of a cluster have.
const IDLE_CPU: &str = "idle CPU";
/// Names of lab meshes, and of the cluster meshes that run the same proxy.
const IN_A_CLUSTER: [(&str, &str); 3] =
    [("envoy", "istio"), ("linkerd2-proxy", "linkerd"), ("ztunnel", "istio-ambient")];

/// Whether the claim holds and what was measured, or why neither can be decided.
type CheckOutcome = Result<(bool, String), String>;

/// The input of all checks.
pub(super) struct Measured<'a> {
    pub(super) records: &'a [Record],
    pub(super) prices: &'a [Price],
}

/// Selects the records that are evidence.
#[derive(Clone, Copy)]
struct EvidenceFilter<'a> {
    /// `None` accepts any scenario and prefers the usual one.
    scenario: Option<&'a str>,
    step: Option<f64>,
    mesh: &'a str,
}

/// A figure and the mesh that it was measured with.
struct Figure {
    value: f64,
    mesh: String,
    /// The load, if it was not the published one.
    load: Option<String>,
}

impl Measured<'_> {
    pub(super) fn judge(&self, check: &Check) -> CheckOutcome {
        match check {
            Check::Latency { scenario, step, mesh, quantile, ms } => {
                near(&self.latency(wanted(scenario, *step, mesh), *quantile)?, *ms, "ms")
            }
            Check::AddedLatency { scenario, mesh, over, quantile, ms } => {
                let over = over.as_deref().unwrap_or("none");
                let base = self.latency(wanted(scenario, None, over), *quantile)?;
                let mut own = self.latency(wanted(scenario, None, mesh), *quantile)?;
                own.value -= base.value;
                near(&own, *ms, &format!("ms over {}", base.mesh))
            }
            Check::LessLatency { scenario, mesh, than, quantile, percent } => {
                let of = |mesh| self.latency(wanted(scenario, None, mesh), *quantile);
                less((of(mesh)?, of(than)?), *percent, "ms")
            }
            Check::LessSwitches { scenario, mesh, than, percent } => {
                let of = |mesh| {
                    self.median(wanted(scenario, None, mesh), "context switches", |record| {
                        let switches = record.context_switches;
                        let all = (switches.voluntary + switches.involuntary) as f64;
                        (all > 0.0).then(|| all / record.requests.max(1) as f64)
                    })
                };
                less((of(mesh)?, of(than)?), *percent, "a request")
            }
            Check::Leads { scenario, mesh, than, rate_per_s } => {
                self.leads(scenario, (mesh, than), *rate_per_s)
            }
            Check::Keeps { scenario, step, mesh, kept } => {
                self.keeps(wanted(scenario, Some(*step), mesh), *kept)
            }
            Check::Cpu { scenario, mesh, rate_per_s, cpus } => {
                let mut each = self.median(wanted(scenario, None, mesh), "CPU", |record| {
                    // A request passes two proxies: the client's and the service's.
                    let rate = 2.0 * record.requests_per_s / f64::from(record.proxies);
                    (record.proxies > 0 && rate > 0.0).then(|| record.cpus_per_proxy() / rate)
                })?;
                each.value *= rate_per_s;
                near(&each, *cpus, "processors")
            }
            Check::IdleCpu { mesh, cpus } => near(&self.idle_cpu(mesh)?, *cpus, "processors"),
            Check::MemoryOrder { scenario, rising } => self.memory_order(scenario, rising),
            Check::Memory { scenario, mesh, moment, mb } => {
                let wanted = EvidenceFilter { scenario: scenario.as_deref(), step: None, mesh };
                near(&self.memory(wanted, *moment)?, *mb, "MB")
            }
            Check::StartUp { mesh, ms } => {
                let seen = self.median(anywhere(mesh), "start-up", |record| record.start_up_ms)?;
                let (value, mesh) = (seen.value, seen.mesh);
                Ok((value <= ms * WITHIN, format!("{value:.0} ms to the first request ({mesh})")))
            }
            Check::Binary { mesh, mb } => {
                let size = |record: &Record| record.binary_bytes.map(|bytes| bytes as f64 / 1e6);
                near(&self.median(anywhere(mesh), "size of a file", size)?, *mb, "MB")
            }
            Check::HighestRate { mesh, rate_per_s } => {
                let rate = |record: &Record| Some(record.requests_per_s);
                let seen = self.median(wanted("saturation", None, mesh), "rate", rate)?;
                near(&seen, *rate_per_s, "requests/s")
            }
            Check::Dollars { machine, cpus, mb, dollars } => {
                self.dollars(machine, (*cpus, *mb), *dollars)
            }
            Check::Unmeasurable { why } => Err(why.clone()),
        }
    }

    fn dollars(&self, machine: &str, (cpus, mb): (f64, f64), claimed: f64) -> CheckOutcome {
        let price = self.prices.iter().find(|price| price.name == machine);
        let price = price.ok_or_else(|| format!("{machine} is not in the table of prices"))?;
        let value = price.a_year(Use { cpus, rss_kib: mb * 1e6 / 1024.0 });
        let mesh = "by the use it states itself".into();
        near(&Figure { value, mesh, load: None }, claimed, "dollars")
    }

    /// Which of two meshes is faster; only runs that reached the rate to each service count.
    fn leads(&self, scenario: &str, (one, other): (&str, &str), rate_per_s: f64) -> CheckOutcome {
        let reached = |record: &Record| record.requests_per_s / f64::from(record.services.max(1));
        let p99 = |mesh| {
            let wanted = wanted(scenario, None, mesh);
            let most = self.evidence(wanted)?.into_iter().map(reached).fold(0.0, f64::max);
            if most < rate_per_s * KEPT {
                let published =
                    crate::scenario::find(scenario).ok().and_then(|one| one.rate_per_service(1.0));
                let scale = published.map_or(1.0, |published| rate_per_s / published);
                let run = command(scenario, mesh, &format!(" --scale {scale}"));
                return Err(format!(
                    "no record of so many: {most:.0}/s to each service is the most of {mesh}: {run}"
                ));
            }
            self.median(wanted, "latency", |record| {
                (reached(record) >= rate_per_s * KEPT).then(|| ms(record, Percentile::P99))
            })
        };
        let (one, other) = (p99(one)?, p99(other)?);
        let text = format!("p99 {} and {}", one.text("ms"), other.text("ms"));
        Ok((one.value < other.value, text))
    }

    /// Whether a step is sustained, over all rounds. A round with too many errors counts as
    /// evidence, just as one without. A round whose generator was the bottleneck does not count.
    fn keeps(&self, wanted: EvidenceFilter<'_>, claimed: bool) -> CheckOutcome {
        let tells = |record: &&Record| {
            record.left_out.is_none()
                && record.marks.iter().all(|mark| {
                    use crate::record::MarkKind::{DeadTarget, Errors};
                    matches!(mark.kind, Errors | DeadTarget) || !mark.kind.invalidates()
                })
        };
        let mut runs: Vec<&Record> = self.named(wanted).filter(tells).collect();
        let Some(first) = runs.first().copied() else {
            return Err(self.missing(wanted));
        };
        runs.retain(|record| record.mesh == first.mesh);
        let kept = |record: &&&Record| {
            let asked = record.rate_per_s.unwrap_or(record.requests_per_s);
            let answered = record.requests_per_s * (1.0 - share_of_errors(record));
            answered >= asked * KEPT && share_of_errors(record) <= MAX_ERRORS
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

    /// Whether the memory of all proxies together rises from one mesh to the next. Only loads with
    /// valid records of all meshes count: a mesh that fails at the highest load would otherwise
    /// seem to use the least memory.
    fn memory_order(&self, scenario: &str, rising: &[String]) -> CheckOutcome {
        let runs = rising.iter().map(|mesh| self.evidence(wanted(scenario, None, mesh)));
        let runs = runs.collect::<Result<Vec<_>, String>>()?;
        let in_all = |step: Option<f64>| {
            runs.iter().all(|records| records.iter().any(|record| record.step == step))
        };
        if !runs[0].iter().any(|record| in_all(record.step)) {
            let meshes = rising.join(", ");
            return Err(format!("there is no load that {meshes} have valid records of"));
        }
        let of = |mesh: &String| {
            let mut all = self.median(wanted(scenario, None, mesh), "memory", |record| {
                let counts = record.rss_kib.load > 0 && in_all(record.step);
                counts.then_some(record.rss_kib.load as f64)
            })?;
            all.value *= 1024.0 / 1e6;
            Ok(all)
        };
        let all = rising.iter().map(of).collect::<Result<Vec<_>, String>>()?;
        let text: Vec<String> = all.iter().map(|one| one.text("MB")).collect();
        let rises = all.windows(2).all(|pair| pair[0].value < pair[1].value);
        Ok((rises, format!("all proxies together: {}", text.join(", "))))
    }

    /// CPU of one idle proxy.
    fn idle_cpu(&self, mesh: &str) -> Result<Figure, String> {
        let runs = self.evidence(anywhere(mesh))?;
        if runs.iter().all(|record| record.cluster.is_none()) {
            let mesh = &runs[0].mesh;
            return Err(format!("the records of {mesh} have no {IDLE_CPU}: only a cluster has it"));
        }
        self.median(anywhere(mesh), IDLE_CPU, |record| {
            let measured = record.proxies > 0 && record.idle_proxies_cpus > 0.0;
            measured.then(|| record.idle_proxies_cpus / f64::from(record.proxies))
        })
    }

    /// Memory of one proxy, in MB.
    fn memory(&self, wanted: EvidenceFilter<'_>, moment: MemoryMoment) -> Result<Figure, String> {
        self.median(wanted, "memory", |record| {
            let rss = match moment {
                MemoryMoment::Idle => record.rss_kib.idle,
                MemoryMoment::Peak => record.rss_kib.peak,
            };
            let each = rss as f64 * 1024.0 / 1e6 / f64::from(record.proxies.max(1));
            (record.proxies > 0 && rss > 0).then_some(each)
        })
    }

    fn latency(&self, wanted: EvidenceFilter<'_>, quantile: Percentile) -> Result<Figure, String> {
        let mut figure = self.median(wanted, "latency", |record| Some(ms(record, quantile)))?;
        figure.load = self.evidence(wanted)?.first().and_then(|record| load(record));
        Ok(figure)
    }

    /// The median over all valid rounds.
    fn median(
        &self,
        wanted: EvidenceFilter<'_>,
        what: &str,
        figure: impl Fn(&Record) -> Option<f64>,
    ) -> Result<Figure, String> {
        let runs = self.evidence(wanted)?;
        let values: Vec<f64> = runs.iter().filter_map(|record| figure(record)).collect();
        let mesh = runs[0].mesh.clone();
        if values.is_empty() {
            return Err(format!("the records of {mesh} have no {what}"));
        }
        Ok(Figure { value: median(&values), mesh, load: None })
    }

    /// The valid rounds of a mesh, at least one. They are recorded under the mesh's own name or
    /// under its name in a cluster; `leno` also accepts every capture.
    fn evidence(&self, wanted: EvidenceFilter<'_>) -> Result<Vec<&Record>, String> {
        let valid: Vec<&Record> = self.named(wanted).filter(|record| record.valid()).collect();
        let usual = valid.iter().find(|record| record.scenario == USUAL).or(valid.first());
        let Some(first) = usual else { return Err(self.missing(wanted)) };
        let same =
            |record: &&Record| (&record.scenario, &record.mesh) == (&first.scenario, &first.mesh);
        Ok(valid.iter().copied().filter(same).collect())
    }

    /// The records of a mesh, valid or not.
    fn named(&self, wanted: EvidenceFilter<'_>) -> impl Iterator<Item = &Record> {
        let EvidenceFilter { scenario, step, mesh } = wanted;
        let is_own = move |name: &str| {
            name == mesh
                || (mesh == "leno" && name.starts_with("leno-"))
                || IN_A_CLUSTER.contains(&(mesh, name))
        };
        self.records.iter().filter(move |record| {
            is_own(&record.mesh)
                && scenario.is_none_or(|scenario| record.scenario == scenario)
                && (step.is_none() || record.step == step)
        })
    }

    /// Why there is no evidence, and the command that makes some.
    fn missing(&self, wanted: EvidenceFilter<'_>) -> String {
        let EvidenceFilter { scenario, step, mesh } = wanted;
        let marked: Vec<&Record> =
            self.named(wanted).filter(|record| record.left_out.is_none()).collect();
        if let Some(why) =
            marked.iter().flat_map(|record| &record.marks).find(|one| one.kind.invalidates())
        {
            let (kind, count) = (why.kind.as_str(), marked.len());
            return format!(
                "no valid record: of {count} of {mesh} each is marked ({kind}: {})",
                why.why
            );
        }
        if let Some(why) = self.named(wanted).find_map(|record| record.left_out.as_deref()) {
            return format!("not measured: {why}");
        }
        let at = step.map_or_else(String::new, |step| format!(" at {step}/s"));
        format!("no valid record{at}: {}", command(scenario.unwrap_or(USUAL), mesh, ""))
    }
}

/// The command that measures a mesh, complete except for placeholders that the user must fill in.
fn command(scenario: &str, mesh: &str, more: &str) -> String {
    let others = if mesh == "none" { String::new() } else { format!(",{mesh}") };
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

impl Figure {
    fn text(&self, unit: &str) -> String {
        let load = self.load.as_ref().map_or_else(String::new, |load| format!(", {load}"));
        format!("{} {unit} ({}{load})", digits(self.value), self.mesh)
    }
}

fn wanted<'a>(scenario: &'a str, step: Option<f64>, mesh: &'a str) -> EvidenceFilter<'a> {
    EvidenceFilter { scenario: Some(scenario), step, mesh }
}

/// Accepts records of any scenario.
fn anywhere(mesh: &str) -> EvidenceFilter<'_> {
    EvidenceFilter { scenario: None, step: None, mesh }
}

fn ms(record: &Record, quantile: Percentile) -> f64 {
    let latency = &record.latency_us;
    let us = match quantile {
        Percentile::P50 => latency.p50,
        Percentile::P75 => latency.p75,
        Percentile::P95 => latency.p95,
        Percentile::P99 => latency.p99,
    };
    us as f64 / 1000.0
}

/// The rate and the scale of a record whose load was not the published one. Old records have no
/// scale.
fn load(record: &Record) -> Option<String> {
    let rate = record.rate_per_s.unwrap_or(record.requests_per_s);
    let scale = record.scale;
    (scale > 0.0 && scale != 1.0).then(|| format!("at {rate:.0}/s, scale {scale}"))
}

fn share_of_errors(record: &Record) -> f64 {
    record.errors as f64 / record.requests.max(1) as f64
}

fn less((one, other): (Figure, Figure), percent: f64, unit: &str) -> CheckOutcome {
    let seen = (1.0 - one.value / other.value) * 100.0;
    let text = format!("{} % less: {} and {}", digits(seen), one.text(unit), other.text(unit));
    Ok((is_near(seen, percent), text))
}

fn near(seen: &Figure, claimed: f64, unit: &str) -> CheckOutcome {
    Ok((is_near(seen.value, claimed), seen.text(unit)))
}

fn is_near(seen: f64, claimed: f64) -> bool {
    seen > 0.0 && seen <= claimed * WITHIN && seen >= claimed / WITHIN
}

/// A number with three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
