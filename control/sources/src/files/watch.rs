//! Determines which directories to watch, and which of their events matter.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use leno_resources::{STDIN, is_document};
use notify::event::{AccessKind, AccessMode, Event, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

/// Why files cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Standard input can be read only once.
    #[error("standard input cannot be watched: name a file or a directory")]
    Stdin,
    /// The parent directory of a path cannot be watched.
    #[error("{} cannot be watched", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: notify::Error,
    },
    /// The system offers no further file watches.
    #[error("file changes cannot be watched: raise fs.inotify.max_user_instances")]
    Watcher(#[source] notify::Error),
    /// The current directory was deleted, so a relative path cannot be resolved.
    #[error("{} cannot be made absolute", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Calls a function when one of the paths may have changed. Dropping this ends the watch.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    /// The paths that may be directories. A path is watched as a directory while it is one.
    paths: BTreeSet<PathBuf>,
}

/// Decides which events make the files be read again. In doubt they are read, which costs little.
#[derive(Debug)]
struct Filter {
    /// The last components of the paths.
    names: BTreeSet<OsString>,
}

impl Watch {
    pub(super) fn open(
        given: &[PathBuf],
        raise: impl Fn() + Send + 'static,
    ) -> Result<Self, OpenError> {
        let paths = resolve(given)?;
        let names = paths.iter().filter_map(|path| path.file_name()).map(OsStr::to_owned);
        let filter = Filter { names: names.collect() };
        let handler = move |event: notify::Result<Event>| match event {
            Ok(event) if !filter.matters(&event) => {}
            Ok(_) => raise(),
            Err(error) => {
                tracing::warn!(%error, "watching files has failed; reading them again");
                raise();
            }
        };
        let mut watcher = notify::recommended_watcher(handler).map_err(OpenError::Watcher)?;
        // Editors replace files by renaming them, and that event belongs to the directory, not to the file.
        let parents: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
        for path in parents {
            let result = watcher.watch(path, RecursiveMode::NonRecursive);
            result.map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
        }
        let mut watch = Self { watcher, paths };
        watch.renew();
        Ok(watch)
    }

    /// Watches those paths that are directories now. A directory that cannot be watched cannot be
    /// read either, and the reader reports that.
    pub(super) fn renew(&mut self) {
        for path in self.paths.iter().filter(|path| path.is_dir()) {
            if let Err(error) = self.watcher.watch(path, RecursiveMode::NonRecursive) {
                tracing::warn!(%error, path = %path.display(), "cannot be watched");
            }
        }
    }
}

/// The paths as given, and the targets of those that are symbolic links.
fn resolve(given: &[PathBuf]) -> Result<BTreeSet<PathBuf>, OpenError> {
    let mut paths = BTreeSet::new();
    for path in given {
        if path == Path::new(STDIN) {
            return Err(OpenError::Stdin);
        }
        let relative = |source| OpenError::Relative { path: path.clone(), source };
        paths.insert(std::path::absolute(path).map_err(relative)?);
        paths.extend(path.canonicalize());
    }
    Ok(paths)
}

impl Filter {
    fn matters(&self, event: &Event) -> bool {
        // Reading the files also causes events, so only those events count after which a file may have been
        // written.
        let written = AccessKind::Close(AccessMode::Write);
        match event.kind {
            EventKind::Access(kind) if kind != written => false,
            _ => event.need_rescan() || event.paths.iter().any(|path| self.concerns(path)),
        }
    }

    fn concerns(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else {
            return true;
        };
        is_document(path)
            || self.names.contains(name)
            // Kubernetes mounts a ConfigMap as links through `..data`, and replaces that link at an update.
            || name.to_string_lossy().starts_with("..")
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, Flag};

    use super::*;

    #[test]
    fn reading_is_no_change() {
        let filter = Filter { names: BTreeSet::from(["mesh".into()]) };
        let event = |kind, path: &str| Event::new(kind).add_path(path.into());
        let create = EventKind::Create(CreateKind::File);
        for path in ["/d/mesh", "/e/mesh", "/d/a.yaml", "/d/a.yml", "/d/a.json", "/d/..data", "/"] {
            assert!(filter.matters(&event(create, path)), "{path}");
        }
        assert!(!filter.matters(&event(create, "/d/access.log")));
        let open = EventKind::Access(AccessKind::Open(AccessMode::Any));
        assert!(!filter.matters(&event(open, "/d/a.yaml")));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        assert!(filter.matters(&event(closed, "/d/a.yaml")));
        assert!(filter.matters(&Event::new(EventKind::Other).set_flag(Flag::Rescan)));
    }
}
