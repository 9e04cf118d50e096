//! Notices edits of the files and directories that a mesh was started from.

mod moves;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_resources::is_document;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use self::moves::Moves;

/// How often the files are examined. Some editors replace a file, others write in place, and some file systems
/// report neither, so only polling always works. It costs one system call for each file.
const POLL: Duration = Duration::from_millis(100);

/// How long the files must stay unchanged after a change. An editor that writes in place finishes within a few
/// milliseconds, a program that generates a file within a few hundred. If a slower program has written only a
/// part, that part may be valid, and all workloads that it lacks would be ended.
const SETTLE: Duration = Duration::from_millis(300);

/// How long to wait at most for files that keep changing.
const MAX_SETTLE: Duration = Duration::from_secs(5);

/// [`SETTLE`] and [`MAX_SETTLE`] for files that were moved into place. Each is complete, but other files of the
/// same edit may follow.
const MOVED_SETTLE: Duration = Duration::from_millis(100);
const MAX_MOVED_SETTLE: Duration = Duration::from_millis(200);

/// Most documents of a directory that are examined. Changes of further ones are only read with the next edit.
const MAX_ENTRIES: usize = 10_000;

/// Files to watch, with their last state.
#[derive(Debug)]
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: BTreeMap<PathBuf, FileVersion>,
    /// `None` if the kernel does not report moves of files.
    moves: Option<Moves>,
    /// The edit in progress, which has not been reported.
    edit: Option<WatchedEdit>,
    looks: Interval,
}

/// When the first and the last change of an edit were seen, and whether every changed file was moved into place.
#[derive(Clone, Copy, Debug)]
struct WatchedEdit {
    first: Instant,
    last: Instant,
    moved: bool,
}

impl WatchedEdit {
    fn is_over(&self, now: Instant) -> bool {
        let (settle, longest) =
            if self.moved { (MOVED_SETTLE, MAX_MOVED_SETTLE) } else { (SETTLE, MAX_SETTLE) };
        now - self.last >= settle || now - self.first >= longest
    }
}

/// The version of a file, which changes with every edit: device, inode, size, and modification time in seconds and
/// nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl WatchedFiles {
    /// Watches these files and directories for changes from their present state. If standard input is among them,
    /// no edit is ever reported, because standard input can be read only once. Must be called inside a runtime.
    #[must_use]
    pub fn new(mut paths: Vec<PathBuf>) -> Self {
        if paths.iter().any(|path| path == Path::new(leno_resources::STDIN)) {
            paths.clear();
        }
        let seen = look(&paths);
        let mut looks = tokio::time::interval(POLL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let moves = Moves::new(&paths)
            .inspect_err(|error| tracing::debug!(%error, "moves of files are not reported"))
            .ok();
        Self { paths, seen, moves, edit: None, looks }
    }

    /// Returns when a file has changed and the files have then stayed unchanged, or have kept changing for too
    /// long. Cancel safe: no edit is lost if the future is dropped.
    pub async fn edited(&mut self) {
        loop {
            self.looks.tick().await;
            let now = Instant::now();
            if let Some(moved) = self.changed() {
                let (first, before) =
                    self.edit.map_or((now, true), |edit| (edit.first, edit.moved));
                self.edit = Some(WatchedEdit { first, last: now, moved: before && moved });
            }
            if self.edit.is_some_and(|edit| edit.is_over(now)) {
                self.edit = None;
                return;
            }
        }
    }

    /// Whether a file has changed since the last call. `None` if none has, else whether every changed file was
    /// moved into place.
    fn changed(&mut self) -> Option<bool> {
        let now = look(&self.paths);
        let before = std::mem::replace(&mut self.seen, now);
        let now = &self.seen;
        let mut changed = now
            .keys()
            .chain(before.keys())
            .filter(|path| now.get(*path) != before.get(*path))
            .peekable();
        changed.peek()?;
        Some(self.moves.as_mut().is_some_and(|moves| moves.take_all(changed)))
    }
}

