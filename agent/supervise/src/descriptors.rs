//! How many descriptors a process may have open.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What a process of the mesh's own gets: as many as Linux allows a process unless told otherwise
/// (`fs.nr_open`). A proxy holds two for every connection, `leno up` some ten for every instance.
const WANTED: u64 = 1 << 20;

/// A limit, as it was given to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    soft: u64,
    hard: u64,
}

impl DescriptorLimit {
    /// Raises the limit of this process to what the system permits; the answer is what it was.
    /// Programs of others are to keep that: some walk through all numbers. Safe between fork and
    /// exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn raise() -> io::Result<Self> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let wanted = hard.max(WANTED);
        // Beyond what it was given only as root, and only up to fs.nr_open.
        if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(Self { soft, hard })
    }

    /// Makes it the limit of this process. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn set(self) -> io::Result<()> {
        Ok(setrlimit(Resource::RLIMIT_NOFILE, self.soft, self.hard)?)
    }
}
