//! The records: one JSON file per run, with units in the field names. Reports are made from the records alone.
//!
//! ```text
//! DIR/records/http-1k.leno.r2.json      one run
//! DIR/raw/http-1k.leno.r2.latency.csv   its histogram: value_us,count
//! DIR/raw/http-1k.leno.r2.usage.csv     its samples of CPU and memory
//! ```
//! The name of a record of another generator has that generator's name after the mesh's: `http-1k.leno.fortio.r2`.

pub mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};

pub use leno_measure::load::Latency;
use leno_measure::load::Report;
use leno_measure::usage::Memory;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::generator::name::Generator;
use crate::machine::Machine;
use crate::mesh_names::NONE;
use crate::record::cluster::Cluster;
use crate::scenario::Scenario;

/// The folder of the records, in the directory of a run.
pub const RECORDS: &str = "records";
/// The folder of raw samples, in the directory of a run.
pub const RAW: &str = "raw";

/// A record of one run: a scenario under a mesh in a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The scenario.
    pub scenario: String,
    /// The step, as total requests/s, if the scenario has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The mesh.
    pub mesh: String,
    /// The version, as the proxy prints it.
    pub mesh_version: String,
    /// This program's version.
    pub suite_version: String,
    /// How traffic was captured; empty if it was not.
    pub capture: String,
    /// The load generator: `leno`, `fortio`, `h2load` or `wrk`.
    pub generator: String,
    /// The number of the round, from 0.
    pub round: u32,
    /// The start time, in seconds since 1970.
    pub started_unix_s: u64,
    /// The machine. For a cluster, the nodes in use, taken together as one machine.
    pub machine: Machine,
    /// The cluster; `None` for the lab of one machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// The factor for the scenario's rate.
    pub scale: f64,
    /// The requested rate; `None` for a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Connections of the load.
    pub connections: usize,
    /// The number of services.
    pub services: u32,
    /// The real application, if it replaced the suite's own services: its folder, or in a cluster its file of images,
    /// the contents of which are in `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
    /// The digest of each service of the application: in the lab `sha256:` of its program or jar, in a cluster the ID
    /// of its image on its node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub application_digests: BTreeMap<String, String>,
    /// Measured seconds, without warm-up.
    pub duration_s: f64,
    /// Completed requests, successful or failed.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Failed requests by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Completed requests a second.
    pub requests_per_s: f64,
    /// Payload bytes a second, both directions together, for bulk scenarios.
    pub bytes_per_s: f64,
    /// The rate at which requests of the neighbour's flood were answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour_requests_per_s: Option<f64>,
    /// For each flood by a neighbour, what it sent and how it was answered, over its whole time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub floods: Vec<FloodCounts>,
    /// Latencies of the same load in the same lab, before the floods of neighbours began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_latency_us: Option<Latency>,
    /// For each workload with a proxy of Leno, the number of bytes of buffers and connections that the proxy itself
    /// reports while neighbours flood.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub charged_bytes: BTreeMap<String, u64>,
    /// Connections that stay open during the load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub websockets: Option<WebSockets>,
    /// Configurations that the proxies received during the load.
    pub revisions: u64,
    /// Pushed configurations that took effect: the application received at least one request with
    /// their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revisions_arrived: Option<u64>,
    /// Connections opened by the load.
    pub connections_opened: u64,
    /// Latency from the moment a request was due to the last byte of its response; successful requests only.
    pub latency_us: Latency,
    /// Latency by quantile, for the chart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spectrum: Vec<Quantile>,
    /// User CPU of all proxies, divided by the number of requests.
    pub cpu_user_us_per_request: f64,
    /// System CPU of all proxies, divided by the number of requests.
    pub cpu_system_us_per_request: f64,
    /// CPU of all components.
    pub cpu_ms: CpuMs,
    /// The number of processors that all proxies together kept busy before the load; only in a cluster.
    pub idle_proxies_cpus: f64,
    /// Run time of the capture's eBPF programs, which the kernel counts as CPU time of the connecting process. In a
    /// cluster, all eBPF programs of the nodes' kernels are included, because the baseline includes those of other
    /// software, too.
    pub kernel_programs: KernelPrograms,
    /// The largest number of open connections between the client's side and the services.
    pub crossing_connections: u64,
    /// Context switches of the proxies.
    pub context_switches: ContextSwitches,
    /// The number of running proxies.
    pub proxies: u32,
    /// Resident memory of all proxies together.
    pub rss_kib: RssKib,
    /// Memory before the load, by how it is shared; only in the lab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_memory: Option<IdleMemory>,
    /// Resident memory of the control plane.
    pub control_rss_kib: RssKib,
    /// Time from the start of a proxy to the first request that was served through it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_up_ms: Option<f64>,
    /// The size of the proxy's executable, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_bytes: Option<u64>,
    /// What readers must know before they trust the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Why this was not measured. If it is set, every figure is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// One point of a latency distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantile {
    /// The quantile, 0 to 1.
    pub quantile: f64,
    /// The latency in microseconds.
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
    /// The load generator.
    pub generator: f64,
    /// The client that floods another service, that service, and the proxies of both.
    pub neighbour: f64,
    /// The process that supervises the workloads and captures their traffic.
    pub agent: f64,
    /// The control plane.
    pub control: f64,
    /// Kernel threads; `None` if they are not visible, as in a container that serves as a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_threads: Option<f64>,
    /// Hard and soft interrupts, whichever process they interrupted.
    pub interrupts: f64,
    /// The whole machine, including everything else.
    pub machine: f64,
    /// The time that the hypervisor gave to other virtual machines.
    pub steal: f64,
}

