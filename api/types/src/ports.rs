//! The ports and the user id that every part of the mesh agrees on.

/// The proxy's outbound listener, on loopback.
pub const OUTBOUND: u16 = 15001;
/// The proxy's inbound listener.
pub const INBOUND: u16 = 15006;
/// The control plane's discovery and identity service.
pub const CONTROL: u16 = 15010;
/// The proxy's admin server: `/metrics`, `/ready`, `/live`, `/drain`, `/config`.
pub const ADMIN: u16 = 15020;
/// The user that proxies run as; capture by netfilter exempts it.
pub const PROXY_UID: u32 = 2102;
