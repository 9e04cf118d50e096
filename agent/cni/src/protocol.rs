//! The exchange between plugin and agent: a request and an answer, each one line of JSON, over a
//! Unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The agent's default socket.
pub const SOCKET: &str = "/run/leno/agent.sock";

/// Longest line, in bytes. It contains names of at most 253 bytes, an ID and a path.
pub const MAX_LINE: u64 = 16 * 1024;

/// The CNI command that the runtime called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CniCommand {
    /// The pod's network was created, and its containers have not been started.
    Add,
    /// The pod's network is about to be removed.
    Del,
    /// The pod should still be as `Add` has left it.
    Check,
}

/// One request of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRequest {
    /// The command.
    pub command: CniCommand,
    /// The runtime's ID of the pod's sandbox.
    pub container: String,
    /// The file of the pod's network namespace; `None` if it is gone.
    pub netns: Option<PathBuf>,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid, if the runtime passes it.
    pub uid: Option<String>,
    /// Whether the pod's volumes show that it has a proxy; `None` if they cannot be read.
    pub has_proxy: Option<bool>,
}

/// The agent's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginAnswer {
    /// The backend that captures the pod; `None` if the pod need not be captured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub backend: Option<String>,
    /// Why a pod that should be captured cannot be.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// Sends the request and reads the answer; each step may take `timeout`.
///
/// # Errors
/// If no agent listens there, or it does not answer in time.
pub fn ask(socket: &Path, request: &PluginRequest, timeout: Duration) -> io::Result<PluginAnswer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_LINE)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
