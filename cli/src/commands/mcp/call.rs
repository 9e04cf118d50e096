//! Calls of tools. Each runs a process of `leno` and returns its output.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::tools::Tool;
use crate::commands::AnyMesh;

/// Most calls that run at once. Further calls wait.
const MAX_CALLS: usize = 4;
/// How long a call may take, without the time that it waits for its turn.
const LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of an answer, and most bytes of a command's standard error.
const MAX_ANSWER: u64 = 1024 * 1024;
const MAX_NOTES: u64 = 16 * 1024;

/// Runs the commands of tools.
#[derive(Debug)]
pub(super) struct Caller {
    /// The path of this program.
    program: PathBuf,
    /// The options that name the mesh.
    mesh: Vec<OsString>,
    calls: Semaphore,
}

/// The output of a command.
struct Printed {
    status: ExitStatus,
    answer: Vec<u8>,
    notes: String,
}

impl Caller {
    pub(super) fn new(mesh: &AnyMesh) -> io::Result<Self> {
        let option = |name: &str, value: OsString| {
            let mut option = OsString::from(format!("--{name}="));
            option.push(value);
            option
        };
        let which = &mesh.which;
        let kubeconfig = which.kubeconfig.as_ref().map(|file| option("kubeconfig", file.into()));
        let context = which.context.as_ref().map(|name| option("context", name.into()));
        let name = mesh.name.as_ref().map(|name| option("name", name.into()));
        let is_cluster = mesh.cluster || which.is_named();
        let system =
            is_cluster.then(|| option("system-namespace", OsString::from(&mesh.system_namespace)));
        let cluster = mesh.cluster.then(|| "--cluster".into());
        let mesh = [name, cluster, kubeconfig, context, system].into_iter().flatten().collect();
        let calls = Semaphore::new(MAX_CALLS);
        Ok(Self { program: std::env::current_exe()?, mesh, calls })
    }

    /// Calls a tool. Returns its answer, or why there is none.
    pub(super) async fn call(&self, tool: &Tool, given: &JsonObject) -> CallToolResult {
        match self.answer(tool, given).await {
            Ok(answer) => CallToolResult::structured(answer),
            Err(reason) => CallToolResult::error(vec![ContentBlock::text(reason)]),
        }
    }

    async fn answer(&self, tool: &Tool, given: &JsonObject) -> Result<Value, String> {
        let line = tool.command_line(given)?;
        let _turn = self
            .calls
            .acquire()
            .await
            .map_err(|_| "leno mcp is ending: start it again".to_owned())?;
        let printed = match timeout(LIMIT, self.run(tool.name, &line)).await {
            Ok(printed) => {
                printed.map_err(|error| format!("cannot run leno {}: {error}", tool.name))?
            }
            // Dropping the future that waits for the process has killed the process.
            Err(_) => {
                return Err(format!(
                    "leno {} took longer than {LIMIT:?}: choose one namespace, or a \
                     shorter window",
                    tool.name
                ));
            }
        };
        printed.read(tool)
    }

    async fn run(&self, name: &str, line: &[String]) -> io::Result<Printed> {
        let mut child = Command::new(&self.program)
            .args([name, "--output=json"])
            .args(&self.mesh)
            .args(line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (answer, notes) = (child.stdout.take(), child.stderr.take());
        let (answer, notes) = tokio::try_join!(
            up_to(MAX_ANSWER + 1, answer.expect("it is piped")),
            up_to(MAX_NOTES, notes.expect("it is piped")),
        )?;
        let notes = String::from_utf8_lossy(&notes).into_owned();
        if answer.len() as u64 > MAX_ANSWER {
            child.start_kill()?;
        }
        Ok(Printed { status: child.wait().await?, answer, notes })
    }
}

/// Reads at most `bound` bytes, and then closes the pipe.
async fn up_to(bound: u64, from: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bound).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

impl Printed {
    /// Turns the command's output into an object.
    fn read(&self, tool: &Tool) -> Result<Value, String> {
        if self.answer.len() as u64 > MAX_ANSWER {
            return Err(
                "the answer is larger than 1 MiB: choose one namespace, or use filter".to_owned()
            );
        }
        let notes: Vec<&str> = self.notes.lines().collect();
        let is_answer = match self.status.code() {
            Some(0) => true,
            Some(1) => tool.answers_no && !self.answer.is_empty(),
            _ => false,
        };
        if !is_answer {
            return Err(match notes.is_empty() {
                true => format!("leno {} ended with {}", tool.name, self.status),
                false => notes.join("\n"),
            });
        }
        // A command that prints one value per line has an answer of several values.
        let values = serde_json::Deserializer::from_slice(&self.answer).into_iter::<Value>();
        let mut values: Vec<Value> = values
            .collect::<Result<_, _>>()
            .map_err(|error| format!("leno {} printed no JSON: {error}", tool.name))?;
        let mut answer = match values.pop() {
            Some(Value::Object(object)) if values.is_empty() && tool.name != "tap" => object,
            Some(Value::Array(list)) if values.is_empty() => named(tool, list),
            last => named(tool, values.into_iter().chain(last).collect()),
        };
        if !notes.is_empty() {
            answer.insert("notes".to_owned(), json!(notes));
        }
        Ok(Value::Object(answer))
    }
}

fn named(tool: &Tool, list: Vec<Value>) -> Map<String, Value> {
    Map::from_iter([(tool.list.to_owned(), Value::Array(list))])
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::commands::mcp::tools::TOOLS;

    fn read(tool: &str, code: i32, answer: &str, notes: &str) -> Result<Value, String> {
        let tool = TOOLS.iter().find(|one| one.name == tool).unwrap();
        let status = ExitStatus::from_raw(code << 8);
        Printed { status, answer: answer.into(), notes: notes.to_owned() }.read(tool)
    }

    #[test]
    fn an_answer_is_an_object_whatever_the_command_prints() {
        let of = |tool, answer| read(tool, 0, answer, "").unwrap();
        assert_eq!(of("stat", "{\"mesh\": \"default\"}\n"), json!({"mesh": "default"}));
        assert_eq!(of("why", "[]\n"), json!({"problems": []}));
        assert_eq!(of("tap", "{\"a\": 1}\n"), json!({"requests": [{"a": 1}]}));
        assert_eq!(of("tap", "{\"a\": 1}\n{\"a\": 2}\n")["requests"][1]["a"], 2);
        assert_eq!(of("tap", ""), json!({"requests": []}));
        let noted =
            read("stat", 0, "{}", "leno: no answer from the proxy of shop/web-0\n").unwrap();
        assert_eq!(noted, json!({"notes": ["leno: no answer from the proxy of shop/web-0"]}));
    }

    #[test]
    fn exit_codes_are_answers_or_errors() {
        assert_eq!(read("why", 1, "[{}]", "").unwrap(), json!({"problems": [{}]}));
        let refused = read("stat", 2, "", "leno: mesh x does not run\n").unwrap_err();
        assert_eq!(refused, "leno: mesh x does not run");
        assert_eq!(read("stat", 1, "{}", "").unwrap_err(), "leno stat ended with exit status: 1");
        assert!(read("stat", 0, "text", "").unwrap_err().contains("printed no JSON"));
        let large = "x".repeat(1024 * 1024 + 1);
        assert!(read("stat", 0, &large, "").unwrap_err().contains("larger than 1 MiB"));
    }
}
