//! Notices edits of the files that a mesh was started from.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the files are looked at. Some editors replace a file, some write in place, and some
/// file systems report neither, so looking is the one way that always works; it costs one system
/// call a file.
const POLL: Duration = Duration::from_millis(200);

/// Some files, and how they looked last.
#[derive(Clone, Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    seen: BTreeMap<PathBuf, Look>,
}

/// What changes with every edit: device, inode, size and modification time in nanoseconds.
type Look = (u64, u64, u64, i64, i64);

impl Files {
    /// These files, as they look now.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = look(&paths);
        Self { paths, seen }
    }

    /// Comes back after one of the files has changed and stayed the same for one look.
    pub async fn edited(&mut self) {
        let mut changed = false;
        loop {
            tokio::time::sleep(POLL).await;
            let now = look(&self.paths);
            if now != self.seen {
                self.seen = now;
                changed = true;
            } else if changed {
                return;
            }
        }
    }
}

fn look(paths: &[PathBuf]) -> BTreeMap<PathBuf, Look> {
    let one = |path: &Path| {
        let m = fs::metadata(path).ok()?;
        Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
    };
    paths.iter().filter_map(|path| Some((path.clone(), one(path)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_edit_is_noticed_whether_in_place_or_by_replacement() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "a").unwrap();
        let mut files = Files::new(vec![path.clone()]);
        fs::write(&path, "ab").unwrap();
        files.edited().await;
        let other = directory.path().join("other");
        fs::write(&other, "ab").unwrap();
        fs::rename(&other, &path).unwrap();
        files.edited().await;
    }
}
