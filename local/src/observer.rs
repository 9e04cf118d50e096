//! The observer of a mesh: a separate process that polls the metrics of the proxies every few seconds, keeps a day of
//! history, and answers the dashboard and `leno stat --since`.
//!
//! ```text
//!  leno up ── mesh.json ──► leno observer ◄── /metrics of every proxy
//!                               │
//!                 history ◄─────┴─────► observer.sock ◄── leno dashboard, leno stat
//! ```
//! The observer runs in the network namespace of the bridge, as root without any capability. Because it is a separate
//! process, a fault or much memory use in it does not affect the mesh or the control plane
//! (docs/decisions/054-history.md).

mod watch;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_dashboard::hub::Hub;
use leno_dashboard::visible_namespaces::VisibleNamespaces;
use leno_observe::admin;
use leno_supervise::{
    Backoff, Cgroup, ProcessCredentials, RestartRules, RunningProcess, StopStage, after, describe,
    keep_running,
};
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch as channel};
use tokio::task::JoinHandle;

use crate::error::{Attempt, Error, Result};
use crate::hint::name_option;
use crate::instance::MeshContext;
use crate::isolation::Isolation;
use crate::layout::Layout;
use crate::process::{Event, ProcessCommand};
use crate::program::Program;
use crate::status::MeshStatus;

/// How long the observer may take to end. The time is short because all of its state is on disk.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait for an answer. This is long, because users also examine problems on overloaded machines.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Most requests that are answered at the same time; further ones wait.
const MAX_CONNECTIONS: usize = 32;

/// The running observer. It is restarted whenever it ends.
#[derive(Debug)]
pub struct Observer {
    task: JoinHandle<()>,
}

impl Observer {
    /// Waits until the observer has ended. The caller must have stopped the mesh before.
    pub async fn ended(self) {
        // A panic of the task was printed, and the mesh's control group ends the process.
        let _ = self.task.await;
    }
}

/// Starts the observer and keeps it running until `stop` reaches [`StopStage::All`].
///
/// # Errors
/// When its control group cannot be created.
pub fn start(mesh: &Rc<MeshContext>, stop: channel::Receiver<StopStage>) -> Result<Observer> {
    let group = Cgroup::create(mesh.layout.cgroup(&mesh.hierarchy).join("observer"))?;
    let mesh = mesh.clone();
    let task = tokio::task::spawn_local(async move {
        let origin = mesh.output.origin("observer", "observer", "observer");
        let start =
            || -> Result<RunningProcess> { task(&mesh, &group)?.start(&mesh.output, &origin) };
        // A repeated fault is printed once.
        let told = Cell::new(false);
        let report = |event| {
            let text = match event {
                Event::Ended(status, wait) => {
                    let how = describe(status);
                    format!("the observer {how}; restarting it {}", after(wait))
                }
                Event::Failed(error, _) => error.chain(),
                _ => return,
            };
            if !told.replace(true) {
                mesh.output.say(&text);
            }
        };
        let rules = RestartRules::always(Backoff::eager(Instant::now()), GRACE);
        keep_running(start, rules, (stop, StopStage::All), report).await;
    });
    Ok(Observer { task })
}

fn task(mesh: &MeshContext, group: &Cgroup) -> Result<ProcessCommand> {
    let program = Program::own(&mesh.layout)?;
    Ok(ProcessCommand {
        command: vec![program.path().into(), "observer".into(), mesh.layout.mesh().into()],
        environment: BTreeMap::new(),
        directory: Some("/".into()),
        isolation: Isolation::new(
            group,
            mesh.switch.netns(),
            &[program.file()],
            mesh.layout.mesh(),
        )?,
        credentials: ProcessCredentials::powerless_root(),
        descriptors: None,
        stdin: None,
    })
}

/// Observes the mesh of this layout until the process ends.
///
/// # Errors
/// When the history cannot be read, or the socket cannot be created.
pub async fn observe(layout: &Layout) -> Result<()> {
    let path = layout.history();
    let hub = Hub::open(layout.mesh(), path.clone());
    let hub = hub.attempt(|| format!("cannot read {}", path.display()))?;
    let hub = Arc::new(hub.with_name_option(name_option(layout.mesh())));
    let listener = listen(layout)?;
    tokio::select! {
        () = watch::watch(layout, &hub) => Ok(()),
        () = serve(listener, &hub) => Ok(()),
    }
}

/// Sends a request to the observer of a running mesh, for example for `/api/v1/topology`.
///
/// # Errors
/// When the mesh does not run, none of its workloads has a proxy, or the observer does not answer.
pub async fn ask<T: DeserializeOwned>(layout: &Layout, target: &str) -> Result<T> {
    let status = MeshStatus::read(layout)?;
    let path = layout.observer();
    if !path.exists() && !status.instances.iter().any(|one| one.meshed) {
        let reason = format!(
            "no workload of mesh {} has a proxy, so its traffic is not counted: set \
             leno.dev/inject: enabled",
            layout.mesh()
        );
        return Err(Error::Refused(reason));
    }
    let what = || {
        format!(
            "the observer of mesh {} does not answer: `leno check` shows whether it \
             runs",
            layout.mesh()
        )
    };
    let asked = async { admin::ask(UnixStream::connect(&path).await?, "GET", target).await };
    let answer = tokio::time::timeout(ANSWER_WAIT, asked).await;
    let reply = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).attempt(what)?;
    if reply.status != 200 {
        return Err(Error::Refused(format!("{}: {}", what(), reply.body)));
    }
    let remedy = || {
        "the observer is of another version than this program: end the mesh with `leno \
         down` and start it again"
            .to_owned()
    };
    serde_json::from_str(&reply.body).map_err(|source| Error::Damaged {
        path,
        remedy: remedy(),
        source,
    })
}

fn listen(layout: &Layout) -> Result<UnixListener> {
    let path = layout.observer();
    let bind = || {
        // A killed observer has left its socket.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().attempt(|| format!("cannot listen on {}", path.display()))
}

async fn serve(listener: UnixListener, hub: &Arc<Hub>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptor is free. This pause lets connections end, which frees some.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let hub = hub.clone();
        tokio::spawn(async move {
            leno_program::serve_stream(stream, "observer.sock", async |request| {
                let (path, query) = (request.uri().path(), request.uri().query());
                // Only root can use the socket, and root may see all namespaces of the mesh.
                let all = (&*hub, &VisibleNamespaces::All);
                leno_dashboard::serve::answer(all, request.method(), path, query)
            })
            .await;
            drop(place);
        });
    }
}
