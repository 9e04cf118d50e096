//! Measures single proxies without TLS on loopback, one after the other: no mesh, no namespaces, no root.
//!
//! ```text
//!   wrk, h2load, leno-bench ─► proxy (CPU 0) ──► nginx, or the suite's application
//!        (CPU 1)                 │                    (CPU 1)
//!                                └── /proc/PID before and after: CPU per request
//! ```

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leno_measure::load::Protocol;
use leno_measure::usage::{self, Cpu, Memory};
use tempfile::TempDir;

use super::case::Case;
use super::mesh::Mesh;
use super::mesh::hop::Hop;
use super::namespaces::open_to_all;
use super::pinning::Pinning;
use crate::application::arguments;
use crate::interrupt::Interrupt;
use crate::measurement::figures::{ResourceUse, fill, marks, table};
use crate::measurement::options::Options;
use crate::measurement::plans::{lasting, load_plans};
use crate::measurement::records::write_raw;
use crate::process::{Running, free_address, own_program};
use crate::record::{CpuMs, Record, RssKib};
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

/// The configuration of nginx, which is the HTTP/1.1 server because it needs the least CPU of the servers in Linux
/// distributions.
const NGINX: &str = include_str!("../../data/origin.nginx.conf");
/// The files that nginx serves, which are kept in memory.
const FILES: [(&str, usize); 3] = [("1k", 1024), ("10k", 10 * 1024), ("1m", 1024 * 1024)];

/// How long a program may take to end in order: Leno's proxy drains for half a second.
const END: Duration = Duration::from_secs(3);

/// A running program that listens. It ends in order when this is dropped: a proxy that counts for a profile
/// (scripts/profile.sh) writes the file then.
pub struct Listening {
    running: Running,
    /// The address on which the program listens.
    pub address: SocketAddrV4,
    _directory: TempDir,
}

impl Listening {
    /// Starts a program that listens at an address, in a directory of its own.
    pub fn start(
        command: (Command, SocketAddrV4),
        directory: TempDir,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        Self::start_pinned(command, directory, Pinning::Anywhere, interrupt)
    }

    fn start_pinned(
        (mut command, address): (Command, SocketAddrV4),
        directory: TempDir,
        place: Pinning,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        command.current_dir(directory.path());
        let mut running = place.within(|| Running::start(&mut command, ""))?;
        running.listens(address, interrupt)?;
        Ok(Self { running, address, _directory: directory })
    }

    /// Returns the process and its children, because nginx works in child processes.
    fn pids(&self) -> Result<Vec<u32>> {
        let id = self.running.pid();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.context("the proxy has ended")?;
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        Ok(std::iter::once(id).chain(children).collect())
    }

    /// The CPU time of the program.
    pub fn cpu(&self) -> Result<Cpu> {
        let mut sum = Cpu::default();
        for pid in self.pids()? {
            sum += usage::cpu_of_process(pid)?;
        }
        Ok(sum)
    }

    /// The memory of the program.
    pub fn memory(&self) -> Result<Memory> {
        let mut sum = Memory::default();
        for pid in self.pids()? {
            sum += usage::memory_of_process(pid)?;
        }
        Ok(sum)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A program that has ended, or that does not end, is left to the end of `Running`.
        let _ended = self.running.terminate(END);
    }
}

/// Starts the server of a scenario, on the CPUs that proxies do not have.
pub fn server(scenario: &Scenario, pinned: bool, interrupt: &Interrupt) -> Result<Listening> {
    let (directory, address) = (memory_directory()?, free_address()?);
    let command = match scenario.protocol {
        Protocol::Http1 => nginx(directory.path(), address)?,
        _ => {
            let mut command = Command::new(own_program()?);
            command.args(arguments(scenario, 0, &address.to_string(), |_| String::new()));
            command
        }
    };
    Listening::start_pinned((command, address), directory, Pinning::rest(pinned), interrupt)
}

