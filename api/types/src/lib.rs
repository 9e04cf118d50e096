//! Names, addresses and identities that every part of the mesh shares.
//!
//! Data types only: no I/O, no policy, no wire format. A value of these types is valid by
//! construction, so that code which receives one never checks it again.
//!
//! Start with [`Identity`] (the identity of a workload), [`ServiceName`] (what clients call) and
//! [`Protocol`] (how to handle a port).

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod address;
mod datagrams;
mod egress;
mod identity;
mod mtls;
mod name;
mod nearest;
mod owner;
mod protocol;
mod removal;
mod revocation;
mod workload_api;

pub mod authorization;
pub mod authorizer;
pub mod mesh;
pub mod ports;
pub mod routes;
pub mod source;
pub mod tokens;
pub mod traffic;

/// The largest number of processes that finish open streams for one instance while another process serves it. Each is a
/// client of the control plane like any other.
pub const MAX_FINISHING: usize = 6;

pub use address::{OrigDst, canonical};
pub use datagrams::{Datagrams, UnknownDatagrams};
pub use egress::{Egress, UnknownEgress};
pub use identity::{Identity, IdentityError, TrustDomain};
pub use mtls::{MtlsMode, UnknownMtlsMode};
pub use name::{InstanceName, NameError, ServiceName, check_label, check_subdomain};
pub use nearest::nearest;
pub use owner::{Owner, TEMPLATE_HASH_LABEL};
pub use protocol::{Protocol, UDP_APP_PROTOCOL};
pub use removal::{Removal, UnknownRemoval};
pub use revocation::{MAX_REVOKED, Revocations};
pub use workload_api::{NoWorkloadApiAddress, WorkloadApiAddress};
