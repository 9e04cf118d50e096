//! An allocator for tests that counts, for each thread, how many times memory was allocated and how many bytes are
//! in use. A test that uses it is a separate program, and includes this file by its path.
#![expect(unsafe_code, reason = "an allocator is unsafe by its nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    pub(crate) static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// The number of bytes that this thread has allocated, minus those that it has freed.
    pub(crate) static BYTES: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all the work; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // An error means that the thread is ending.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + layout.size() as i64));
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