fn nginx(root: &Path, address: SocketAddrV4) -> Result<Command> {
    let missing = || Missing::new("nginx", "apt-get install -y nginx-light");
    let program = tools::find("nginx").ok_or_else(missing)?;
    for (name, size) in FILES {
        fs::write(root.join(name), "x".repeat(size))?;
    }
    let config = root.join("nginx.conf");
    let at = root.display().to_string();
    let text = NGINX.replace("@ROOT@", &at).replace("@ADDRESS@", &address.to_string());
    fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(config).arg("-p").arg(root).args(["-e", "stderr"]);
    Ok(command)
}

/// Starts one proxy of a mesh in front of a server.
///
/// # Errors
/// The errors of [`server`]. Also if the mesh has no such proxy.
pub fn proxy(
    (mesh, program): (&Mesh, &Path),
    (server, protocol): (SocketAddrV4, Protocol),
    pinned: bool,
    interrupt: &Interrupt,
) -> Result<Listening> {
    let (directory, address) = (memory_directory()?, free_address()?);
    let hop = Hop {
        protocol,
        listen: Some(address),
        services: vec![server],
        workload: "proxy".to_owned(),
        directory: directory.path().to_owned(),
        ..Hop::default()
    };
    let why = || format!("{} is not measured alone, in plaintext", mesh.name());
    let configuration = mesh.configure(&hop).with_context(why)?;
    fs::write(directory.path().join(configuration.file), &configuration.text)?;
    let mut command = Command::new(program);
    command.args(&configuration.arguments);
    command.envs(configuration.environment);
    Listening::start_pinned((command, address), directory, Pinning::proxies(pinned), interrupt)
}

/// A temporary directory in memory (/dev/shm), or on disk if the former does not exist. Worker processes that no longer
/// run as root can read it.
fn memory_directory() -> Result<TempDir> {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    open_to_all(directory.path())?;
    Ok(directory)
}

pub(super) fn measure(options: &Options, case: &Case<'_>, mut record: Record) -> Result<Record> {
    let interrupt = &options.interrupt;
    let server = server(case.scenario, options.pinned, interrupt)?;
    let program = case.found.program.as_deref();
    let proxy = program.map(|program| {
        let towards = (server.address, case.scenario.protocol);
        proxy((case.mesh, program), towards, options.pinned, interrupt)
    });
    let proxy = proxy.transpose()?;
    let address = proxy.as_ref().map_or(server.address, |proxy| proxy.address);
    let rate = case.step.map(|rate| rate * options.scale);
    let plans = load_plans(&[address], case.scenario, options, rate)?;
    let client = |program: &Path| Ok(Command::new(program));
    let rss_kib = || -> Result<u64> {
        let memory = proxy.as_ref().map(Listening::memory).transpose()?;
        Ok(memory.map_or(0, |memory| memory.rss_kib))
    };
    let cpu = || proxy.as_ref().map_or(Ok(Cpu::default()), Listening::cpu);
    let idle = rss_kib()?;
    if !options.warm_up.is_zero() {
        case.generator.run(&client, &lasting(&plans, options.warm_up), interrupt)?;
    }
    let (before, begun) = (cpu()?, Instant::now());
    let report = case.generator.run(&client, &plans, interrupt)?;
    let (wall, spent) = (begun.elapsed(), cpu()? - before);
    let used = ResourceUse {
        cpu: CpuMs { proxies: spent.total_us() as f64 / 1000.0, ..CpuMs::default() },
        proxy_user_ms: spent.user_us as f64 / 1000.0,
        wall,
        ..ResourceUse::default()
    };
    record.proxies = u32::from(proxy.is_some());
    let load = rss_kib()?;
    record.rss_kib = RssKib { idle, load, peak: load };
    fill(&mut record, &report, &used);
    record.marks = marks(&record, &report, &used);
    write_raw(&options.out, &record, "latency", &table(&report.buckets))?;
    Ok(record)
}
