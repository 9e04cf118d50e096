//! Reads objects from YAML files and directories, and follows edits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_resources::{Documents, IgnoredDocument, Located, Object, Problem, load};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

mod accepted;
mod watch;

pub use watch::OpenError;

use crate::SourceUpdate;
use accepted::AcceptedState;
use watch::Watch;

/// How long files must be unchanged before they are read. An editor writes, renames and sets times
/// within a few milliseconds, and users do not notice a delay of this length.
pub const DEBOUNCE: Duration = Duration::from_millis(50);
/// The longest wait for files to settle: files that change all the time are still read this often.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// A good bound for the channel of updates. While the channel is full, further edits are merged into one later
/// update.
pub const UPDATES: usize = 4;

/// Watches files and directories. Every edit becomes one [`SourceUpdate`].
///
/// To prevent a half-written file from being read, write it under another name and rename it into
/// place. A file that stays half-written for longer than [`DEBOUNCE`] is read in that state.
#[derive(Debug)]
pub struct FilesSource {
    paths: Vec<PathBuf>,
    watch: Watch,
    /// Notified by the watch; holds at most one notification.
    changed: Arc<Notify>,
    accepted: AcceptedState,
    ignored: Vec<Located<IgnoredDocument>>,
}

/// Reads the objects of files and directories, and of standard input (`-`), once.
///
/// # Errors
/// All problems of all files. No objects are returned then.
pub fn read_once<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Object>, Vec<Problem>> {
    let Documents { objects, ignored, .. } = load(paths)?;
    warn(&ignored);
    Ok(values(objects))
}

impl FilesSource {
    /// Starts to watch, but reads nothing yet. A path that does not exist may be created later, if
    /// its parent directory exists.
    ///
    /// # Errors
    /// If a directory cannot be watched, or the paths include standard input.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, OpenError> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        let changed = Arc::new(Notify::new());
        let raise = changed.clone();
        let watch = Watch::open(&paths, move || raise.notify_one())?;
        Ok(Self { paths, watch, changed, accepted: AcceptedState::default(), ignored: Vec::new() })
    }

    /// Reads all files, and reads them again after every edit. The first update is always sent. Ends when the
    /// receiver is dropped.
    pub async fn run(mut self, updates: mpsc::Sender<SourceUpdate>) {
        loop {
            let read = move || {
                // A directory that was replaced is a new inode. It must be watched before it is read, so that no
                // change is missed.
                self.watch.renew();
                let update = self.read();
                (self, update)
            };
            let Ok((source, update)) = tokio::task::spawn_blocking(read).await else {
                tracing::error!("reading documents has failed; edits are no longer watched");
                return;
            };
            self = source;
            if let Some(update) = update
                && updates.send(update).await.is_err()
            {
                return;
            }
            tokio::select! {
                () = settled(&self.changed) => {}
                () = updates.closed() => return,
            }
        }
    }

    fn read(&mut self) -> Option<SourceUpdate> {
        let loaded = load(&self.paths).map(|Documents { objects, ignored, .. }| {
            if self.ignored != ignored {
                warn(&ignored);
                self.ignored = ignored;
            }
            values(objects)
        });
        self.accepted.take(loaded)
    }
}

/// Waits for a change, and then until the files have not changed for a while.
async fn settled(changed: &Notify) {
    changed.notified().await;
    let latest = Instant::now() + MAX_DEBOUNCE;
    loop {
        let quiet = Instant::now() + DEBOUNCE;
        if timeout_at(quiet.min(latest), changed.notified()).await.is_err() {
            return;
        }
    }
}

fn warn(ignored: &[Located<IgnoredDocument>]) {
    for Located { value: IgnoredDocument { api_version, kind }, file, place } in ignored {
        tracing::warn!("{file}:{place}: ignored {api_version} {kind}, which is not a kind of Leno");
    }
}

fn values(objects: Vec<Located<Object>>) -> Vec<Object> {
    objects.into_iter().map(|located| located.value).collect()
}

#[cfg(test)]
mod tests;
