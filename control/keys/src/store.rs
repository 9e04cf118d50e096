//! What was fetched last, kept so that a restart of the control plane while the other side is down forgets nothing.
//!
//! ```text
//!  one machine   Store ──► a directory
//!  a cluster     Store ──► KeptDocuments ──► a Secret, written by the replica that leads, read by each that starts
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long replicas keep a document that nothing wants. A cluster may be read in part, for example while an API server that
/// starts does not have a kind yet: nothing is lost when the policies that name it come back.
const UNWANTED: Duration = Duration::from_mins(10);
/// Most documents that are kept though nothing wants them: tenants can have others fetched without end.
const MAX_UNWANTED: usize = 512;

/// Documents by name, kept for the next start.
#[derive(Clone, Debug)]
pub struct DocumentStore(StoreMedium);

#[derive(Clone, Debug)]
enum StoreMedium {
    /// A file for each. What is not named as this says is not of the store.
    Directory(PathBuf, fn(&str) -> bool),
    /// What all replicas share.
    Shared(SharedDocuments),
}

impl DocumentStore {
    /// The documents in a directory, which is made if it is missing. Files of other names than documents have are left alone.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(directory: &Path, is_document: fn(&str) -> bool) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self(StoreMedium::Directory(directory.to_owned(), is_document))),
        }
    }

    /// The documents that the replicas of a control plane share.
    #[must_use]
    pub fn shared(documents: SharedDocuments) -> Self {
        Self(StoreMedium::Shared(documents))
    }

    /// The document that was stored last, if it can be read. It stays until it is replaced or forgotten.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<String> {
        let directory = match &self.0 {
            StoreMedium::Directory(directory, _) => directory,
            StoreMedium::Shared(documents) => return documents.read(name),
        };
        match fs::read_to_string(directory.join(name)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(name, %error, "what was fetched last cannot be read");
                None
            }
        }
    }

    /// Stores a document in place of the last one.
    pub fn write(&self, name: &str, text: &str) {
        let directory = match &self.0 {
            StoreMedium::Directory(directory, _) => directory,
            StoreMedium::Shared(documents) => return documents.write(name, text),
        };
        let file = directory.join(name);
        let draft = file.with_extension("new");
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &file));
        if let Err(error) = written {
            tracing::warn!(name, %error, "what was fetched cannot be stored for the next start");
        }
    }

    /// Says that a document may be older than what others have fetched since. It can still be read, but replicas leave what is
    /// stored as it is until it is written again.
    pub fn doubt(&self, name: &str) {
        match &self.0 {
            StoreMedium::Directory(..) => {}
            StoreMedium::Shared(documents) => documents.doubt(name),
        }
    }

    /// Removes a document: tenants can have others fetched without end. What replicas share stays for ten minutes, and is
    /// kept on if it is read or written meanwhile.
    pub fn forget(&self, name: &str) {
        let directory = match &self.0 {
            StoreMedium::Directory(directory, _) => directory,
            StoreMedium::Shared(documents) => return documents.forget(name),
        };
        if let Err(error) = fs::remove_file(directory.join(name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "what is not fetched any more cannot be removed");
        }
    }

    /// Removes all documents but these: what was fetched before the last start may not be fetched any more.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let names = match &self.0 {
            StoreMedium::Directory(directory, is_document) => {
                names(directory).into_iter().filter(|name| is_document(name)).collect()
            }
            StoreMedium::Shared(documents) => documents.names(),
        };
        names.iter().filter(|name| !is_kept(name)).for_each(|name| self.forget(name));
    }
}

fn names(directory: &Path) -> Vec<String> {
    match fs::read_dir(directory) {
        Ok(entries) => {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.collect()
        }
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "what was fetched cannot be listed");
            Vec::new()
        }
    }
}

/// Documents that the replicas of a control plane share: what was stored when this one started, and what this one wants to
/// be stored.
#[derive(Clone, Debug)]
pub struct SharedDocuments {
    memory: Arc<Mutex<StoreMemory>>,
    wanted: Arc<watch::Sender<DesiredDocuments>>,
}

