//! Names, addresses and identities that every part of the mesh shares.
//!
//! Contracts only: no I/O, no policy, no wire format. A value of these types is valid by
//! construction, so the parts that receive one never check it again.
//!
//! Start with [`Identity`] (who a workload is), [`ServiceName`] (what clients call) and
//! [`Protocol`] (how a port is to be handled).

mod address;
mod egress;
mod identity;
mod mtls;
mod name;
mod nearest;
mod owner;
mod protocol;
mod removal;

pub mod mesh;
pub mod ports;
pub mod routes;
pub mod source;
pub mod traffic;

pub use address::{OrigDst, canonical};
pub use egress::{Egress, UnknownEgress};
pub use identity::{Identity, IdentityError, TrustDomain};
pub use mtls::{MtlsMode, UnknownMtlsMode};
pub use name::{InstanceName, NameError, ServiceName, check_label, check_subdomain};
pub use nearest::nearest;
pub use owner::Owner;
pub use protocol::Protocol;
pub use removal::{Removal, UnknownRemoval};
