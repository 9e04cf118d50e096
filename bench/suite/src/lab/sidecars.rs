//! Proxies of other meshes beside each workload of the lab. Their traffic is captured in the same way as that of Leno's
//! proxies.
//!
//! ```text
//! start ─► certificates, configuration ─► capture ─► proxy (user 2102, its cgroup, the namespace)
//! ```

#![expect(unsafe_code, reason = "a process enters its namespace between fork and exec")]

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leno_capture::{CaptureChoice, CaptureTarget, Captured, ProbeReport};
use leno_local::addresses::Addresses;
use leno_local::isolation::Isolation;
use leno_local::listening;
use leno_local::netns::Netns;
use leno_local::network::has_ipv6;
use leno_local::proxy::never_captured;
use leno_local::ranges::MeshRanges;
use leno_local::status::InstanceStatus;
use leno_measure::load::Protocol;
use leno_supervise::{Cgroup, ProcessCredentials, Tether};
use leno_types::ports::{INBOUND, OUTBOUND, PROXY_UID};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::mesh::Mesh;
use super::mesh::certificates::Authority;
use super::mesh::hop::{Configuration, Hop};
use super::mesh::linkerd as control;
use super::namespaces::{Lab, is_client, makes_load, open_to_all, proxy_cgroup};
use crate::files;
use crate::interrupt::Interrupt;
use crate::process::Running;
use crate::scenario::Scenario;

/// The application's address, for the proxy beside it.
const APPLICATION: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, crate::application::PORT);
/// How long a proxy may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// How often the proxy is checked while it starts.
const LOOK: Duration = Duration::from_millis(5);

/// The proxies of a lab. Dropping this value stops them and the capture.
pub(crate) struct Sidecars {
    all: Vec<Sidecar>,
    program: PathBuf,
    /// The stand-ins for the control plane. They are stopped together with the proxies.
    controls: Vec<control::RunningControl>,
}

struct Sidecar {
    instance: InstanceStatus,
    /// The capture; `None` if other proxies connect to this one directly.
    captured: Option<Captured>,
    configuration: Configuration,
    hop: Hop,
    /// The port that must accept connections before traffic can pass.
    port: u16,
    process: Option<Running>,
}

/// The services whose traffic every proxy must forward as opaque bytes, with their addresses. Only real applications
/// have such services.
fn opaque(
    (lab, scenario): (&Lab, &Scenario),
    services: &[SocketAddrV4],
) -> Vec<(String, SocketAddrV4)> {
    let all = scenario.opaque.iter().filter(|_| lab.is_real());
    all.filter_map(|nth| Some((scenario.service(*nth), *services.get(*nth as usize)?))).collect()
}

fn configure(mesh: &Mesh, hop: &Hop) -> Result<Configuration> {
    let configuration = mesh.configure(hop).context("a mesh of others has proxies")?;
    files::replace(&hop.directory.join(configuration.file), &configuration.text)?;
    for (name, text) in &configuration.others {
        files::replace(&hop.directory.join(name), text)?;
    }
    Ok(configuration)
}

impl Sidecars {
    /// Starts a proxy beside every workload.
    pub(crate) fn start(
        mesh: &Mesh,
        program: &Path,
        (lab, scenario): (&Lab, &Scenario),
        services: &[SocketAddrV4],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let authority = Arc::new(Authority::new()?);
        let backend = ProbeReport::probe().choose(CaptureChoice::Auto)?;
        let mut sidecars =
            Sidecars { all: Vec::new(), program: program.to_owned(), controls: Vec::new() };
        let instances = lab.status()?.instances;
        let workloads: Vec<_> = instances.iter().filter_map(named).collect();
        let opaque = opaque((lab, scenario), services);
        for instance in instances {
            let directory = lab.directory().join(&instance.name);
            fs::create_dir(&directory)?;
            open_to_all(&directory)?;
            // Some proxies write into this directory.
            chown(&directory, Some(PROXY_UID), Some(PROXY_UID))?;
            authority.write(&directory, &instance.workload)?;
            let client = makes_load(&instance);
            let calls = client || lab.is_real() || scenario.has_calls(&instance.workload);
            let is_opaque = opaque.iter().any(|(name, _)| *name == instance.workload);
            let hop = Hop {
                protocol: if is_opaque { Protocol::Tcp } else { scenario.protocol },
                mixed: scenario.is_mixed(),
                application: (!client).then_some(APPLICATION),
                services: if calls { services.to_vec() } else { Vec::new() },
                opaque: opaque.iter().map(|(_, address)| *address).collect(),
                workload: instance.workload.clone(),
                workloads: workloads.clone(),
                directory,
                ..Hop::default()
            };
            let hop = hop.in_revision(scenario, 0);
            let configuration = configure(mesh, &hop)?;
            let dialled_port = mesh.dialled_port(&hop);
            let control = mesh.control(&hop, &authority);
            let netns = Netns::open(&instance.surroundings.netns)?;
            if let Some(control) = control {
                Authority::write_request(&hop.directory, &control::identity(&hop.workload))?;
                let listener = netns.within(|| Ok(TcpListener::bind(control.address())))??;
                sidecars.controls.push(control.serve(listener)?);
            }
            let workload = CaptureTarget {
                name: instance.surroundings.netns.clone(),
                netns: netns.path(),
                cgroup: instance.surroundings.cgroup.parent().context("no group")?.to_owned(),
                proxy_cgroup: proxy_cgroup(&instance)?,
                proxy_process: None,
                fail_closed: true,
                excluded: never_captured(&gateway()),
                proxy_uid: PROXY_UID,
                datagrams: Default::default(),
            };
            let captured = match dialled_port {
                None => Some(leno_capture::capture(backend, &workload)?),
                Some(_) => None,
            };
            let port = dialled_port.unwrap_or(if client { OUTBOUND } else { INBOUND });
            sidecars.all.push(Sidecar {
                instance,
                captured,
                configuration,
                hop,
                port,
                process: None,
            });
            if let Some(last) = sidecars.all.last_mut() {
                last.start(program)?;
            }
        }
        for sidecar in &mut sidecars.all {
            sidecar.wait(interrupt)?;
        }
        Ok(sidecars)
    }

