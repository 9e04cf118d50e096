//! Learns from the kernel which files were moved into place. Such a file is complete at once, so its change can be
//! applied sooner than that of a file that a program may still be writing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use inotify::{EventMask, Inotify, WatchMask};

/// The size of the buffer for one read of events, in bytes.
const EVENTS: usize = 16 * 1024;
/// Most names that are kept. If there are more, all are dropped, and the longer wait applies to their files.
const MAX_MOVED: usize = 10_000;

/// The documents that were moved into place (rename) and not written since. Moves are missing if the file system
/// does not report them, or if the kernel has no watch left.
#[derive(Debug)]
pub(super) struct Moves {
    kernel: Inotify,
    /// For each watched directory, the paths by which its files were named.
    directories: BTreeMap<i32, BTreeSet<PathBuf>>,
    moved: BTreeSet<PathBuf>,
}

impl Moves {
    /// Watches these files and directories.
    pub(super) fn new(paths: &[PathBuf]) -> io::Result<Self> {
        let kernel = Inotify::init()?;
        let mut directories: BTreeMap<i32, BTreeSet<PathBuf>> = BTreeMap::new();
        for path in paths {
            let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
            let reached = if directory == Path::new("") { Path::new(".") } else { directory };
            let mask = WatchMask::MOVED_TO | WatchMask::MODIFY | WatchMask::CREATE;
            let watch = kernel.watches().add(reached, mask)?;
            let names = directories.entry(watch.get_watch_descriptor_id()).or_default();
            names.insert(directory.to_owned());
        }
        Ok(Self { kernel, directories, moved: BTreeSet::new() })
    }

    /// Whether all of these files were moved into place and not written since; each may be given by several paths.
    /// Forgets those moves, so that a later edit that the kernel does not report is not mistaken for one of them.
    pub(super) fn take_all<'a>(&mut self, paths: impl Iterator<Item = &'a PathBuf>) -> bool {
        self.read();
        let paths: BTreeSet<&PathBuf> = paths.collect();
        let moved = paths.iter().filter(|path| self.moved.remove(**path)).count();
        moved == paths.len()
    }

    fn read(&mut self) {
        let mut room = [0; EVENTS];
        loop {
            // The end of the events is an error as well (`WouldBlock`). After any other error the longer wait
            // applies.
            let Ok(events) = self.kernel.read_events(&mut room) else { return };
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) || self.moved.len() >= MAX_MOVED {
                    self.moved.clear();
                }
                let directory = event.wd.get_watch_descriptor_id();
                let names = self.directories.get(&directory).into_iter().flatten();
                for path in names.filter_map(|directory| Some(directory.join(event.name?))) {
                    if event.mask.contains(EventMask::MOVED_TO) {
                        self.moved.insert(path);
                    } else {
                        self.moved.remove(&path);
                    }
                }
            }
        }
    }
}
