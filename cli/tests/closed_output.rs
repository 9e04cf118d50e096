//! Tests that programs whose standard output or standard error has no reader end in the same way as with a reader.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::io::{Write as _, pipe};
use std::process::{Command, Stdio};

use leno_testkit::binaries::ours;

/// Programs with their arguments, and the exit code of each. Each prints something.
const ENDS: [(&str, &[&str], i32); 14] = [
    ("leno", &["version"], 0),
    ("leno", &["--help"], 0),
    ("leno", &["inject", "-"], 0),
    ("leno", &["authz", "-f", "/nonexistent.yaml"], 2),
    ("leno", &["nonsense"], 64),
    ("leno-bench", &["report", "/nonexistent"], 2),
    ("leno-proxy", PROXY, 64),
    ("leno-controller", &["--files", "/nonexistent", "--ca-dir", "/proc/nonexistent/ca"], 2),
    ("leno-agent", &["--node", "n", "--log", "a=nonsense"], 64),
    ("leno-broker", &["--help"], 0),
    ("leno-broker", &["--nonsense"], 64),
    ("leno-cni", &[], 1),
    ("shop", &["--help"], 0),
    ("shop", &["nonsense"], 2),
];
/// All arguments that the proxy needs, and a log filter that is invalid.
const PROXY: &[&str] = &[
    "--name",
    "a",
    "--control",
    "https://127.0.0.1:1",
    "--roots",
    "/r",
    "--token",
    "/t",
    "--log",
    "a=nonsense",
];
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\n\
                   spec: {containers: [{name: web, image: web}]}\n";

/// What output is connected to.
#[derive(Clone, Copy, Debug)]
enum Reader {
    /// A pipe whose other end is closed, for both streams.
    Gone,
    /// A full disk, for standard error.
    NoRoom,
    /// A standard error that is not an open descriptor.
    NoDescriptor,
}

/// The exit code with such a reader.
fn code(program: &str, arguments: &[&str], reader: Option<Reader>) -> Option<i32> {
    let path = ours(program).unwrap();
    let mut command = match reader {
        Some(Reader::NoDescriptor) => {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$0\" \"$@\" 2>&-"]).arg(path);
            command
        }
        _ => Command::new(path),
    };
    let closed = || pipe().unwrap().1;
    command.args(arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    match reader {
        Some(Reader::Gone) => command.stdout(closed()).stderr(closed()),
        Some(Reader::NoRoom) => command.stderr(File::create("/dev/full").unwrap()),
        Some(Reader::NoDescriptor) | None => command.stderr(Stdio::null()),
    };
    let mut child = command.spawn().unwrap();
    // The process may have ended already.
    let _ended = child.stdin.take().unwrap().write_all(POD.as_bytes());
    child.wait_with_output().unwrap().status.code()
}

#[test]
fn no_program_fails_for_want_of_a_reader() {
    for (program, arguments, expected) in ENDS {
        for reader in [None, Some(Reader::Gone), Some(Reader::NoRoom), Some(Reader::NoDescriptor)] {
            let ended = code(program, arguments, reader);
            assert_eq!(ended, Some(expected), "{program} {arguments:?}: {reader:?}");
        }
    }
}
