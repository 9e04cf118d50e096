//! Where the control plane's objects come from: files, or a Kubernetes API server.
//!
//! A source tells its reader of [`Update`]s over a bounded channel: the changes since the last good
//! state, or why the newest one was refused, in which case the last good one still holds.
//! [`FilesSource`] follows YAML files and directories; [`read_once`] reads them and is done.
//! [`KubernetesSource`] follows a cluster; [`read`] reads it and is done.
//!
//! The crate does not know what objects mean to the mesh: that is the index's part.
//!
//! ```text
//! inotify -> settle -> load and check all -> diff to the last good state -> Update -> index
//! watches of all kinds -> collect until quiet ----------------------------> Update -> index
//! ```
//!
//! Read first: [`Update`], [`FilesSource`], [`KubernetesSource`].

mod diff;
mod files;
mod kubernetes;

pub use diff::diff;
pub use files::{DEBOUNCE, FilesSource, OpenError, UPDATES, read_once};
pub use kubernetes::{
    ConnectError, Followed, KubernetesSource, PROXY_CONTAINER, Read, ReadError, Unread, connect,
    is_meshed, is_ready, owner, read,
};

use leno_index::Change;
use leno_resources::{Object, Problem};

/// What a source has to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// What differs from the last good state, to be applied as one. Empty where there is nothing at
    /// the start, and where a refused state was taken back.
    Changes(Vec<Change>),
    /// The newest state as a whole is refused; the last good one holds.
    Refused(Vec<Problem>),
    /// Routes of a cluster that are not understood, each for itself; what they said before holds.
    Misread(Vec<Misread>),
}

/// A route that is not understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Misread {
    /// The route with its parents and its status, and without anything else.
    pub route: Object,
    /// What is wrong with it.
    pub reason: String,
}
