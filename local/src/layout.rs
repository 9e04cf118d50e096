//! The paths of a mesh's files: everything of one mesh is below `/run/leno/<mesh>`.

use std::path::{Path, PathBuf};

use leno_types::{InstanceName, check_label};

use crate::error::{Error, Result};

/// The directory of all meshes of this machine. `/run` is emptied at boot, and so the record never outlives the
/// namespaces and processes that it names.
pub const ROOT: &str = "/run/leno";

/// The mesh that is used if no name is given.
pub const DEFAULT_MESH: &str = "default";

/// Longest mesh name: together with namespace and instance it must be a valid file name in `/run/netns`.
const MAX_MESH_NAME: usize = 32;
/// Names in [`ROOT`] that are not meshes.
const RESERVED: &[&str] = &["bpf", "cgroup2"];

/// The paths of one mesh. The owner is its `leno up`.
///
/// ```text
/// /run/leno/<mesh>/
///   lock                 held (flock) by the owner while the mesh runs
///   state.json           the owner, and everything that must be removed
///   mesh.json            what runs; read by exec, stat and check
///   log, log.1           the newest lines that were printed
///   leno.log, leno.log.1 the newest lines of `leno up` itself
///   control.sock         where the owner accepts orders
///   observer.sock        where the observer answers
///   workload-api.sock    where applications get their own certificates
///   history              what the observer has recorded
///   state/state.yaml     what the controller reads
///   control/             the certificate authority
///   roots.pem            the roots with which proxies verify the control plane
///   tokens/              digests of the proxies' tokens
///   programs/            the mount points of Leno's own executables
///   own/token            where a proxy finds its token
///   groups/<group>/      {resolv.conf,hosts,nsswitch.conf} of a node proxy, and tokens/<ns>.<instance>
///   instances/<ns>.<instance>/{resolv.conf,hosts,nsswitch.conf,token}
/// ```
///
/// `/run/leno` also has `bpf` and `cgroup2`, which are mounts that capture creates if the machine has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    mesh: String,
    directory: PathBuf,
}

impl Layout {
    /// The paths of the mesh with this name.
    ///
    /// # Errors
    /// When the name is not a DNS label of at most 32 characters.
    pub fn new(mesh: &str) -> Result<Self> {
        if mesh.len() > MAX_MESH_NAME || check_label("mesh name", mesh).is_err() {
            return Err(Error::Refused(format!(
                "{mesh:?} is not a valid name of a mesh: use 1 to {MAX_MESH_NAME} of a-z, 0-9 and \
                 '-', with no '-' at either end"
            )));
        }
        if RESERVED.contains(&mesh) {
            return Err(Error::Refused(format!("mesh name {mesh:?} is reserved: choose another")));
        }
        Ok(Self { mesh: mesh.to_owned(), directory: Path::new(ROOT).join(mesh) })
    }

    /// Whether this process may list the meshes: only root may read [`ROOT`].
    #[must_use]
    pub fn visible() -> bool {
        let denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        !std::fs::read_dir(ROOT).is_err_and(denied)
    }

