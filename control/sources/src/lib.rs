//! Where the control plane's objects come from: files, or a Kubernetes API server.
//!
//! A source sends its receiver [`SourceUpdate`]s over a bounded channel: the changes since the last good
//! state, or why the newest state was refused, in which case the last good state stays in effect.
//! [`FilesSource`] watches YAML files and directories; [`read_once`] reads them once.
//! [`KubernetesSource`] watches a cluster; [`read`] reads it once.
//!
//! The crate does not know what objects mean to the mesh; the index does.
//!
//! ```text
//! inotify -> wait until settled -> load, check -> diff to last good state -> Update -> index
//! watches of all kinds -> used fields -> collect until no event arrives --> Update -> index
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
    WatchStates, has_proxy, is_meshed, is_ready, owner, read,
};

use leno_index::ObjectChange;
use leno_resources::{Object, Problem};

/// A message from a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceUpdate {
    /// Objects of a first list that is not complete yet. Sent before the first [`Changes`](Self::Changes), until
    /// which nothing is served. The receiver keeps what it needs of the objects, so that a source need not keep all
    /// objects of a cluster.
    Early(Vec<ObjectChange>),
    /// The differences from the last good state, to be applied together. Empty if the first state has no objects,
    /// or if a refused state was reverted to the good one.
    Changes(Vec<ObjectChange>),
    /// The newest state as a whole is refused; the last good one stays in effect.
    Refused(Vec<Problem>),
    /// Invalid routes and policies of a cluster, each judged separately; their last good states stay in effect.
    Misread(Vec<MisreadObject>),
}

/// An invalid route or policy.
#[derive(Clone, Debug, PartialEq)]
pub struct MisreadObject {
    /// The object, reduced to what it attaches to and its status.
    pub object: Object,
    /// Why it is invalid.
    pub reason: String,
}
