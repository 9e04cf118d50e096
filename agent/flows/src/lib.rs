//! Accounts for the connections of workloads: enrols their network namespaces with the flow programs of
//! `leno-bpf`, reads the programs' counters, and adds the names of workloads.
//!
//! ```text
//!  Ledger     the one process that enrols: leno up, or the agent of a node
//!   Accounts                                        ─► enrol, withdraw, collect ─► metrics ─► text
//!     WireSampling  a thread, if payload is sampled  ─► requests of plain traffic ─┘
//!  FlowView   any process that may read the pins    ─► list, follow             ─► FlowConnection
//! ```
//! The two only communicate through the kernel, where names and counters are pinned. So a reader does not depend
//! on the process that enrols, and the next such process continues with the counters of the last one.
//!
//! Which workloads are accounted for is decided by the callers. Read first: [`Ledger`], [`Accounts`],
//! [`FlowView`], [`FlowConnection`].

mod accounts;
mod budget;
mod caps;
mod connection;
mod drops;
mod ledger;
mod metrics;
mod namespace;
mod pairs;
pub mod report;
mod requests;
mod setting;
mod view;
mod wire;

pub use accounts::{Accounts, FlowMember};
pub use budget::{CpuBudget, LevelChange, OptionalBudget, UnknownBudget};
pub use caps::WorkloadCap;
pub use connection::{ClockOffset, ConnectionChange, FieldWord, FlowConnection, FlowPeer};
pub use drops::DropRow;
pub use ledger::{Ledger, LedgerSettings, ROUND};
pub use leno_bpf::Error;
pub use leno_bpf::flows::{
    AccountingPrice, EarlierMaps, FlowSizes, MAX_EVENTS, MAX_FLOWS, WorkloadInterface, probe,
    self_test,
};
pub use leno_bpf_abi::flow::{FlowEnd, FlowLevel, FlowOwner, FlowRole, FlowState};
pub use metrics::{FAMILIES, FamilyText};
pub use namespace::Namespace;
pub use requests::RequestRow;
pub use setting::{FlowMetricsSource, UnknownFlowMetricsSource};
pub use view::{FlowEvents, FlowView};
pub use wire::{SampledRequest, WireRow, read_samples};
