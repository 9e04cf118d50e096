//! `leno up`: makes a plan run, follows edits of its files, and removes everything at the end.

mod documents;
mod edit;
mod foundation;
mod instance_handle;
mod mesh_lifecycle;
mod rolling;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leno_capture::CaptureChoice;
pub use leno_identity::{MAX_LIFETIME, MIN_LIFETIME};
use leno_supervise::DescriptorLimit;
pub use leno_supervise::PromotionRules;
use leno_types::authorization::Cidr;
use leno_types::{Egress, MtlsMode, WorkloadApiAddress};
use tokio::sync::mpsc;

use crate::error::{Attempt, Error, Result};
use crate::isolation::check_own_root;
use crate::layout::Layout;
use crate::log::LogFile;
use crate::network;
use crate::orders;
use crate::output::{LineOutput, LineStyle, LineWriter};
use crate::plan::{Plan, PlanDefaults, ProcessSharing, ProxyMode};
use crate::ranges::{MachineRoute, MeshRanges, RequestedRanges};
use crate::record::MeshRecord;
use crate::watch::WatchedFiles;

use foundation::InstanceContext;
use mesh_lifecycle::MeshLifecycle;
use signals::Signals;

/// Changes of instances that wait to be processed. If the queue is full, the instances wait.
const QUEUE: usize = 256;
/// How long tasks that still print may take after the mesh has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The options of `leno up`. For mode, sharing, capture, mTLS and egress, documents may choose otherwise.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The documents: files, directories or `-`.
    pub files: Vec<PathBuf>,
    /// The name of the mesh.
    pub mesh: String,
    /// Where proxies run.
    pub mode: ProxyMode,
    /// Which instances share a proxy's process, in node mode.
    pub share: ProcessSharing,
    /// In node mode, when a busy instance gets a process of its own.
    pub promotion: PromotionRules,
    /// In node mode, most new connections a second of an instance, and of each client of it; 0: as many as come.
    pub connection_rate: u32,
    /// In node mode, whether instances of one process talk to each other in memory.
    pub one_pass: bool,
    /// How traffic is captured.
    pub capture: CaptureChoice,
    /// How flows are accounted for.
    pub flows: leno_flows::LedgerSettings,
    /// Whether servers accept plaintext.
    pub mtls: MtlsMode,
    /// Whether workloads may call addresses and names that the mesh does not know.
    pub egress: Egress,
    /// Whether workloads reach addresses outside of the machine.
    pub uplink: bool,
    /// The ranges that the addresses of workloads and services are from, as far as the user has chosen them.
    pub ranges: RequestedRanges,
    /// The resolvers for names outside of the mesh; if empty, those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// How long certificates hold.
    pub cert_lifetime: Duration,
    /// The directory with the issuer of certificates; without it the mesh makes a root.
    pub issuer: Option<PathBuf>,
    /// The SPIFFE Workload API that issues the proxies' certificates; without it the control plane does.
    pub spiffe_endpoint_socket: Option<WorkloadApiAddress>,
    /// Other trust domains whose workloads are accepted as clients, in the form of the control plane's option.
    pub federate: Vec<String>,
    /// How long applications may take to end.
    pub grace: Duration,
    /// Files of variables for all applications.
    pub env_files: Vec<PathBuf>,
    /// How long a response may take to begin if no policy sets a bound; zero for no bound.
    pub response_wait: Duration,
    /// How long streams may continue once another proxy serves their instance, in whole seconds.
    pub handover_timeout: Duration,
    /// Whether documents with errors that `leno analyze` finds are refused.
    pub refuse_errors: bool,
    /// How lines are shown.
    pub style: LineStyle,
    /// What proxies and the control plane log.
    pub log: String,
    /// The access log of proxies, in the form of the proxy's option.
    pub access_log: String,
    /// The file for the access log; without it, its lines are among the others.
    pub access_log_file: Option<PathBuf>,
    /// Which requests are traced and where their spans go, in the form of the proxy's option.
    pub traces: Option<String>,
    /// The meshes under whose names proxies serve metrics too, in the form of the proxy's option.
    pub metrics_compat: String,
    /// Whether taps may show bodies.
    pub tap_bodies: bool,
    /// Which cryptography TLS uses, in the form of the proxy's and the control plane's option.
    pub tls_profile: String,
    /// Who of the network gets metrics of proxies; without any, everyone does.
    pub scrape_from: Vec<Cidr>,
}

