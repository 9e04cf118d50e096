//! Stores fetched documents, so that they are still there after a restart of the control plane, even if their
//! source is unreachable then.
//!
//! ```text
//!  one machine   DocumentStore ──► a directory
//!  a cluster     DocumentStore ──► SharedDocuments ──► a Secret, written by the replica that leads, read by each that starts
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long replicas keep a document that no configuration wants. A replica may lack policies for a while, for
/// example while an API server that is starting does not serve a kind yet. With this delay, the documents still
/// exist when the policies appear again.
const UNWANTED: Duration = Duration::from_mins(10);
/// Most documents that are kept although no configuration wants them. Without the bound, tenants could make the
/// control plane fetch and keep new ones without end.
const MAX_UNWANTED: usize = 512;

/// Stores documents by name for the next start.
#[derive(Clone, Debug)]
pub struct DocumentStore(StoreMedium);

#[derive(Clone, Debug)]
enum StoreMedium {
    /// A directory with a file for each document. Files for whose name the function returns false are not part of
    /// the store.
    Directory(PathBuf, fn(&str) -> bool),
    /// Documents that all replicas share through the cluster.
    Shared(SharedDocuments),
}

impl DocumentStore {
    /// A store in a directory, which is created if needed. Files for whose name `is_document` returns false are
    /// not touched.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(directory: &Path, is_document: fn(&str) -> bool) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self(StoreMedium::Directory(directory.to_owned(), is_document))),
        }
    }

    /// A store that all replicas of a control plane share.
    #[must_use]
    pub fn shared(documents: SharedDocuments) -> Self {
        Self(StoreMedium::Shared(documents))
    }

    /// The stored document with this name, if it can be read. It stays stored until it is replaced or removed.
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
                tracing::warn!(name, %error, "cannot read what was fetched last");
                None
            }
        }
    }

    /// Stores a document, and replaces the one with the same name.
    pub fn write(&self, name: &str, text: &str) {
        let directory = match &self.0 {
            StoreMedium::Directory(directory, _) => directory,
            StoreMedium::Shared(documents) => return documents.write(name, text),
        };
        let file = directory.join(name);
        let draft = file.with_extension("new");
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &file));
        if let Err(error) = written {
            tracing::warn!(name, %error, "cannot store what was fetched for the next start");
        }
    }

    /// Marks a document as possibly older than what other replicas have fetched. It can still be read, but this
    /// replica does not change the stored document until it writes it again.
    pub fn doubt(&self, name: &str) {
        match &self.0 {
            StoreMedium::Directory(..) => {}
            StoreMedium::Shared(documents) => documents.doubt(name),
        }
    }

    /// Removes a document that is no longer needed. Documents that replicas share are kept for another ten
    /// minutes, or longer if they are read or written meanwhile.
    pub fn forget(&self, name: &str) {
        let directory = match &self.0 {
            StoreMedium::Directory(directory, _) => directory,
            StoreMedium::Shared(documents) => return documents.forget(name),
        };
        if let Err(error) = fs::remove_file(directory.join(name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "cannot remove what is no longer fetched");
        }
    }

    /// Removes all documents except those for which `is_kept` returns true. At a start, this removes documents of
    /// earlier configurations.
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
            tracing::warn!(directory = %directory.display(), %error, "cannot list what was fetched");
            Vec::new()
        }
    }
}

/// The documents that the replicas of a control plane share: those that were stored when this replica started, and
/// those that this replica wants to be stored.
#[derive(Clone, Debug)]
pub struct SharedDocuments {
    memory: Arc<Mutex<StoreMemory>>,
    wanted: Arc<watch::Sender<DesiredDocuments>>,
}

#[derive(Debug)]
struct StoreMemory {
    /// Documents as this replica has last read or fetched them.
    stored: BTreeMap<String, String>,
    /// Documents that no configuration wants, and since when.
    unwanted: BTreeMap<String, Instant>,
}

/// The documents that should be stored, by name. The value `None` means that a stored document should be kept as
/// it is, because this replica has not fetched it successfully.
pub type DesiredDocuments = BTreeMap<String, Option<String>>;

impl SharedDocuments {
    /// Starts with the stored documents.
    #[must_use]
    pub fn new(stored: BTreeMap<String, String>) -> Self {
        let wanted = stored.keys().map(|name| (name.clone(), None)).collect();
        let memory = StoreMemory { stored, unwanted: BTreeMap::new() };
        Self { memory: Arc::new(Mutex::new(memory)), wanted: Arc::new(watch::Sender::new(wanted)) }
    }

    /// The documents that should be stored. The receiver is notified of changes.
    #[must_use]
    pub fn wanted(&self) -> watch::Receiver<DesiredDocuments> {
        self.wanted.subscribe()
    }

    /// The names of documents that are kept although no configuration wants them.
    #[must_use]
    pub fn unwanted(&self) -> BTreeSet<String> {
        self.memory().unwanted.keys().cloned().collect()
    }

    /// Records the names of stored documents. A document that this replica does not have was stored by another
    /// replica. It is kept for as long as a document that this replica has forgotten.
    pub fn found<'n>(&self, names: impl Iterator<Item = &'n String>) {
        let mut memory = self.memory();
        for name in names {
            if self.claim(name) {
                self.leave(&mut memory, name);
            }
        }
    }

    /// Removes documents that no configuration has wanted for ten minutes.
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
        // The document counts as wanted even if it is not stored here: another replica may store it first, and then it
        // must be kept.
        self.claim(name);
        fetched.or_else(|| memory.stored.get(name).cloned())
    }

    fn memory(&self) -> MutexGuard<'_, StoreMemory> {
        // Poisoning is ignored, because no panic can interrupt a change.
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

    /// Marks a document as wanted in its stored form, unless it is already wanted. Returns whether this is new.
    fn claim(&self, name: &str) -> bool {
        self.wanted.send_if_modified(|wanted| match wanted.contains_key(name) {
            true => false,
            false => wanted.insert(name.to_owned(), None).is_none(),
        })
    }

    /// Marks a document as no longer wanted. It is kept for a while.
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
