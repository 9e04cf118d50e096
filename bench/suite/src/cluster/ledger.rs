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
const FILE: &str = "cluster.json";

/// What may be in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// The kubeconfig that was named.
    kubeconfig: Option<PathBuf>,
    /// Its context.
    context: Option<String>,
    /// The namespace of the measurements.
    pub(super) namespace: String,
    /// The mesh that is being installed, is, or is being removed.
    pub(super) mesh: Option<Installed>,
}

/// A mesh that this run brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    pub(super) mesh: Mesh,
    /// What there was before, as the inventory says it.
    pub(super) before: Vec<String>,
}

impl Ledger {
    /// Of a run that makes nothing but its namespace yet.
    pub(super) fn new(target: &Target, namespace: &str) -> Self {
        Self {
            kubeconfig: target.kubeconfig.clone(),
            context: target.context.clone(),
            namespace: namespace.to_owned(),
            mesh: None,
        }
    }

    /// The cluster that it is about.
    pub(super) fn target(&self) -> Target {
        Target { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() }
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
        let mut ledger = Ledger::new(&target, "leno-bench-1");
        let before = vec!["ClusterRole admin".to_owned()];
        ledger.mesh = Some(Installed { mesh: Mesh::IstioAmbient, before });
        ledger.write(directory.path()).unwrap();
        let found = Ledger::read(directory.path()).unwrap().unwrap();
        assert_eq!((&found, found.target().context.as_deref()), (&ledger, Some("c")));
        Ledger::forget(directory.path()).unwrap();
        Ledger::forget(directory.path()).unwrap();
        assert_eq!(Ledger::read(directory.path()).unwrap(), None);
    }
}
