//! `leno-controller observe`: records the history of a cluster's mesh, in its own pod.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use leno_cluster_observer::{MESH, ObserverSettings, PORT, observe};
use tokio::signal::unix::{SignalKind, signal};

/// The observer's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct Observe {
    /// Kubeconfig file with the cluster's address and credentials [default: those of the pod that this runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of the control plane and of the observer
    #[arg(long = "system-namespace", env = "LENO_NAMESPACE", default_value = "leno-system")]
    system: String,

    /// Name of the mesh
    #[arg(long, env = "LENO_MESH", default_value = MESH)]
    mesh: String,

    /// File of the history
    #[arg(
        long,
        env = "LENO_HISTORY",
        value_name = "FILE",
        default_value = "/var/lib/leno/history"
    )]
    history: PathBuf,

    /// Address to serve the dashboard and its API on, in plaintext; a loopback address, which port-forwards reach
    #[arg(long = "serve", value_name = "ADDRESS", default_value_t = (Ipv4Addr::LOCALHOST, PORT).into())]
    listen: SocketAddr,

    /// Address to serve /metrics, /ready and /live on [default: none, and they are not served]
    #[arg(long = "pages", env = "LENO_ADMIN", value_name = "ADDRESS")]
    pages: Option<SocketAddr>,
}

/// Observes until SIGTERM or SIGINT. At the end nothing has to be saved, because every observation is already in
/// the file.
pub(crate) fn run(flags: Observe) -> anyhow::Result<()> {
    // One thread processes observations while the other one answers. Longer computations for readers run on
    // further threads.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let client = leno_kube::connect(flags.kubeconfig.as_deref(), None).await?;
        let settings = ObserverSettings {
            mesh: flags.mesh,
            namespace: flags.system,
            history: flags.history,
            listen: flags.listen,
            admin: flags.pages,
        };
        tokio::select! {
            ended = observe(client, settings) => Ok(ended?),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    });
    // Matching policies with pods may still be running and takes seconds, but nothing needs the result any more.
    runtime.shutdown_background();
    ended
}
