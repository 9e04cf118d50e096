//! Detects a request that a route sends again and again to the workload from which it comes.
//!
//! ```text
//! application ─► route ─► the same workload: marked ─► application ─► route ─► the same workload: a loop
//! ```
//!
//! An application that forwards requests, such as a gateway, forwards their headers, too. So a request that comes back
//! still has the mark that was set when a route sent it to its own workload for the first time. The mark contains the
//! method, host and target, because an application may send itself a different request.

use leno_balance::hash;
use leno_http::{Cause, Failure, HeaderLine, Party, RequestView};

/// The header with the mark. Its name does not begin with `leno-`, because headers with such names are removed when
/// applications send them.
const TURN: &str = "x-leno-turn";

/// The mark to set on a request that a route sends from the workload `source` to itself.
///
/// # Errors
/// The request already has this mark.
pub(super) fn mark(source: &str, request: RequestView<'_>) -> Result<Option<HeaderLine>, Failure> {
    let parts: [&[u8]; 7] = [
        source.as_bytes(),
        b"\n",
        request.method().as_bytes(),
        b"\n",
        request.authority().as_bytes(),
        b"\n",
        request.target(),
    ];
    let mark = format!("{:016x}", hash(&parts.concat()));
    if request.header(TURN) == Some(mark.as_bytes()) {
        let (place, cause) = (Party::Us, Cause::Loop);
        return Err(Failure { place, cause, retryable: false, unprocessed: true });
    }
    Ok(HeaderLine::new(TURN, mark.as_bytes()).ok())
}
