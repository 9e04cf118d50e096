//! Tokens: what a workload instance shows to be told who it is.
//!
//! A directory holds one file per instance, `<namespace>.<name>`, with the token's digest but not
//! the token. Several processes share it: `leno up` grants and revokes, the control plane reads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leno_types::{Identity, InstanceName};

mod listing;
mod record;
#[cfg(test)]
mod tests;

use crate::files::{self, FileError, Keep};
use listing::Listing;
use record::Record;

pub use listing::BadToken;

/// Most tokens in a store: one machine's instances, with room. It bounds memory (1 MiB) and the
/// scan that an authentication is (some 100 microseconds).
pub(crate) const MAX_TOKENS: usize = 4096;

/// Random bytes of a token: guessing one is as hard as guessing an AES-256 key.
const TOKEN_BYTES: usize = 32;

/// The tokens of a mesh's workload instances, in a directory.
#[derive(Debug)]
pub struct TokenStore {
    directory: PathBuf,
    listing: Mutex<Listing>,
}

/// Why a token was not granted, revoked or accepted.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Not the text of any token.
    #[error("this is not a token: 64 hexadecimal digits were expected")]
    Malformed,
    /// Well formed, but granted to nobody, or revoked.
    #[error("this token was not granted or has been revoked")]
    Unknown,
    /// The store has as many tokens as it may.
    #[error("{} already holds {MAX_TOKENS} tokens; revoke some", .0.display())]
    Full(PathBuf),
    /// A file or the directory cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl TokenStore {
    /// Opens a directory of tokens; makes it, with mode 0700, where there is none.
    ///
    /// # Errors
    /// [`TokenError::File`] where it cannot be made or read, or others may write into it.
    pub fn open(directory: &Path) -> Result<Self, TokenError> {
        files::private_directory(directory)?;
        let listing = Listing::read(directory)?;
        listing.bad.iter().for_each(BadToken::warn);
        Ok(Self { directory: directory.to_owned(), listing: Mutex::new(listing) })
    }

    /// Makes a token with which `instance` proves to be `identity`; one it had before is void.
    ///
    /// The token is 64 hexadecimal digits. It is not kept, so this is the only time to see it.
    ///
    /// # Errors
    /// [`TokenError::Full`] for a new instance in a full store, [`TokenError::File`] where the
    /// token's file cannot be written.
    pub fn grant(
        &self,
        instance: &InstanceName,
        identity: &Identity,
    ) -> Result<String, TokenError> {
        let path = self.path(instance);
        if !path.exists() && listing::count(&self.directory)? >= MAX_TOKENS {
            return Err(TokenError::Full(self.directory.clone()));
        }
        let mut secret = [0; TOKEN_BYTES];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| files::no_randomness(&path))?;
        let token = files::hex(&secret);
        let record = Record::new(&token, instance.clone(), identity.clone());
        files::write_private(&path, &record.to_json(), Keep::Volatile)?;
        Ok(token)
    }

    /// Voids the token of an instance; whether it had one.
    ///
    /// # Errors
    /// [`TokenError::File`] where its file cannot be removed.
    pub fn revoke(&self, instance: &InstanceName) -> Result<bool, TokenError> {
        let path = self.path(instance);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(files::failed("remove", &path)(error).into()),
        }
    }

    /// Whose token this is, by what the directory holds now.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] and [`TokenError::Unknown`] where the token proves nothing,
    /// [`TokenError::File`] where the directory has become unreadable: then nobody gets in.
    pub fn authenticate(&self, token: &str) -> Result<(InstanceName, Identity), TokenError> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if token.len() != TOKEN_BYTES * 2 || !token.bytes().all(digit) {
            return Err(TokenError::Malformed);
        }
        let digest = record::digest(token);
        let listing = self.current()?;
        let record = listing.find(&digest).ok_or(TokenError::Unknown)?;
        Ok((record.instance.clone(), record.identity.clone()))
    }

    /// Who an instance is, by the token that it was granted; none where it has none now.
    ///
    /// This outlives every process: a control plane that was just started knows by it who its
    /// proxies are before any of them has asked again.
    ///
    /// # Errors
    /// [`TokenError::File`] where the directory has become unreadable.
    pub fn identity_of(&self, instance: &InstanceName) -> Result<Option<Identity>, TokenError> {
        Ok(self.current()?.of(instance).map(|record| record.identity.clone()))
    }

    /// The files that are in the directory now but hold no token. Each was also logged once.
    ///
    /// # Errors
    /// [`TokenError::File`] where the directory has become unreadable.
    pub fn bad_tokens(&self) -> Result<Vec<BadToken>, TokenError> {
        Ok(self.current()?.bad.clone())
    }

    /// The listing, read again if the directory changed since.
    fn current(&self) -> Result<MutexGuard<'_, Listing>, FileError> {
        // A listing is replaced as a whole, so one that a panic left behind is still sound.
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if !listing.is_current(&self.directory)? {
            let next = Listing::read(&self.directory)?;
            next.warn_of_new(&listing);
            *listing = next;
        }
        Ok(listing)
    }

    /// Labels have no dot, so no two instances share a file.
    fn path(&self, instance: &InstanceName) -> PathBuf {
        self.directory.join(record::file_name(instance))
    }
}
