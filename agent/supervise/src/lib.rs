//! Keeps processes of the mesh running on a machine, among them the node proxies of groups of workloads.
//!
//! ```text
//!  keep_running ── starts, ends, restarts ──► RunningProcess      one process: its user, its control group
//!       ▲
//!     Group ── orders: join, leave ─────────────► leno-proxy --node      many workloads in one process
//! ```
//! Both `leno up` and the agent of a Kubernetes node use this crate. Documents and the cluster are not its
//! concern: the caller decides where a process runs and what is printed. Read [`keep_running`] first, then
//! [`Group`].

mod backoff;
mod cgroup;
mod credentials;
mod deaf;
mod descriptors;
mod error;
mod finishing;
mod group;
mod heartbeat;
mod keep_running;
mod process;
mod promotion;
mod share;
mod turns;
mod watchdog;

pub use backoff::Backoff;
pub use cgroup::Cgroup;
pub use credentials::ProcessCredentials;
pub use descriptors::DescriptorLimit;
pub use error::{Error, Result};
pub use finishing::Finishing;
pub use group::{DepartedMember, Group, JoiningMember, Loss, MemberEvent, NodeProxyHost};
pub use heartbeat::{Hang, deaf, is_stopped};
pub use keep_running::{Condemned, LifeEvent, RestartRules, StopStage, keep_running};
pub use process::{RunningProcess, Tether, after, describe, status_field};
pub use promotion::{Promotion, PromotionRules};
pub use share::{ProcessSharing, group_key, is_key_of};
pub use turns::{SuccessionTurn, SuccessionTurns};
pub use watchdog::{HungProcesses, Watchdog};
