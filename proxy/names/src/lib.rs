//! Addresses of names outside of the mesh, kept up to date while somebody needs them.
//!
//! ```text
//! Names.watch(host) ─► one task a name ─► resolvers of /etc/resolv.conf (A and AAAA)
//!        │                   └─ sleeps for as long as the answer holds, asks again
//!        └─ receiver of Found: no answer yet, addresses, or why there are none
//! ```
//! An answer is used for its time to live, within bounds. When nobody answers, the last good addresses
//! are kept (RFC 8767), for a bounded time; when the resolver says that there is no such name they are
//! not. The task of a name ends when nobody watches it any more.
//!
//! It knows nothing of services and proxies. Every question says, in an option that other resolvers pass
//! over, that it comes from a proxy: the resolver of the mesh itself answers an application with a virtual
//! address where it would be wrong to answer so here.
//!
//! Read first: [`Names`], then `question` (what is asked, and what counts as an answer).

mod ask;
mod keep;
mod question;

pub use ask::{AskError, MAX_RESOLVERS, Resolvers, nameservers, over_tcp};
pub use keep::{Counts, Found, MAX_NAMES, Names};
pub use question::{MAX_ADDRESSES, PROXY_OPTION};
