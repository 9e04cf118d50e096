//! What an instance sends from an address that is not its own is dropped at its port of the bridge.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leno_bpf::SourceCheck;

use crate::addresses::Addresses;
use crate::error::{Error, Result};
use crate::netns::Netns;

/// The checks of all ports.
#[derive(Debug)]
pub(super) struct Sources {
    /// By the name of the port. The subnet bounds their number.
    checked: Mutex<HashMap<String, SourceCheck>>,
    /// Why this kernel checks none.
    pub(super) refused: Option<String>,
}

impl Sources {
    pub(super) fn new() -> Self {
        let refused = SourceCheck::try_it().err().map(|error| {
            format!(
                "an instance can send packets from the address of another one, since the kernel refuses to check sources: {}",
                leno_program::chain(&error)
            )
        });
        Self { checked: Mutex::default(), refused }
    }

    /// Begins to check a new port, of the namespace of the bridge.
    pub(super) fn check(&self, bridge: &Netns, port: &str, of: &Addresses) -> Result<()> {
        if self.refused.is_some() {
            return Ok(());
        }
        let check = bridge.within(|| {
            SourceCheck::attach(port, of.v4, of.v6).map_err(|error| {
                let what = format!("cannot have port {port} drop what has another source");
                Error::Os { what, source: std::io::Error::other(error) }
            })
        })?;
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert(port.to_owned(), check);
        Ok(())
    }

    /// Ends the check of a port that goes.
    pub(super) fn forget(&self, port: &str) {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).remove(port);
    }
}
