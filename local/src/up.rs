//! `leno up`: makes a plan run, follows edits of its files, and removes everything at the end.

mod course;
mod documents;
mod foundation;
mod life;
mod rolling;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leno_capture::Choice;
pub use leno_identity::{MAX_LIFETIME, MIN_LIFETIME};
use leno_types::{Egress, MtlsMode};
use tokio::sync::mpsc;

use crate::descriptors::Descriptors;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::network;
use crate::output::Output;
use crate::plan::{Defaults, Plan};
use crate::record::Record;
use crate::watch::Files;

use course::Up;
use signals::Signals;

/// Changes that wait to be taken in. Instances wait when it is full.
const QUEUE: usize = 256;
/// How long what still prints may take at the very end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What `leno up` is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The documents: files, directories or `-`.
    pub files: Vec<PathBuf>,
    /// The name of the mesh.
    pub mesh: String,
    /// How traffic is captured where documents do not say.
    pub capture: Choice,
    /// What inbound sides do with plaintext where documents do not say.
    pub mtls: MtlsMode,
    /// Whether workloads may call what the mesh does not know, where documents do not say.
    pub egress: Egress,
    /// Whether workloads reach what is outside of the machine.
    pub uplink: bool,
    /// Who is asked for names that are not of the mesh; the host's own resolvers where nobody is named.
    pub resolvers: Vec<SocketAddr>,
    /// How long certificates hold.
    pub cert_lifetime: Duration,
    /// How long applications may take to end.
    pub grace: Duration,
    /// Whether lines are coloured.
    pub colour: bool,
    /// What proxies and the control plane log.
    pub log: String,
    /// The form of the proxies' access log: `off`, `text` or `json`.
    pub access_log: String,
}

/// Runs a mesh until a signal ends it. Everything runs on the calling thread, which must be the
/// one that lives longest: its children die with it.
///
/// # Errors
/// When the documents are refused, the mesh runs already, or something cannot be made or removed.
pub fn up(options: &Options) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        let reason = "leno up makes network namespaces and loads kernel programs: run it as root, \
                      for example with sudo";
        return Err(Error::Refused(reason.to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.attempt(|| "cannot start the runtime".to_owned())?;
    let (output, writer) = Output::start(options.colour);
    let ended = tokio::task::LocalSet::new().block_on(&runtime, run(options, output));
    // Tasks that still print hold an output; they end with the runtime.
    runtime.shutdown_timeout(LAST_LINES);
    writer.finish();
    ended
}

async fn run(options: &Options, output: Output) -> Result<()> {
    let layout = Layout::new(&options.mesh)?;
    let defaults = Defaults {
        mtls: options.mtls,
        egress: options.egress,
        capture: options.capture,
        ipv6: network::has_ipv6(),
    };
    let begun = Instant::now();
    let descriptors = Descriptors::raise();
    let descriptors = descriptors.attempt(|| "cannot set the limit of descriptors".to_owned())?;
    // Looked at before they are read, so that no edit is missed.
    let files = Files::new(options.files.clone());
    let documents = documents::load(&options.files)?;
    let plan = documents::plan(&documents, defaults, &Plan::default())?;
    let mut signals = Signals::new()?;
    let mut record = Record::acquire(&layout)?;
    let foundation = match foundation::lay(options, &layout, &mut record).await {
        Ok(foundation) => foundation,
        Err(error) => {
            // The first error is the one to report; what is left, the next run removes.
            let _ = record.remove_all();
            return Err(error);
        }
    };
    for note in &foundation.notes {
        output.say(note);
    }
    let (changes, mut received) = mpsc::channel(QUEUE);
    let (mesh, zone) = foundation.mesh(options, layout, record, (output, changes, descriptors));
    let mut up = Up::new(options, (mesh, zone), files, (defaults, begun));
    let result = up.serve(plan, &documents, &mut signals, &mut received).await;
    // What went wrong first is what to report.
    let ended = up.end(&mut signals, &mut received).await;
    result.and(ended)
}