    pub(crate) fn capture(&self) -> String {
        let captured = self.all.iter().find_map(|one| one.captured.as_ref());
        captured.map_or_else(String::new, |captured| captured.backend().to_string())
    }

    /// Stops every proxy and starts it again.
    pub(crate) fn restart_all(&mut self) -> Result<()> {
        for sidecar in &mut self.all {
            sidecar.end();
            sidecar.start(&self.program)?;
        }
        Ok(())
    }

    /// Gives the proxies another revision of their configuration, in the way that the mesh supports.
    pub(crate) fn revise(&self, mesh: &Mesh, (scenario, revision): (&Scenario, u64)) -> Result<()> {
        for sidecar in self.all.iter().filter(|one| !one.hop.services.is_empty()) {
            let configuration = configure(mesh, &sidecar.hop.in_revision(scenario, revision))?;
            if let (Some(signal), Some(running)) = (configuration.told_by, &sidecar.process) {
                kill(Pid::from_raw(i32::try_from(running.pid())?), signal)?;
            }
        }
        Ok(())
    }

    /// Stops the client's proxy and starts it again; returns the time directly before its program was executed.
    pub(crate) fn restart_client(&mut self) -> Result<Instant> {
        let client = self.all.iter_mut().find(|one| is_client(&one.instance));
        let client = client.context("the lab has no client")?;
        client.end();
        let before = Instant::now();
        client.start(&self.program)?;
        Ok(before)
    }
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        for sidecar in &mut self.all {
            sidecar.end();
            // The namespace disappears with the lab, and with it the eBPF programs on its cgroup. The next run removes
            // any that are left, by their names.
            let _ = sidecar.captured.as_mut().map(Captured::release);
        }
    }
}

impl Sidecar {
    fn start(&mut self, program: &Path) -> Result<()> {
        let surroundings = &self.instance.surroundings;
        let netns = Netns::open(&surroundings.netns)?;
        // The proxy's user may have no access to the binary's directory, so the binary is
        // bind-mounted over an empty file.
        let laid = self.hop.directory.join("program");
        if !laid.exists() {
            File::create(&laid)?;
        }
        let mut files = surroundings.files.clone();
        files.push((program.to_owned(), laid.clone()));
        let group = Cgroup::at(proxy_cgroup(&self.instance)?);
        let isolation = Isolation::new(&group, &netns, &files, &self.instance.name)?;
        let credentials = ProcessCredentials::confined(PROXY_UID);
        let tether = Tether::to_this_process();
        let mut command = Command::new(&laid);
        command
            .args(&self.configuration.arguments)
            .envs(self.configuration.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.hop.directory)
            .process_group(0);
        // SAFETY: the code between fork and exec only makes system calls; everything it needs was
        // prepared before the fork (see `Isolation`).
        unsafe {
            command.pre_exec(move || {
                isolation.enter()?;
                credentials.assume()?;
                tether.tie()
            });
        }
        let running = Running::start(&mut command, "");
        self.process =
            Some(running.with_context(|| format!("cannot start {}", program.display()))?);
        Ok(())
    }

    fn wait(&mut self, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + LISTEN;
        loop {
            interrupt.check()?;
            let Some(running) = &mut self.process else { bail!("it was not started") };
            if listening::closed(i32::try_from(running.pid())?, &[self.port]).is_empty() {
                if let Some(captured) = &mut self.captured {
                    captured.set_listening(true)?;
                }
                return Ok(());
            }
            let name = &self.instance.name;
            ensure!(running.is_running()?, "the proxy of {name} ended: {}", running.errors()?);
            if Instant::now() > deadline {
                let errors = running.errors()?;
                bail!("the proxy of {name} does not listen after {LISTEN:?}: {errors}");
            }
            std::thread::sleep(LOOK);
        }
    }

    fn end(&mut self) {
        drop(self.process.take());
        // Some proxies have worker processes, which must end, too.
        if let Ok(group) = proxy_cgroup(&self.instance) {
            let _gone = Cgroup::at(group).kill();
        }
    }
}

fn named(instance: &InstanceStatus) -> Option<(String, Ipv4Addr)> {
    let address = instance.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    })?;
    Some((instance.workload.clone(), address))
}

/// Returns where DNS and the control plane listen: at the default addresses, because the lab chooses no others.
fn gateway() -> Addresses {
    MeshRanges::DEFAULT.workloads(has_ipv6()).gateway()
}
