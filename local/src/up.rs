//! `leno up`: runs a mesh as planned, follows edits of its files, and removes everything at the end.

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

/// Most reports of instances that wait to be processed. When the queue is full, instances wait.
const QUEUE: usize = 256;
/// How long tasks that still print output may take after the mesh has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The options of `leno up`. Documents can override mode, sharing, capture, mTLS and egress for their workloads.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The documents: files, directories or `-`.
    pub files: Vec<PathBuf>,
    /// The name of the mesh.
    pub mesh: String,
    /// Whether proxies are sidecars or node proxies.
    pub mode: ProxyMode,
    /// Which instances share a proxy's process, in node mode.
    pub share: ProcessSharing,
    /// In node mode, when a busy instance gets its own proxy process.
    pub promotion: PromotionRules,
    /// In node mode, most new connections a second to an instance and from each of its clients; 0 for no limit.
    pub connection_rate: u32,
    /// In node mode, whether requests between instances of one process are passed within its memory.
    pub one_pass: bool,
    /// How traffic is captured.
    pub capture: CaptureChoice,
    /// How flows are accounted for.
    pub flows: leno_flows::LedgerSettings,
    /// Whether servers accept plaintext.
    pub mtls: MtlsMode,
    /// Whether workloads may call addresses and names outside of the mesh that it has no document for.
    pub egress: Egress,
    /// Whether workloads can reach addresses outside of the machine.
    pub uplink: bool,
    /// The address ranges of workloads and of services, if the user has chosen them.
    pub ranges: RequestedRanges,
    /// The resolvers for names outside of the mesh; if empty, the host's resolvers are used.
    pub resolvers: Vec<SocketAddr>,
    /// How long a certificate is valid.
    pub cert_lifetime: Duration,
    /// The directory with the issuer of certificates; `None` if the mesh creates its own root.
    pub issuer: Option<PathBuf>,
    /// The SPIFFE Workload API that issues the proxies' certificates; `None` if the control plane issues them.
    pub spiffe_endpoint_socket: Option<WorkloadApiAddress>,
    /// Other trust domains whose workloads are accepted as clients, in the form of the control plane's option.
    pub federate: Vec<String>,
    /// How long applications may take to end.
    pub grace: Duration,
    /// Files of variables that all applications get.
    pub env_files: Vec<PathBuf>,
    /// How long a response may take to begin if no policy sets a bound; zero for no bound.
    pub response_wait: Duration,
    /// How long streams may continue once another proxy serves their instance, in whole seconds.
    pub handover_timeout: Duration,
    /// Whether documents with errors that `leno analyze` finds are refused.
    pub refuse_errors: bool,
    /// How lines are shown on the terminal.
    pub style: LineStyle,
    /// The log filter of proxies and of the control plane.
    pub log: String,
    /// Which requests the access log contains, in the form of the proxy's option.
    pub access_log: String,
    /// The file for the access log; `None` if its lines are printed among the others.
    pub access_log_file: Option<PathBuf>,
    /// Which requests get spans and where the spans are sent, in the form of the proxy's option.
    pub traces: Option<String>,
    /// The meshes whose metric names proxies serve in addition to their own, in the form of the proxy's option.
    pub metrics_compat: String,
    /// Whether taps may show bodies.
    pub tap_bodies: bool,
    /// The cryptography profile of TLS, in the form of the proxy's and the control plane's option.
    pub tls_profile: String,
    /// The addresses of the network that may request the proxies' metrics; all may if this is empty.
    pub scrape_from: Vec<Cidr>,
}

/// Runs a mesh until a signal ends it. Everything runs on the calling thread. This must be the thread that lives
/// longest, because the kernel kills child processes when the thread that started them ends.
///
/// # Errors
/// When the documents are rejected, when the mesh runs already, or when something cannot be created or removed.
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
    // Tasks that still print hold a clone of the output. They end with the runtime.
    runtime.shutdown_timeout(LAST_LINES);
    writer.finish();
    if let Some(writer) = access_writer {
        writer.finish();
    }
    ended
}

/// Opens the file of the access log for appending, if the options name one.
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
    // Without an uplink the mesh does not use the machine's routes, so its ranges cannot overlap them.
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
    // The state of the files is recorded before they are read, so that no edit is missed.
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
            // The first error is reported. Anything that is not removed now is removed by the next run.
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
    // If both fail, the first error is reported.
    let ended = up.end(&mut signals, &mut received).await;
    result.and(ended)
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