/// Runs of the kernel's eBPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelPrograms {
    /// The number of runs.
    pub runs: u64,
    /// The total run time of the programs.
    pub ms: f64,
}

/// Context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextSwitches {
    /// The thread gave up the CPU to wait.
    pub voluntary: u64,
    /// The scheduler gave the CPU to another thread.
    pub involuntary: u64,
}

/// Resident memory in KiB at named moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RssKib {
    /// Before the load.
    pub idle: u64,
    /// Median under load.
    pub load: u64,
    /// Maximum under load.
    pub peak: u64,
}

/// Memory before the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleMemory {
    /// All proxies together, with the brokers of node mode.
    pub proxies: Memory,
    /// The process that supervises the workloads and captures their traffic.
    pub agent: Memory,
}

/// Counts of a flood by a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FloodCounts {
    /// The neighbour.
    pub workload: String,
    /// Completed requests, successful or failed.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Failed requests by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
}

/// Connections that were upgraded to WebSockets and stay open during the load. A message is sent on each of them every
/// second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebSockets {
    /// The number of connections.
    pub connections: u64,
    /// How many connections were opened beyond `connections`, because others had ended. Connections that could never be
    /// opened make this number too small; they are counted in `errors`.
    pub cut: u64,
    /// Messages that were sent, or that could not be sent.
    pub messages: u64,
    /// How many of these messages did not come back.
    pub errors: u64,
    /// The longest time until a message was back.
    pub longest_us: u64,
}

impl WebSockets {
    /// Takes the figures from the report of the generator.
    pub(crate) fn of(scenario: &Scenario, report: &Report) -> Self {
        let connections = scenario.websockets as u64;
        Self {
            connections,
            cut: report.connections_opened.saturating_sub(connections),
            messages: report.requests,
            errors: report.errors,
            longest_us: report.latency_us.max,
        }
    }
}

/// A fact that readers must know before they trust a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The kind of mark.
    pub kind: MarkKind,
    /// An explanation in words.
    pub why: String,
}

impl Mark {
    pub(crate) fn new(kind: MarkKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }

    /// A mark with all these reasons; `None` if there is no reason.
    pub(crate) fn of_all(kind: MarkKind, why: &[impl AsRef<str>]) -> Option<Self> {
        let why: Vec<&str> = why.iter().map(AsRef::as_ref).collect();
        (!why.is_empty()).then(|| Self::new(kind, why.join("; ")))
    }
}

