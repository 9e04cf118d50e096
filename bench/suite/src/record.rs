//! The records: one JSON file a run, units in the names. Reports are made from these alone.
//!
//! ```text
//! DIR/records/http-1k.leno.r2.json      one run
//! DIR/raw/http-1k.leno.r2.latency.csv   its histogram: value_us,count
//! DIR/raw/http-1k.leno.r2.usage.csv     its samples of CPU and memory
//! ```
//! The load of other generators has their name after the mesh's: `http-1k.leno.fortio.r2`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use leno_measure::load::Latency;
use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Error, Result};
use crate::generator::Generator;
use crate::machine::Machine;
use crate::place::Cluster;

/// Where records are, below the directory of a run.
pub const RECORDS: &str = "records";
/// Where raw samples are, below the directory of a run.
pub const RAW: &str = "raw";

/// One run: a scenario, a mesh, a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// What was done.
    pub scenario: String,
    /// The point on a scenario's scale, requests/s in all, for those that have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// By whom.
    pub mesh: String,
    /// The proxy's own words about its version.
    pub mesh_version: String,
    /// This program's version.
    pub suite_version: String,
    /// By what traffic was captured; empty when it was not.
    pub capture: String,
    /// Who made the load: `leno`, `fortio`, `h2load` or `wrk`.
    pub generator: String,
    /// Which round, from 0.
    pub round: u32,
    /// When it began, seconds since 1970.
    pub started_unix_s: u64,
    /// Where; of a cluster, the nodes that were used taken together.
    pub machine: Machine,
    /// The cluster; none where it was the lab of one machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// By what the scenario's rate was multiplied.
    pub scale: f64,
    /// Requests a second that were asked for; none in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Connections of the load.
    pub connections: usize,
    /// Services behind them.
    pub services: u32,
    /// The real application, where it was not the suite's own: its folder, or in a cluster its file of images, which
    /// `cluster` has the content of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
    /// What each of its services was: in the lab `sha256:` of its program or jar, in a cluster its image's ID as its
    /// node had it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub application_digests: BTreeMap<String, String>,
    /// Measured seconds, warm-up left out.
    pub duration_s: f64,
    /// Requests that ended, well or not.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Failed requests by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Requests that ended, a second.
    pub requests_per_s: f64,
    /// Bytes of payload a second, both ways, for scenarios that move bulk.
    pub bytes_per_s: f64,
    /// Requests that the neighbour's flood was answered, a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour_requests_per_s: Option<f64>,
    /// Configurations that were given to the proxies meanwhile.
    pub revisions: u64,
    /// Pushed configurations that were seen at work by the application, at least one request each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions_arrived: Option<u64>,
    /// Connections opened by the load.
    pub connections_opened: u64,
    /// From the moment a request was due to its last byte; successes only.
    pub latency_us: Latency,
    /// Latency over quantiles, for the chart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spectrum: Vec<Quantile>,
    /// User CPU of all proxies.
    pub cpu_user_us_per_request: f64,
    /// System CPU of all proxies.
    pub cpu_system_us_per_request: f64,
    /// CPU of everything, by whom.
    pub cpu_ms: CpuMs,
    /// Processors that all proxies together kept busy before any load; in a cluster only.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_proxies_cpus: f64,
    /// What the kernel programs of the capture took, which is part of the CPU time of whoever
    /// connected; in a cluster all programs of the nodes' kernels, as the baseline has those of others.
    pub kernel_programs: KernelPrograms,
    /// The most connections that were open between the client's side and the services.
    pub crossing_connections: u64,
    /// Context switches of the proxies.
    pub context_switches: ContextSwitches,
    /// Proxies that ran.
    pub proxies: u32,
    /// Resident memory of all proxies together.
    pub rss_kib: RssKib,
    /// Resident memory of the control plane.
    pub control_rss_kib: RssKib,
    /// From the start of the proxies to the first request that was served through them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_up_ms: Option<f64>,
    /// Size of the proxy's executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_bytes: Option<u64>,
    /// What is to be known before the figures are believed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Why it was not measured; every figure is 0 then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// One point of a latency distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantile {
    /// 0 to 1.
    pub quantile: f64,
    /// Microseconds.
    pub us: u64,
}

