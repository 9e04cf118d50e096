//! Helpers for tests of a large mesh: the use of CPU and memory, random numbers, and the limit of descriptors. The
//! test with an API server (`control/app/tests/kubernetes/scale.rs`) includes this file by its path.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The duration of one tick in `/proc/PID/stat`: there are 100 per second on Linux (`sysconf(_SC_CLK_TCK)`).
const TICK: Duration = Duration::from_millis(10);

/// Pseudo-random numbers that are the same in each run (xorshift, Marsaglia 2003).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn new(seed: usize) -> Self {
        Self(0x2545_f491_4f6c_dd1d ^ ((seed as u64 + 1) << 32))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A value in `/proc/PID/status`, in KiB.
pub(crate) fn status_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

/// The CPU time that a process has used.
pub(crate) fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // proc_pid_stat(5): user and system ticks are the 12th and 13th after the name.
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let ticks = after_name.split(' ').skip(11).take(2);
    TICK * ticks.map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>()
}

/// Raises the limit of open files of this process, and of those that it starts, to this number.
pub(crate) fn open_files(needed: usize) {
    let needed = u64::try_from(needed).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < needed {
        assert!(needed <= hard, "{needed} open files are needed: raise the limit with ulimit -n");
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).unwrap();
    }
}
