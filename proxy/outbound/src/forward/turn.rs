//! Notices a request that a route sends to the workload that it comes from, again and again.
//!
//! ```text
//! application ─► route ─► the same workload: marked ─► application ─► route ─► the same workload: a loop
//! ```
//!
//! An application that passes requests on, such as a gateway, passes their headers on as well. So a
//! request that comes back has the mark of its first turn. The mark is of one method, host and target:
//! an application that calls itself for something else may go on.

use leno_balance::hash;
use leno_http::{Cause, Failure, HeaderLine, Party, RequestView};

/// The header with the mark. It does not begin with `leno-`, as what applications send may not.
const TURN: &str = "x-leno-turn";

/// The mark of a request that the workload `source` sends to itself by a route, to be set on it.
///
/// # Errors
/// The request has this mark already.
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