#[derive(Debug)]
struct StoreMemory {
    /// Those that this replica does not assert, as it has read or fetched them last.
    stored: BTreeMap<String, String>,
    /// Those that nothing wants, and since when.
    unwanted: BTreeMap<String, Instant>,
}

/// The documents that should be stored, by name. `None`: as it is stored, if it is, since the last fetch of this replica has
/// not found it.
pub type DesiredDocuments = BTreeMap<String, Option<String>>;

impl SharedDocuments {
    /// With what is stored.
    #[must_use]
    pub fn new(stored: BTreeMap<String, String>) -> Self {
        let wanted = stored.keys().map(|name| (name.clone(), None)).collect();
        let memory = StoreMemory { stored, unwanted: BTreeMap::new() };
        Self { memory: Arc::new(Mutex::new(memory)), wanted: Arc::new(watch::Sender::new(wanted)) }
    }

    /// What should be stored, and its changes.
    #[must_use]
    pub fn wanted(&self) -> watch::Receiver<DesiredDocuments> {
        self.wanted.subscribe()
    }

    /// The names of documents that are kept though nothing wants them now.
    #[must_use]
    pub fn unwanted(&self) -> BTreeSet<String> {
        self.memory().unwanted.keys().cloned().collect()
    }

    /// Takes the names of what is stored: what this replica does not know another one has stored, and it stays as long as
    /// what this one has forgotten.
    pub fn found<'n>(&self, names: impl Iterator<Item = &'n String>) {
        let mut memory = self.memory();
        for name in names {
            if self.claim(name) {
                self.leave(&mut memory, name);
            }
        }
    }

    /// Removes what nothing has wanted for ten minutes.
    pub fn sweep(&self) {
        let mut memory = self.memory();
        let ended = memory.unwanted.extract_if(.., |_, since| since.elapsed() >= UNWANTED);
        let ended: Vec<String> = ended.map(|(name, _)| name).collect();
        self.remove(&mut memory, &ended);
    }

    fn names(&self) -> Vec<String> {
        self.wanted.borrow().keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Option<String> {
        let mut memory = self.memory();
        memory.unwanted.remove(name);
        let fetched = self.wanted.borrow().get(name).cloned().flatten();
        // Another replica may store one before this one does.
        self.claim(name);
        fetched.or_else(|| memory.stored.get(name).cloned())
    }

    fn memory(&self) -> MutexGuard<'_, StoreMemory> {
        // No panic can leave it half changed.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, name: &str, text: &str) {
        let mut memory = self.memory();
        memory.unwanted.remove(name);
        memory.stored.remove(name);
        let next = Some(text.to_owned());
        self.wanted.send_if_modified(|wanted| {
            wanted.insert(name.to_owned(), next.clone()).is_none_or(|before| before != next)
        });
    }

    fn doubt(&self, name: &str) {
        self.leave_as_stored(&mut self.memory(), name);
    }

    fn leave_as_stored(&self, memory: &mut StoreMemory, name: &str) {
        let mut fetched = None;
        self.wanted.send_if_modified(|wanted| {
            fetched = wanted.get_mut(name).and_then(Option::take);
            fetched.is_some()
        });
        memory.stored.extend(fetched.map(|text| (name.to_owned(), text)));
    }

    fn forget(&self, name: &str) {
        let mut memory = self.memory();
        if self.wanted.borrow().contains_key(name) {
            self.leave_as_stored(&mut memory, name);
            self.leave(&mut memory, name);
        }
        drop(memory);
        self.sweep();
    }

    /// Wants a document as it is stored, if this replica does not want it yet. Returns whether it did not.
    fn claim(&self, name: &str) -> bool {
        self.wanted.send_if_modified(|wanted| match wanted.contains_key(name) {
            true => false,
            false => wanted.insert(name.to_owned(), None).is_none(),
        })
    }

    /// Lets a wanted document stay for a while.
    fn leave(&self, memory: &mut StoreMemory, name: &str) {
        memory.unwanted.entry(name.to_owned()).or_insert_with(Instant::now);
        if memory.unwanted.len() > MAX_UNWANTED
            && let Some((oldest, _)) = memory.unwanted.iter().min_by_key(|(_, since)| **since)
        {
            let oldest = oldest.clone();
            memory.unwanted.remove(&oldest);
            self.remove(memory, &[oldest]);
        }
    }

    fn remove(&self, memory: &mut StoreMemory, names: &[String]) {
        for name in names {
            memory.stored.remove(name);
            self.wanted.send_if_modified(|wanted| wanted.remove(name).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(store: &DocumentStore) {
        assert_eq!(store.read("b").as_deref(), Some("2"));
        assert_eq!(store.read("c"), None);
        store.write("c", "3");
        store.write("a", "0");
        assert_eq!((store.read("a"), store.read("c")), (Some("0".into()), Some("3".into())));
        store.forget("a");
        store.retain(|name| name == "c");
        assert_eq!(store.read("c").as_deref(), Some("3"));
    }

    #[test]
    fn documents_are_kept_in_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let open =
            || DocumentStore::open(&directory.path().join("kept"), |name| name.len() == 1).unwrap();
        open().write("a", "1");
        open().write("b", "2");
        let of_operator = directory.path().join("kept/notes");
        fs::write(&of_operator, "mine").unwrap();
        check(&open());
        assert_eq!(fs::read_to_string(&of_operator).unwrap(), "mine");
        fs::remove_file(&of_operator).unwrap();
        assert_eq!(names(&directory.path().join("kept")), ["c"]);
        assert_eq!(open().read("c").as_deref(), Some("3"));
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_want_to_be_stored_what_they_have_fetched_and_leave_the_rest() {
        let pairs = [("a", "1"), ("b", "2")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let documents = SharedDocuments::new(pairs.into());
        let mut wanted = documents.wanted();
        let store = DocumentStore::shared(documents.clone());
        let left = |names: &[&str]| -> DesiredDocuments {
            names.iter().map(|name| ((*name).to_owned(), None)).collect()
        };
        assert_eq!(*wanted.borrow_and_update(), left(&["a", "b"]));
        check(&store);
        let mut all = left(&["a", "b"]);
        all.insert("c".to_owned(), Some("3".to_owned()));
        assert_eq!(*wanted.borrow_and_update(), all, "what was forgotten is not removed yet");
        store.write("c", "3");
        assert!(!wanted.has_changed().unwrap(), "the same");
        store.doubt("c");
        assert_eq!(*wanted.borrow_and_update(), left(&["a", "b", "c"]));
        assert_eq!(store.read("c").as_deref(), Some("3"), "it counts, but is not asserted");
        assert_eq!(store.read("d"), None);
        assert_eq!(wanted.borrow().get("d"), Some(&None), "another replica may have it");

        tokio::time::advance(UNWANTED - Duration::from_secs(1)).await;
        assert_eq!(store.read("b").as_deref(), Some("2"), "it is wanted again");
        let found = ["d".to_owned(), "of-another-replica".to_owned()];
        documents.found(found.iter());
        tokio::time::advance(Duration::from_secs(1)).await;
        documents.sweep();
        assert_eq!(*wanted.borrow(), left(&["b", "c", "d", "of-another-replica"]));
        assert_eq!(store.read("a"), None, "it was forgotten");
        tokio::time::advance(UNWANTED).await;
        documents.sweep();
        assert_eq!(*wanted.borrow(), left(&["a", "b", "c", "d"]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nothing_wants_has_a_bound() {
        let documents = SharedDocuments::new(BTreeMap::new());
        let store = DocumentStore::shared(documents.clone());
        for nth in 0..=MAX_UNWANTED {
            store.write(&nth.to_string(), "1");
            store.forget(&nth.to_string());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(documents.names().len(), MAX_UNWANTED);
        assert_eq!((store.read("0"), store.read("1")), (None, Some("1".to_owned())));
    }
}
