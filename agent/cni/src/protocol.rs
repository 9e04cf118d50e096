//! What the plugin and the agent say to each other: one line of JSON each, over a Unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where the agent listens unless told otherwise.
pub const SOCKET: &str = "/run/leno/agent.sock";

/// Longest line, in bytes: names of at most 253, an identifier and a path.
pub const MAX_LINE: u64 = 16 * 1024;

/// What the runtime does with the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// Its network is there, its containers are not.
    Add,
    /// Its network is about to go.
    Del,
    /// It should be as `Add` left it.
    Check,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What happens.
    pub command: Command,
    /// The runtime's name of the pod's sandbox.
    pub container: String,
    /// The pod's network namespace as a file; none where it is gone.
    pub netns: Option<PathBuf>,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid, where the runtime tells it.
    pub uid: Option<String>,
    /// Whether it has a proxy as far as its volumes tell; `None` where they cannot be seen.
    pub has_proxy: Option<bool>,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// By what the pod is captured; `None` where it is not to be.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub backend: Option<String>,
    /// Why it cannot be captured, although it should.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// Asks the agent, waiting at most so long for each step.
///
/// # Errors
/// When nobody listens there, or does not answer in time.
pub fn ask(socket: &Path, request: &Request, timeout: Duration) -> io::Result<Answer> {
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
