//! A proxy of somebody else's beside each workload of the lab, captured as Leno's own is.
//!
//! ```text
//! place ─► certificates, configuration ─► capture ─► proxy (user 2102, its cgroup, the namespace)
//! ```

#![expect(unsafe_code, reason = "a process enters its namespace between fork and exec")]

use std::fs::{self, File};
use std::net::SocketAddrV4;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_capture::{Captured, Choice, Report, Workload};
use leno_local::cgroup::Cgroup;
use leno_local::enclosure::{Credentials, Enclosure, Tether};
use leno_local::netns::Netns;
use leno_local::status::InstanceStatus;
use leno_types::ports::{INBOUND, OUTBOUND, PROXY_UID};

use super::certificates::Authority;
use super::{Hop, Mesh};
use crate::interrupt::Interrupt;
use crate::lab::{self, Lab, is_client, open_to_all, proxy_cgroup};
use crate::scenario::Scenario;

/// How long a proxy may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How much of what a proxy printed is shown when it fails, in bytes from its end.
const MAX_LOG: usize = 4096;

/// The proxies of a lab; dropping them ends them and the capture.
pub(crate) struct Sidecars {
    all: Vec<Sidecar>,
    program: PathBuf,
}

struct Sidecar {
    instance: InstanceStatus,
    captured: Captured,
    arguments: Vec<String>,
    directory: PathBuf,
    /// What has to listen before traffic can pass.
    port: u16,
    process: Option<(Child, File)>,
}

impl Sidecars {
    /// Places a proxy beside every workload.
    pub(crate) fn start(
        mesh: &dyn Mesh,
        program: &Path,
        (lab, scenario): (&Lab, &Scenario),
        services: &[SocketAddrV4],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let authority = Authority::new()?;
        let machine = Report::probe();
        let backend = machine.choose(Choice::Auto)?;
        let mut sidecars = Sidecars { all: Vec::new(), program: program.to_owned() };
        for instance in lab.status()?.instances {
            let directory = lab.directory().join(&instance.name);
            fs::create_dir(&directory)?;
            open_to_all(&directory)?;
            // Where a proxy wants to write, it can.
            chown(&directory, Some(PROXY_UID), Some(PROXY_UID))?;
            authority.write(&directory, &instance.workload)?;
            let client = is_client(&instance);
            let application = SocketAddrV4::new([127, 0, 0, 1].into(), lab::PORT);
            let calls =
                client || (!scenario.calls.is_empty() && instance.workload == lab::service(0));
            let hop = Hop {
                protocol: scenario.protocol,
                mixed: !scenario.calls.is_empty(),
                application: (!client).then_some(application),
                services: if calls { services } else { &[] },
                directory: &directory,
            };
            let configuration = mesh.configure(&hop).context("a mesh of others has proxies")?;
            let file = directory.join(configuration.file);
            fs::write(&file, &configuration.text)?;
            let fill = |argument: &String| argument.replace("{}", &file.display().to_string());
            let workload = Workload {
                name: instance.surroundings.netns.clone(),
                netns: Netns::open(&instance.surroundings.netns)?.path(),
                cgroup: instance.surroundings.cgroup.parent().context("no group")?.to_owned(),
                proxy_cgroup: proxy_cgroup(&instance)?,
                fail_closed: true,
                excluded: leno_local::proxy::never_captured(),
                proxy_uid: PROXY_UID,
            };
            let captured = leno_capture::capture(backend, &workload)?;
            sidecars.all.push(Sidecar {
                instance,
                captured,
                arguments: configuration.arguments.iter().map(fill).collect(),
                directory,
                port: if client { OUTBOUND } else { INBOUND },
                process: None,
            });
            let program = sidecars.program.clone();
            if let Some(last) = sidecars.all.last_mut() {
                last.start(&program)?;
            }
        }
        for sidecar in &mut sidecars.all {
            sidecar.wait(interrupt)?;
        }
        Ok(sidecars)
    }

