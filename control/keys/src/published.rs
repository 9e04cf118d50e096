//! A key set that an issuer has published.

use std::fmt::Display;

use leno_resources::check_key_set;

/// A key set with at least one key that can verify tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedSet {
    text: String,
    /// One error for each key that is not used because its private part was published with it.
    secrets: Vec<String>,
}

impl PublishedSet {
    /// Parses a text as a key set.
    ///
    /// # Errors
    /// Why the text is not a key set.
    pub(crate) fn read(text: String) -> Result<Self, String> {
        let secrets = check_key_set(&text)?;
        Ok(Self { text, secrets })
    }

    /// The JSON of the set.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// How many keys of the set are not used because their private part was published.
    pub(crate) fn left_out(&self) -> usize {
        self.secrets.len()
    }

    /// Logs which keys are not used. `place` is where the set is published.
    pub(crate) fn report(&self, place: &dyn Display) {
        for secret in &self.secrets {
            tracing::error!(set = %place, secret, "a key of tokens is not used");
        }
    }
}
