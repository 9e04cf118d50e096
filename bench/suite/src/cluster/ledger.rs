//! The ledger of a run's changes to a cluster, written before each change, so that the changes of a
//! killed run can be reverted.
//!
//! It is one file, `cluster.json`, in the directory of the records. It exists exactly as long as
//! there may be something to revert.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use leno_operate::ClusterTarget;
use serde::{Deserialize, Serialize};

use super::mesh::Mesh;

pub(super) const FILE: &str = "cluster.json";

/// The changes that may exist in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// The kubeconfig of the run.
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    /// The UID of the cluster's namespace `kube-system`, because the name of a cluster may later belong to another
    /// cluster.
    cluster: String,
    pub(super) namespace: String,
    /// The mesh that is being installed, is installed, or is being removed.
    pub(super) mesh: Option<Installed>,
    /// The nodes on which something of Leno is left, and why. After the removal, only this ledger says so.
    #[serde(default)]
    pub(super) unclean: Vec<String>,
}

/// A mesh that this run installs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    pub(super) mesh: Mesh,
    /// The objects that existed before, by their names in the inventory.
    pub(super) before: Vec<String>,
    /// Whether the mesh may have changed nodes; set before objects that change nodes are created.
    #[serde(default = "unknown")]
    pub(super) agents: bool,
    /// Whether this process has just created the mesh, and the mesh has not been ready yet. Not saved, because a later
    /// process cannot know what has happened since.
    #[serde(skip)]
    pub(super) fresh: bool,
}

/// The default for ledgers of older versions: the mesh may have changed nodes.
const fn unknown() -> bool {
    true
}

impl Ledger {
    /// The ledger of a run that has only created its namespaces so far. `cluster` is the UID of the cluster.
    pub(super) fn new(target: &ClusterTarget, cluster: &str, namespace: &str) -> Self {
        Self {
            kubeconfig: target.kubeconfig.clone(),
            context: target.context.clone(),
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            mesh: None,
            unclean: Vec::new(),
        }
    }

    pub(super) fn target(&self) -> ClusterTarget {
        ClusterTarget { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }

    /// Checks that a cluster is the one of this ledger.
    ///
    /// # Errors
    /// If the cluster is another one; the error names both and says what to do.
    pub(super) fn check(&self, directory: &Path, cluster: &str) -> Result<()> {
        if self.cluster == cluster {
            return Ok(());
        }
        let (name, file) = (self.target().name(), directory.join(FILE));
        Err(anyhow!(
            "{} lists changes of the cluster that context {name} selected before (kube-system has \
             the UID {}), but {name} now selects another one (UID {cluster}), which was not \
             changed: let KUBECONFIG and context {name} select the first cluster again, or, if it \
             no longer exists, remove the file",
            file.display(),
            self.cluster
        ))
    }

    /// Reads the ledger in a directory; `None` if there is none.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(source).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    /// Writes the ledger in one step, and in a way that it survives a crash of the machine.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let draft = path.with_extension("draft");
        let text = serde_json::to_string_pretty(self).expect("it has only text keys") + "\n";
        let write = || {
            let mut file = fs::File::create(&draft)?;
            io::Write::write_all(&mut file, text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the ledger, when all changes are reverted.
    pub(super) fn forget(directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| format!("cannot remove {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_read_as_written_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Ledger::read(directory.path()).unwrap(), None);
        let target = ClusterTarget { kubeconfig: Some("/k".into()), context: Some("c".into()) };
        let mut ledger = Ledger::new(&target, "u1", "leno-bench-1");
        let before = vec!["ClusterRole admin".to_owned()];
        let mesh = Mesh::IstioAmbient;
        ledger.mesh = Some(Installed { mesh, before, agents: false, fresh: true });
        ledger.write(directory.path()).unwrap();
        let found = Ledger::read(directory.path()).unwrap().unwrap();
        // A later process has not created the mesh itself.
        ledger.mesh.as_mut().unwrap().fresh = false;
        assert_eq!((&found, found.target().context.as_deref()), (&ledger, Some("c")));
        found.check(directory.path(), "u1").unwrap();
        let other = found.check(directory.path(), "u2").unwrap_err().to_string();
        for word in ["cluster.json", "context c", "UID u1", "UID u2", "remove the file"] {
            assert!(other.contains(word), "{word} is not in {other}");
        }
        Ledger::forget(directory.path()).unwrap();
        Ledger::forget(directory.path()).unwrap();
        assert_eq!(Ledger::read(directory.path()).unwrap(), None);
    }
}
