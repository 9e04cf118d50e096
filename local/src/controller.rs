//! Runs the control plane of a mesh: one process in the network namespace of the bridge.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_supervise::{
    Backoff, Cgroup, ProcessCredentials, RestartRules, RunningProcess, StopStage, after, describe,
    keep_running,
};
use leno_types::ports;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::instance::MeshContext;
use crate::isolation::{Isolation, ResolverNames, write_files};
use crate::process::{Event, ProcessCommand};
use crate::program::Program;
use crate::up::UpOptions;

/// How long the process may take to end before it is killed. Killing it loses nothing, because all of its state is
/// on disk.
const GRACE: Duration = Duration::from_secs(1);

/// The running control plane. It is restarted whenever it ends; proxies continue to serve in the meantime.
#[derive(Debug)]
pub struct Controller {
    pid: Rc<Cell<Option<i32>>>,
    task: JoinHandle<()>,
}

impl Controller {
    /// Its process ID; `None` while it does not run.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.pid.get()
    }

    /// Waits until the control plane has ended. The caller must have stopped the mesh before.
    pub async fn ended(self) {
        // A panic of the task was printed, and the mesh's control group ends the process.
        let _ = self.task.await;
    }
}

/// Starts the control plane and keeps it running until `stop` reaches [`StopStage::All`].
///
/// Notifies `changed` whenever there is a new process.
///
/// # Errors
/// When its control group cannot be created.
pub fn start(
    mesh: &Rc<MeshContext>,
    options: &UpOptions,
    stop: watch::Receiver<StopStage>,
    changed: Rc<Notify>,
) -> Result<Controller> {
    let group = Cgroup::create(mesh.layout.cgroup(&mesh.hierarchy).join("controller"))?;
    let pid = Rc::new(Cell::new(None));
    let (mesh, known, options) = (mesh.clone(), pid.clone(), options.clone());
    let task = tokio::task::spawn_local(async move {
        let origin = mesh.output.origin("controller", "controller", "controller");
        let start = || -> Result<RunningProcess> {
            task(&mesh, &options, &group)?.start(&mesh.output, &origin)
        };
        let report = |event| {
            known.set(if let Event::Started(pid) = event { Some(pid) } else { None });
            changed.notify_one();
            let text = match event {
                Event::Ended(status, wait) => {
                    let how = describe(status);
                    format!("the control plane {how}; restarting it {}", after(wait))
                }
                Event::Failed(error, _) => error.chain(),
                _ => return,
            };
            mesh.output.say(&text);
        };
        let backoff = Backoff::eager(Instant::now());
        keep_running(start, RestartRules::always(backoff, GRACE), (stop, StopStage::All), report)
            .await;
    });
    Ok(Controller { pid, task })
}

/// The address of the control plane's `/metrics` and `/ready`: on loopback in the bridge's namespace, which
/// workloads cannot reach.
#[must_use]
pub fn admin() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, ports::ADMIN))
}

fn task(mesh: &MeshContext, options: &UpOptions, group: &Cgroup) -> Result<ProcessCommand> {
    let layout = &mesh.layout;
    let program = Program::prepare(layout, "leno-controller")?;
    let listen = format!("{}:{}", mesh.switch.subnet().gateway().v4, ports::CONTROL);
    let lifetime = format!("{}s", options.cert_lifetime.as_secs());
    let state = layout.state();
    let control = layout.control();
    let arguments: [(&str, OsString); 9] = [
        ("--state", state.into()),
        ("--data", control.into()),
        ("--listen", listen.into()),
        ("--cert-lifetime", lifetime.into()),
        ("--trust-domain", mesh.proxy.trust_domain.clone().into()),
        ("--tls-profile", options.tls_profile.clone().into()),
        ("--admin", admin().to_string().into()),
        ("--roots-file", layout.roots().into()),
        ("--workload-api", layout.workload_api().into()),
    ];
    let mut command: Vec<OsString> = vec![program.path().into()];
    for (flag, value) in arguments {
        command.extend([flag.into(), value]);
    }
    if let Some(issuer) = &options.issuer {
        command.extend(["--issuer".into(), issuer.into()]);
    }
    if let Some(address) = &options.spiffe_endpoint_socket {
        command.extend(["--spiffe-endpoint-socket".into(), address.to_string().into()]);
    }
    for federation in &options.federate {
        command.extend(["--federate".into(), federation.into()]);
    }
    let environment: BTreeMap<OsString, OsString> =
        [("LENO_LOG".into(), options.log.clone().into())].into();
    // The control plane resolves names outside of the mesh, for example of token issuers, in the same way as
    // instances.
    let gateway = mesh.switch.subnet().gateway();
    let names = ResolverNames {
        instance: "leno-controller",
        full: &[],
        namespace: "leno-system",
        addresses: gateway,
        server: gateway.v4.into(),
    };
    let mut files = write_files(&layout.control().join("etc"), &names)?;
    files.push(program.file());
    Ok(ProcessCommand {
        command,
        environment,
        directory: Some("/".into()),
        isolation: Isolation::new(group, mesh.switch.netns(), &files, layout.mesh())?,
        credentials: ProcessCredentials::powerless_root(),
        descriptors: None,
        stdin: None,
    })
}
