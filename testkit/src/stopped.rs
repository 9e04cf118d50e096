//! Stops threads as a debugger does. This differs from a stop by a signal, after which supervisors leave a process
//! alone.

use std::fs;

use anyhow::Result;

use crate::tracer::Tracer;

/// Stops threads with ptrace(2), creates a file, and lets the threads continue once another file exists.
const STOP: &str = "
import ctypes, os, sys, time
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
libc, threads = ctypes.CDLL(None, use_errno=True), [int(thread) for thread in sys.argv[3:]]
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
def trace(request, thread):
    if libc.ptrace(request, thread, None, None) == -1:
        raise OSError(ctypes.get_errno(), 'ptrace')
for thread in threads:
    trace(SEIZE, thread)
    trace(INTERRUPT, thread)
    os.waitpid(thread, WALL)
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
for thread in threads:
    trace(DETACH, thread)
";

/// Stopped threads. Dropping this lets them continue.
#[derive(Debug)]
pub struct StoppedThreads(Tracer);

impl StoppedThreads {
    /// Stops all threads of a process.
    pub fn of_process(process: u32) -> Result<Self> {
        let threads = fs::read_dir(format!("/proc/{process}/task"))?
            .map(|thread| Ok(thread?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<String>>>()?;
        Self::of(&threads)
    }

    /// Stops the threads with these IDs.
    pub fn of(threads: &[String]) -> Result<Self> {
        Tracer::start(STOP, threads).map(Self)
    }

    /// Lets the threads continue, and waits until they do.
    pub fn resume(self) -> Result<()> {
        self.0.finish()
    }
}
