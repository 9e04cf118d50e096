//! The load: established generators where there are good ones, the bench's own processes otherwise.
//! Both run from here or inside a workload of a mesh.

pub(crate) mod h2;
pub(crate) mod h2load;
pub(crate) mod paced;
pub(crate) mod tcp;
pub(crate) mod wrk;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;

/// HTTP/2 connections, and streams on each: what a busy sidecar has towards a few others.
pub(crate) const H2_CONNECTIONS: usize = 4;
const H2_STREAMS: usize = 10;
/// Connections of large bodies and bulk: enough to keep a worker busy, few enough that each makes
/// progress.
const BULK_CONNECTIONS: usize = 4;
/// Bytes of a gRPC message.
const MESSAGE: u32 = 128;

/// The counts of a generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Answered requests a second.
    pub(crate) requests_per_s: f64,
}

/// The prefix command that a generator runs through, such as `leno exec`; empty for none. It
/// executes the program that follows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin(Vec<OsString>);

impl Origin {
    /// Runs programs as this process does.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Runs programs through `command`, which executes the arguments that follow its own.
    pub(crate) fn through(command: &Command) -> Self {
        let program = std::iter::once(command.get_program());
        Self(program.chain(command.get_args()).map(OsStr::to_owned).collect())
    }

    /// The command that runs `program` from this origin.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some((first, rest)) = self.0.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }
}

/// The payloads of requests, in files.
#[derive(Clone, Debug)]
pub(crate) struct Payloads {
    /// A script for wrk that sends 1 MiB.
    pub(crate) upload: PathBuf,
    /// One gRPC message: compression flag, length, bytes.
    pub(crate) message: PathBuf,
}

impl Payloads {
    /// Writes the payloads into a directory, which must exist as long as they are used.
    pub(crate) fn write(directory: &Path) -> Result<Self> {
        let (upload, message) = (directory.join("upload.lua"), directory.join("message"));
        let script = "wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", 1048576)\n";
        fs::write(&upload, script)?;
        let bytes = [&[0], &MESSAGE.to_be_bytes()[..], &vec![b'x'; MESSAGE as usize]].concat();
        fs::write(&message, bytes)?;
        Ok(Self { upload, message })
    }
}

/// The target of the load.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) origin: Origin,
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) payloads: Payloads,
}

impl Target {
    fn url(&self, scenario: Scenario) -> String {
        format!("http://{}{}", self.address, scenario.path())
    }

    /// The message of a gRPC call, if the scenario makes such calls.
    fn message(&self, scenario: Scenario) -> Option<&Path> {
        (scenario == Scenario::GrpcUnary).then_some(&self.payloads.message)
    }

    /// Runs a closed loop; `connections` applies if the scenario has no number of its own.
    pub(crate) fn saturate(
        &self,
        scenario: Scenario,
        connections: usize,
        duration: Duration,
    ) -> Result<Count> {
        let (origin, url) = (&self.origin, self.url(scenario));
        let connections = connections_of(scenario, connections);
        match scenario {
            Scenario::NewConnection => {
                wrk::run(origin, &url, connections, duration, wrk::WrkRequests::Close)
            }
            Scenario::Upload1m => {
                let script = wrk::WrkRequests::Script(&self.payloads.upload);
                wrk::run(origin, &url, connections, duration, script)
            }
            Scenario::H2 | Scenario::GrpcUnary => {
                let shape = (connections, H2_STREAMS);
                h2load::run(origin, &url, shape, duration, self.message(scenario))
            }
            Scenario::TcpRoundTrip | Scenario::TcpBulk => {
                let bulk = scenario == Scenario::TcpBulk;
                tcp::start(origin, &tcp::Plan::new(&self.address, bulk, connections, duration))
            }
            _ => wrk::run(origin, &url, connections, duration, wrk::WrkRequests::Keep),
        }
    }

    /// Runs an open loop at `rate` requests a second, after `warm_up`, which is not measured.
    pub(crate) fn pace(
        &self,
        scenario: Scenario,
        connections: usize,
        pace: paced::Pace,
    ) -> Result<paced::Paced> {
        let (origin, url) = (&self.origin, self.url(scenario));
        match scenario {
            Scenario::H2 | Scenario::GrpcUnary => {
                paced::over_http2(origin, &url, self.message(scenario), pace)
            }
            _ => {
                let new = scenario == Scenario::NewConnection;
                paced::over_http1(origin, &url, (connections, new), pace)
            }
        }
    }
}

/// The number of connections of a scenario; `otherwise` if it has none of its own.
pub(crate) fn connections_of(scenario: Scenario, otherwise: usize) -> usize {
    match scenario {
        Scenario::H2 | Scenario::GrpcUnary => H2_CONNECTIONS,
        Scenario::Download1m | Scenario::Upload1m | Scenario::TcpBulk => BULK_CONNECTIONS,
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_runs_as_whom_it_is_told() {
        let mut exec = Command::new("leno");
        exec.args(["exec", "client", "--"]);
        let command = Origin::through(&exec).command("/usr/bin/wrk");
        let all: Vec<_> =
            std::iter::once(command.get_program()).chain(command.get_args()).collect();
        assert_eq!(all, ["leno", "exec", "client", "--", "/usr/bin/wrk"]);
        assert_eq!(Origin::here().command("wrk").get_program(), "wrk");
    }
}
