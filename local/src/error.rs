//! The errors of local meshes.

use std::io;
use std::path::PathBuf;

use crate::hint::command;

/// Why an operation on a local mesh failed. `Display` prints what was attempted and the remedy, if there is one;
/// `source()` is the cause that the system reported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation failed.
    #[error("{what}")]
    Os {
        /// What was attempted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused a change of links, addresses or routes.
    #[error("{what}")]
    Netlink {
        /// What was attempted.
        what: String,
        /// The kernel's reason.
        source: rtnetlink::Error,
    },
    /// Traffic cannot be captured.
    #[error(transparent)]
    Capture(#[from] leno_capture::Error),
    /// A process or its control group failed.
    #[error(transparent)]
    Process(#[from] leno_supervise::Error),
    /// The documents are invalid. The text has one line for each problem, with file and line.
    #[error("{0}")]
    Documents(String),
    /// Another process runs a mesh of this name.
    #[error(
        "mesh {mesh} runs already (process {owner}): end it with `{}`, or choose another --name",
        command(mesh, "down")
    )]
    Running {
        /// The name of the mesh.
        mesh: String,
        /// The process id of `leno up`, or `unknown` while it starts.
        owner: String,
    },
    /// No mesh of this name runs.
    #[error("mesh {mesh} does not run on this machine: {}", running_instead(.mesh, *.was_killed, .running))]
    NotRunning {
        /// The name that the user gave.
        mesh: String,
        /// Whether an earlier run of this name was killed and has left resources.
        was_killed: bool,
        /// The names of the meshes that run.
        running: Vec<String>,
    },
    /// The mesh runs, but its status file is missing.
    #[error(
        "mesh {mesh} runs (process {owner}), but {} does not exist: try again in a second, or end \
         the mesh with `{}`",
        path.display(), command(mesh, "down")
    )]
    NoStatus {
        /// The name of the mesh.
        mesh: String,
        /// The process id of its `leno up`.
        owner: i32,
        /// The status file.
        path: PathBuf,
    },
    /// The user named no mesh, and none or several run; these are their names.
    #[error("{}", not_chosen(.0))]
    NotNamed(Vec<String>),
    /// The command was not started as root.
    #[error("this command needs root: put `sudo env PATH=$PATH` before it")]
    NeedsRoot,
    /// The mesh has no such workload.
    #[error("mesh {mesh:?} has no workload {wanted:?}: {remedy}")]
    NoWorkload {
        /// The name of the mesh.
        mesh: String,
        /// The name that the user gave.
        wanted: String,
        /// A name that is similar to `wanted`, or the list of the mesh's workloads.
        remedy: String,
    },
    /// The mesh has no instance in the namespace that the user gave.
    #[error("mesh {mesh} has no namespace {wanted}: use one of {present}")]
    NoNamespace {
        /// The name of the mesh.
        mesh: String,
        /// The name that the user gave.
        wanted: String,
        /// The namespaces of the mesh.
        present: String,
    },
    /// A file that Leno wrote cannot be parsed.
    #[error("{} is damaged: {remedy}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the operator can do.
        remedy: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// Any other error. The text includes the remedy.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// The error and its causes, on one line.
    #[must_use]
    pub fn chain(&self) -> String {
        leno_program::chain(self)
    }
}

fn running_instead(mesh: &str, was_killed: bool, running: &[String]) -> String {
    match running {
        _ if was_killed => {
            let cleanup = command(mesh, "cleanup");
            format!(
                "its last run was killed: `{cleanup}` or the next `leno up` removes what it has \
                 left behind"
            )
        }
        [] => format!("start it with `{}`", command(mesh, "up FILE")),
        [one] => format!("mesh {one} runs"),
        [..] => format!("the meshes {} run", running.join(", ")),
    }
}

fn not_chosen(running: &[String]) -> String {
    match running {
        [] => "no mesh runs on this machine: start one with `leno up FILE`".to_owned(),
        [..] => format!(
            "several meshes run on this machine: choose one of {} with --name",
            running.join(", ")
        ),
    }
}

/// The result of an operation on a local mesh.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds a description of the failed operation to the error of a system call.
pub(crate) trait Attempt<T> {
    /// Wraps the error; `what` reads like "cannot create /run/leno".
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Os { what: what(), source })
    }
}

impl<T> Attempt<T> for nix::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Os { what: what(), source: errno.into() })
    }
}

impl<T> Attempt<T> for Result<T, rtnetlink::Error> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Netlink { what: what(), source })
    }
}
