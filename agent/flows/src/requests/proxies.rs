//! Finds the memory in which proxies count requests, among the open files of their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_requests::{FOUND_WITHIN, MEMORY_NAME, WorkerMemory};

/// How deep below the control group of a pod or an instance a proxy is searched for.
const MAX_DEPTH: usize = 4;
/// Most descriptors of a process that are examined, which takes about 2 us each. Workers create their memory
/// before they serve. But workers of a node proxy may start later, and then their descriptors have higher numbers
/// than the connections of other workers.
const MAX_DESCRIPTORS: usize = 16 * 1024;
/// How long a new process is examined in every round, and the interval after that. Workers start when the proxy
/// has an identity; those of a node proxy may start at any time.
const BEGINNING: Duration = Duration::from_secs(60);
const LATER: Duration = Duration::from_secs(60);
// Proxies keep the memory of workers that ended early for as long.
const _: () = assert!(LATER.as_secs() < FOUND_WITHIN.as_secs());

/// The control group and the user of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProxyCgroup {
    pub(crate) cgroup: PathBuf,
    pub(crate) uid: u32,
}

/// The memory of one worker that runs, or that has ended since the last round.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) memory: WorkerMemory,
    pub(crate) identity: u64,
    /// The path of its descriptor in `/proc`.
    path: PathBuf,
    file: FileId,
}

type FileId = (u64, u64);

/// The workers of all proxies.
#[derive(Debug, Default)]
pub(crate) struct ProxyWorkers {
    workers: Vec<Worker>,
    processes: BTreeMap<u32, Process>,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    seen_first: Instant,
    looked_through: Instant,
}

impl ProxyWorkers {
    /// Looks for new workers.
    pub(crate) fn look(&mut self, places: &BTreeSet<ProxyCgroup>) {
        let mut present = BTreeMap::new();
        for place in places {
            let mut all = Vec::new();
            processes_in(&place.cgroup, MAX_DEPTH, &mut all);
            for process in all {
                let folder = Path::new("/proc").join(process.to_string());
                // The folder in `/proc` belongs to the user of the process, even if the files in it do not.
                if fs::metadata(&folder).is_ok_and(|folder| folder.uid() == place.uid) {
                    present.insert(process, folder);
                }
            }
        }
        let (before, now) = (std::mem::take(&mut self.processes), Instant::now());
        for (process, folder) in present {
            let mut known = before.get(&process).copied();
            if known.is_none_or(|process| process.is_due(now)) {
                self.look_through(&folder.join("fd"));
                let seen_first = known.map_or(now, |process| process.seen_first);
                known = Some(Process { seen_first, looked_through: now });
            }
            self.processes.extend(known.map(|known| (process, known)));
        }
    }

    /// Calls `each` with every worker, and with whether the worker has ended. Drops those that have ended.
    pub(crate) fn for_each<E>(
        &mut self,
        mut each: impl FnMut(&Worker, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut failed = None;
        self.workers.retain(|worker| {
            let has_ended = file_id(&worker.path) != Some(worker.file);
            match each(worker, has_ended) {
                Ok(()) => !has_ended,
                // This worker is tried again in the next round.
                Err(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    fn look_through(&mut self, descriptors: &Path) {
        let known: BTreeSet<&Path> = self.workers.iter().map(|one| &*one.path).collect();
        let entries = fs::read_dir(descriptors).into_iter().flatten().flatten();
        let paths = entries.take(MAX_DESCRIPTORS).map(|entry| entry.path());
        let found: Vec<Worker> = paths
            .filter(|path| !known.contains(&**path) && is_memory(path))
            .filter_map(|path| Worker::open(path).ok().flatten())
            .collect();
        for worker in found {
            // A process and its successor may share a descriptor.
            if self.workers.iter().all(|other| other.identity != worker.identity) {
                self.workers.push(worker);
            }
        }
    }
}

impl Process {
    fn is_due(self, now: Instant) -> bool {
        now.duration_since(self.seen_first) < BEGINNING
            || now.duration_since(self.looked_through) >= LATER
    }
}

impl Worker {
    /// Opens a worker's memory; `None` if it has another version, or is not ready.
    fn open(path: PathBuf) -> io::Result<Option<Self>> {
        let opened = File::open(&path)?;
        let metadata = opened.metadata()?;
        let memory = WorkerMemory::open(&opened)?;
        let file = (metadata.dev(), metadata.ino());
        Ok(memory.identity().map(|identity| Self { memory, identity, path, file }))
    }
}

fn is_memory(descriptor: &Path) -> bool {
    let target = fs::read_link(descriptor).ok();
    let name = target.as_deref().and_then(Path::to_str).and_then(|one| one.strip_prefix("/memfd:"));
    name.and_then(|name| name.split(' ').next()) == Some(MEMORY_NAME)
}

fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn processes_in(cgroup: &Path, depth: usize, all: &mut Vec<u32>) {
    let list = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    all.extend(
        list.lines().filter_map(|process| process.parse::<u32>().ok()).filter(|pid| *pid > 0),
    );
    let Some(depth) = depth.checked_sub(1) else { return };
    for child in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            processes_in(&child.path(), depth, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_requests::{Labels, Rows};

    use super::*;

    #[test]
    fn memory_of_this_process_is_found_and_its_end_seen_once() {
        let mut proxies = ProxyWorkers::default();
        let memory = WorkerMemory::shared().unwrap();
        let rows = Rows::new(memory);
        let labels = Labels {
            direction: "inbound",
            client: "a",
            client_namespace: "",
            server: "b",
            server_namespace: "",
            service: "",
            mtls: "false",
        };
        let row = rows.claim(&labels).unwrap();
        row.request(200, std::time::Duration::ZERO);
        proxies.look_through(Path::new("/proc/self/fd"));
        proxies.look_through(Path::new("/proc/self/fd"));
        let mut seen = Vec::new();
        let mut look = |proxies: &mut ProxyWorkers| {
            let each = |worker: &Worker, has_ended| {
                let rows = worker.memory.read_rows().unwrap();
                seen.push((rows.iter().map(|row| row.classes[2]).sum::<u64>(), has_ended));
                Ok::<_, ()>(())
            };
            proxies.for_each(each).unwrap();
        };
        look(&mut proxies);
        row.request(204, std::time::Duration::ZERO);
        std::mem::forget(row);
        // The memory stays readable even after the process has closed its descriptor.
        proxies.workers[0].path = "/proc/self/fd/none".into();
        look(&mut proxies);
        look(&mut proxies);
        assert_eq!(seen, [(1, false), (2, true)]);
    }
}
