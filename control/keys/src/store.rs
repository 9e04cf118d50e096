//! What was fetched last, kept so that a restart of the control plane while the other side is down forgets nothing.
//!
//! ```text
//!  one machine   Store ──► a directory
//!  a cluster     Store ──► KeptDocuments ──► a ConfigMap, written by the replica that leads, read by each that starts
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Documents by name, kept for the next start.
#[derive(Clone, Debug)]
pub struct Store(Medium);

#[derive(Clone, Debug)]
enum Medium {
    /// A file for each.
    Directory(PathBuf),
    /// What all replicas share.
    Shared(KeptDocuments),
}

impl Store {
    /// The documents in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(directory: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self(Medium::Directory(directory.to_owned()))),
        }
    }

    /// The documents that the replicas of a control plane share.
    #[must_use]
    pub fn shared(documents: KeptDocuments) -> Self {
        Self(Medium::Shared(documents))
    }

    /// The document that was stored last, if it can be read. It stays until it is replaced or forgotten.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<String> {
        let directory = match &self.0 {
            Medium::Directory(directory) => directory,
            Medium::Shared(documents) => return documents.read(name),
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
            Medium::Directory(directory) => directory,
            Medium::Shared(documents) => return documents.write(name, text),
        };
        let file = directory.join(name);
        let draft = file.with_extension("new");
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &file));
        if let Err(error) = written {
            tracing::warn!(name, %error, "what was fetched cannot be stored for the next start");
        }
    }

    /// Removes a document: tenants can have others fetched without end.
    pub fn forget(&self, name: &str) {
        let directory = match &self.0 {
            Medium::Directory(directory) => directory,
            Medium::Shared(documents) => return documents.forget(name),
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
            Medium::Directory(directory) => names(directory),
            Medium::Shared(documents) => documents.names(),
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
pub struct KeptDocuments {
    /// Without those that this one has replaced or forgotten.
    stored: Arc<Mutex<BTreeMap<String, String>>>,
    wanted: Arc<watch::Sender<WantedDocuments>>,
}

/// The documents that should be stored, by name. `None`: as it is stored, if it is, since this replica has not fetched
/// another one.
pub type WantedDocuments = BTreeMap<String, Option<String>>;

impl KeptDocuments {
    /// With what is stored.
    #[must_use]
    pub fn new(stored: BTreeMap<String, String>) -> Self {
        let wanted = stored.keys().map(|name| (name.clone(), None)).collect();
        Self { stored: Arc::new(Mutex::new(stored)), wanted: Arc::new(watch::Sender::new(wanted)) }
    }

    /// What should be stored, and its changes.
    #[must_use]
    pub fn wanted(&self) -> watch::Receiver<WantedDocuments> {
        self.wanted.subscribe()
    }

    fn names(&self) -> Vec<String> {
        self.wanted.borrow().keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Option<String> {
        let fetched = self.wanted.borrow().get(name).cloned().flatten();
        // Another replica may store one before this one does.
        let claim = |wanted: &mut WantedDocuments| match wanted.contains_key(name) {
            true => false,
            false => wanted.insert(name.to_owned(), None).is_none(),
        };
        self.wanted.send_if_modified(claim);
        fetched.or_else(|| self.stored().get(name).cloned())
    }

    fn stored(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // No panic can leave it half changed.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, name: &str, text: &str) {
        self.stored().remove(name);
        let next = Some(text.to_owned());
        self.wanted.send_if_modified(|wanted| {
            wanted.insert(name.to_owned(), next.clone()).is_none_or(|before| before != next)
        });
    }

    fn forget(&self, name: &str) {
        self.stored().remove(name);
        self.wanted.send_if_modified(|wanted| wanted.remove(name).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(store: &Store) {
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
        let open = || Store::open(&directory.path().join("kept")).unwrap();
        open().write("a", "1");
        open().write("b", "2");
        check(&open());
        assert_eq!(names(&directory.path().join("kept")), ["c"]);
        assert_eq!(open().read("c").as_deref(), Some("3"));
    }

    #[test]
    fn replicas_want_to_be_stored_what_they_have_fetched_and_leave_the_rest() {
        let pairs = [("a", "1"), ("b", "2")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let documents = KeptDocuments::new(pairs.into());
        let mut wanted = documents.wanted();
        let store = Store::shared(documents);
        let left = |names: &[&str]| -> WantedDocuments {
            names.iter().map(|name| ((*name).to_owned(), None)).collect()
        };
        assert_eq!(*wanted.borrow_and_update(), left(&["a", "b"]));
        check(&store);
        let only = [("c".to_owned(), Some("3".to_owned()))].into();
        assert_eq!(*wanted.borrow_and_update(), only);
        store.write("c", "3");
        assert!(!wanted.has_changed().unwrap(), "the same");
        assert_eq!(store.read("d"), None);
        assert_eq!(wanted.borrow().get("d"), Some(&None), "another replica may have it");
        assert_eq!(store.read("b"), None, "it was forgotten");
    }
}
