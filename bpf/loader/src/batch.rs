//! Reads a whole hash map with few system calls.
#![expect(unsafe_code, reason = "libbpf-rs ends a batched read silently when the kernel fails it")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::{MapCore, MapHandle};

use crate::Error;

/// Entries that one system call reads: enough to make its cost small. The kernel does not split a bucket of a hash
/// table, and no bucket has as many entries.
const BATCH: u32 = 4096;

/// Calls `each` with the key and the value of every entry. An entry that exists from begin to end is passed once; one
/// that is added or removed meanwhile may be passed or not. Needs Linux 5.6.
pub(crate) fn for_each(
    map: &MapHandle,
    action: &str,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<(), Error> {
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let mut keys = vec![0u8; key_size * BATCH as usize];
    let mut values = vec![0u8; value_size * BATCH as usize];
    // For a hash table the position is a bucket's number, whatever the size of a key.
    let (mut position, mut next) = (0u64, 0u64);
    let mut first = true;
    loop {
        let mut count = BATCH;
        let from = if first { std::ptr::null_mut() } else { (&raw mut position).cast() };
        // SAFETY: keys and values have room for `count` entries, and the positions for the four bytes
        // that a hash table uses; all of them live through the call.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from,
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        let failed = (result < 0).then(|| io::Error::from_raw_os_error(-result));
        let done = match failed {
            None => false,
            Some(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Some(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Some(error) => return Err(Error::io(action)(error)),
        };
        let count = count as usize;
        for (key, value) in
            keys.chunks_exact(key_size).zip(values.chunks_exact(value_size)).take(count)
        {
            each(key, value);
        }
        if done {
            return Ok(());
        }
        position = next;
        first = false;
    }
}
