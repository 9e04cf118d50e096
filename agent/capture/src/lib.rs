//! Redirects a workload's traffic to its proxy, with eBPF, nftables or iptables.
//!
//! A [`CaptureTarget`] is a network namespace, and a cgroup that contains the proxy's cgroup. [`capture`] routes
//! every TCP connection from and to it through its proxy; [`Captured::release`] undoes that. With every
//! [`Backend`]:
//!
//! - Outbound connections arrive at the proxy's 127.0.0.1:15001 or `[::1]:15001`, inbound ones at
//!   0.0.0.0:15006 or `[::]:15006`. The original destination is the accepted socket's local address if its
//!   port is not the listener's, else the result of `SO_ORIGINAL_DST`.
//! - The proxy's own sockets, loopback, excluded prefixes and the admin port (inbound) are not captured; neither is
//!   UDP, unless the backend is eBPF and the proxy carries datagrams. 15001 and 15006 cannot be reached from outside.
//! - Link-local IPv6 carries only ICMPv6.
//! - The proxy can connect to the application from the stand-in address (`leno_types::source`).
//! - Connections that were open before the capture are not changed, and no packet that was sent before it lets a
//!   new connection bypass the proxy.
//! - While the proxy is not listening, connections are refused (fail closed) or pass unchanged (fail open).
//!
//! | | eBPF | nftables, iptables |
//! |---|---|---|
//! | original destination, inbound | local address | `SO_ORIGINAL_DST` |
//! | the application sees as its client | the client | the stand-in address |
//! | the proxy is recognised by | its cgroup | its user id |
//! | "the proxy is listening" | noticed by the kernel | reported by [`Captured::set_listening`] |
//! | a connection straight to the listener | `SO_ORIGINAL_DST` fails | answers the listener's own address |
//! | a socket bound to a device (`SO_BINDTODEVICE`) | captured | cannot connect |
//! | 15001, 15006 from outside | refused | dropped |
//! | cost | none per packet | connection tracking |
//!
//! [`ProbeReport::probe`] determines which backends a machine can use by trying them, never by the kernel's
//! version. [`Preflight`] tries each kernel program separately. This crate starts no processes of the mesh, and
//! does not handle services.

mod backend;
mod captured;
mod cgroup;
mod command;
mod ebpf;
mod error;
mod iptables;
mod left_out;
mod mark;
mod nftables;
mod open_ways;
mod preflight;
mod probe;
mod stand_in;

pub use backend::{Backend, CaptureChoice, UnknownBackend};
pub use captured::{CaptureCounters, CaptureTarget, Captured, capture, let_pass, prune, release};
pub use cgroup::{cgroup2_root, unmount_shared, unmount_unused};
pub use error::Error;
pub use left_out::LeftOut;
pub use mark::{is_marked, mark, unmark};
pub use open_ways::{OpenWay, OpenWays, Way, open_ways};
pub use preflight::Preflight;
pub use probe::{BackendReport, Capability, ProbeReport};
