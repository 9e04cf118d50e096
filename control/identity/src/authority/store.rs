//! The directory on one machine in which an authority is stored, and in which an operator's requests are written.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leno_types::TrustDomain;
use serde::{Deserialize, Serialize};

use super::root::Root;
use super::signer::Signer;
use super::{AuthorityState, OpenError, read_issuer, unix_s};
use crate::files::{self, Durability, FileError};

/// The file with the whole state. Until the first rotation, `ca.pem` and `ca-key.pem` exist in its place.
const STATE: &str = "authority.json";
/// Longest state, in bytes. It has room for two chains of RSA certificates with their keys.
const MAX_STATE: u64 = 512 * 1024;
/// The file with an operator's request.
const REQUEST: &str = "rotate-root.json";
/// Longest request, in bytes.
const MAX_REQUEST: u64 = 1024;

/// The directory of an authority.
#[derive(Clone, Debug)]
pub struct AuthorityDirectory {
    directory: PathBuf,
}

/// An operator's request to the authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRequest {
    /// A text that distinguishes this request from others.
    pub id: String,
    /// The requested action.
    pub verb: OperatorVerb,
}

/// The actions that can be requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorVerb {
    /// Replace the root.
    Begin,
    /// Abort the rotation.
    Abort,
    /// Revoke all certificates of this identity that were issued so far.
    Revoke(String),
}

impl OperatorRequest {
    /// The name of the ConfigMap in which an operator's request is written in a cluster. It is in the control
    /// plane's namespace.
    pub const CONFIG_MAP: &str = "leno-identity";
    /// The field of that ConfigMap with the request.
    pub const KEY: &str = "request.json";

    /// A new request; `None` if the system provides no random bytes.
    #[must_use]
    pub fn new(verb: OperatorVerb) -> Option<Self> {
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        Some(Self { id: files::hex(&id), verb })
    }
}

impl AuthorityDirectory {
    /// The store in this directory.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The path of the state's file, for messages.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        self.directory.join(STATE)
    }

    /// Reads the state, or creates it. A lock ensures that only one process creates it.
    pub(super) fn open(
        &self,
        issuer: Option<&Path>,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<AuthorityState, OpenError> {
        let directory = &self.directory;
        files::private_directory(directory)?;
        let lock = File::open(directory).map_err(files::failed("open", directory))?;
        // The lock is held until `lock` is dropped, after files were read and written.
        lock.lock().map_err(files::failed("lock", directory))?;
        if let Some(json) = files::read_secret(&self.place(), MAX_STATE)? {
            return AuthorityState::from_json(&self.place(), &json);
        }
        if let Some(issuer) = issuer
            && !Root::is_in(directory)
        {
            let state = AuthorityState::stable(read_issuer(issuer)?, unix_s(now));
            // Checked before it is stored, because the next start must not read an issuer that cannot be used.
            Signer::load(issuer, &state.to, (trust_domain, now))?;
            self.save(&state)?;
            return Ok(state);
        }
        let root = Root::open(directory, trust_domain, now)?;
        Ok(AuthorityState::stable(root.signer(), unix_s(now)))
    }

    /// Stores the state, and removes the two files in which a new authority is stored.
    ///
    /// # Errors
    /// [`FileError`]. The earlier state may then still be stored.
    pub fn save(&self, state: &AuthorityState) -> Result<(), FileError> {
        files::write_private(&self.place(), &state.to_json(), Durability::Durable)?;
        // A key that is no longer used must not stay on the disk.
        Root::remove_from(&self.directory)
    }

    /// Writes a request for the process that signs.
    ///
    /// # Errors
    /// [`FileError`] if the request cannot be written.
    pub fn ask(&self, verb: OperatorVerb) -> Result<OperatorRequest, FileError> {
        let path = self.directory.join(REQUEST);
        let request = OperatorRequest::new(verb).ok_or_else(|| files::no_randomness(&path))?;
        let json = serde_json::to_vec(&request).expect("two texts are always JSON");
        files::write_private(&path, &json, Durability::Volatile)?;
        Ok(request)
    }

    /// The pending request, if there is one. A request that cannot be parsed is removed.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be read.
    pub fn request(&self) -> Result<Option<OperatorRequest>, FileError> {
        let Some(json) = files::read_secret(&self.directory.join(REQUEST), MAX_REQUEST)? else {
            return Ok(None);
        };
        match serde_json::from_slice(&json) {
            Ok(request) => Ok(Some(request)),
            Err(error) => {
                tracing::warn!(%error, "removed a request of the operator that cannot be parsed");
                self.obeyed()?;
                Ok(None)
            }
        }
    }

    /// Removes the request, because it was handled.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be removed.
    pub fn obeyed(&self) -> Result<(), FileError> {
        let path = self.directory.join(REQUEST);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(files::failed("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}