/// Runs a mesh until a signal ends it. Everything runs on the calling thread, which must be the
/// one that lives longest, because the kernel ends the children of a thread that has ended.
///
/// # Errors
/// When the documents are refused, the mesh runs already, or something cannot be made or removed.
pub fn up(options: &UpOptions) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NeedsRoot);
    }
    check_own_root()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.attempt(|| "cannot start the runtime".to_owned())?;
    let (output, writer) = LineOutput::start(options.style);
    let (access_log, access_writer) = access_log(options, &output)?.unzip();
    let ended = tokio::task::LocalSet::new().block_on(&runtime, run(options, output, access_log));
    // Tasks that still print hold an output; they end with the runtime.
    runtime.shutdown_timeout(LAST_LINES);
    writer.finish();
    if let Some(writer) = access_writer {
        writer.finish();
    }
    ended
}

/// The file of the access log, appended to, where one is wanted.
fn access_log(
    options: &UpOptions,
    output: &LineOutput,
) -> Result<Option<(LineOutput, LineWriter)>> {
    let Some(path) = &options.access_log_file else { return Ok(None) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let file = file.attempt(|| format!("cannot open the access log {}", path.display()))?;
    Ok(Some(LineOutput::to_file(file, path, output.clone())))
}

async fn run(
    options: &UpOptions,
    output: LineOutput,
    access_log: Option<LineOutput>,
) -> Result<()> {
    let layout = Layout::new(&options.mesh)?;
    // Without an uplink the mesh has no routes of the machine, with which its ranges could overlap.
    let routes = if options.uplink { MachineRoute::all() } else { Vec::new() };
    let (ranges, note) = MeshRanges::choose(options.ranges, &routes).map_err(Error::Refused)?;
    let defaults = PlanDefaults {
        mtls: options.mtls,
        egress: options.egress,
        mode: options.mode,
        share: options.share,
        capture: options.capture,
        flows: options.flows.source,
        ipv6: network::has_ipv6(),
        ranges,
        spiffe: options.spiffe_endpoint_socket.is_some(),
    };
    let begun = Instant::now();
    let descriptors = DescriptorLimit::raise();
    let descriptors = descriptors.attempt(|| "cannot set the limit of descriptors".to_owned())?;
    // Their state is recorded before they are read, so that no edit is missed.
    let files = WatchedFiles::new(options.files.clone());
    let documents = documents::load(&options.files)?;
    let plan = documents::plan(options, &documents, defaults, &Plan::default())?;
    documents::without_errors(options, &documents, &plan)?;
    let mut signals = Signals::new()?;
    let mut record = MeshRecord::acquire(&layout)?;
    let log = LogFile::create(layout.log());
    output.keep(log.attempt(|| format!("cannot write {}", layout.log().display()))?).await;
    let orders = orders::listen(&layout)?;
    let subnet = ranges.workloads(defaults.ipv6);
    let flows = options.flows.with(plan.flow_sizes);
    let flows = flows.map_err(|error| Error::Refused(error.to_string()))?;
    let laid = foundation::lay(options, (subnet, flows), &layout, &mut record, &output).await;
    let foundation = match laid {
        Ok(foundation) => foundation,
        Err(error) => {
            // The first error is the one to report. The next run removes what is left.
            let _ = record.remove_all();
            return Err(error);
        }
    };
    for note in foundation.notes.iter().chain(&note) {
        output.say(note);
    }
    let (changes, mut received) = mpsc::channel(QUEUE);
    let given = InstanceContext { output, access_log, changes, descriptors };
    let (mesh, zone) = foundation.mesh(options, layout, record, given);
    let mut up = MeshLifecycle::new(options, (mesh, zone), files, orders, (defaults, begun));
    let result = up.serve(plan, &documents, &mut signals, &mut received).await;
    // What went wrong first is what to report.
    let ended = up.end(&mut signals, &mut received).await;
    result.and(ended)
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
