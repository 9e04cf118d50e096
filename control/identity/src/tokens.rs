//! Tokens with which workload instances prove their identity.
//!
//! A directory has one file per instance, `<namespace>.<name>`, which contains the digest of the token but not the
//! token itself. Several processes use the directory: `leno up` grants and revokes tokens, and the control plane
//! checks them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leno_types::{Identity, InstanceName};

mod listing;
mod record;
#[cfg(test)]
mod tests;

use crate::files::{self, Durability, FileError};
use listing::TokenListing;
use record::TokenRecord;

pub use listing::BadToken;

/// Most tokens in a store, which is more than one machine has instances. This bounds the memory (1 MiB) and the
/// time of an authentication, which searches all tokens (about 100 microseconds).
pub(crate) const MAX_TOKENS: usize = 4096;

/// How many random bytes a token has. It is as hard to guess as an AES-256 key.
const TOKEN_BYTES: usize = 32;

/// The tokens of a mesh's workload instances, in a directory.
#[derive(Debug)]
pub struct TokenStore {
    directory: PathBuf,
    listing: Mutex<TokenListing>,
}

/// Why a token was not granted, revoked or accepted.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The text does not have the form of a token.
    #[error("this is not a token: 64 hexadecimal digits were expected")]
    Malformed,
    /// The token has the right form, but it was never granted, or was revoked.
    #[error("this token was not granted or has been revoked")]
    Unknown,
    /// The store already has the largest number of tokens.
    #[error("{} already has {MAX_TOKENS} tokens, which is the limit: revoke some", .0.display())]
    Full(PathBuf),
    /// A file or the directory cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl TokenStore {
    /// Opens a directory of tokens; creates it, with mode 0700, if it does not exist.
    ///
    /// # Errors
    /// [`TokenError::File`] if it cannot be created or read, or other users may write into it.
    pub fn open(directory: &Path) -> Result<Self, TokenError> {
        files::private_directory(directory)?;
        let listing = TokenListing::read(directory)?;
        listing.bad.iter().for_each(BadToken::warn);
        Ok(Self { directory: directory.to_owned(), listing: Mutex::new(listing) })
    }

    /// Creates a token by which `instance` proves its `identity`. An earlier token of the instance becomes
    /// invalid.
    ///
    /// The token is 64 hexadecimal digits. It is not stored, so only the result of this call contains it.
    ///
    /// # Errors
    /// [`TokenError::Full`] for a new instance in a full store, [`TokenError::File`] if the token's
    /// file cannot be written.
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
        let record = TokenRecord::new(&token, instance.clone(), identity.clone());
        files::write_private(&path, &record.to_json(), Durability::Volatile)?;
        Ok(token)
    }

    /// Revokes the token of an instance. Returns whether the instance had one.
    ///
    /// # Errors
    /// [`TokenError::File`] if its file cannot be removed.
    pub fn revoke(&self, instance: &InstanceName) -> Result<bool, TokenError> {
        let path = self.path(instance);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(files::failed("remove", &path)(error).into()),
        }
    }

    /// The instance and identity of a token, according to the directory's present content.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] and [`TokenError::Unknown`] if the token is not valid; [`TokenError::File`] if
    /// the directory has become unreadable, so that no token is accepted.
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

    /// The identity of an instance, according to the token that it was granted; `None` if it has
    /// none.
    ///
    /// After a restart, the control plane learns the identities of its proxies from here, before any of them has
    /// requested a certificate again.
    ///
    /// # Errors
    /// [`TokenError::File`] if the directory has become unreadable.
    pub fn identity_of(&self, instance: &InstanceName) -> Result<Option<Identity>, TokenError> {
        Ok(self.current()?.of(instance).map(|record| record.identity.clone()))
    }

    /// The files in the directory that contain no valid token. Each was logged once.
    ///
    /// # Errors
    /// [`TokenError::File`] if the directory has become unreadable.
    pub fn bad_tokens(&self) -> Result<Vec<BadToken>, TokenError> {
        Ok(self.current()?.bad.clone())
    }

    /// The present content of the directory, which is read again if it has changed.
    fn current(&self) -> Result<MutexGuard<'_, TokenListing>, FileError> {
        // Poisoning is ignored, because a listing is only replaced as a whole.
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if !listing.is_current(&self.directory)? {
            let next = TokenListing::read(&self.directory)?;
            next.warn_of_new(&listing);
            *listing = next;
        }
        Ok(listing)
    }

    /// The path of an instance's file. Names and namespaces contain no dot, so no two instances have the same
    /// file.
    fn path(&self, instance: &InstanceName) -> PathBuf {
        self.directory.join(record::file_name(instance))
    }
}
