//! How many descriptors a process may open.

use std::fs;
use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit for processes of the mesh. It is the default of `fs.nr_open`, which is the highest that Linux
/// permits. A proxy uses two descriptors for every connection, and `leno up` about ten for every instance.
const WANTED: u64 = 1 << 20;

/// The limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    soft: u64,
    hard: u64,
}

impl DescriptorLimit {
    /// Raises the limit of this process to what the system permits. Returns the earlier limit, which applications
    /// must get, because some programs loop over all possible descriptors. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn raise() -> io::Result<Self> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let wanted = hard.max(WANTED);
        // Only root may exceed the hard limit, and only up to `fs.nr_open`.
        if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(Self { soft, hard })
    }

    /// The limit of another process.
    ///
    /// # Errors
    /// If the process has ended, or its limit cannot be read.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{pid}/limits"))?)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses `/proc/PID/limits`.
    fn read(limits: &str) -> Option<Self> {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        let mut words = line.split_whitespace().map(str::parse);
        Some(Self { soft: words.next()?.ok()?, hard: words.next()?.ok()? })
    }

    /// The soft limit, which is how many descriptors the process may open.
    #[must_use]
    pub fn soft(self) -> u64 {
        self.soft
    }

    /// The hard limit, to which the process may raise its soft limit.
    #[must_use]
    pub fn hard(self) -> u64 {
        self.hard
    }

    /// Sets this limit for the calling process. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn set(self) -> io::Result<()> {
        Ok(setrlimit(Resource::RLIMIT_NOFILE, self.soft, self.hard)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_process_is_the_one_that_it_was_given() {
        let pid = nix::unistd::getpid().as_raw();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(DescriptorLimit::of_process(pid).unwrap(), DescriptorLimit { soft, hard });
        assert_eq!(DescriptorLimit::read("Max open files  many  1048576  files\n"), None);
    }
}