/// The kinds of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// The generator could not keep its schedule; the latencies are its own.
    GeneratorLimited,
    /// No request was answered.
    DeadTarget,
    /// More than 1 % of the requests failed.
    Errors,
    /// Other programs used the machine during the measurement.
    BusyMachine,
    /// A mesh was faster than no mesh, which only noise can cause.
    FasterThanNone,
    /// A proxy, a service or a client ended or started during the measurement; part of its CPU time
    /// is missing.
    Restarted,
    /// A watcher did not answer some requests under load, so there are fewer samples of memory.
    WatcherSilent,
    /// Figures of a node's processes are missing: its watcher did not answer after the load, or
    /// never under load.
    FiguresMissing,
    /// The neighbour's flood ended before the measurement, or it is unknown whether it lasted.
    FloodEnded,
    /// The rate at which a neighbour's flood was answered is unknown, or the size of buffers during it.
    FloodUnreported,
    /// A neighbour's flood failed in another way than the scenario intends.
    FloodFailed,
    /// The highest rate that the search found exceeded the bound in the longer measurement.
    BoundMissed,
    /// A proxy that several workloads share also carried the neighbour's flood, so its CPU includes that work.
    SharedProxies,
    /// A part of a control plane was on a node without a watcher, so the part's CPU and memory are missing.
    ControlUncounted,
    /// The scenario's disturbance was incomplete or had no effect.
    DisturbedLess,
}

/// The name as in records, but with spaces.
impl fmt::Display for MarkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&in_words(self))
    }
}

/// The name that a variant has in records, but with spaces.
pub(crate) fn in_words(variant: &impl Serialize) -> String {
    let name = serde_json::to_string(variant).expect("a name is text");
    name.trim_matches('"').replace(['-', '_'], " ")
}

impl MarkKind {
    /// Whether the figures of a run with this mark are invalid. Figures that are merely imprecise remain valid and are
    /// shown with their mark.
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
    /// The name of the record's file in the directory of a run, without extension.
    pub fn name(&self) -> String {
        self.name_of(&self.mesh)
    }

    /// The name of the record of another mesh, with the same load and round.
    pub(crate) fn name_of(&self, mesh: &str) -> String {
        let step = self.step.map_or_else(String::new, |step| format!(".{step}"));
        let by = self.other_generator().map_or_else(String::new, |name| format!(".{name}"));
        format!("{}{step}.{mesh}{by}.r{}", self.scenario, self.round)
    }

    pub(crate) fn case(&self) -> Case<'_> {
        let step = self.step.unwrap_or_default().to_bits();
        (&self.scenario, step, self.mesh != NONE, &self.mesh)
    }

    /// The load generator, if it was not Leno's own generator.
    pub fn other_generator(&self) -> Option<&str> {
        let name = self.generator.as_str();
        (!name.is_empty() && name != Generator::Leno.name()).then_some(name)
    }

    /// The load generator. Old records do not name it; all of them were made by Leno's own generator.
    pub fn made_by(&self) -> &str {
        self.other_generator().unwrap_or(Generator::Leno.name())
    }

    /// Whether the figures are valid.
    pub fn valid(&self) -> bool {
        self.left_out.is_none() && !self.marks.iter().any(|mark| mark.kind.invalidates())
    }

    /// User and system CPU of all proxies, per request.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu_user_us_per_request + self.cpu_system_us_per_request
    }

    /// Processors that one proxy kept busy during the load; 0 without proxies.
    pub fn cpus_per_proxy(&self) -> f64 {
        let all = self.cpu_ms.proxies / 1000.0 / self.duration_s.max(f64::MIN_POSITIVE);
        all / f64::from(self.proxies.max(1))
    }

    /// The machine or the cluster, in one line.
    pub fn place(&self) -> String {
        if let Some(cluster) = &self.cluster {
            return cluster.line();
        }
        let Machine { cpus, cpu, memory_mib, kernel, .. } = &self.machine;
        format!("{cpus} processors ({cpu}), {memory_mib} MiB, Linux {kernel}")
    }

    /// Writes the record into the directory of a run, in one step.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join(RECORDS).join(format!("{}.json", self.name()));
        let text = serde_json::to_string_pretty(self).expect("a record has only text keys") + "\n";
        files::replace(&path, &text)?;
        Ok(path)
    }
}

