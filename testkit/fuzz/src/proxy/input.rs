//! Decodes choices from bytes. Missing bytes are read as zero, so that every input is a case and a shorter input
//! is a simpler one.

/// The part of an input that is not decoded yet.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// True for one of `n` byte values, but never for zero.
    pub(crate) fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// A number below `n`; the byte zero gives zero, the simplest choice.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// One of the values; the first one is the simplest.
    pub(crate) fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// One of the values, or `None` for two thirds of the byte values and for zero.
    pub(crate) fn maybe<T: Clone>(&mut self, values: &[T]) -> Option<T> {
        let choice = self.below(3 * values.len());
        choice.checked_sub(2 * values.len()).map(|nth| values[nth].clone())
    }

    /// Up to `most` values.
    pub(crate) fn list<T>(&mut self, most: usize, mut read: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(most + 1);
        (0..count).map(|_| read(self)).collect()
    }
}
