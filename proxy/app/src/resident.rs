//! Keeps what is resident small: code that is not in use is given back to the kernel.
#![expect(unsafe_code, reason = "walking the loaded objects and advising the kernel are C calls")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// How long after the proxy listens its start is over: the last of it runs by then.
const SETTLED: Duration = Duration::from_secs(1);
/// How often it is looked whether the proxy has gone quiet.
const LOOK: Duration = Duration::from_secs(30);
/// Processor time between two looks of a proxy that only keeps house: 0.05 %.
const QUIET: Duration = Duration::from_millis(15);

/// Gives code back that is not in use: once the start is over, and whenever the proxy has gone
/// quiet. Parsing flags and documents, cryptography of handshakes and so on are most of what was
/// touched, and the kernel maps 64 KiB around each touch; of 7 MB, an idle proxy goes on to use
/// less than 1. What is used again costs a minor fault. Does not end.
pub(crate) async fn keep_small() {
    tokio::time::sleep(SETTLED).await;
    let mut spent = None;
    loop {
        let now = processor_time();
        if spent.is_none_or(|before| now.saturating_sub(before) < QUIET) {
            // SAFETY: the callback follows the contract of dl_iterate_phdr and keeps nothing.
            unsafe { libc::dl_iterate_phdr(Some(give_back), std::ptr::null_mut()) };
        }
        spent = Some(now);
        tokio::time::sleep(LOOK).await;
    }
}

/// What all threads have used so far, user and system.
fn processor_time() -> Duration {
    let time = |time: nix::sys::time::TimeVal| {
        let micros = u64::try_from(time.num_microseconds()).unwrap_or(0);
        Duration::from_micros(micros)
    };
    // Cannot fail for this process; if it did, the proxy would count as quiet.
    getrusage(UsageWho::RUSAGE_SELF)
        .map(|usage| time(usage.user_time()) + time(usage.system_time()))
        .unwrap_or_default()
}

/// Unmaps the pages of one object's read-only segments, code and constants. They are still in the
/// page cache, so that what is used again is mapped again by a minor fault.
///
/// # Safety
/// `object` is what `dl_iterate_phdr` passes.
unsafe extern "C" fn give_back(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: valid for this call, as the caller promises; so are the headers it points to.
    let (object, headers) = unsafe {
        let object = &*object;
        (object, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // SAFETY: has no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    for header in headers {
        // What was ever writable, relocations too, must stay: it differs from the file.
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let start = (object.dlpi_addr + header.p_vaddr).next_multiple_of(page);
        let end = (object.dlpi_addr + header.p_vaddr + header.p_memsz) / page * page;
        if start < end {
            let length = usize::try_from(end - start).unwrap_or(0);
            // SAFETY: whole pages of a private mapping of a file that nobody has written: the
            // kernel reads the same bytes again. An error, as for the vDSO, changes nothing.
            unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) };
        }
    }
    0
}