/// CPU time in milliseconds over the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuMs {
    /// All proxies.
    pub proxies: f64,
    /// The applications.
    pub application: f64,
    /// Who made the load.
    pub generator: f64,
    /// Who flooded another service, that service, and the proxies of both.
    pub neighbour: f64,
    /// What supervises the workloads and captures their traffic.
    pub agent: f64,
    /// The control plane.
    pub control: f64,
    /// Threads of the kernel itself; none where they are not seen, as in a container that is a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_threads: Option<f64>,
    /// Interrupts, hard and soft, wherever they struck.
    pub interrupts: f64,
    /// The whole machine, everything else included.
    pub machine: f64,
    /// Taken by the hypervisor for others.
    pub steal: f64,
}

/// Runs of kernel programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelPrograms {
    /// How often one ran.
    pub runs: u64,
    /// How long all of them took.
    pub ms: f64,
}

/// Context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextSwitches {
    /// To wait for something.
    pub voluntary: u64,
    /// Because another one's turn had come.
    pub involuntary: u64,
}

/// Resident memory in KiB at named moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RssKib {
    /// Before any load.
    pub idle: u64,
    /// Median under load.
    pub load: u64,
    /// Most under load.
    pub peak: u64,
}

/// Something that is to be known before a figure is believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which.
    pub kind: MarkKind,
    /// In words.
    pub why: String,
}

/// The kinds of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// The generator could not keep its schedule: latencies are its own.
    GeneratorLimited,
    /// Nothing was answered.
    DeadTarget,
    /// More than 1 % of the requests failed.
    Errors,
    /// Others used the machine meanwhile.
    BusyMachine,
    /// A mesh was faster than none, which only noise can be.
    FasterThanNone,
    /// A proxy, a service or a client ended or began meanwhile: its CPU is not all there.
    Restarted,
    /// A watcher said nothing under load now and then: there are fewer samples of memory.
    WatcherSilent,
    /// What a node's processes used is not all there: its watcher said nothing after the load, or never under it.
    FiguresMissing,
    /// The neighbour's flood ended before the measurement did, or it is not known whether it lasted.
    FloodEnded,
    /// What the neighbour's flood was answered is not known.
    FloodUnreported,
    /// The rate that was found to keep a bound has not kept it when it was measured.
    BoundMissed,
    /// A proxy of a node carried the neighbour's flood as well: its CPU is among that of the others.
    SharedProxies,
    /// A part of a control plane was on a node that is not watched: its CPU and memory are not all there.
    ControlUncounted,
    /// What the scenario does to a mesh meanwhile was not all done, or has had no effect.
    DisturbedLess,
}

impl MarkKind {
    /// The word for it in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GeneratorLimited => "generator limited",
            Self::DeadTarget => "dead target",
            Self::Errors => "errors",
            Self::BusyMachine => "busy machine",
            Self::FasterThanNone => "faster than none",
            Self::Restarted => "restarted",
            Self::WatcherSilent => "watcher silent",
            Self::FiguresMissing => "figures missing",
            Self::FloodEnded => "flood ended",
            Self::FloodUnreported => "flood unreported",
            Self::BoundMissed => "bound missed",
            Self::SharedProxies => "shared proxies",
            Self::ControlUncounted => "control uncounted",
            Self::DisturbedLess => "disturbed less",
        }
    }

    /// Whether figures of a run with this mark say nothing about the mesh. What is merely noisy is
    /// shown with its mark.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(
            self,
            Self::GeneratorLimited
                | Self::DeadTarget
                | Self::Errors
                | Self::Restarted
                | Self::FiguresMissing
                | Self::FloodEnded
                | Self::BoundMissed
                | Self::DisturbedLess
        )
    }
}

impl Record {
    /// Its name among the files of a run.
    #[must_use]
    pub fn name(&self) -> String {
        self.name_of(&self.mesh)
    }

