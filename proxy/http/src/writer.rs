//! Writes heads into a pooled buffer that grows.

use crate::head::HeadError;
use crate::pool::{Buffer, Class};

/// A message's head, perhaps with its body, as bytes.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    buffer: Buffer,
    length: usize,
}

impl Rendered {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }
}

/// Writes into a buffer. When the buffer is full, it is replaced by the next larger one. The limit is the largest
/// buffer, 256 KiB, which is four times the largest head that a client or a server may send. If a head is larger than
/// this, [`finish`](Self::finish) returns an error.
#[derive(Debug)]
pub(crate) struct Writer {
    out: Rendered,
    is_too_large: bool,
}

impl Writer {
    /// Starts with a buffer that holds `bytes`, or with the largest one.
    pub(crate) fn with_room(bytes: usize) -> Self {
        Self::with_buffer(Class::holding(bytes))
    }

    fn with_buffer(class: Class) -> Self {
        Self { out: Rendered { buffer: Buffer::take(class), length: 0 }, is_too_large: false }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let free = self.out.buffer.get_mut(self.out.length..);
        match free.and_then(|free| free.get_mut(..bytes.len())) {
            Some(free) => {
                free.copy_from_slice(bytes);
                self.out.length = self.out.length.saturating_add(bytes.len());
            }
            None => self.grow_and_put(bytes),
        }
    }

    /// Writes bytes, and returns them for changes in place. The result is empty if they do not fit.
    pub(crate) fn put_part(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.put(bytes);
        let Rendered { buffer, length } = &mut self.out;
        let start = length.checked_sub(bytes.len()).filter(|_| !self.is_too_large);
        start.and_then(|start| buffer.get_mut(start..*length)).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, byte: u8) {
        self.put(&[byte]);
    }

    pub(crate) fn put_number(&mut self, mut number: u64) {
        /// The number of digits of the largest number.
        const DIGITS: usize = 20;
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b'0' | (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        self.put(digits.get(zeros..).unwrap_or_default());
    }

    /// How many bytes fit into the present buffer.
    pub(crate) fn room(&self) -> usize {
        self.out.buffer.len().saturating_sub(self.out.length)
    }

    pub(crate) fn finish(self) -> Result<Rendered, HeadError> {
        if self.is_too_large { Err(HeadError::TooLarge) } else { Ok(self.out) }
    }

    #[cold]
    fn grow_and_put(&mut self, bytes: &[u8]) {
        let class = self.out.buffer.class();
        if class.larger() == class || self.is_too_large {
            self.is_too_large = true;
            return;
        }
        let mut larger = Self::with_buffer(class.larger());
        larger.put(self.out.bytes());
        larger.put(bytes);
        *self = larger;
    }
}
