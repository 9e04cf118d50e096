//! The cells, in memory of this process or in a file that other processes can map.
#![expect(unsafe_code, reason = "mmap(2) and munmap(2), and a slice of what was mapped")]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::rows::MEMORY_CELLS;

/// The name of the file, which `/proc/PID/fd` shows as `/memfd:leno-requests (deleted)`.
pub const MEMORY_NAME: &str = "leno-requests";

/// The seals of the file: its size cannot change, because that would crash processes that have it mapped, and the seals
/// cannot be removed.
pub const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// `MFD_NOEXEC_SEAL`, since Linux 6.3. An administrator can make it mandatory (vm.memfd_noexec).
const NOT_EXECUTABLE: MFdFlags = MFdFlags::from_bits_retain(8);

/// The length of the file.
const BYTES: usize = MEMORY_CELLS * size_of::<AtomicU64>();

/// A file that is younger than this may not have been found yet: the aggregator of flows examines a process each minute.
pub const FOUND_WITHIN: Duration = Duration::from_secs(90);

/// How many files of ended workers are kept open at most, until the aggregator has had the time to open them. A node
/// proxy has at most this number of workloads. If there are more files, the oldest one is closed early.
const MAX_KEPT: usize = 64;

/// The files of this process' ended workers, each with the time at which it may be closed. They are closed only when
/// another worker ends; if there are more than [`MAX_KEPT`], the oldest one is closed before its time.
static KEPT: Mutex<VecDeque<(Instant, OwnedFd)>> = Mutex::new(VecDeque::new());

/// The cells of one worker.
#[derive(Debug)]
pub struct WorkerMemory {
    cells: Cells,
    /// The file, and when it was made. `None` in a process that has opened the memory of another process.
    file: Option<(OwnedFd, Instant)>,
}

#[derive(Debug)]
enum Cells {
    Own(Box<[AtomicU64]>),
    Mapped(NonNull<AtomicU64>),
}

// SAFETY: the mapping belongs to this value, and all its cells are atomic.
unsafe impl Send for WorkerMemory {}
// SAFETY: the same reason as above.
unsafe impl Sync for WorkerMemory {}

impl WorkerMemory {
    /// Memory that only this process can read.
    #[must_use]
    pub fn private() -> Self {
        let cells = (0..MEMORY_CELLS).map(|_| AtomicU64::new(0)).collect();
        Self { cells: Cells::Own(cells), file: None }
    }

    /// Memory in a file without a path, which this process keeps open.
    ///
    /// # Errors
    /// If the kernel refuses the file or the mapping.
    pub fn shared() -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = match memfd_create(MEMORY_NAME, flags | NOT_EXECUTABLE) {
            Err(Errno::EINVAL) => memfd_create(MEMORY_NAME, flags)?,
            made => made?,
        };
        let file = File::from(file);
        file.set_len(BYTES as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        let cells = Cells::Mapped(map(&file, libc::PROT_READ | libc::PROT_WRITE)?);
        Ok(Self { cells, file: Some((file.into(), Instant::now())) })
    }

    /// The memory of another process, for reading. `file` must have been created by [`WorkerMemory::shared`]; any other
    /// file is refused.
    ///
    /// # Errors
    /// If the file's size is wrong or can still change, or if the kernel refuses the mapping.
    pub fn open(file: &File) -> io::Result<Self> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS)?;
        let other = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if seals & SEALS.bits() != SEALS.bits() {
            return other("its size can change");
        }
        if file.metadata()?.len() != BYTES as u64 {
            return other("it has the size of another version");
        }
        Ok(Self { cells: Cells::Mapped(map(file, libc::PROT_READ)?), file: None })
    }

    /// The cells. The cells of another process must not be written.
    pub(crate) fn cells(&self) -> &[AtomicU64] {
        match &self.cells {
            Cells::Own(cells) => cells,
            // SAFETY: the mapping is aligned to a page, has this length, and exists as long as `self`; the file cannot
            // become shorter. Writers use atomic cells, too.
            Cells::Mapped(at) => unsafe { std::slice::from_raw_parts(at.as_ptr(), MEMORY_CELLS) },
        }
    }
}

impl Drop for WorkerMemory {
    fn drop(&mut self) {
        if let Cells::Mapped(at) = self.cells {
            // SAFETY: the pages were mapped with this length, and no slice of them exists any more. Unmapping an
            // existing mapping cannot fail.
            let _ = unsafe { libc::munmap(at.as_ptr().cast(), BYTES) };
        }
        if let Some((file, made)) = self.file.take() {
            keep(file, made);
        }
    }
}

/// Keeps the file of an ended worker open until the aggregator has had the time to open it, and closes those whose time
/// is over. If no further worker ends, a file stays open until the process ends.
fn keep(file: OwnedFd, made: Instant) {
    // The list is consistent even if a thread panicked while it held the lock.
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    kept.retain(|(until, _)| *until > now);
    if let Some(until) = made.checked_add(FOUND_WITHIN).filter(|until| *until > now) {
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((until, file));
    }
}

fn map(file: &File, protection: libc::c_int) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: this creates a mapping at an address that the kernel chooses; the descriptor is open during the call.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    match NonNull::new(at.cast::<AtomicU64>()) {
        Some(cells) if at != libc::MAP_FAILED => Ok(cells),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_reader_sees_what_the_writer_wrote_also_after_it_has_ended() {
        let written = WorkerMemory::shared().unwrap();
        let (file, _) = written.file.as_ref().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = std::fs::read_link(&path).unwrap();
        assert_eq!(link.to_str(), Some("/memfd:leno-requests (deleted)"));
        let read = WorkerMemory::open(&File::open(path).unwrap()).unwrap();
        written.cells()[9].store(7, Ordering::Relaxed);
        drop(written);
        assert_eq!(read.cells()[9].load(Ordering::Relaxed), 7);
    }

    /// Regression: the aggregator never saw what a worker had counted that lived for less than a minute.
    #[test]
    fn the_file_of_a_worker_that_ended_early_can_be_found_for_a_while() {
        let number = |file: &OwnedFd| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::metadata(path).unwrap().ino()
        };
        let is_kept = |age: Duration| {
            let mut written = WorkerMemory::shared().unwrap();
            let (file, made) = written.file.as_mut().unwrap();
            *made = made.checked_sub(age).unwrap();
            let of_worker = number(file);
            drop(written);
            KEPT.lock().unwrap().iter().any(|(_, kept)| number(kept) == of_worker)
        };
        assert!(is_kept(Duration::ZERO));
        assert!(!is_kept(FOUND_WITHIN));
        for _ in 0..=MAX_KEPT {
            drop(WorkerMemory::shared().unwrap());
        }
        assert_eq!(KEPT.lock().unwrap().len(), MAX_KEPT);
    }

    #[test]
    fn afile_that_could_become_shorter_is_refused() {
        let file = File::from(memfd_create("another", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(BYTES as u64).unwrap();
        let error = WorkerMemory::open(&file).unwrap_err();
        assert_eq!(error.to_string(), "its size can change");
    }
}