fn look(paths: &[PathBuf]) -> BTreeMap<PathBuf, FileVersion> {
    let mut all = paths.to_vec();
    for directory in paths.iter().filter(|path| path.is_dir()) {
        // Other files, such as a database or a log beside the documents, may change all the time.
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let documents = entries.map(|entry| entry.path()).filter(|path| is_document(path));
        all.extend(documents.take(MAX_ENTRIES));
    }
    let one = |path: &Path| {
        let m = fs::metadata(path).ok()?;
        if m.is_dir() {
            // A directory's modification time is left out, because it changes with every file in it.
            return Some((m.dev(), m.ino(), 0, 0, 0));
        }
        Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
    };
    all.into_iter().filter_map(|path| Some((path.clone(), one(&path)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_edit_is_noticed_whether_in_place_or_by_replacement() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "a").unwrap();
        let mut files = WatchedFiles::new(vec![path.clone()]);
        fs::write(&path, "ab").unwrap();
        files.edited().await;
        let other = directory.path().join("other");
        fs::write(&other, "ab").unwrap();
        fs::rename(&other, &path).unwrap();
        files.edited().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_is_told_although_the_wait_was_given_up_in_the_middle() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "a").unwrap();
        let mut files = WatchedFiles::new(vec![path.clone()]);
        fs::write(&path, "ab").unwrap();
        // This is long enough to see the change, but too short for the files to count as unchanged again.
        for _ in 0..3 {
            let given_up = tokio::time::timeout(SETTLE / 4, files.edited()).await;
            assert!(given_up.is_err());
        }
        let rest = tokio::time::timeout(SETTLE / 2 + POLL, files.edited()).await;
        assert!(rest.is_ok(), "what was waited for already counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_written_in_pieces_is_one_edit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "abc").unwrap();
        let mut files = WatchedFiles::new(vec![path.clone()]);
        let pieces = async {
            for text in ["", "a", "ab", "abcd"] {
                fs::write(&path, text).unwrap();
                tokio::time::sleep(SETTLE / 3 * 2).await;
            }
        };
        let (edit, ()) = tokio::join!(
            async {
                files.edited().await;
                fs::read_to_string(&path).unwrap()
            },
            pieces
        );
        assert_eq!(edit, "abcd");
        assert!(tokio::time::timeout(POLL * 10, files.edited()).await.is_err(), "a second edit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_never_rests_is_taken_in_nonetheless() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "a").unwrap();
        let mut files = WatchedFiles::new(vec![path.clone()]);
        let restless = async {
            let mut text = String::new();
            loop {
                text.push('a');
                fs::write(&path, &text).unwrap();
                tokio::time::sleep(SETTLE / 4).await;
            }
        };
        tokio::select! {
            () = files.edited() => {}
            _ = tokio::time::timeout(POLL * 100, restless) => panic!("no edit was told"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_are_moved_into_place_are_taken_although_more_follow() {
        let directory = tempfile::tempdir().unwrap();
        for watched in [directory.path().to_owned(), directory.path().join("mesh.yaml")] {
            let (draft, path) =
                (directory.path().join("draft"), directory.path().join("mesh.yaml"));
            fs::write(&path, "a").unwrap();
            let mut files = WatchedFiles::new(vec![watched]);
            let restless = async {
                for round in 0_u32.. {
                    fs::write(&draft, round.to_string()).unwrap();
                    fs::rename(&draft, &path).unwrap();
                    tokio::time::sleep(POLL).await;
                }
            };
            let taken = async {
                for _ in 0..5 {
                    files.edited().await;
                }
            };
            tokio::select! {
                done = tokio::time::timeout(MAX_MOVED_SETTLE * 2 * 5, taken) => assert!(done.is_ok()),
                () = restless => {}
            }
            // If a file that was moved is then written in place, the longer wait applies.
            fs::write(&path, "in place").unwrap();
            assert!(tokio::time::timeout(SETTLE, files.edited()).await.is_err());
            files.edited().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_move_counts_for_one_edit_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (draft, path) = (directory.path().join("draft"), directory.path().join("mesh.yaml"));
        fs::write(&path, "a").unwrap();
        let mut files = WatchedFiles::new(vec![path.clone()]);
        fs::write(&draft, "ab").unwrap();
        fs::rename(&draft, &path).unwrap();
        files.edited().await;
        // A write through a memory mapping looks like this: the file has changed, but the kernel has reported no write.
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let early = tokio::time::timeout(SETTLE, files.edited()).await;
        assert!(early.is_err(), "the file may still be written");
        files.edited().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_inside_a_directory_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mesh.yaml");
        fs::write(&path, "a").unwrap();
        let mut files = WatchedFiles::new(vec![directory.path().to_owned()]);
        fs::write(&path, "ab").unwrap();
        files.edited().await;
        fs::write(directory.path().join("more.yaml"), "a").unwrap();
        files.edited().await;
        fs::remove_file(path).unwrap();
        files.edited().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_beside_the_documents_is_no_edit() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("mesh.yaml"), "a").unwrap();
        let mut files = WatchedFiles::new(vec![directory.path().to_owned()]);
        for name in ["access.log", ".mesh.yaml.swp"] {
            fs::write(directory.path().join(name), "line").unwrap();
        }
        assert!(tokio::time::timeout(POLL * 10, files.edited()).await.is_err());
    }
}
