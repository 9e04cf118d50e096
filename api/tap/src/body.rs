//! The beginning of a body, copied while a proxy passes it on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// The largest number of bytes of a body that are copied.
pub const MAX_BODY_BYTES: usize = 4096;

/// The copied part of one body. Only one thread writes at a time, but the request may continue on another thread of the
/// proxy.
#[derive(Debug, Default)]
pub struct BodyCopy(Mutex<CopiedBytes>);

/// The first bytes, and the number of all bytes.
#[derive(Debug, Default)]
struct CopiedBytes {
    first: Vec<u8>,
    all: u64,
}

/// The copies of the bodies of a request and of its response.
#[derive(Clone, Debug, Default)]
pub struct BodyCopies {
    /// The request's body.
    pub request: Arc<BodyCopy>,
    /// The response's body.
    pub response: Arc<BodyCopy>,
}

/// A body as a tap shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TappedBody {
    /// The first bytes of the body as text; invalid UTF-8 is replaced.
    pub text: Box<str>,
    /// How many bytes of the body passed the proxy.
    pub bytes: u64,
    /// Whether the text is only the beginning of the body.
    pub is_cut: bool,
}

impl BodyCopy {
    /// Forgets what was copied. Must be called whenever the sending of the message begins, also when it is sent again.
    pub fn begin(&self) {
        let mut copied = self.copied();
        copied.first.clear();
        copied.all = 0;
    }

    /// Adds the next bytes of content, without framing.
    pub fn add(&self, bytes: &[u8]) {
        let mut copied = self.copied();
        let room = MAX_BODY_BYTES.saturating_sub(copied.first.len()).min(bytes.len());
        copied.first.extend_from_slice(bytes.get(..room).unwrap_or_default());
        copied.all = copied.all.saturating_add(bytes.len() as u64);
    }

    /// The body as a tap shows it. `None` if there was no body.
    #[must_use]
    pub fn shown(&self) -> Option<TappedBody> {
        let copied = self.copied();
        let bytes = copied.all;
        let is_cut = bytes > copied.first.len() as u64;
        let text = String::from_utf8_lossy(&copied.first).into();
        (bytes > 0).then_some(TappedBody { text, bytes, is_cut })
    }

    /// Ignores poisoning: no code panics while it holds the lock.
    fn copied(&self) -> MutexGuard<'_, CopiedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_are_kept_and_all_are_counted() {
        let copy = BodyCopy::default();
        assert_eq!(copy.shown(), None);
        copy.add(b"an earlier try");
        copy.begin();
        copy.add(&[b'a'; MAX_BODY_BYTES - 1]);
        copy.add(b"bc");
        copy.add(b"d");
        let shown = copy.shown().unwrap();
        assert_eq!((shown.bytes, shown.is_cut, shown.text.len()), (4098, true, MAX_BODY_BYTES));
        assert!(shown.text.ends_with("ab"));
    }
}
