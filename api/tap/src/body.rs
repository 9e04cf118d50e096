//! The beginning of a body, copied while a proxy passes it on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

/// Most bytes that are copied of a body.
pub const MAX_BODY_BYTES: usize = 4096;

/// What is copied of one body. It belongs to one thread.
#[derive(Debug, Default)]
pub struct BodyCopy {
    first: RefCell<Vec<u8>>,
    all: Cell<u64>,
}

/// What is copied of a request and of its response.
#[derive(Clone, Debug, Default)]
pub struct BodyCopies {
    /// Of the request.
    pub request: Rc<BodyCopy>,
    /// Of the response.
    pub response: Rc<BodyCopy>,
}

/// A body as a tap shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Body {
    /// Its first bytes. What is no UTF-8 is replaced.
    pub text: Box<str>,
    /// Bytes that have passed the proxy.
    pub bytes: u64,
    /// There were more than the text has.
    pub is_cut: bool,
}

impl BodyCopy {
    /// The message is sent for the first time, or again.
    pub fn begin(&self) {
        self.first.borrow_mut().clear();
        self.all.set(0);
    }

    /// The next bytes of content, without framing.
    pub fn add(&self, bytes: &[u8]) {
        let mut first = self.first.borrow_mut();
        let room = MAX_BODY_BYTES.saturating_sub(first.len()).min(bytes.len());
        first.extend_from_slice(bytes.get(..room).unwrap_or_default());
        self.all.set(self.all.get().saturating_add(bytes.len() as u64));
    }

    /// What a tap shows of it. `None` if there was no body.
    #[must_use]
    pub fn shown(&self) -> Option<Body> {
        let first = self.first.borrow();
        let bytes = self.all.get();
        let is_cut = bytes > first.len() as u64;
        let text = String::from_utf8_lossy(&first).into();
        (bytes > 0).then_some(Body { text, bytes, is_cut })
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
