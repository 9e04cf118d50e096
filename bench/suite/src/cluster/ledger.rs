//! What a run has made in a cluster, written down before it is made: whoever comes after a killed run can
//! take it back.
//!
//! One file, `cluster.json`, in the directory of the records. It is there exactly as long as something may be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leno_operate::Target;
use serde::{Deserialize, Serialize};

use super::mesh::Mesh;
use crate::error::{Attempt, Error, Result};

/// The file's name.
pub(super) const FILE: &str = "cluster.json";

/// What may be in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// The kubeconfig that was named.
    kubeconfig: Option<PathBuf>,
    /// Its context.
    context: Option<String>,
    /// The UID of the cluster's namespace `kube-system`: another cluster may get the name of this one.
    cluster: String,
    /// The namespace of the measurements.
    pub(super) namespace: String,
    /// The mesh that is being installed, is, or is being removed.
    pub(super) mesh: Option<Installed>,
    /// The nodes in which something of Leno was left, and why: nothing in the cluster says so once it is gone.
    #[serde(default)]
    pub(super) unclean: Vec<String>,
}

/// A mesh that this run brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    pub(super) mesh: Mesh,
    /// What there was before, as the inventory says it.
    pub(super) before: Vec<String>,
    /// Whether it may have had something in nodes: written before what brings it there is made.
    #[serde(default = "unknown")]
    pub(super) agents: bool,
    /// Whether this process has just made it, and it has not been ready yet. Not written down: whoever reads it later
    /// does not know what has become of it since.
    #[serde(skip)]
    pub(super) fresh: bool,
}

/// What a ledger that does not say it has to be taken for.
const fn unknown() -> bool {
    true
}

impl Ledger {
    /// Of a run that makes nothing but its namespaces yet, in the cluster of this UID.
    pub(super) fn new(target: &Target, cluster: &str, namespace: &str) -> Self {
        Self {
            kubeconfig: target.kubeconfig.clone(),
            context: target.context.clone(),
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
            mesh: None,
            unclean: Vec::new(),
        }
    }

    /// By what the cluster that it is about was reached.
    pub(super) fn target(&self) -> Target {
        Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
    }

    /// Refuses a cluster that is not the one that it is about.
    ///
    /// # Errors
    /// Names both, and what to do.
    pub(super) fn check(&self, directory: &Path, cluster: &str) -> Result<()> {
        if self.cluster == cluster {
            return Ok(());
        }
        let (name, file) = (self.target().name(), directory.join(FILE));
        Err(Error::Refused(format!(
            "{} is about the cluster that context {name} was (kube-system has the UID {}), and now {name} is \
             another (UID {cluster}), where nothing is touched: have KUBECONFIG and context {name} lead to the \
             first again, or, where that is gone, remove the file",
            file.display(),
            self.cluster
        )))
    }

    /// The one in a directory; none where there is none.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(source).attempt(|| format!("read {}", path.display())),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| Error::malformed(&path, error))
    }

    /// Writes it, at once or not at all, and so that a crash of the machine does not lose it.
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
        write().attempt(|| format!("write {}", path.display()))
    }

    /// Removes it: nothing of the run is left.
    pub(super) fn forget(directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.attempt(|| format!("remove {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_written_before_and_forgotten_after() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Ledger::read(directory.path()).unwrap(), None);
        let target = Target { kubeconfig: Some("/k".into()), context: Some("c".into()) };
        let mut ledger = Ledger::new(&target, "u1", "leno-bench-1");
        let before = vec!["ClusterRole admin".to_owned()];
        let mesh = Mesh::IstioAmbient;
        ledger.mesh = Some(Installed { mesh, before, agents: false, fresh: true });
        ledger.write(directory.path()).unwrap();
        let found = Ledger::read(directory.path()).unwrap().unwrap();
        // Whoever comes next has made nothing itself.
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