/// Reads all records of a run, sorted by scenario, step, mesh and round.
pub fn read(directory: &Path) -> Result<Vec<Record>> {
    let records = there(directory)?;
    let folder = directory.join(RECORDS);
    ensure!(!records.is_empty(), "{} has no record: name the --out of a run", folder.display());
    Ok(records)
}

/// Reads the record with this name; `None` if it does not exist.
pub(crate) fn one(directory: &Path, name: &str) -> Result<Option<Record>> {
    let path = directory.join(RECORDS).join(format!("{name}.json"));
    if path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
        return read_one(&path).map(Some);
    }
    Ok(None)
}

/// Like [`read`], but returns an empty list if the directory has no record.
///
/// # Errors
/// If a record is damaged, because it must not be treated as missing.
pub(crate) fn there(directory: &Path) -> Result<Vec<Record>> {
    let folder = directory.join(RECORDS);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
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

/// The name of a scenario with its step, as readers see it.
pub fn title(scenario: &str, step: Option<f64>) -> String {
    step.map_or_else(|| scenario.to_owned(), |step| format!("{scenario} at {step}/s"))
}

/// The case of a measurement, which is the same in all its rounds: the scenario, the step as bits (0 if there is none),
/// whether there is a mesh, and its name. In this order, the baseline is sorted before the meshes of its scenario.
pub(crate) type Case<'r> = (&'r str, u64, bool, &'r str);

/// The records of each case, in their order.
pub(crate) fn by_case<'r>(
    records: impl IntoIterator<Item = &'r Record>,
) -> BTreeMap<Case<'r>, Vec<&'r Record>> {
    let mut cases: BTreeMap<Case<'r>, Vec<&Record>> = BTreeMap::new();
    for record in records {
        cases.entry(record.case()).or_default().push(record);
    }
    cases
}

/// Pairs of records of the same round.
pub(crate) fn pairs<'a>(own: &[&'a Record], base: &[&'a Record]) -> Vec<(&'a Record, &'a Record)> {
    let same = |record: &&'a Record| {
        let bare = base.iter().find(|bare| bare.round == record.round && bare.valid())?;
        Some((*record, *bare))
    };
    own.iter().filter_map(same).collect()
}

/// The kinds of marks of these records, without duplicates.
pub(crate) fn kinds_of_marks(records: &[&Record]) -> Vec<String> {
    let marks = records.iter().flat_map(|record| &record.marks);
    let kinds: BTreeSet<String> = marks.map(|mark| mark.kind.to_string()).collect();
    kinds.into_iter().collect()
}

/// The records of one generator for each scenario and step: Leno's own if it has figures, otherwise the first generator
/// that has some. Figures of other generators are compared with these (`report/generators.rs`) and never mixed with
/// them.
pub fn of_one_generator(records: &[Record]) -> Vec<Record> {
    let case = |record: &Record| (record.scenario.clone(), record.step.map(f64::to_bits));
    // A generator without figures is sorted after all generators with figures.
    let place = |record: &Record| {
        let place = Generator::ALL.iter().position(|one| one.name() == record.made_by());
        (record.left_out.is_some(), place.unwrap_or(usize::MAX), record.made_by().to_owned())
    };
    let mut chosen = BTreeMap::new();
    for record in records {
        let best = chosen.entry(case(record)).or_insert_with(|| place(record));
        *best = place(record).min(best.clone());
    }
    let is_chosen = |record: &&Record| chosen[&case(record)].2 == record.made_by();
    records.iter().filter(is_chosen).cloned().collect()
}

fn read_one(path: &Path) -> Result<Record> {
    serde_json::from_str(&files::read(path)?).map_err(|error| {
        let what = "remove the file, and the same run with --resume measures it again";
        anyhow!("{}: it is no record of this version ({error}): {what}", path.display())
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
        // Leno's generator has no figures of this scenario, so another generator's records are
        // used.
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
    fn a_folder_without_records_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let why = read(directory.path()).unwrap_err().to_string();
            assert!(why.contains("records has no record: name the --out of a run"), "{why}");
            fs::create_dir_all(directory.path().join(RECORDS)).unwrap();
        }
    }
}