    /// All meshes that have a directory, whether they run or were left behind.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(ROOT).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let meshes = names.filter_map(|name| Self::new(&name).ok());
        let mut found: Vec<Self> = meshes.filter(|mesh| mesh.lock().exists()).collect();
        found.sort_by(|a, b| a.mesh.cmp(&b.mesh));
        found
    }

    /// The name of the mesh.
    #[must_use]
    pub fn mesh(&self) -> &str {
        &self.mesh
    }

    /// The directory of the mesh.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file that the owner keeps locked.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// The record of the owner and of everything that must be removed.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// The status file, which describes what runs.
    #[must_use]
    pub fn status(&self) -> PathBuf {
        self.directory.join("mesh.json")
    }

    /// The newest lines that the mesh printed.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The socket on which the owner accepts orders of other commands.
    #[must_use]
    pub fn orders(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// The socket on which the observer answers.
    #[must_use]
    pub fn observer(&self) -> PathBuf {
        self.directory.join("observer.sock")
    }

    /// The socket of the SPIFFE Workload API, where applications get their own certificates.
    #[must_use]
    pub fn workload_api(&self) -> PathBuf {
        self.directory.join("workload-api.sock")
    }

    /// The recorded history of the observer.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.directory.join("history")
    }

    /// The directory that the controller watches.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// The directory in which the controller keeps the certificate authority.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// The file with the root certificates of the trust domain, for proxies.
    #[must_use]
    pub fn roots(&self) -> PathBuf {
        self.directory.join("roots.pem")
    }

    /// The directory with the digests of the proxies' tokens.
    #[must_use]
    pub fn tokens(&self) -> PathBuf {
        self.directory.join("tokens")
    }

    /// The path at which a proxy finds the token of its instance.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.directory.join("own").join("token")
    }

    /// The path at which an executable of Leno is mounted.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("programs").join(name)
    }

    /// The directory with the files of the node proxy of this group.
    #[must_use]
    pub fn group(&self, group: &str) -> PathBuf {
        self.directory.join("groups").join(group)
    }

    /// The parent of the control groups of all node proxies.
    #[must_use]
    pub fn groups_cgroup(&self, hierarchy: &Path) -> PathBuf {
        self.cgroup(hierarchy).join("groups")
    }

    /// The control group of the node proxy of this group. The name of an instance's control group contains a dot,
    /// so the two cannot collide.
    #[must_use]
    pub fn group_cgroup(&self, hierarchy: &Path, group: &str) -> PathBuf {
        self.groups_cgroup(hierarchy).join(group)
    }

    /// The name of the file with an instance's token, in a folder with several tokens.
    #[must_use]
    pub fn token_name(name: &InstanceName) -> String {
        dotted(name)
    }

    /// The directory with the files of one instance.
    #[must_use]
    pub fn instance(&self, name: &InstanceName) -> PathBuf {
        self.directory.join("instances").join(dotted(name))
    }

    /// The network namespace of the bridge, the controller and DNS.
    #[must_use]
    pub fn switch_netns(&self) -> String {
        format!("leno-{}", self.mesh)
    }

    /// The network namespace of one instance. The parts of its name are separated by dots, which labels cannot
    /// contain. With hyphens, mesh `a` with namespace `b-c` would have the same name as mesh `a-b` with namespace
    /// `c`.
    #[must_use]
    pub fn netns(&self, name: &InstanceName) -> String {
        format!("leno-{}.{}", self.mesh, dotted(name))
    }

    /// The name of the mesh's pinned flow programs. It cannot collide with that of a capture, which is the name of
    /// an instance's network namespace.
    #[must_use]
    pub fn flows(&self) -> String {
        format!("leno-{}.flows", self.mesh)
    }

    /// The control group of the mesh, below the cgroup2 mount at `hierarchy`.
    #[must_use]
    pub fn cgroup(&self, hierarchy: &Path) -> PathBuf {
        hierarchy.join("leno").join(&self.mesh)
    }

    /// The control group of one instance; `app` and `proxy` are below it.
    #[must_use]
    pub fn instance_cgroup(&self, hierarchy: &Path, name: &InstanceName) -> PathBuf {
        self.cgroup(hierarchy).join(dotted(name))
    }
}

fn dotted(name: &InstanceName) -> String {
    format!("{}.{}", name.namespace, name.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_meshes_share_a_name() {
        let netns = |mesh: &str, namespace: &str, name: &str| {
            Layout::new(mesh).unwrap().netns(&InstanceName::new(namespace, name).unwrap())
        };
        let names = [
            netns("a", "b-c", "web-0"),
            netns("a-b", "c", "web-0"),
            netns("a", "b", "c-web-0"),
            Layout::new("a-b-c-web-0").unwrap().switch_netns(),
        ];
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }

    #[test]
    fn the_longest_names_fit() {
        let long = |length| "a".repeat(length);
        let layout = Layout::new(&long(MAX_MESH_NAME)).unwrap();
        let name = InstanceName::new(&long(63), &long(63)).unwrap();
        // The limits are 255 bytes for a file name, and 200 for the owner of pinned kernel programs.
        assert!(layout.netns(&name).len() <= 200);
        assert!(Layout::new(&long(MAX_MESH_NAME + 1)).is_err());
    }
}
