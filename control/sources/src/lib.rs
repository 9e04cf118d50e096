//! Reads the control plane's objects from files or from a Kubernetes API server, and follows their changes.
//!
//! A source sends [`SourceUpdate`]s over a bounded channel. An update contains the changes since the last valid
//! state, or the reason why the newest state was rejected; then the last valid state stays in effect.
//! [`FilesSource`] watches YAML files and directories; [`read_once`] reads them once. [`KubernetesSource`] watches
//! a cluster; [`read`] reads it once.
//!
//! The index (`leno-index`) interprets the objects.
//!
//! ```text
//! inotify -> wait until settled -> load, check -> diff to last valid state -> SourceUpdate -> index
//! watches of all kinds -> used fields -> collect until no event arrives   -> SourceUpdate -> index
//! ```
//!
//! Read first: [`SourceUpdate`], [`FilesSource`], [`KubernetesSource`].

mod diff;
mod files;
mod kubernetes;

pub use diff::diff;
pub use files::{DEBOUNCE, FilesSource, OpenError, UPDATES, read_once};
pub use kubernetes::{
    KubernetesSource, PROXY_CONTAINER, ReadError, SourceObjects, UnfollowedKind, UnreadObject,
    WatchStates, has_proxy, is_meshed, is_ready, is_served, owner, read,
};

use leno_index::ObjectChange;
use leno_resources::{Object, Problem};

/// A message from a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceUpdate {
    /// Objects of a first list that is not complete yet. They are sent before the first
    /// [`Changes`](Self::Changes), and nothing is served until then. The receiver stores what it needs of the
    /// objects, so that the source need not keep all objects of a cluster in memory.
    Early(Vec<ObjectChange>),
    /// The differences from the last valid state, which must be applied together. Empty if the first state has no
    /// objects, or if an invalid edit was reverted.
    Changes(Vec<ObjectChange>),
    /// The newest state as a whole is invalid. The last valid state stays in effect.
    Refused(Vec<Problem>),
    /// Invalid routes and policies of a cluster. Their last valid states stay in effect.
    Misread(Vec<MisreadObject>),
}

/// An invalid route or policy.
#[derive(Clone, Debug, PartialEq)]
pub struct MisreadObject {
    /// The object, with only its targets and its status.
    pub object: Object,
    /// Why it is invalid.
    pub reason: String,
}
