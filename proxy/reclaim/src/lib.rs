//! Returns memory to the kernel that a process of the data plane (a proxy or a broker) needed only for a short time: stack
//! pages of handshakes and of the start, and free memory of the allocator.
//!
//! ```text
//!  stack of a thread   in use │ touched once, not in use │ never touched
//!                             └── returned while the thread waits
//!  heap                in use │ free │ in use │ free │ in use
//!                               └── whole pages are returned when the process is quiet
//! ```
//! A process with 50 workloads has 51 threads, most of which are nearly always waiting. Without this, each stack would
//! keep the largest size that it ever had in memory until the process ends, and the heap what its start has freed. The
//! crate logs nothing and has no tasks, because a broker has neither a logger nor an async runtime.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
#![expect(
    unsafe_code,
    reason = "madvise(2) of the own stack, mallopt(3) and malloc_trim(3) have no safe wrappers"
)]

use std::cell::Cell;
use std::{io, ptr};

use nix::libc;

/// How far below the first frames pages are returned. The stack of the main thread is as large as its resource limit.
/// If this limit is unlimited, the kernel maps other memory within the range that the C library reports as the stack,
/// but at a distance of at least 128 MiB.
const DEEPEST: usize = 1024 * 1024;
/// How many pages below that of [`release_stack`]'s frame are kept. The end of this frame may be on the first of them, as
/// may the call into the kernel, which together take some hundred bytes.
const SPARED: usize = 1;

thread_local! {
    /// The lowest address of this thread's stack, and the size of a page; `None` before the first use.
    static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// Limits the number of the allocator's arenas to the number of threads that can run at the same time. By default there
/// are eight for each CPU, each with free memory of its own. In a process with 50 idle workloads on two CPUs that was a
/// quarter of its memory. For processes that have more threads than arenas anyway; must be called before the first
/// thread is started. Returns false if the allocator keeps its number of arenas.
#[must_use]
#[cfg(target_env = "gnu")]
pub fn bound_arenas() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let arenas = libc::c_int::try_from(cpus.max(2)).unwrap_or(libc::c_int::MAX);
    // SAFETY: the function takes numbers, and a value that it refuses changes nothing.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) != 0 }
}

/// Returns the whole pages of free memory in all arenas of the allocator. While an arena is searched, it is locked, so
/// this is for processes that are quiet.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    // SAFETY: the function takes a number and returns only memory that is not allocated. Its result says whether there
    // was any.
    let _was_any = unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no arenas.
#[must_use]
#[cfg(not(target_env = "gnu"))]
pub fn bound_arenas() -> bool {
    true
}

/// Other allocators return memory by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}

/// Finds the end of the calling thread's stack. The main thread must call it before the process is confined, because
/// the C library reads /proc/self/maps for the main thread. If it fails, stack pages are not returned.
///
/// # Errors
/// The system's reason.
pub fn find_stack() -> io::Result<()> {
    STACK.set(Some(bounds()?));
    Ok(())
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
    let page = page()?;
    let here = 0_u8;
    let deepest = (&raw const here).addr().saturating_sub(DEEPEST);
    let deepest = deepest.checked_next_multiple_of(page).unwrap_or(usize::MAX);
    Ok((deepest.max(lowest.addr()), page))
}

/// The size of a page.
fn page() -> io::Result<usize> {
    // SAFETY: the function takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).map_err(|_| io::Error::last_os_error())
}

