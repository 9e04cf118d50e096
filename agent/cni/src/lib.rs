//! The CNI plugin `leno-cni`, and the code that the node's agent shares with it.
//!
//! ```text
//! container runtime ──ADD──► bridge, portmap, ... ──prevResult──► leno-cni ──/run/leno/agent.sock──► agent
//! ```
//! The plugin is the last one in a node's chain. It has no Kubernetes client and changes nothing itself: it
//! reports the pod to the agent, and passes on the result of the plugins before it. If the agent does not answer,
//! the plugin makes a pod that has a proxy fail, so that the pod never starts uncaptured. It lets every other pod
//! start ([`plugin`] explains how it distinguishes the two).
//!
//! [`conflist`] edits a node's CNI configuration for the agent; [`protocol`] is the exchange over
//! the socket. Read [`plugin::run`] first.

pub mod conflist;
pub mod plugin;
pub mod protocol;

/// The plugin's name: that of its file among the node's plugins, and its `type` in the configuration.
pub const NAME: &str = "leno-cni";