    /// That of the record of another mesh, of the same load in the same round.
    pub(crate) fn name_of(&self, mesh: &str) -> String {
        let step = self.step.map_or_else(String::new, |step| format!(".{step}"));
        let by = self.other_generator().map_or_else(String::new, |name| format!(".{name}"));
        format!("{}{step}.{mesh}{by}.r{}", self.scenario, self.round)
    }

    /// Who made the load, where it was not our own generator.
    #[must_use]
    pub fn other_generator(&self) -> Option<&str> {
        let name = self.generator.as_str();
        (!name.is_empty() && name != Generator::Leno.name()).then_some(name)
    }

    /// Who made the load; records of before others could were all ours.
    #[must_use]
    pub fn made_by(&self) -> &str {
        self.other_generator().unwrap_or(Generator::Leno.name())
    }

    /// Whether it holds figures that may be believed.
    #[must_use]
    pub fn valid(&self) -> bool {
        self.left_out.is_none() && !self.marks.iter().any(|mark| mark.kind.invalidates())
    }

    /// User and system, all proxies.
    #[must_use]
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu_user_us_per_request + self.cpu_system_us_per_request
    }

    /// Processors that one proxy kept busy while load was made, 0 without proxies.
    #[must_use]
    pub fn cpus_per_proxy(&self) -> f64 {
        let all = self.cpu_ms.proxies / 1000.0 / self.duration_s.max(f64::MIN_POSITIVE);
        all / f64::from(self.proxies.max(1))
    }

    /// Writes it below the directory of a run, at once or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        let folder = directory.join(RECORDS);
        fs::create_dir_all(&folder).attempt(|| format!("make folder {}", folder.display()))?;
        let path = folder.join(format!("{}.json", self.name()));
        let draft = path.with_extension("draft");
        let text = serde_json::to_string_pretty(self).expect("a record has only text keys") + "\n";
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .attempt(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(figure: &f64) -> bool {
    *figure == 0.0
}

/// Reads every record of a run, by scenario, step, mesh and round.
///
/// # Errors
/// When there is none, or one is damaged.
pub fn read(directory: &Path) -> Result<Vec<Record>> {
    let folder = directory.join(RECORDS);
    fs::read_dir(&folder)
        .attempt(|| format!("read {} (is it the --out of a run?)", folder.display()))?;
    let records = there(directory)?;
    if records.is_empty() {
        return Err(Error::malformed(&folder, "there is no record in it"));
    }
    Ok(records)
}

/// The record of that name; none where it is not there.
///
/// # Errors
/// When it is damaged.
pub(crate) fn one(directory: &Path, name: &str) -> Result<Option<Record>> {
    let path = directory.join(RECORDS).join(format!("{name}.json"));
    if path.try_exists().attempt(|| format!("read {}", path.display()))? {
        return read_one(&path).map(Some);
    }
    Ok(None)
}

/// As [`read`], of a directory that may be of a run: empty where it has no record.
///
/// # Errors
/// When one is damaged: it is not to be taken for one that is not there.
pub(crate) fn there(directory: &Path) -> Result<Vec<Record>> {
    let folder = directory.join(RECORDS);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.attempt(|| format!("read {}", folder.display()))?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.attempt(|| format!("read {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            records.push(read_one(&path)?);
        }
    }
    records.sort_by(|one: &Record, two| {
        let key = |record: &Record| (record.scenario.clone(), record.mesh.clone(), record.round);
        let step = |record: &Record| record.step.unwrap_or_default();
        step(one).total_cmp(&step(two)).then_with(|| key(one).cmp(&key(two)))
    });
    Ok(records)
}

/// A scenario with its step, as people read it.
#[must_use]
pub fn title(scenario: &str, step: Option<f64>) -> String {
    step.map_or_else(|| scenario.to_owned(), |step| format!("{scenario} at {step}/s"))
}

/// The marks of records, each kind once.
pub(crate) fn kinds_of_marks(records: &[&Record]) -> Vec<&'static str> {
    let marks = records.iter().flat_map(|record| &record.marks);
    let mut kinds: Vec<_> = marks.map(|mark| mark.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The records of one generator for each scenario and step: ours where it has figures, else the first that has.
/// What the others saw is put beside it ([`crate::report::Agreement`]) and never mixed with it.
#[must_use]
pub fn of_one_generator(records: &[Record]) -> Vec<Record> {
    let case = |record: &Record| (record.scenario.clone(), record.step.map(f64::to_bits));
    let place = |record: &Record| {
        let place = Generator::ALL.iter().position(|one| one.name() == record.made_by());
        // One that made no load comes after all that did.
        (record.left_out.is_some(), place.unwrap_or(usize::MAX))
    };
    let mut chosen = BTreeMap::new();
    for record in records {
        let best = chosen.entry(case(record)).or_insert_with(|| (place(record), record.made_by()));
        if place(record) < best.0 {
            *best = (place(record), record.made_by());
        }
    }
    let is_chosen = |record: &&Record| chosen[&case(record)].1 == record.made_by();
    records.iter().filter(is_chosen).cloned().collect()
}

fn read_one(path: &Path) -> Result<Record> {
    let text = fs::read_to_string(path).attempt(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| {
        let what = "remove the file, and the same run with --resume measures it again";
        Error::malformed(path, format!("it is no record of this version ({error}): {what}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = Record {
            scenario: "http-1k".into(),
            mesh: "leno".into(),
            machine: Machine::this(),
            requests: 10,
            latency_us: Latency { p99: 900, ..Latency::default() },
            ..Record::default()
        };
        record.write(directory.path()).unwrap();
        record.round = 1;
        record.marks = vec![Mark { kind: MarkKind::Errors, why: "reset".into() }];
        record.write(directory.path()).unwrap();
        let found = read(directory.path()).unwrap();
        assert_eq!((found[0].round, &found[1]), (0, &record));
        assert!(found[0].valid() && !found[1].valid());
    }

    #[test]
    fn generators_are_never_mixed() {
        let by = |generator: &str| Record { generator: generator.into(), ..Record::default() };
        let all = [by("wrk"), by("fortio"), by("leno"), by("")];
        let names = |records: &[Record]| -> Vec<String> {
            records.iter().map(|record| record.generator.clone()).collect()
        };
        assert_eq!(names(&of_one_generator(&all)), ["leno", ""], "old records were all ours");
        assert_eq!(names(&of_one_generator(&all[..2])), ["fortio"]);
        assert!(of_one_generator(&[]).is_empty());
        // Of a scenario that ours could not make, another's is what there is.
        let of = |scenario: &str, generator: &str, out: Option<&str>| Record {
            scenario: scenario.into(),
            left_out: out.map(str::to_owned),
            ..by(generator)
        };
        let unable = Some("no rate was slow enough");
        let all = [
            of("a", "leno", None),
            of("a", "wrk", None),
            of("b", "leno", unable),
            of("b", "wrk", None),
            of("c", "leno", unable),
            of("c", "wrk", unable),
        ];
        let chosen = of_one_generator(&all);
        let chosen: Vec<_> = chosen.iter().map(|one| (&*one.scenario, &*one.generator)).collect();
        assert_eq!(chosen, [("a", "leno"), ("b", "wrk"), ("c", "leno")]);
    }

    #[test]
    fn the_names_of_the_contract_are_kept() {
        let json = serde_json::to_value(Record::default()).unwrap();
        for name in ["cpu_user_us_per_request", "cpu_system_us_per_request", "requests", "errors"] {
            assert!(json[name].is_number(), "{name}");
        }
        assert!(json["latency_us"]["p99"].is_number() && json["rss_kib"]["idle"].is_number());
    }

    #[test]
    fn a_folder_without_records_is_an_error_that_says_so() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path()).unwrap_err().to_string().contains("--out"));
        fs::create_dir(directory.path().join(RECORDS)).unwrap();
        assert!(read(directory.path()).unwrap_err().to_string().contains("no record"));
    }
}
