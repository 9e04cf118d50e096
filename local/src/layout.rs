//! Where a mesh keeps its files: everything of one mesh is below `/run/leno/<mesh>`.

use std::path::{Path, PathBuf};

use leno_types::{InstanceName, check_label};

use crate::error::{Error, Result};

/// The directory of all meshes of this machine. `/run` is empty after a boot, as the namespaces
/// and processes that are recorded there are.
pub const ROOT: &str = "/run/leno";

/// The mesh that is meant where no name is given.
pub const DEFAULT_MESH: &str = "default";

/// Longest mesh name: with namespace and instance it must stay a file name in `/run/netns`.
const MAX_MESH_NAME: usize = 32;
/// Names in [`ROOT`] that are no mesh.
const RESERVED: &[&str] = &["bpf", "cgroup2"];

/// The paths of one mesh.
///
/// ```text
/// /run/leno/<mesh>/
///   lock                 held (flock) by the owner while the mesh runs
///   state.json           owner and everything made, so that it can be removed
///   mesh.json            what runs, for exec, stat and check
///   log, log.1           the newest lines that were printed
///   leno.log, leno.log.1 those of `leno up` itself
///   control.sock         where the owner takes orders
///   observer.sock        where the observer answers
///   workload-api.sock    where applications get certificates of their own
///   history              what the observer remembers
///   state/state.yaml     what the controller reads
///   control/             the certificate authority
///   roots.pem            what proxies check the control plane against
///   tokens/              digests of the proxies' tokens
///   programs/            where Leno's own executables are laid
///   own/token            where a proxy finds its token
///   groups/<group>/      {resolv.conf,hosts,nsswitch.conf} of a node proxy, and tokens/<ns>.<instance>
///   instances/<ns>.<instance>/{resolv.conf,hosts,nsswitch.conf,token}
/// ```
///
/// Beside the meshes, `bpf` and `cgroup2` are mounts that capture makes where the machine has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    mesh: String,
    directory: PathBuf,
}

impl Layout {
    /// The paths of the mesh of this name.
    ///
    /// # Errors
    /// When the name is not a DNS label of at most 32 characters.
    pub fn new(mesh: &str) -> Result<Self> {
        if mesh.len() > MAX_MESH_NAME || check_label("mesh name", mesh).is_err() {
            return Err(Error::Refused(format!(
                "{mesh:?} is not the name of a mesh: use 1 to {MAX_MESH_NAME} of a-z, 0-9 and '-', with no '-' at \
                 either end"
            )));
        }
        if RESERVED.contains(&mesh) {
            return Err(Error::Refused(format!("mesh name {mesh:?} is reserved: choose another")));
        }
        Ok(Self { mesh: mesh.to_owned(), directory: Path::new(ROOT).join(mesh) })
    }

    /// Whether this process may see which meshes there are: [`ROOT`] is closed to other users.
    #[must_use]
    pub fn visible() -> bool {
        let denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        !std::fs::read_dir(ROOT).is_err_and(denied)
    }

    /// Every mesh that has a directory, running or left behind.
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

    /// What the owner holds locked.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// The ownership record.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// What runs.
    #[must_use]
    pub fn status(&self) -> PathBuf {
        self.directory.join("mesh.json")
    }

    /// The newest lines that the mesh printed.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Where the owner takes orders of other commands.
    #[must_use]
    pub fn orders(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Where the observer answers.
    #[must_use]
    pub fn observer(&self) -> PathBuf {
        self.directory.join("observer.sock")
    }

    /// Where applications get certificates of their own, by the SPIFFE Workload API.
    #[must_use]
    pub fn workload_api(&self) -> PathBuf {
        self.directory.join("workload-api.sock")
    }

    /// What the observer remembers.
    #[must_use]
    pub fn history(&self) -> PathBuf {
        self.directory.join("history")
    }

    /// The directory that the controller watches.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// The controller's own directory.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// The roots of the trust domain, for proxies.
    #[must_use]
    pub fn roots(&self) -> PathBuf {
        self.directory.join("roots.pem")
    }

    /// The store of the proxies' tokens.
    #[must_use]
    pub fn tokens(&self) -> PathBuf {
        self.directory.join("tokens")
    }

    /// Where the token of its instance is laid for a proxy.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.directory.join("own").join("token")
    }

    /// Where an executable of Leno's own is laid.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("programs").join(name)
    }

    /// The files of a node proxy; `group` is the name of its group.
    #[must_use]
    pub fn group(&self, group: &str) -> PathBuf {
        self.directory.join("groups").join(group)
    }

    /// The control group below which those of all node proxies are.
    #[must_use]
    pub fn groups_cgroup(&self, hierarchy: &Path) -> PathBuf {
        self.cgroup(hierarchy).join("groups")
    }

    /// The control group of a node proxy. No instance has it: a dot is part of the names of theirs.
    #[must_use]
    pub fn group_cgroup(&self, hierarchy: &Path, group: &str) -> PathBuf {
        self.groups_cgroup(hierarchy).join(group)
    }

    /// The name of the file with the token of an instance, where several are in a folder.
    #[must_use]
    pub fn token_name(name: &InstanceName) -> String {
        dotted(name)
    }

    /// The files of one instance.
    #[must_use]
    pub fn instance(&self, name: &InstanceName) -> PathBuf {
        self.directory.join("instances").join(dotted(name))
    }

    /// The network namespace of the bridge, the controller and DNS.
    #[must_use]
    pub fn switch_netns(&self) -> String {
        format!("leno-{}", self.mesh)
    }

    /// The network namespace of one instance. No other mesh has one of this name: a dot is part of
    /// no label, where mesh `a` with namespace `b-c` and mesh `a-b` with namespace `c` would meet.
    #[must_use]
    pub fn netns(&self, name: &InstanceName) -> String {
        format!("leno-{}.{}", self.mesh, dotted(name))
    }

    /// The name under which the flows of the mesh are accounted for. No capture has it: those have the names of
    /// network namespaces, with the instance's own namespace in them.
    #[must_use]
    pub fn flows(&self) -> String {
        format!("leno-{}.flows", self.mesh)
    }

    /// The control group of the mesh, below the mount of the hierarchy.
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
        // Of a file, 255 bytes; of the owner of pinned kernel programs, 200.
        assert!(layout.netns(&name).len() <= 200);
        assert!(Layout::new(&long(MAX_MESH_NAME + 1)).is_err());
    }
}