fn result(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns the pages of the calling thread's stack that are below the part in use. Does nothing without [`find_stack`].
///
/// # Errors
/// The system's reason; the stack then stays as it is.
#[inline(never)]
pub fn release_stack() -> io::Result<()> {
    let Some((lowest, page)) = STACK.get() else { return Ok(()) };
    let here = 0_u8;
    let spared = page.saturating_mul(SPARED);
    let in_use = (&raw const here).addr();
    let end = in_use.checked_div(page).unwrap_or_default().saturating_mul(page);
    let end = end.saturating_sub(spared);
    let Some(size) = end.checked_sub(lowest).filter(|size| *size > 0) else { return Ok(()) };
    // SAFETY: the pages are of this thread's stack, which nothing but this thread uses, and below all of its frames:
    // the frame of this function is above `end`, by more than what the call itself needs. They read as zeros when the
    // stack grows into them again.
    let released =
        unsafe { libc::madvise(ptr::without_provenance_mut(lowest), size, libc::MADV_DONTNEED) };
    match (released, io::Error::last_os_error()) {
        (0, _) => Ok(()),
        // The kernel maps the main thread's stack as it grows, so a part of the range may not be mapped. The rest was
        // returned.
        (_, error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
        (_, error) => Err(error),
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

    /// How many bytes of these pages are resident.
    fn resident(start: usize, pages: usize, page: usize) -> usize {
        let mut residence = vec![0_u8; pages];
        let start = ptr::without_provenance_mut(start);
        // SAFETY: the kernel writes a byte for each page of the range, which is mapped.
        let read = unsafe { libc::mincore(start, pages * page, residence.as_mut_ptr()) };
        assert_eq!(read, 0, "{}", io::Error::last_os_error());
        residence.iter().filter(|byte| **byte & 1 == 1).count() * page
    }

    /// How many bytes of the calling thread's stack are resident.
    fn resident_stack() -> usize {
        let (lowest, page) = STACK.get().unwrap();
        let here = 0_u8;
        resident(lowest, ((&raw const here).addr() - lowest) / page, page)
    }

    #[test]
    fn what_a_stack_was_for_a_moment_is_returned_and_can_be_used_again() {
        let thread = thread::Builder::new().stack_size(2 * 1024 * 1024);
        let of_thread = thread.spawn(|| {
            find_stack().unwrap();
            let kept = black_box([7_u8; 4096]);
            assert_eq!(touch(), DEPTH);
            let touched = resident_stack();
            release_stack().unwrap();
            let left = resident_stack();
            assert_eq!(touch(), DEPTH);
            assert!(kept.iter().all(|byte| *byte == 7));
            (touched, left)
        });
        let (touched, left) = of_thread.unwrap().join().unwrap();
        assert!(touched >= DEPTH, "{touched}");
        assert!(left < 64 * 1024, "{left} of {touched}");
    }

    /// The depth of the caller's frame decides how much of the page with its end is in use.
    #[test]
    fn a_stack_is_released_at_any_depth() {
        #[inline(never)]
        fn at_depth(depth: usize) -> usize {
            let kept = black_box([u8::try_from(depth % 251).unwrap(); 48]);
            let below = match depth {
                0 => 0,
                _ => at_depth(depth - 1),
            };
            release_stack().unwrap();
            below + kept.iter().filter(|byte| usize::from(**byte) == depth % 251).count()
        }
        const DEPTH: usize = 500;
        let thread = thread::spawn(|| {
            find_stack().unwrap();
            at_depth(DEPTH)
        });
        assert_eq!(thread.join().unwrap(), (DEPTH + 1) * 48);
    }

    #[test]
    fn a_thread_whose_stack_is_not_known_keeps_it() {
        let of_thread = thread::spawn(|| {
            release_stack().unwrap();
            STACK.get()
        });
        assert_eq!(of_thread.join().unwrap(), None);
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn free_memory_between_memory_in_use_is_returned() {
        const BLOCK: usize = 32 * 1024;
        let page = page().unwrap();
        let mut blocks: Vec<Vec<u8>> = (0..256).map(|_| vec![7; BLOCK]).collect();
        // Blocks in use between the others, so that the allocator does not return these by itself.
        let kept: Vec<_> = (0..blocks.len() / 4).rev().map(|at| blocks.remove(at * 4)).collect();
        let starts: Vec<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
        let of_blocks = || -> usize {
            let pages = BLOCK / page - 2;
            starts.iter().map(|at| resident(at.next_multiple_of(page), pages, page)).sum()
        };
        drop(blocks);
        let free = of_blocks();
        trim_heap();
        let left = of_blocks();
        assert!(free >= starts.len() * BLOCK / 2, "the allocator returns them by itself: {free}");
        assert!(left < free / 4, "{left} of {free}");
        assert!(kept.iter().flatten().all(|byte| *byte == 7));
    }
}
