//! What the CNI plugin `leno-cni` does, and what the node's agent has to know of it.
//!
//! ```text
//! container runtime ──ADD──► bridge, portmap, ... ──prevResult──► leno-cni ──/run/leno/agent.sock──► agent
//! ```
//! The plugin is the last of a node's chain. It has no client of Kubernetes and changes nothing
//! itself: it tells the agent of the pod, and passes on what the plugins before it made. Where the
//! agent does not answer, a pod that has a proxy fails, so that it never starts uncaptured, and every
//! other pod goes on ([`plugin`] says how it tells the two apart).
//!
//! [`conflist`] edits a node's configuration, which the agent does; [`protocol`] is what goes over
//! the socket. Read [`plugin::run`] first.

pub mod conflist;
pub mod plugin;
pub mod protocol;

/// The plugin's name: its file among the node's plugins, and its `type` in the configuration.
pub const NAME: &str = "leno-cni";