    /// By what traffic is captured.
    pub(crate) fn capture(&self) -> String {
        self.all.first().map_or_else(String::new, |one| one.captured.backend().to_string())
    }

    /// Ends every proxy and starts it again.
    pub(crate) fn restart_all(&mut self) -> Result<()> {
        let program = self.program.clone();
        for sidecar in &mut self.all {
            sidecar.end();
            sidecar.start(&program)?;
        }
        Ok(())
    }

    /// Ends the client's proxy and starts it again; the moment before its exec.
    pub(crate) fn restart_client(&mut self) -> Result<Instant> {
        let program = self.program.clone();
        let client = self.all.iter_mut().find(|one| is_client(&one.instance));
        let client = client.context("there is no client")?;
        client.end();
        let before = Instant::now();
        client.start(&program)?;
        Ok(before)
    }
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        for sidecar in &mut self.all {
            sidecar.end();
            // The namespace goes with the lab, and the programs on its cgroup with that; what is
            // left by name, the next run removes.
            let _ = sidecar.captured.release();
        }
    }
}

impl Sidecar {
    fn start(&mut self, program: &Path) -> Result<()> {
        let surroundings = &self.instance.surroundings;
        let netns = Netns::open(&surroundings.netns)?;
        // The binary may lie where the proxy's user may not look: it is laid over an empty file.
        let laid = self.directory.join("program");
        if !laid.exists() {
            File::create(&laid)?;
        }
        let mut files = surroundings.files.clone();
        files.push((program.to_owned(), laid.clone()));
        let group = Cgroup::at(proxy_cgroup(&self.instance)?);
        let enclosure = Enclosure::new(&group, &netns, &files, &self.instance.name)?;
        let credentials = Credentials::confined(PROXY_UID);
        let tether = Tether::to_this_process();
        let log = tempfile::tempfile()?;
        let mut command = Command::new(&laid);
        command
            .args(&self.arguments)
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?);
        // SAFETY: what runs between fork and exec makes system calls only; all it needs was
        // prepared before the fork (see `Enclosure`).
        unsafe {
            command.pre_exec(move || {
                enclosure.enter()?;
                credentials.assume()?;
                tether.tie()
            });
        }
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        self.process = Some((child, log));
        Ok(())
    }

    /// Comes back when it listens.
    fn wait(&mut self, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + LISTEN;
        loop {
            interrupt.check()?;
            let Some((child, log)) = &mut self.process else { bail!("it was not started") };
            if listens(child.id(), self.port) {
                return Ok(self.captured.set_listening(true)?);
            }
            if let Some(status) = child.try_wait()? {
                bail!("the proxy of {} ended with {status}: {}", self.instance.name, said(log));
            }
            if Instant::now() > deadline {
                let name = &self.instance.name;
                bail!("the proxy of {name} does not listen after {LISTEN:?}: {}", said(log));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn end(&mut self) {
        if let Some((mut child, _)) = self.process.take() {
            let _gone = child.kill();
            let _gone = child.wait();
        }
        // Some work in processes of their own.
        if let Ok(group) = proxy_cgroup(&self.instance) {
            let _gone = Cgroup::at(group).kill();
        }
    }
}

/// Whether something in the network namespace of a process listens on a port (proc(5): the second
/// field is the local address, the fourth the state, 0A is listening).
fn listens(pid: u32, port: u16) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let local = fields.get(1).and_then(|local| local.rsplit_once(':'));
        let same = local.and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok()) == Some(port);
        same && fields.get(3) == Some(&"0A")
    })
}

fn said(log: &File) -> String {
    use std::os::unix::fs::FileExt;
    let mut text = String::new();
    let end = log.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = vec![0; MAX_LOG];
    let read = log.read_at(&mut bytes, end.saturating_sub(MAX_LOG as u64)).unwrap_or(0);
    // The message is the point; bytes that are no text are replaced.
    text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    text.trim().to_owned()
}
