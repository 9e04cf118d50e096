//! Returns memory to the kernel that was only needed for a short time: stack pages of handshakes and of the start, and
//! free memory of the allocator.
//!
//! ```text
//!  stack of a thread   in use │ touched once, not in use │ never touched
//!                             └── returned while the thread waits
//! ```
//! A process with 50 workloads has 100 threads, most of which are nearly always waiting. Without this, each stack would
//! keep the largest size that it ever had in memory until the process ends.

#![expect(unsafe_code, reason = "madvise(2) of the own stack and mallopt(3) have no safe wrappers")]

use std::cell::Cell;
use std::time::{Duration, Instant};
use std::{io, ptr};

use nix::libc;

/// The shortest time between two releases of stack pages by a control thread, because a busy thread would soon touch
/// them again.
const EVERY: Duration = Duration::from_secs(1);
/// How far below the first frames pages are returned. The stack of the main thread is as large as its resource limit.
/// If this limit is unlimited, the kernel maps other memory within the range that the C library reports as the stack,
/// but at a distance of at least 128 MiB.
const DEEPEST: usize = 1024 * 1024;
/// How many pages below the caller's frame are kept, because the frames of the functions that release the others are
/// there.
const SPARED: usize = 2;

thread_local! {
    /// The lowest address of this thread's stack, and the size of a page; `None` before the first use.
    static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Limits the number of the allocator's arenas to the number of threads that can run at the same time. By default there
/// are eight for each CPU, each with free memory of its own. In a process with 50 idle workloads on two CPUs that was a
/// quarter of its memory. For processes that have more threads than arenas anyway; must be called before the first
/// thread is started.
pub(crate) fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = libc::c_int::try_from(cpus.max(2)).unwrap_or(libc::c_int::MAX);
        // SAFETY: the function takes numbers, and a value that it refuses changes nothing.
        if unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) } == 0 {
            tracing::warn!(arenas, "the allocator keeps its number of arenas");
        }
    }
}

/// Finds the end of the calling thread's stack. The main thread must call it before the process is confined, because
/// the C library reads /proc/self/maps for the main thread. If it fails, stack pages are not returned.
pub(crate) fn find_stack() {
    match bounds() {
        Ok(bounds) => STACK.set(Some(bounds)),
        Err(error) => tracing::warn!(%error, "a thread does not find its stack"),
    }
}

/// The lowest address of the calling thread's stack, and the size of a page.
fn bounds() -> io::Result<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::uninit();
    let (mut lowest, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are made by the first call, read by the second and destroyed by the third; if the first
    // fails, none is used.
    unsafe {
        result(libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()))?;
        let read = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size);
        result(libc::pthread_attr_destroy(attributes.as_mut_ptr()))?;
        result(read)?;
    }
    // SAFETY: the function takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| io::Error::last_os_error())?;
    let here = 0_u8;
    let deepest = (&raw const here).addr().saturating_sub(DEEPEST);
    let deepest = deepest.checked_next_multiple_of(page).unwrap_or(usize::MAX);
    Ok((deepest.max(lowest.addr()), page))
}

fn result(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Called before a control thread waits.
pub(crate) fn before_wait() {
    let now = Instant::now();
    if LAST.get().is_none_or(|last| now.duration_since(last) >= EVERY) {
        LAST.set(Some(now));
        release_stack();
    }
}

/// Returns the pages of the calling thread's stack that are below the part in use. Does nothing without [`find_stack`].
#[inline(never)]
pub(crate) fn release_stack() {
    let Some((lowest, page)) = STACK.get() else { return };
    let here = 0_u8;
    let spared = page.saturating_mul(SPARED);
    let in_use = (&raw const here).addr();
    let end = in_use.checked_div(page).unwrap_or_default().saturating_mul(page);
    let end = end.saturating_sub(spared);
    let Some(size) = end.checked_sub(lowest).filter(|size| *size > 0) else { return };
    // SAFETY: the pages are of this thread's stack, which nothing but this thread uses, and below all of its frames:
    // the frame of this function is above `end`, by more than what the call itself needs. They read as zeros when the
    // stack grows into them again.
    let released =
        unsafe { libc::madvise(ptr::without_provenance_mut(lowest), size, libc::MADV_DONTNEED) };
    // The kernel maps the main thread's stack as it grows. Pages that are not mapped yet (ENOMEM) need not be returned.
    if released != 0 {
        let error = io::Error::last_os_error();
        tracing::trace!(%error, "a part of the stack stays");
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use super::*;

    const DEPTH: usize = 512 * 1024;

    /// Uses this much of the stack once.
    #[inline(never)]
    fn touch() -> usize {
        let touched = black_box([1_u8; DEPTH]);
        touched.iter().map(|byte| usize::from(*byte)).sum()
    }

    /// The resident pages of the calling thread's stack.
    fn resident() -> usize {
        let (lowest, page) = STACK.get().unwrap();
        let here = 0_u8;
        let pages = ((&raw const here).addr() - lowest) / page;
        let mut residence = vec![0_u8; pages];
        let start = ptr::without_provenance_mut(lowest);
        // SAFETY: the kernel writes a byte for each page of the range, which is mapped.
        let read = unsafe { libc::mincore(start, pages * page, residence.as_mut_ptr()) };
        assert_eq!(read, 0, "{}", io::Error::last_os_error());
        residence.iter().filter(|byte| **byte & 1 == 1).count() * page
    }

    #[test]
    fn what_a_stack_was_for_a_moment_is_returned_and_can_be_used_again() {
        let thread = thread::Builder::new().stack_size(2 * 1024 * 1024);
        let of_thread = thread.spawn(|| {
            find_stack();
            let kept = black_box([7_u8; 4096]);
            assert_eq!(touch(), DEPTH);
            let touched = resident();
            release_stack();
            let left = resident();
            assert_eq!(touch(), DEPTH);
            assert!(kept.iter().all(|byte| *byte == 7));
            (touched, left)
        });
        let (touched, left) = of_thread.unwrap().join().unwrap();
        assert!(touched >= DEPTH, "{touched}");
        assert!(left < 64 * 1024, "{left} of {touched}");
    }

    #[test]
    fn a_thread_whose_stack_is_not_known_keeps_it() {
        let of_thread = thread::spawn(|| {
            release_stack();
            before_wait();
            STACK.get()
        });
        assert_eq!(of_thread.join().unwrap(), None);
    }
}
